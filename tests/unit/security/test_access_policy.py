"""The decision, compared with a brute-force model, and the forms of rules and patterns."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.model.topic_name import TopicName
from icestream.security.access_policy import AccessPolicy, AccessRole, AccessRule, Grant, decide, explain
from icestream.security.action import Action, parse_actions
from icestream.security.identity_rules import IdentityRules
from icestream.security.principal import ANONYMOUS, CallerIdentity, Principal, local_user
from icestream.security.resource import (
    CLUSTER,
    Pattern,
    Resource,
    ResourceKind,
    namespace_resource,
    schema_resource,
    subscription_resource,
    table_resource,
    topic_resource,
)
from icestream.security.security_records import parse_scope

ALICE, BOB = local_user("alice"), local_user("bob")
NAMES = ("a", "b", "orders")
IN_NAMESPACES = (ResourceKind.TOPIC, ResourceKind.SUBSCRIPTION, ResourceKind.TABLE)
RESOURCES: list[Resource] = [
    CLUSTER,
    *(namespace_resource(name) for name in NAMES),
    *(namespace_resource(*pair) for pair in itertools.product(NAMES, repeat=2)),
    *(topic_resource(TopicName(*pair)) for pair in itertools.product(NAMES, repeat=2)),
    *(
        subscription_resource(TopicName(first, second), third)
        for first, second, third in itertools.product(NAMES, repeat=3)
    ),
    *(schema_resource(name) for name in NAMES),
    *(table_resource(pair) for pair in itertools.product(NAMES, repeat=2)),
    *(table_resource(levels) for levels in itertools.product(NAMES, repeat=3)),
]
SEGMENTS = st.sampled_from([*NAMES, "*", "{claims.team}"])
PATTERNS = st.one_of(
    st.just("cluster"),
    st.builds("namespace:/{}".format, SEGMENTS),
    st.builds("namespace:/{}/{}".format, SEGMENTS, SEGMENTS),
    st.builds("namespace:/{}/**".format, SEGMENTS),
    st.builds("/{}/{}".format, SEGMENTS, SEGMENTS),
    st.builds("topic:/{}/**".format, SEGMENTS),
    st.builds("subscription:/{}/{}/{}".format, SEGMENTS, SEGMENTS, SEGMENTS),
    st.builds("subscription:/{}/**".format, SEGMENTS),
    st.builds("schema:/{}".format, SEGMENTS),
    st.builds("table:/{}/{}".format, SEGMENTS, SEGMENTS),
    st.builds("table:/{}/**".format, SEGMENTS),
    st.just("table:/**"),
)
RULES = st.builds(
    AccessRule,
    st.frozensets(st.sampled_from(list(Action)), min_size=1, max_size=3),
    PATTERNS.map(Pattern.parse),
    st.none(),
)
SCOPES = st.one_of(
    st.none(),
    st.builds("namespace:/{}".format, st.sampled_from(NAMES)),
    st.builds("namespace:/{}/{}".format, st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.builds("/{}/{}".format, st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.builds("schema:/{}".format, st.sampled_from(NAMES)),
).map(lambda text: None if text is None else parse_scope(text))
CLAIMS = st.dictionaries(st.just("team"), st.sampled_from([*NAMES, "*", "a/b", "", "**", "#", "a*"]))


def model_encloses(scope: Pattern, resource: Resource) -> bool:
    """The same by the texts: a namespace encloses what lies below it, a topic its subscriptions."""
    kinds = {
        ResourceKind.NAMESPACE: ("namespace", "topic", "subscription", "table"),
        ResourceKind.TOPIC: ("topic", "subscription"),
        ResourceKind.SCHEMA: ("schema",),
    }
    kind, _, path = str(resource).partition(":")
    wanted = str(scope).partition(":")[2]
    if kind == "namespace" and scope.kind is ResourceKind.NAMESPACE:
        return path == wanted
    return kind in kinds[scope.kind] and (path == wanted or path.startswith(f"{wanted}/"))


def model_scoped(rule: AccessRule, scope: Pattern, action: Action, resource: Resource, claims: dict[str, str]) -> bool:
    if Action.ADMIN in rule.actions and str(rule.pattern) == "cluster":
        return False  # nothing in a scope is the cluster, and administration has no narrower form
    if model_encloses(scope, resource) and model_allows(rule, action, resource, claims):
        return True
    # A namespace above the scope is shown if the rule shows something in the scope.
    is_above = resource.kind is ResourceKind.NAMESPACE and scope.segments[: len(resource.segments)] == resource.segments
    is_topic = scope.kind is ResourceKind.TOPIC and len(resource.segments) == 1
    return is_above and is_topic and action is Action.DESCRIBE and model_allows(rule, action, resource, claims)


def model_allows(rule: AccessRule, action: Action, resource: Resource, claims: dict[str, str]) -> bool:
    """The same by a regular expression over the text of the resource, written independently of Pattern."""
    if Action.ADMIN in rule.actions and str(rule.pattern) == "cluster":
        return True
    if action not in rule.actions and action is not Action.DESCRIBE:
        return False
    if action is Action.DESCRIBE and resource.kind is ResourceKind.NAMESPACE and rule.pattern.kind in IN_NAMESPACES:
        # Brute force: it matches one of many things below the namespace, whose names the pattern itself may choose.
        below = [
            Resource(kind, (*resource.segments, *rest))
            for kind in IN_NAMESPACES
            for count in (1, 2)
            for rest in itertools.product(NAMES, repeat=count)
            if kind is ResourceKind.TABLE
            or (len(resource.segments) == 1 and count == (1 if kind is ResourceKind.TOPIC else 2))
        ]
        return any(model_allows(rule, action, inner, claims) for inner in below)
    text = str(resource)
    if rule.pattern.kind is ResourceKind.TOPIC and resource.kind is ResourceKind.SUBSCRIPTION:
        text = "topic:" + text.removeprefix("subscription:").rsplit("/", 1)[0]
    expression = ""
    for part in re.split(r"(\*\*|\*|\{claims\.team\})", str(rule.pattern)):
        if part == "**":
            expression += ".+"
        elif part == "*":
            expression += "[^/]+"
        elif part == "{claims.team}":
            value = claims.get("team", "")
            expression += re.escape(value) if value in NAMES else r"(?!)"
        else:
            expression += re.escape(part)
    return re.fullmatch(expression, text) is not None


@given(
    st.lists(RULES, max_size=4),
    st.lists(RULES, max_size=3),
    st.sampled_from(list(Action)),
    CLAIMS,
    st.booleans(),
    SCOPES,
)
def test_the_decision_is_that_of_a_brute_force_model(
    direct: list[AccessRule],
    of_role: list[AccessRule],
    action: Action,
    claims: dict[str, str],
    has_role: bool,
    scope: Pattern | None,
) -> None:
    grants = tuple(Grant(str(number), ALICE, rule=rule) for number, rule in enumerate(direct))
    role_grant = (Grant("role", ALICE, role="team", scope=scope),) if has_role else ()
    policy = AccessPolicy(True, 7, {"team": AccessRole("team", tuple(of_role))}, {ALICE: grants + role_grant})
    identity = CallerIdentity(ALICE, claims)
    everywhere = direct + (of_role if has_role and scope is None else [])
    in_scope = of_role if has_role else []
    rules = IdentityRules(identity, policy)
    for resource in RESOURCES:
        expected = any(model_allows(rule, action, resource, claims) for rule in everywhere) or (
            scope is not None and any(model_scoped(rule, scope, action, resource, claims) for rule in in_scope)
        )
        decision, considered = explain(identity, action, resource, policy)
        assert decision.is_allowed == expected, (str(resource), str(scope))
        assert decision.is_allowed == any(rule.allows for rule in considered)
        assert decision.is_allowed == rules.is_allowed(action, resource), (str(resource), str(scope))
        assert not decide(CallerIdentity(BOB, claims), action, resource, policy).is_allowed


def _policy(principal: Principal, *rules: str, is_parked: bool = False) -> AccessPolicy:
    grants = []
    for number, text in enumerate(rules):
        actions, _, pattern = text.partition(" ")
        rule = AccessRule(parse_actions(actions.split(",")), Pattern.parse(pattern))
        grants.append(Grant(f"g{number}", principal, rule=rule, is_parked=is_parked))
    return AccessPolicy(True, 1, {}, {principal: tuple(grants)})


ORDERS = topic_resource(TopicName("shop", "orders"))


@pytest.mark.parametrize("pattern", ["/shop/{claims.team}", "table:/shop/eu/{claims.team}"])
def test_a_pattern_with_a_claim_that_fills_nothing_shows_no_namespace(pattern: str) -> None:
    policy = _policy(ALICE, f"read {pattern}")

    def is_shown(claims: dict[str, str]) -> bool:
        return decide(CallerIdentity(ALICE, claims), Action.DESCRIBE, namespace_resource("shop"), policy).is_allowed

    assert is_shown({"team": "blue"})
    assert not is_shown({})
    assert not is_shown({"team": "*"})


def test_read_covers_consuming_the_table_queries_and_the_backup_of_a_topic() -> None:
    policy = _policy(ALICE, "read /shop/orders")
    identity = CallerIdentity(ALICE)
    allowed = {action for action in Action if decide(identity, action, ORDERS, policy).is_allowed}
    assert allowed == {Action.CONSUME, Action.DESCRIBE, Action.TABLE_READ, Action.QUERY, Action.BACKUP}
    billing = subscription_resource(TopicName("shop", "orders"), "billing")
    assert decide(identity, Action.CONSUME, billing, policy).is_allowed
    assert not decide(identity, Action.CONSUME, topic_resource(TopicName("shop", "orders2")), policy).is_allowed


def test_without_a_rule_everything_is_denied_and_the_reason_names_what_was_asked() -> None:
    decision = decide(CallerIdentity(BOB), Action.PRODUCE, ORDERS, _policy(ALICE, "all /shop/orders"))
    assert not decision.is_allowed
    assert decision.reason == "no rule of user:local:bob allows produce on topic:/shop/orders"


def test_grants_of_anonymous_apply_to_every_identity() -> None:
    policy = _policy(ANONYMOUS, "consume /shop/orders")
    assert decide(CallerIdentity(ANONYMOUS), Action.CONSUME, ORDERS, policy).is_allowed
    assert decide(CallerIdentity(BOB), Action.CONSUME, ORDERS, policy).is_allowed


def test_a_parked_grant_allows_nothing() -> None:
    assert not decide(
        CallerIdentity(ALICE), Action.CONSUME, ORDERS, _policy(ALICE, "read /shop/orders", is_parked=True)
    ).is_allowed


@given(st.lists(RULES, max_size=2), st.lists(RULES, max_size=2), st.lists(RULES, max_size=2), st.booleans())
def test_policies_with_the_same_rules_for_an_identity_decide_alike(
    direct: list[AccessRule], of_role: list[AccessRule], of_anonymous: list[AccessRule], is_claimed: bool
) -> None:
    identity = CallerIdentity(ALICE, roles=("team",) if is_claimed else ())

    def policy(direct: list[AccessRule], of_role: list[AccessRule], of_anonymous: list[AccessRule]) -> AccessPolicy:
        grants = {
            ALICE: (Grant("r", ALICE, role="team"), *(Grant(f"d{rule}", ALICE, rule=rule) for rule in direct)),
            ANONYMOUS: tuple(Grant(f"a{rule}", ANONYMOUS, rule=rule) for rule in of_anonymous),
            BOB: (Grant("b", BOB, rule=AccessRule(frozenset(Action), Pattern.parse("/*/*"))),),
        }
        return AccessPolicy(True, 1, {"team": AccessRole("team", tuple(of_role))}, grants)

    before = policy(direct, of_role, of_anonymous)
    assert before.has_same_rules(policy(direct, of_role, of_anonymous), identity)
    for other in (policy([], of_role, of_anonymous), policy(direct, [], of_anonymous), policy(direct, of_role, [])):
        if before.has_same_rules(other, identity):
            assert list(before.rules_of(identity)) == list(other.rules_of(identity))
    assert not before.has_same_rules(AccessPolicy(), identity)


def test_security_that_is_off_allows_everything() -> None:
    assert decide(CallerIdentity(ANONYMOUS), Action.ADMIN, CLUSTER, AccessPolicy()).is_allowed


@pytest.mark.parametrize("action", list(Action))
def test_an_administrator_may_do_everything_but_write_what_belongs_to_the_broker(action: Action) -> None:
    policy = _policy(ALICE, "admin cluster")
    audit = topic_resource(TopicName("system", "audit"))
    reads = {Action.CONSUME, Action.DESCRIBE, Action.TABLE_READ, Action.QUERY, Action.BACKUP, Action.MAINTAIN}
    assert decide(CallerIdentity(ALICE), action, ORDERS, policy).is_allowed
    assert decide(CallerIdentity(ALICE), action, audit, policy).is_allowed == (action in reads)
    own_subscription = subscription_resource(TopicName("system", "audit"), "review")
    assert decide(CallerIdentity(ALICE), action, own_subscription, policy).is_allowed


def test_the_action_admin_on_a_topic_is_not_the_administration_of_the_cluster() -> None:
    policy = _policy(ALICE, "admin /shop/orders")
    assert not decide(CallerIdentity(ALICE), Action.ADMIN, CLUSTER, policy).is_allowed
    assert not decide(CallerIdentity(ALICE), Action.PRODUCE, ORDERS, policy).is_allowed


@pytest.mark.parametrize(
    "value", ["*", "**", "a/b", "+", "#", "$SYS", "", ".", "..", "%2e", "{claims.x}", "ａ", "a\x00"]
)
def test_hazard_117_a_claim_that_is_no_plain_name_matches_nothing(value: str) -> None:
    policy = _policy(ALICE, "read /{claims.team}/*")
    identity = CallerIdentity(ALICE, {"team": value})
    assert not any(decide(identity, Action.CONSUME, resource, policy).is_allowed for resource in RESOURCES)


@pytest.mark.parametrize(
    "text",
    ["", "orders", "/shop", "/shop/orders/x", "topic:shop/orders", "topic:/**/orders", "cluster:/x", "tables:/a/b",
     "table:/a", "/shop/or*ders", "/shop/{claims.team}x", "/shop//", "/shop/..", "namespace:/a//b", "/shop/or#ders"],
)  # fmt: skip
def test_a_malformed_pattern_is_refused_with_examples(text: str) -> None:
    with pytest.raises(errors.InvalidInput, match="is not a resource") as refusal:
        Pattern.parse(text)
    assert "/shop/orders" in refusal.value.hint


@given(PATTERNS)
def test_a_pattern_parses_from_its_own_text(text: str) -> None:
    assert Pattern.parse(str(Pattern.parse(text))) == Pattern.parse(text)


@pytest.mark.parametrize("text", ["user:local:alice", "oidc:corp:a:b", "certificate:native:dev.example", "anonymous"])
def test_a_principal_parses_from_its_own_text(text: str) -> None:
    assert str(Principal.parse(text)) == text
    assert Principal.parse("alice") == ALICE


@pytest.mark.parametrize(
    "text", ["", "root:local:x", "user:local:", "user::x", "user:local:ａ", "user:local:a\n", "user:x"]
)
def test_a_malformed_principal_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidInput):
        Principal.parse(text)


@given(st.sampled_from(RESOURCES) | st.builds(table_resource, st.lists(st.text(min_size=1), min_size=2, max_size=4)))
def test_the_text_of_a_resource_names_it_alone(resource: Resource) -> None:
    assert Resource.parse(str(resource)) == resource


@pytest.mark.parametrize("text", ["", "topic", "topic:", "topic:/a", "topic:/a/", "topic:/a/b/c", "cluster:/a", "x:/a"])
def test_a_text_that_is_no_resource_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidInput):
        Resource.parse(text)
