"""What operators see of MQTT, and do: sessions with their lag, subscriptions, topics, retained messages, routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.admin_api import mqtt_api as api
from icestream.admin_api.admin_call import PageRequest
from icestream.broker.guarded_broker import GuardedBroker
from icestream.broker.guarded_mqtt import GuardedMqtt
from icestream.broker.mqtt.mqtt_options import MqttOptions, ReplayRoute
from icestream.broker.mqtt.mqtt_views import page_of_rows
from icestream.broker.service import Broker
from icestream.frontends.http.gauges import mqtt_families, render_exposition
from icestream.model.topic_name import TopicName
from icestream.mqtt import packets
from icestream.mqtt.properties import NO_PROPERTIES
from icestream.mqtt.reason_codes import ReasonCode
from icestream.observability import metrics
from icestream.security.access_session import open_session
from icestream.security.credential import BearerCredential
from tests.support.broker_machine import quiet
from tests.support.mqtt_world import V3, V5, MqttMachine, WorldClient, connected
from tests.support.secured_access import SecuredAccess

pytestmark = pytest.mark.asyncio
MESSAGES = "/mqtt/messages"


@pytest.fixture
def machine() -> MqttMachine:
    return MqttMachine()


@pytest_asyncio.fixture
async def broker(machine: MqttMachine) -> AsyncIterator[Broker]:
    broker = await machine.open_broker()
    yield broker
    await broker.shutdown()


def views(broker: Broker) -> GuardedMqtt:
    return GuardedBroker(broker, open_session()).mqtt


async def durable(broker: Broker, client_id: str = "s", **options: Any) -> WorldClient:
    return await connected(broker, client_id, clean=False, expiry_s=options.pop("expiry_s", 60), **options)


async def away(broker: Broker, client_id: str = "s", topic_filter: str = "#") -> None:
    """A durable session whose client has subscribed and is gone."""
    client = await durable(broker, client_id)
    await client.subscribe(topic_filter, qos=1)
    client.lose()


async def summary(broker: Broker, client_id: str = "s") -> api.MqttSessionSummary:
    page = await views(broker).sessions(api.PageMqttSessions(client_id=client_id))
    (row,) = page.items
    return row


async def session_ids(broker: Broker, **arguments: Any) -> list[str]:
    page = await views(broker).sessions(api.PageMqttSessions(**arguments))
    return [row.client_id for row in page.items]


# --- sessions ---


async def test_r37_lag_is_messages_bytes_and_age_of_what_a_session_has_not_looked_at(
    machine: MqttMachine, broker: Broker
) -> None:
    await away(broker)
    publisher = await connected(broker, "p")
    row = await summary(broker)
    assert (row.lag_messages, row.lag_bytes, row.lag_age_ms, row.wait_reason) == (0, 0, None, "")
    await publisher.publish("a", b"x" * 1_000)
    await machine.pass_time(30)
    for _ in range(9):
        await publisher.publish("a", b"x" * 1_000)
    await quiet()
    row = await summary(broker)
    assert row.lag_messages == 10
    assert 10_000 < row.lag_bytes < 20_000
    assert row.lag_age_ms is not None
    assert 30_000 <= row.lag_age_ms < 32_000
    assert row.wait_reason == "the client is not connected"
    details = await views(broker).session("s")
    (position,) = [position for position in details.positions if position.lag_messages]
    assert (position.topic, position.next - position.position, position.lag_messages) == (MESSAGES, 10, 10)
    again = await durable(broker)
    for _ in range(10):
        await again.message()
    await quiet()
    row = await summary(broker)
    assert (row.lag_messages, row.lag_bytes, row.lag_age_ms) == (0, 0, None)


async def test_r37_lag_is_known_after_a_restart(machine: MqttMachine) -> None:
    broker = await machine.open_broker()
    await away(broker)
    publisher = await connected(broker, "p")
    for _ in range(5):
        await publisher.publish("a", b"x" * 1_000)
    await machine.pass_time(30)
    await machine.kill()
    broker = await machine.open_broker()
    row = await summary(broker)
    assert (row.lag_messages, row.is_connected, row.is_durable) == (5, False, True)
    assert 5_000 < row.lag_bytes < 10_000
    assert row.lag_age_ms is not None
    assert row.lag_age_ms >= 30_000
    await broker.shutdown()


async def test_a_session_shows_its_client_and_what_it_waits_for(machine: MqttMachine, broker: Broker) -> None:
    client = await connected(broker, "s", V3, clean=False)
    await client.subscribe("a/#", "b/+", qos=1)
    row = await summary(broker)
    assert (row.is_connected, row.address, row.protocol, row.subscriptions) == (True, "memory:0", "3.1.1", 2)
    assert (row.expiry_left_ms, row.members) == (None, None)
    client.lose()
    await machine.pass_time(10)
    row = await summary(broker)
    assert (row.is_connected, row.address, row.protocol) == (False, None, None)
    assert row.expiry_left_ms == 1_000 * limits.MQTT_SESSION_EXPIRY_S_DEFAULT - 10_000


async def test_a_session_states_why_its_backlog_is_not_delivered(broker: Broker) -> None:
    client = await durable(broker, receive_maximum=2)
    await client.subscribe("a", qos=1)
    publisher = await connected(broker, "p")
    for _ in range(4):
        await publisher.publish("a", b"x")
    await quiet()
    row = await summary(broker)
    assert (row.in_flight, row.lag_messages) == (2, 2)
    assert row.wait_reason == "the client has not acknowledged 2 messages, as many as may be in flight"
    client.can_send = False
    assert (await summary(broker)).wait_reason == "the socket of the client takes no more bytes now"


async def test_sessions_are_filtered_by_pattern_connection_and_lag(broker: Broker) -> None:
    for number in range(3):
        await away(broker, f"sensor-{number}", f"t/{number}")
    publisher = await connected(broker, "p")
    assert await session_ids(broker, client_id="sensor-*") == ["sensor-0", "sensor-1", "sensor-2"]
    assert await session_ids(broker, client_id="sensor-?", is_connected=True) == []
    assert await session_ids(broker, is_connected=True) == ["p"]
    assert await session_ids(broker, is_lagging=True) == []
    await publisher.publish("t/2", b"x")
    await publisher.publish("t/0", b"x")
    for _ in range(9):
        await publisher.publish("t/0", b"x")
    await quiet()
    lagging = (await views(broker).sessions(api.PageMqttSessions(is_lagging=True))).items
    assert {row.client_id for row in lagging} == {"sensor-0", "sensor-2"}
    assert [row.lag_messages for row in lagging] == sorted((row.lag_messages for row in lagging), reverse=True)


@pytest.mark.parametrize("is_lagging", [False, True])
async def test_pages_have_every_session_once(broker: Broker, is_lagging: bool) -> None:
    for number in range(7):
        await away(broker, f"s{number}", "a")
    publisher = await connected(broker, "p")
    await publisher.publish("a", b"x")
    await quiet()
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = await views(broker).sessions(
            api.PageMqttSessions(client_id="s*", is_lagging=is_lagging, after=after, limit=3)
        )
        assert len(page.items) <= 3
        seen += [row.client_id for row in page.items]
        after = page.next
    assert seen == [f"s{number}" for number in range(7)]


async def test_a_page_of_long_client_ids_is_cut_and_names_the_next(broker: Broker) -> None:
    ids = [letter * 60_000 for letter in "abcdefghijklmnopqrstuvwxyz"]
    for client_id in ids:
        await connected(broker, client_id)
    page = await views(broker).sessions(api.PageMqttSessions())
    assert 1 < len(page.items) < len(ids)
    assert page.next is not None
    assert len(page.next) < 30
    rest = await views(broker).sessions(api.PageMqttSessions(after=page.next))
    assert [row.client_id for row in (*page.items, *rest.items)] == ids


async def test_a_long_listing_gives_others_their_turn() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def describe(number: int) -> api.ClearedMqttRetained:
        return api.ClearedMqttRetained(cleared=number)

    counting = asyncio.get_running_loop().create_task(count_turns())
    items = (((number,), number) for number in range(10 * limits.API_SLICE_ROWS))
    page = await page_of_rows(items, PageRequest(), lambda number: number % 1_000 == 7, describe)
    counting.cancel()
    assert ([row.cleared for row in page.items], page.next) == ([7, 1_007, 2_007], None)
    assert turns >= 10


async def test_a_cursor_of_another_listing_is_refused(broker: Broker) -> None:
    with pytest.raises(errors.InvalidInput, match="no cursor"):
        await views(broker).sessions(api.PageMqttSessions(after="sensor-1"))


async def test_a_session_is_shown_with_all_that_it_has(broker: Broker) -> None:
    will = packets.Will("gone", b"bye", 1, False, NO_PROPERTIES)
    client = await durable(broker, will=will)
    await client.subscribe("a/#", qos=2, is_no_local=True)
    await client.subscribe("$share/g/b", qos=1)
    publisher = await connected(broker, "p")
    await publisher.publish("a/1", b"x", qos=2)
    delivery = await client.message(ack=False)
    details = await views(broker).session("s")
    assert [(row.filter, row.qos, row.is_no_local) for row in details.subscription_list] == [
        ("a/#", 2, True),
        ("$share/g/b", 1, False),
    ]
    (entry,) = details.in_flight_list
    assert (entry.packet_id, entry.qos, entry.state, entry.topic, entry.filter) == (
        delivery.packet_id, 2, "sent", MESSAGES, "a/#",
    )  # fmt: skip
    client.send(packets.PubrecPacket(delivery.packet_id))
    await client.receive(packets.PubrelPacket)
    assert (await views(broker).session("s")).in_flight_list[0].state == "released"
    assert details.will == api.MqttWill(topic="gone", bytes=3, qos=1, is_retained=False, delay_s=0)
    assert details.shared_groups == [api.MqttSharedGroup(group="$share/g/b", members=1, lag_messages=0)]
    assert [position.shard for position in details.positions] == [0, 1]
    group = await views(broker).session("$share/g/b")
    assert (group.members, group.member_ids, group.is_connected, group.is_durable) == (1, ["s"], True, True)


async def test_a_shared_subscription_without_members_that_are_there_lags_as_a_session(broker: Broker) -> None:
    client = await durable(broker)
    await client.subscribe("$share/g/a", qos=1)
    client.lose()
    publisher = await connected(broker, "p")
    await publisher.publish("a", b"x")
    await quiet()
    (row,) = (await views(broker).sessions(api.PageMqttSessions(is_lagging=True))).items
    assert (row.client_id, row.lag_messages, row.members) == ("$share/g/a", 1, 1)
    assert row.wait_reason == "no member is connected"


async def test_r37_a_replay_lags_until_it_has_caught_up(broker: Broker) -> None:
    publisher = await connected(broker, "p")
    for number in range(5):
        await publisher.publish("a", b"%d" % number)
    client = await connected(broker, "s", receive_maximum=1)
    await client.subscribe("$replay/earliest/a", qos=1)
    await client.message(ack=False)
    await quiet()
    assert (await summary(broker)).lag_messages == 4
    details = await views(broker).session("s")
    assert [(row.replay > 0, row.lag_messages) for row in details.positions if row.lag_messages] == [(True, 4)]


async def test_an_unknown_client_has_no_session(broker: Broker) -> None:
    with pytest.raises(errors.UnknownSession, match="no MQTT session of client id 'none'"):
        await views(broker).session("none")
    await connected(broker, "p")
    with pytest.raises(errors.UnknownSession):
        await views(broker).session("none")


# --- kick ---


async def test_a_kicked_client_gets_the_reason_and_its_session_stays(broker: Broker) -> None:
    client = await durable(broker)
    await client.subscribe("a", qos=1)
    assert await views(broker).kick("s", delete_session=False)
    assert (await client.receive(packets.DisconnectPacket)).reason_code == ReasonCode.ADMINISTRATIVE_ACTION
    row = await summary(broker)
    assert (row.is_connected, row.subscriptions) == (False, 1)
    assert not await views(broker).kick("s", delete_session=False)
    assert (await durable(broker)).session.is_present  # type: ignore[union-attr]


@pytest.mark.parametrize("is_connected", [True, False])
async def test_a_deleted_session_is_gone_also_after_a_crash(machine: MqttMachine, is_connected: bool) -> None:
    broker = await machine.open_broker()
    client = await durable(broker)
    await client.subscribe("a", qos=1)
    if not is_connected:
        client.lose()
    assert await views(broker).kick("s", delete_session=True) == is_connected
    assert await session_ids(broker) == []
    await machine.kill()
    broker = await machine.open_broker()
    assert await session_ids(broker) == []
    assert not (await durable(broker)).session.is_present  # type: ignore[union-attr]
    await broker.shutdown()


async def test_the_will_of_a_kicked_client_is_published(broker: Broker) -> None:
    watcher = await connected(broker, "w")
    await watcher.subscribe("gone")
    await connected(broker, "s", will=packets.Will("gone", b"bye", 1, False, NO_PROPERTIES))
    await views(broker).kick("s", delete_session=False)
    assert (await watcher.message()).payload == b"bye"


async def test_a_shared_subscription_cannot_be_kicked(broker: Broker) -> None:
    client = await durable(broker)
    await client.subscribe("$share/g/a", qos=1)
    with pytest.raises(errors.InvalidInput, match="shared subscription"):
        await views(broker).kick("$share/g/a", delete_session=True)
    with pytest.raises(errors.UnknownSession):
        await views(broker).kick("none", delete_session=False)


# --- subscriptions ---


async def test_subscriptions_are_listed_by_client_and_by_the_topic_that_they_match(broker: Broker) -> None:
    first, second = await durable(broker, "one"), await connected(broker, "two")
    await first.subscribe("a/+/c", "x/#", qos=1)
    await second.subscribe("$share/g/a/#", qos=2)

    async def filters(**arguments: Any) -> list[tuple[str, str]]:
        page = await views(broker).subscriptions(api.PageMqttSubscriptions(**arguments))
        return [(row.client_id, row.filter) for row in page.items]

    assert await filters() == [("one", "a/+/c"), ("one", "x/#"), ("two", "$share/g/a/#")]
    assert await filters(topic="a/b/c") == [("one", "a/+/c"), ("two", "$share/g/a/#")]
    assert await filters(client_id="t*") == [("two", "$share/g/a/#")]
    with pytest.raises(errors.InvalidInput, match="wildcard"):
        await filters(topic="a/#")


# --- topics and retained messages ---


async def test_topics_are_found_by_word_and_filter_with_their_last_value(broker: Broker) -> None:
    publisher = await connected(broker, "p")
    for number in range(3):
        await publisher.publish("plant/1/Temperature", b"%d" % number)
    await publisher.publish("plant/2/temperature", b"cold")
    await publisher.publish("plant/2/humidity", b"\xff\x00", is_retained=True)
    await quiet()

    async def rows(**arguments: Any) -> dict[str, api.MqttTopicSummary]:
        page = await views(broker).topics(api.PageMqttTopics(**arguments))
        return {row.topic: row for row in page.items}

    assert set(await rows(contains="TEMP")) == {"plant/1/Temperature", "plant/2/temperature"}
    assert set(await rows(contains="temp", filter="plant/2/#")) == {"plant/2/temperature"}
    every = await rows(has_payload=True)
    assert {topic: (row.messages, row.payload, row.is_retained) for topic, row in every.items()} == {
        "plant/1/Temperature": (3, "2", False),
        "plant/2/temperature": (1, "cold", False),
        "plant/2/humidity": (1, "\ufffd\x00", True),
    }
    assert {row.stored_in for row in every.values()} == {MESSAGES}
    assert all(row.payload is None for row in (await rows()).values())
    with pytest.raises(errors.InvalidInput, match="wildcard"):
        await rows(filter="a/b#")


async def test_topics_that_are_not_stored_are_seen_without_a_value() -> None:
    machine = MqttMachine(mqtt=MqttOptions(shards=2, replay=(ReplayRoute("kept/#", 0, MESSAGES),)))
    broker = await machine.open_broker()
    publisher = await connected(broker, "p")
    await publisher.publish("live", b"x")
    (row,) = (await views(broker).topics(api.PageMqttTopics(has_payload=True))).items
    assert (row.topic, row.messages, row.offset, row.payload) == ("live", 1, None, None)
    await broker.shutdown()


async def test_after_a_restart_the_topics_of_retained_messages_are_known(machine: MqttMachine) -> None:
    broker = await machine.open_broker()
    publisher = await connected(broker, "p")
    await publisher.publish("kept", b"last", is_retained=True)
    await publisher.publish("plain", b"x")
    await broker.shutdown()
    broker = await machine.open_broker()
    await connected(broker, "p")
    (row,) = (await views(broker).topics(api.PageMqttTopics(has_payload=True))).items
    assert (row.topic, row.messages, row.payload, row.is_retained) == ("kept", 0, "last", True)
    await broker.shutdown()


async def test_retained_messages_are_listed_and_cleared(machine: MqttMachine) -> None:
    broker = await machine.open_broker()
    publisher = await connected(broker, "p")
    for topic in ("a/1", "a/2", "b/1"):
        await publisher.publish(topic, topic.encode() * 2, is_retained=True)
    await quiet()

    async def retained(**arguments: Any) -> dict[str, api.MqttRetainedMessage]:
        page = await views(broker).retained(api.PageMqttRetained(**arguments))
        return {row.topic: row for row in page.items}

    every = await retained(has_payload=True)
    assert {topic: (row.bytes, row.qos, row.publisher, row.payload) for topic, row in every.items()} == {
        topic: (6, 1, "p", topic * 2) for topic in ("a/1", "a/2", "b/1")
    }
    assert set(await retained(filter="a/#")) == {"a/1", "a/2"}
    watcher = await connected(broker, "w")
    await watcher.subscribe("b/#")
    assert (await watcher.message()).payload == b"b/1b/1"
    assert await views(broker).clear_retained("a/+") == 2
    assert set(await retained()) == {"b/1"}
    assert await views(broker).clear_retained("#") == 1
    assert ((await watcher.message()).payload, await retained()) == (b"", {})
    await machine.kill()
    broker = await machine.open_broker()
    await connected(broker, "p")
    assert await retained() == {}
    await broker.shutdown()


# --- routes ---


async def test_routes_have_their_topic_table_and_offsets() -> None:
    routes = (ReplayRoute("a/#", 1, "/plant/a"), ReplayRoute("#", 0, MESSAGES))
    machine = MqttMachine(mqtt=MqttOptions(shards=2, replay=routes))
    broker = await machine.open_broker()

    async def rows() -> list[api.MqttRoute]:
        return (await views(broker).routes(PageRequest())).items

    assert [(row.filter, row.topic, row.shards) for row in await rows()] == [
        ("a/#", "/plant/a", []),
        ("#", MESSAGES, []),
    ]
    publisher = await connected(broker, "p", V5)
    for number in range(10):
        await publisher.publish(f"x/{number}", b"x")
    first, second = await rows()
    assert (first.min_qos, len(first.shards), sum(shard.next for shard in first.shards), first.table) == (1, 2, 0, None)
    assert (second.min_qos, sum(shard.next for shard in second.shards)) == (0, 10)
    assert broker.topic(TopicName("plant", "a")).record.shards == 2
    await broker.shutdown()


async def test_a_node_without_mqtt_has_empty_listings() -> None:
    machine = MqttMachine(mqtt=MqttOptions(is_enabled=False))
    broker = await machine.open_broker()
    guarded = views(broker)
    listings = [
        await guarded.sessions(api.PageMqttSessions()),
        await guarded.subscriptions(api.PageMqttSubscriptions()),
        await guarded.topics(api.PageMqttTopics()),
        await guarded.retained(api.PageMqttRetained()),
        await guarded.routes(PageRequest()),
    ]
    assert [(listing.items, listing.next) for listing in listings] == [([], None)] * 5
    await broker.shutdown()


# --- rights ---


async def as_alice(broker: Broker, *rules: str) -> GuardedMqtt:
    session = await SecuredAccess({"alice": rules}).authenticate(BearerCredential("token-of-alice"), "", "local")
    return GuardedBroker(broker, session).mqtt


async def test_sessions_need_the_right_to_describe_the_cluster(broker: Broker) -> None:
    await durable(broker)
    nobody, reader = await as_alice(broker, "all on /mqtt/*"), await as_alice(broker, "describe on cluster")
    for use_case in (nobody.sessions(api.PageMqttSessions()), nobody.session("s"), nobody.session("none"),
                     nobody.subscriptions(api.PageMqttSubscriptions())):  # fmt: skip
        with pytest.raises(errors.PermissionDenied, match="may not describe on cluster"):
            await use_case
    assert [row.client_id for row in (await reader.sessions(api.PageMqttSessions())).items] == ["s"]


async def test_a_session_of_an_account_names_its_principal(broker: Broker) -> None:
    await durable(broker, "open")
    await durable(broker, "hers", access=SecuredAccess({"alice": ["consume on /mqtt/messages"]}), user="alice")
    assert (await summary(broker, "open")).principal is None
    assert (await summary(broker, "hers")).principal == "user:local:alice"


async def test_a_kick_needs_alter_and_a_deletion_delete_on_the_cluster(broker: Broker) -> None:
    await durable(broker)
    with pytest.raises(errors.PermissionDenied, match="may not alter on cluster"):
        await (await as_alice(broker, "describe on cluster")).kick("s", delete_session=False)
    operator = await as_alice(broker, "alter on cluster")
    with pytest.raises(errors.PermissionDenied, match="may not delete on cluster"):
        await operator.kick("s", delete_session=True)
    assert await operator.kick("s", delete_session=False)
    assert not await (await as_alice(broker, "alter,delete on cluster")).kick("s", delete_session=True)


@pytest.mark.parametrize(
    ("rule", "topics", "payloads"),
    [
        ("describe on /mqtt/messages", {"a/1", "b/1"}, {None}),
        ("consume on /mqtt/messages", {"a/1", "b/1"}, {"x"}),
        ("describe on mqtt:a/#", {"a/1"}, {None}),
        ("consume on mqtt:a/+", {"a/1"}, {"x"}),
        ("consume on mqtt:+", set(), set()),
        ("all on /other/*", set(), set()),
    ],
)
async def test_topics_and_retained_messages_are_those_that_may_be_described(
    broker: Broker, rule: str, topics: set[str], payloads: set[str | None]
) -> None:
    publisher = await connected(broker, "p")
    for topic in ("a/1", "b/1"):
        await publisher.publish(topic, b"x", is_retained=True)
    await quiet()
    guarded = await as_alice(broker, rule)
    seen = (await guarded.topics(api.PageMqttTopics(has_payload=True))).items
    retained = (await guarded.retained(api.PageMqttRetained(has_payload=True))).items
    assert {row.topic for row in seen} == {row.topic for row in retained} == topics
    assert {row.payload for row in seen} == {row.payload for row in retained} == payloads


async def test_a_retained_message_is_cleared_by_the_right_to_publish(broker: Broker) -> None:
    publisher = await connected(broker, "p")
    for topic in ("a/1", "b/1"):
        await publisher.publish(topic, b"x", is_retained=True)
    await quiet()
    guarded = await as_alice(broker, "produce on mqtt:a/#", "describe on /mqtt/messages")
    with pytest.raises(errors.PermissionDenied, match="may not produce on mqtt:b/1"):
        await guarded.clear_retained("#")
    assert len(broker.mqtt.retained) == 2
    assert await guarded.clear_retained("a/#") == 1
    assert broker.mqtt.retained.topics() == ["b/1"]
    # What may not be described is not there, whatever may be published.
    assert await (await as_alice(broker, "describe on /other/*")).clear_retained("#") == 0


async def test_routes_are_those_whose_topic_may_be_described(broker: Broker) -> None:
    assert (await (await as_alice(broker, "all on /other/*")).routes(PageRequest())).items == []
    assert len((await (await as_alice(broker, "describe on /mqtt/messages")).routes(PageRequest())).items) == 1


# --- the bound of lag ---


def bounded(lag_bytes_max: int = 10_000) -> MqttMachine:
    return MqttMachine(mqtt=MqttOptions(shards=2, session_lag_bytes_max=lag_bytes_max))


async def test_r15_a_session_that_lags_too_much_ends_and_the_loss_is_counted() -> None:
    machine = bounded()
    broker = await machine.open_broker()
    await away(broker, "slow", "a")
    await away(broker, "narrow", "b")
    publisher = await connected(broker, "p")
    lost, lagged = metrics.MQTT_LOST._value.get(), metrics.MQTT_LAGGED._value.get()
    await publisher.publish("b", b"one")
    for _ in range(9):
        await publisher.publish("a", b"x" * 1_000)
    await machine.pass_time(limits.MQTT_BEAT_SECONDS + 1)
    row = await summary(broker, "slow")
    assert row.owed_bytes == 9 * 1_001
    for _ in range(2):
        await publisher.publish("a", b"x" * 1_000)
    await machine.pass_time(limits.MQTT_BEAT_SECONDS + 1)
    # What does not match a session is no lag of it, however much was stored since.
    assert await session_ids(broker) == ["narrow", "p"]
    assert (await summary(broker, "narrow")).owed_bytes == 4
    assert metrics.MQTT_LOST._value.get() - lost == 11
    assert metrics.MQTT_LAGGED._value.get() - lagged == 1
    await machine.kill()
    broker = await machine.open_broker()
    assert await session_ids(broker) == ["narrow"]
    assert not (await durable(broker, "slow")).session.is_present  # type: ignore[union-attr]
    await broker.shutdown()


async def test_r15_a_connected_client_that_lags_too_much_gets_the_reason() -> None:
    machine = bounded()
    broker = await machine.open_broker()
    client = await durable(broker, receive_maximum=1)
    await client.subscribe("a", qos=1)
    publisher = await connected(broker, "p")
    for _ in range(12):
        await publisher.publish("a", b"x" * 1_000)
    await machine.pass_time(limits.MQTT_BEAT_SECONDS + 1)
    assert (await client.receive(packets.DisconnectPacket)).reason_code == ReasonCode.QUOTA_EXCEEDED
    assert await session_ids(broker) == ["p"]
    await broker.shutdown()


async def test_r15_a_client_that_catches_up_owes_nothing() -> None:
    machine = bounded()
    broker = await machine.open_broker()
    await away(broker, "s", "a")
    publisher = await connected(broker, "p")
    for _ in range(8):
        await publisher.publish("a", b"x" * 1_000)
    client = await durable(broker, receive_maximum=2)
    owed = [(await summary(broker)).owed_bytes]
    for _ in range(8):
        await client.message()
        await quiet()
        owed.append((await summary(broker)).owed_bytes)
    assert [size for size in owed if size is None] == []
    assert owed == sorted(owed, reverse=True)  # type: ignore[type-var]
    assert owed[-1] == 0
    assert len(set(owed)) > 4  # with each message, not only at the end
    for _ in range(8):
        await publisher.publish("a", b"x" * 1_000)
        await client.message()
    await machine.pass_time(limits.MQTT_BEAT_SECONDS + 1)
    assert (await summary(broker)).is_connected
    await broker.shutdown()


async def test_r15_a_shared_subscription_that_lags_too_much_loses_its_backlog_and_resumes() -> None:
    machine = bounded()
    broker = await machine.open_broker()
    member = await durable(broker, "m")
    await member.subscribe("$share/g/a", qos=1)
    member.lose()
    publisher = await connected(broker, "p")
    for _ in range(12):
        await publisher.publish("a", b"x" * 1_000)
    await machine.pass_time(limits.MQTT_BEAT_SECONDS + 1)
    assert (await summary(broker, "$share/g/a")).lag_messages == 0
    await machine.kill()
    broker = await machine.open_broker()
    member = await durable(broker, "m")
    publisher = await connected(broker, "p")
    await publisher.publish("a", b"new")
    assert (await member.message()).payload == b"new"
    await broker.shutdown()


async def test_without_a_bound_what_matches_is_not_counted(broker: Broker) -> None:
    await away(broker, "s", "a")
    publisher = await connected(broker, "p")
    await publisher.publish("a", b"x")
    await quiet()
    assert (await summary(broker)).owed_bytes is None
    assert broker.mqtt.sessions[next(iter(broker.mqtt.sessions))].owed_bytes == 0


# --- metrics ---


async def test_r37_gauges_have_sessions_lag_and_retained_messages(machine: MqttMachine, broker: Broker) -> None:
    await away(broker, "long" * 1_000, "a")
    await durable(broker, "here")
    publisher = await connected(broker, "p")
    await publisher.publish("a", b"x" * 1_000, is_retained=True)
    await machine.pass_time(30)
    text = render_exposition(await mqtt_families(broker.mqtt)).decode()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("icestream_mqtt_"))
    values = {name: float(value) for name, value in lines.items()}
    assert values['icestream_mqtt_sessions{state="connected"}'] == 2
    assert values['icestream_mqtt_sessions{state="disconnected"}'] == 1
    assert values["icestream_mqtt_subscriptions"] == values["icestream_mqtt_topics"] == 1
    label = "long" * (limits.METRICS_CLIENT_ID_CHARACTERS // 4)
    assert values[f'icestream_mqtt_session_lag_messages{{client_id="{label}"}}'] == 1
    assert values["icestream_mqtt_session_lag_bytes_max"] > 1_000
    assert values["icestream_mqtt_session_lag_seconds_max"] == 30
    assert (values["icestream_mqtt_retained_messages"], values["icestream_mqtt_retained_bytes"]) == (1, 1_001)
    assert values["icestream_mqtt_parked_messages"] == 0
