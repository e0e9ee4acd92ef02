"""The session of a client: its identity, and the rights by which its producers and consumers stay open.

    open       after authentication; `require` decides by the policy of the moment
    closed     its credential ended, was revoked, or its connection closed: every hold was closed or released

A *hold* is a right that was decided once and lasts: an open producer, a consumer, a watch. Nothing is decided for each
message (hazard 124). When the policy changes, AccessControl decides all holds again, and closes those that have lost
their right with the error that says why, through `HeldRight.close` (hazard 113).

MQTT names a topic in each message. Its decisions (mqtt_rights.py) about publishing are kept by the session until the
policy changes, so a publish to a known topic costs a look into a dict; after `close_holds` nothing is known any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from icestream import errors, limits
from icestream.model.topic_name import TopicName
from icestream.security.access_policy import AccessPolicy, Decision, decide, no_rule
from icestream.security.action import Action
from icestream.security.audit_event import clean_text
from icestream.security.identity_rules import IdentityRules
from icestream.security.mqtt_rights import decide_mqtt
from icestream.security.principal import ANONYMOUS_IDENTITY, CallerIdentity, PrincipalKind
from icestream.security.resource import (
    CLUSTER,
    Resource,
    ResourceKind,
    mqtt_filter_resource,
    mqtt_topic_resource,
    topic_resource,
)


class HeldRight(NamedTuple):
    """A right that an open producer or consumer depends on. `close` must not raise."""

    action: Action
    resource: Resource
    close: Callable[[errors.IcestreamError], None]
    routes: tuple[Resource, ...] = ()  # of an MQTT topic or filter: where its messages are stored


class AccessSession:
    """One authenticated connection, or one HTTP request. Made by AccessControl."""

    def __init__(
        self,
        identity: CallerIdentity,
        address: str,
        listener: str,
        policy: Callable[[], AccessPolicy],
        on_denied: Callable[[AccessSession, Action, Resource, Decision], None],
        paused: Callable[[], errors.IcestreamError | None] = lambda: None,
        on_allowed: Callable[[AccessSession, Action, Resource, Decision], None] | None = None,
    ) -> None:
        """`policy`: the present policy. `on_denied` records the denial for the audit, `on_allowed` the access if it is
        audited; they do not wait. `paused`: why no right can be held now, because the policy may be outdated."""
        self.identity = identity
        self.address = address
        self.listener = listener
        self._policy = policy
        self._on_denied = on_denied
        self._paused = paused
        self._on_allowed = on_allowed
        self._holds: dict[int, HeldRight] = {}
        self._last_hold = 0
        self._holds_policy: AccessPolicy | None = None  # by which all holds were decided; None: by several
        self.closed: errors.IcestreamError | None = None  # why nothing is allowed any more
        # Closes the connection of the session; None if the session is not that of a connection.
        self.on_end: Callable[[errors.IcestreamError], None] | None = None
        self._mqtt_client_id = ""
        self._publishable: set[tuple[str, TopicName]] = set()  # by the policy below
        self._publishable_policy: AccessPolicy | None = None

    @property
    def is_anonymous(self) -> bool:
        """True without a credential."""
        return self.identity.principal.kind is PrincipalKind.ANONYMOUS

    @property
    def is_unrestricted(self) -> bool:
        """True while security is off: a listing need not decide about each item."""
        return self.closed is None and not self._policy().is_enabled

    def is_allowed(self, action: Action, resource: Resource) -> bool:
        """Whether it is allowed now. A denial is not recorded: for listings that show what is visible."""
        return self.closed is None and decide(self.identity, action, resource, self._policy()).is_allowed

    def _decision(
        self, action: Action, resource: Resource, policy: AccessPolicy, routes: Sequence[Resource]
    ) -> Decision:
        if resource.kind is ResourceKind.MQTT:
            return decide_mqtt(self.identity, action, resource, routes, policy, self._mqtt_client_id)
        return decide(self.identity, action, resource, policy)

    def decide(
        self, action: Action, resource: Resource, *, is_recorded: bool = True, routes: Sequence[Resource] = ()
    ) -> Decision:
        """The decision of the present policy, recorded if `is_recorded`. Raises what ended the session.

        `routes`: of an MQTT topic or filter, the topics that store its messages.
        """
        if self.closed is not None:
            raise self.closed
        policy = self._policy()
        decision = self._decision(action, resource, policy, routes)
        if not is_recorded:
            return decision
        if not decision.is_allowed:
            self._on_denied(self, action, resource, decision)
        elif self._on_allowed is not None and policy.is_enabled:
            self._on_allowed(self, action, resource, decision)
        return decision

    def require(self, action: Action, *resources: Resource) -> None:
        """Raises Unauthenticated or PermissionDenied unless the action is allowed on every resource."""
        for resource in resources:
            self._require_routed(action, resource, ())

    def _require_routed(self, action: Action, resource: Resource, routes: Sequence[Resource]) -> None:
        decision = self.decide(action, resource, routes=routes)
        if not decision.is_allowed:
            raise denial(self.identity, action, resource, decision)

    def require_all(self, rights: Iterable[tuple[Action, Resource]]) -> None:
        """As `require`, for several actions; nothing is done unless all of them are allowed (hazard 110)."""
        for action, resource in rights:
            self.require(action, resource)

    def hold(self, action: Action, resource: Resource, close: Callable[[errors.IcestreamError], None]) -> int:
        """Checks the right and keeps it: `close` is called when it ends. Returns the number for `release`.

        Raises NotReady while the policy of this node may be outdated.
        """
        return self._hold(HeldRight(action, resource, close))

    def _hold(self, right: HeldRight) -> int:
        if (paused := self._paused()) is not None:
            raise paused
        self._require_routed(right.action, right.resource, right.routes)
        policy = self._policy()
        if policy is not self._holds_policy:
            self._holds_policy = None if self._holds else policy
        self._last_hold += 1
        self._holds[self._last_hold] = right
        return self._last_hold

    # --- MQTT: mqtt_rights.py has the rules ---

    def set_mqtt_client(self, client_id: str) -> None:
        """Names the MQTT client of the connection: `{claims.client_id}` of rules about MQTT topics."""
        self._mqtt_client_id = client_id
        self._publishable_policy = None

    def require_mqtt_connect(self) -> None:
        """Raises Unauthenticated or PermissionDenied for a principal that has no rule at all: a session, with its place
        in the bound of all sessions, would be of no use to it (hazard 120)."""
        if self.closed is not None:
            raise self.closed
        policy = self._policy()
        if policy.is_enabled and next(policy.rules_of(self.identity), None) is None:
            reason = Decision(False, f"no rule is granted to {self.identity.principal}")
            self._on_denied(self, Action.DESCRIBE, CLUSTER, reason)
            raise denial(self.identity, Action.DESCRIBE, CLUSTER, reason)

    def require_mqtt_publish(self, topic: str, route_topic: TopicName) -> None:
        """Raises Unauthenticated or PermissionDenied unless a message may be published to this MQTT topic.

        `route_topic`: the topic that stores it. May be called for each message: what was allowed is remembered until
        the policy changes. Raises NotReady for another topic while the policy of this node may be outdated, and
        PacketRefused for a topic that no message can have.
        """
        if self.closed is not None:
            raise self.closed
        policy = self._policy()
        if not policy.is_enabled:
            return
        if policy is not self._publishable_policy:
            self._publishable.clear()
            self._publishable_policy = policy
        if (topic, route_topic) in self._publishable:
            return
        if (paused := self._paused()) is not None:
            raise paused
        self._require_routed(Action.PRODUCE, mqtt_topic_resource(topic), (topic_resource(route_topic),))
        if len(topic) <= limits.MQTT_DECISION_TOPIC_MAX:
            if len(self._publishable) >= limits.MQTT_DECISIONS_MAX:
                self._publishable.clear()
            self._publishable.add((topic, route_topic))

    @property
    def policy_token(self) -> object:
        """What `require_mqtt_publish` decides by: another object whenever a decision may be another one."""
        return self._policy()

    def require_mqtt_subscribe(self, topic_filter: str, route_topics: Sequence[TopicName]) -> None:
        """Raises Unauthenticated or PermissionDenied unless messages of this filter may be received.

        `topic_filter`: as the client wrote it, also `$share/…` and `$replay/…`. `route_topics`: every topic that stores
        messages which the filter can match. Raises PacketRefused for a malformed filter.
        """
        routes = [topic_resource(name) for name in route_topics]
        self._require_routed(Action.CONSUME, mqtt_filter_resource(topic_filter), routes)

    def hold_mqtt_publish(
        self, topic: str, route_topic: TopicName, close: Callable[[errors.IcestreamError], None]
    ) -> int:
        """As `hold`, for a publisher that is closed when it may not publish to this MQTT topic any more."""
        routes = (topic_resource(route_topic),)
        return self._hold(HeldRight(Action.PRODUCE, mqtt_topic_resource(topic), close, routes))

    def hold_mqtt_subscribe(
        self, topic_filter: str, route_topics: Sequence[TopicName], close: Callable[[errors.IcestreamError], None]
    ) -> int:
        """As `hold`, for a subscription to a filter.

        When routes change, the filter may reach topics that were not decided about: it needs another hold then.
        """
        routes = tuple(topic_resource(name) for name in route_topics)
        return self._hold(HeldRight(Action.CONSUME, mqtt_filter_resource(topic_filter), close, routes))

    def release(self, hold: int) -> None:
        """Forgets a hold whose producer or consumer has closed by itself."""
        self._holds.pop(hold, None)

    @property
    def holds(self) -> int:
        return len(self._holds)

    def decide_again(self) -> Iterator[None]:
        """Closes the holds that the present policy no longer allows. Yields after each hold: a connection may have
        tens of thousands, and others must be served meanwhile. No hold is looked at if the identity has the rules that
        they were decided by."""
        policy = self._policy()
        if self._holds_policy is not None and policy.has_same_rules(self._holds_policy, self.identity):
            self._holds_policy = policy
            return
        self._holds_policy = None  # until all are decided: this may be given up
        rules = IdentityRules(self.identity, policy)
        for number in list(self._holds):
            held = self._holds.get(number)  # the session, or the hold, may have ended since the last step
            if held is None:
                continue
            if (decision := self._lost_right(held, rules)) is not None:
                del self._holds[number]
                self._on_denied(self, held.action, held.resource, decision)
                held.close(denial(self.identity, held.action, held.resource, decision))
            yield
        if policy is self._policy():
            self._holds_policy = policy

    def _lost_right(self, held: HeldRight, rules: IdentityRules) -> Decision | None:
        """The denial of a right that is held; None if it is still allowed."""
        if held.resource.kind is not ResourceKind.MQTT:
            is_allowed = rules.is_allowed(held.action, held.resource)
            return None if is_allowed else no_rule(self.identity, held.action, held.resource)
        decision = self._decision(held.action, held.resource, self._policy(), held.routes)
        return None if decision.is_allowed else decision

    def end(self, reason: errors.IcestreamError) -> None:
        """Ends the session: every hold is closed with the reason, and every later request is refused with it."""
        self.closed = reason
        self.close_holds(reason)
        if self.on_end is not None:
            self.on_end(reason)

    def close_holds(self, reason: errors.IcestreamError) -> int:
        """Closes every hold with the reason; returns how many. The session itself stays open."""
        holds, self._holds = self._holds, {}
        self._publishable_policy = None
        for held in holds.values():
            held.close(reason)
        return len(holds)

    def ask_to_reconnect(self, reason: errors.IcestreamError) -> bool:
        """Ends the connection of the session; False if it has none. Holds end with the connection.

        They are not closed by themselves: a producer that is refused with the reason would give up, one whose
        connection ends is opened again on the next one.
        """
        if self.on_end is None:
            return False
        self.closed = reason
        self.on_end(reason)
        return True


def denial(identity: CallerIdentity, action: Action, resource: Resource, decision: Decision) -> errors.IcestreamError:
    """The error of a denied request: what was asked and by which rule it was decided, never a secret."""
    # Of an MQTT client's topic, which may have 64 KiB and control characters.
    text, reason = clean_text(str(resource)), clean_text(decision.reason)
    if identity.principal.kind is PrincipalKind.ANONYMOUS:
        return errors.Unauthenticated(
            f"{action.value} on {text} needs a credential",
            hint="send a token, or connect with a client certificate",
        )
    return errors.PermissionDenied(
        f"{identity.principal} may not {action.value} on {text}: {reason}",
        hint=f"`icestream security explain {identity.principal} {action.value} {text}` shows the rules",
    )


def expired(identity: CallerIdentity) -> errors.Unauthenticated:
    """The error of a session whose credential has expired."""
    return errors.Unauthenticated(f"the credential of {identity.principal} has expired", hint="log in again")


def open_session() -> AccessSession:
    """A session for which security is off: of tests, and of brokers in memory."""
    return AccessSession(ANONYMOUS_IDENTITY, "", "", AccessPolicy, lambda *denied: None)
