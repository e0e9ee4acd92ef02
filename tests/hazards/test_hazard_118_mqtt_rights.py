"""Hazard 118: a right to MQTT topics is a set of topics: no wildcard, client id or shared subscription widens it, and
it opens neither the topic nor the table that stores the messages."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.model.topic_name import TopicName
from icestream.mqtt import topics
from icestream.runtime.clock import SystemClock
from icestream.security import security_records as records
from icestream.security.access_control import AccessControl
from icestream.security.access_policy import AccessPolicy, decide
from icestream.security.access_session import AccessSession
from icestream.security.action import Action
from icestream.security.mqtt_rights import decide_mqtt
from icestream.security.principal import ANONYMOUS_IDENTITY, CallerIdentity, local_user
from icestream.security.resource import (
    Pattern,
    Resource,
    mqtt_filter_resource,
    mqtt_topic_resource,
    table_resource,
    topic_resource,
)
from tests.support.secured_access import SecuredAccess, policy_of

MESSAGES, ALERTS = TopicName("mqtt", "messages"), TopicName("mqtt", "alerts")
AUDIT = TopicName("system", "audit")
ROUTES = [topic_resource(MESSAGES)]
LEVELS = ("", "a", "$x")


def _levels(alphabet: tuple[str, ...], depth: int) -> list[str]:
    return ["/".join(levels) for count in range(1, depth + 1) for levels in itertools.product(alphabet, repeat=count)]


# One more level, and a name that no filter has, than the filters below: enough to tell any two of them apart.
EVERY_TOPIC = _levels((*LEVELS, "z"), 4)
EVERY_FILTER = [
    text
    for text in [*_levels((*LEVELS, "+"), 3), "#", *(f"{text}/#" for text in _levels((*LEVELS, "+"), 2))]
    if text  # an empty filter is malformed
]
MATCHED = {
    text: frozenset(topic for topic in EVERY_TOPIC if topics.matches(text, topic)) for text in EVERY_FILTER
}  # fmt: skip


def identity(**claims: str) -> CallerIdentity:
    return CallerIdentity(local_user("alice"), claims)


def may_subscribe(policy: AccessPolicy, text: str, *routes: TopicName, client_id: str = "", **claims: str) -> bool:
    resources = [topic_resource(name) for name in routes or [MESSAGES]]
    resource = mqtt_filter_resource(text)
    return decide_mqtt(identity(**claims), Action.CONSUME, resource, resources, policy, client_id).is_allowed


def may_publish(
    policy: AccessPolicy, topic: str, route: TopicName = MESSAGES, client_id: str = "", **claims: str
) -> bool:
    resource = mqtt_topic_resource(topic)
    routes = [topic_resource(route)]
    return decide_mqtt(identity(**claims), Action.PRODUCE, resource, routes, policy, client_id).is_allowed


def alice(*rules: str) -> AccessPolicy:
    return policy_of({"alice": rules})


def test_a_subscription_passes_exactly_if_the_grant_matches_every_topic_of_its_filter() -> None:
    """Every pair of filters of three levels, against the sets of topics that they match."""
    for granted in EVERY_FILTER:
        policy = alice(f"consume on mqtt:{granted}")
        for asked in EVERY_FILTER:
            assert may_subscribe(policy, asked) == (MATCHED[asked] <= MATCHED[granted]), (granted, asked)


def test_a_publish_passes_exactly_if_the_grant_matches_its_topic() -> None:
    for granted in EVERY_FILTER:
        policy = alice(f"produce on mqtt:{granted}")
        for topic in filter(None, EVERY_TOPIC):
            assert may_publish(policy, topic) == (topic in MATCHED[granted]), (granted, topic)


@given(
    st.lists(st.sampled_from(["a", "", "{claims.device}", "{claims.client_id}", "+"]), min_size=1, max_size=3),
    st.text(st.sampled_from("az+#/$\x00\x1f*%"), max_size=3),
    st.text(st.sampled_from("az+#/$\x00\x1f*%"), max_size=3),
    st.booleans(),
)
def test_a_claim_and_a_client_id_fill_one_level_or_nothing(
    levels: list[str], device: str, client_id: str, has_rest: bool
) -> None:
    granted = "/".join([*levels, *(["#"] if has_rest else [])])
    if not granted:
        return
    policy = alice(f"write,consume on mqtt:{granted}")
    filled = {"{claims.device}": device, "{claims.client_id}": client_id}
    texts = [filled.get(level, level) for level in levels]
    is_filled = all(filled[level].isalpha() for level in levels if level in filled)
    expected = "/".join([*texts, *(["#"] if has_rest else [])]) if is_filled else None
    for asked in EVERY_FILTER:
        allowed = may_subscribe(policy, asked, client_id=client_id, device=device)
        assert allowed == (expected is not None and topics.covers(expected, asked)), (granted, asked)
    for topic in ("a", "z", "a/z", "z/z/z", "$x/a"):
        allowed = may_publish(policy, topic, client_id=client_id, device=device)
        assert allowed == (expected is not None and topics.matches(expected, topic)), (granted, topic)


def test_cve_2026_49186_the_grant_is_applied_to_wildcard_subscriptions() -> None:
    """A filter that was matched as if it were a topic, or not looked at, read every tenant's messages."""
    policy = alice("read on mqtt:tenant1/+/state", "read on mqtt:tenant1/#")
    assert may_subscribe(policy, "tenant1/#")
    assert may_subscribe(policy, "tenant1/+/+")
    for text in ("#", "+/#", "+/+/state", "tenant2/#", "+", "$SYS/#", "/tenant1/#"):
        assert not may_subscribe(policy, text), text
    assert not may_subscribe(alice("read on mqtt:tenant1/+"), "tenant1/#")
    assert not may_subscribe(alice("read on mqtt:+"), "#")


@pytest.mark.parametrize("prefix", ["$share/group/", "$replay/-24h/", "$share/$share/"])
def test_a_shared_subscription_and_a_replay_need_the_right_to_their_filter(prefix: str) -> None:
    policy = alice("read on mqtt:tenant1/#")
    assert may_subscribe(policy, f"{prefix}tenant1/+")
    assert not may_subscribe(policy, f"{prefix}tenant2/+")
    assert not may_subscribe(policy, f"{prefix}#")


def test_a_malformed_share_is_refused_and_decides_nothing() -> None:
    """moquette: a malformed `$share` filter ended the loop that served it."""
    session = AccessControl(SystemClock()).new_session(ANONYMOUS_IDENTITY, "", "mqtt")
    for text in ("$share/", "$share/group", "$share//a", "$share/+/a", "$share/group/", "a/#/b", "a+", ""):
        with pytest.raises(errors.PacketRefused):
            session.require_mqtt_subscribe(text, [MESSAGES])


@pytest.mark.parametrize("value", ["+", "#", "a/b", "x/#", "$SYS", "/", "", "a\x00", "a\n", "*", "..", "\ud800"])
def test_moquette_a_client_id_with_a_wildcard_fills_no_pattern(value: str) -> None:
    policy = alice(
        "write,read on mqtt:devices/{claims.client_id}/#",
        "write,read on mqtt:{claims.client_id}/x",
        "read on mqtt:own/#",
    )
    for text in ("devices/+/#", "devices/#", "#", "devices/a/b/#", "$SYS/x", "+/x", f"devices/{value}/#"):
        with contextlib.suppress(errors.PacketRefused):  # a filter that no subscription can have
            assert not may_subscribe(policy, text, client_id=value), text
    assert not may_publish(policy, "devices/a/b", client_id=value)
    assert not may_publish(policy, "$SYS/x", client_id=value)
    assert may_subscribe(policy, "own/+", client_id=value)  # other rules are untouched


def test_a_client_id_fills_patterns_of_mqtt_only_and_no_claim_of_a_credential() -> None:
    """A client chooses its id: it must not stand for `client_id` of a token, nor open a topic."""
    policy = alice("write on mqtt:devices/{claims.client_id}/#", "write on /{claims.client_id}/messages")
    assert may_publish(policy, "devices/d1/t", client_id="d1")
    assert not may_publish(policy, "devices/d2/t", client_id="d1")
    assert not may_publish(policy, "other", client_id="mqtt")  # the topic is /mqtt/messages
    token = identity(client_id="d1")
    for topic, expected in (("devices/d1/t", True), ("devices/d2/t", False)):
        decision = decide_mqtt(token, Action.PRODUCE, mqtt_topic_resource(topic), ROUTES, policy, "d2")
        assert decision.is_allowed is expected


def test_topics_with_a_dollar_are_matched_by_their_own_level_only() -> None:
    policy = alice("all on mqtt:#", "all on mqtt:+/uptime", "all on mqtt:{claims.device}/#")
    assert not may_subscribe(policy, "$SYS/uptime", device="$SYS")
    assert not may_publish(policy, "$SYS/uptime", device="$SYS")
    assert not may_subscribe(policy, "$SYS/#")
    assert may_subscribe(alice("read on mqtt:$SYS/#"), "$SYS/uptime")


def test_a_right_to_the_topic_of_the_route_is_a_right_to_its_messages() -> None:
    policy = alice("produce,consume on /mqtt/messages")
    assert may_publish(policy, "any/topic")
    assert not may_publish(policy, "any/topic", ALERTS)
    assert may_subscribe(policy, "#")
    assert not may_subscribe(policy, "#", MESSAGES, ALERTS)  # one of the topics that it reaches is not allowed
    assert may_subscribe(alice("consume on /mqtt/*"), "#", MESSAGES, ALERTS)
    # Without a route nothing is stored, and nothing is a reason to allow it.
    assert not decide_mqtt(identity(), Action.CONSUME, mqtt_filter_resource("#"), [], policy).is_allowed


def test_a_right_to_mqtt_topics_gives_neither_topic_nor_table_nor_backup() -> None:
    policy = alice("all on mqtt:#", "read on mqtt:mqtt/messages")
    stored: list[Resource] = [topic_resource(MESSAGES), table_resource(("mqtt", "messages")), Resource.parse("cluster")]
    for action, resource in itertools.product(Action, stored):
        assert not decide(identity(), action, resource, policy).is_allowed, (action, resource)
    allowed = {action for action in Action if decide(identity(), action, mqtt_topic_resource("a"), policy).is_allowed}
    assert allowed == {Action.PRODUCE, Action.CONSUME, Action.DESCRIBE}


def test_a_route_to_a_topic_of_the_broker_is_opened_by_no_mqtt_right() -> None:
    policy = alice("all on mqtt:#", "all on /system/*")
    assert not may_publish(policy, "a", AUDIT)
    assert may_subscribe(policy, "a", AUDIT)  # by the right to the audit itself
    assert not may_subscribe(alice("all on mqtt:#"), "a", MESSAGES, AUDIT)
    assert not may_publish(policy_of({"alice": ["admin on cluster"]}), "a", AUDIT)


def test_an_mqtt_topic_below_system_is_a_topic_like_any_other() -> None:
    assert may_publish(alice("write on mqtt:#"), "system/audit")


@pytest.mark.parametrize(
    "text",
    [
        "mqtt:", "mqtt:a/#/b", "mqtt:a+", "mqtt:a#", "mqtt:*", "mqtt:sensors/*", "mqtt:{claims.device",
        "mqtt:x{claims.d}", "mqtt:{claims.d}-x", "mqtt:a\x00", "mqtt:a\n", "mqtt:$share/g/a", "mqtt:$replay/-1h/a",
        "mqtt:{}",
        "mqtt:" + "a" * (limits.MQTT_PATTERN_BYTES_MAX + 1), "mqtt:" + "/" * limits.MQTT_TOPIC_LEVELS_MAX,
    ],
)  # fmt: skip
def test_malformed_patterns_are_refused(text: str) -> None:
    with pytest.raises(errors.InvalidInput):
        Pattern.parse(text)


@pytest.mark.parametrize(
    "text", ["mqtt:#", "mqtt:/", "mqtt:a//b", "mqtt:/a/+", "mqtt:$SYS/#", "mqtt:{claims.device}/+", "mqtt:100%/a b"]
)
def test_patterns_and_resources_are_read_back_from_their_text(text: str) -> None:
    assert str(Pattern.parse(text)) == text
    if "{" not in text:
        assert str(Resource.parse(text)) == text
        assert Resource.parse(str(Resource.parse(text))) == Resource.parse(text)


def test_a_rule_that_could_give_nothing_is_refused() -> None:
    with pytest.raises(errors.InvalidInput, match="table-read,backup is not possible on an MQTT topic"):
        records.RuleRecord(["table-read", "backup"], "mqtt:a/#").parse()
    assert records.RuleRecord(["read"], "mqtt:a/#").parse().actions >= {Action.CONSUME}


# --- sessions ---------------------------------------------------------------------------------------------------------


async def session_of(access: AccessControl, name: str = "alice") -> AccessSession:
    return access.new_session(CallerIdentity(local_user(name)), "1.2.3.4:5", "mqtt")


@pytest.mark.asyncio
async def test_subscribers_and_publishers_lose_their_right_with_the_policy() -> None:
    access = SecuredAccess({"alice": ["write,consume on mqtt:a/#"], "bob": ["consume on /mqtt/*"]})
    session, bob = await session_of(access), await session_of(access, "bob")
    ended: list[tuple[str, errors.IcestreamError]] = []
    session.hold_mqtt_subscribe("$share/g/a/+", [MESSAGES, ALERTS], lambda error: ended.append(("subscriber", error)))
    session.hold_mqtt_publish("a/b", MESSAGES, lambda error: ended.append(("publisher", error)))
    bob.hold_mqtt_subscribe("#", [MESSAGES, ALERTS], lambda error: ended.append(("bob", error)))
    session.require_mqtt_publish("a/b", MESSAGES)
    await access.change({"alice": ["write on mqtt:a/#"], "bob": ["consume on /mqtt/*"]})
    assert [name for name, _ in ended] == ["subscriber"]
    assert isinstance(ended[0][1], errors.PermissionDenied)
    assert "user:local:alice may not consume on mqtt:a/+" in str(ended[0][1])
    session.require_mqtt_publish("a/b", MESSAGES)
    await access.change({"alice": ["write on mqtt:c"], "bob": ["consume on /mqtt/messages"]})
    assert sorted(name for name, _ in ended) == ["bob", "publisher", "subscriber"]
    with pytest.raises(errors.PermissionDenied, match="allows produce on mqtt:a/b, or on topic:/mqtt/messages"):
        session.require_mqtt_publish("a/b", MESSAGES)
    assert (session.holds, bob.holds) == (0, 0)


@pytest.mark.asyncio
async def test_rights_end_with_the_session_and_with_the_holds() -> None:
    access = SecuredAccess({"alice": ["write on mqtt:a/#"]})
    session = await session_of(access)
    session.require_mqtt_publish("a/b", MESSAGES)
    access.pause(errors.NotReady("no leader"))
    session.require_mqtt_publish("a/b", MESSAGES)  # as an open producer: until the holds are closed
    with pytest.raises(errors.NotReady):
        session.require_mqtt_publish("a/c", MESSAGES)
    with pytest.raises(errors.NotReady):
        session.hold_mqtt_subscribe("a/c", [MESSAGES], lambda error: None)
    await access.close_holds(errors.NotReady("no leader"))
    with pytest.raises(errors.NotReady):
        session.require_mqtt_publish("a/b", MESSAGES)
    access.resume()
    session.require_mqtt_publish("a/b", MESSAGES)
    access.revoke("alice")
    with pytest.raises(errors.Unauthenticated):
        session.require_mqtt_publish("a/b", MESSAGES)


@pytest.mark.asyncio
async def test_a_known_topic_is_not_decided_for_each_message_and_the_memory_is_bounded() -> None:
    allowed: list[str] = []
    access = SecuredAccess({"alice": ["write on mqtt:#"]})
    access._on_allowed = lambda session, action, resource, decision: allowed.append(str(resource))
    session = await session_of(access)
    for _ in range(3):
        session.require_mqtt_publish("a", MESSAGES)
    assert allowed == ["mqtt:a"]
    session.require_mqtt_publish("a", ALERTS)  # another route is another decision
    assert len(allowed) == 2
    for number in range(3 * limits.MQTT_DECISIONS_MAX):
        session.require_mqtt_publish(f"t/{number}", MESSAGES)
    session.require_mqtt_publish("x" * (limits.MQTT_DECISION_TOPIC_MAX + 1), MESSAGES)
    assert len(session._publishable) <= limits.MQTT_DECISIONS_MAX


@pytest.mark.asyncio
async def test_the_client_id_of_a_session_is_a_claim_of_its_mqtt_rules() -> None:
    access = SecuredAccess({"alice": ["write,consume on mqtt:devices/{claims.client_id}/#"]})
    session = await session_of(access)
    with pytest.raises(errors.PermissionDenied):
        session.require_mqtt_publish("devices/d1/t", MESSAGES)
    session.set_mqtt_client("d1")
    session.require_mqtt_publish("devices/d1/t", MESSAGES)
    session.require_mqtt_subscribe("devices/d1/+", [MESSAGES])
    session.set_mqtt_client("#")
    for topic in ("devices/d1/t", "devices/d2/t"):
        with pytest.raises(errors.PermissionDenied):
            session.require_mqtt_publish(topic, MESSAGES)


@pytest.mark.asyncio
async def test_a_denial_is_recorded_and_shown_without_control_characters() -> None:
    denied: list[Resource] = []
    access = SecuredAccess({})
    access._on_denied = lambda session, action, resource, decision: denied.append(resource)
    session, stranger = await session_of(access), access.new_session(ANONYMOUS_IDENTITY, "", "mqtt")
    with pytest.raises(errors.PermissionDenied) as refusal:
        session.require_mqtt_publish("a\x1b[31m" + "b" * 60_000, MESSAGES)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 4 * limits.AUDIT_TEXT_BYTES_MAX
    with pytest.raises(errors.Unauthenticated, match="consume on mqtt:a/# needs a credential"):
        stranger.require_mqtt_subscribe("a/#", [MESSAGES])
    assert [resource.segments[0][0] for resource in denied] == ["a", "a"]
    with pytest.raises(errors.PacketRefused):
        session.require_mqtt_publish("a/+", MESSAGES)


def test_while_security_is_off_everything_is_allowed() -> None:
    session = AccessControl(SystemClock()).new_session(ANONYMOUS_IDENTITY, "", "mqtt")
    session.require_mqtt_publish("any", AUDIT)
    session.require_mqtt_subscribe("#", [])
    session.hold_mqtt_subscribe("#", [MESSAGES], lambda error: None)
    list(session.decide_again())
    assert session.holds == 1
