"""The session of a client: its identity, and the rights by which its producers and consumers stay open.

    open       after authentication; `require` decides by the policy of the moment
    closed     its credential ended, was revoked, or its connection closed: every hold was closed or released

A *hold* is a right that was decided once and lasts: an open producer, a consumer, a watch. Nothing is decided for each
message (hazard 124). When the policy changes, AccessControl decides all holds again, and closes those that have lost
their right with the error that says why, through `HeldRight.close` (hazard 113).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from icestream import errors
from icestream.security.access_policy import AccessPolicy, Decision, decide
from icestream.security.action import Action
from icestream.security.principal import ANONYMOUS_IDENTITY, CallerIdentity, PrincipalKind
from icestream.security.resource import Resource


class HeldRight(NamedTuple):
    """A right that an open producer or consumer depends on. `close` must not raise."""

    action: Action
    resource: Resource
    close: Callable[[errors.IcestreamError], None]


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
        self.closed: errors.IcestreamError | None = None  # why nothing is allowed any more
        # Closes the connection of the session; None if the session is not that of a connection.
        self.on_end: Callable[[errors.IcestreamError], None] | None = None

    @property
    def is_unrestricted(self) -> bool:
        """True while security is off: a listing need not decide about each item."""
        return self.closed is None and not self._policy().is_enabled

    def is_allowed(self, action: Action, resource: Resource) -> bool:
        """Whether it is allowed now. A denial is not recorded: for listings that show what is visible."""
        return self.closed is None and decide(self.identity, action, resource, self._policy()).is_allowed

    def decide(self, action: Action, resource: Resource, *, is_recorded: bool = True) -> Decision:
        """The decision of the present policy, recorded if `is_recorded`. Raises what ended the session."""
        if self.closed is not None:
            raise self.closed
        policy = self._policy()
        decision = decide(self.identity, action, resource, policy)
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
            decision = self.decide(action, resource)
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
        if (paused := self._paused()) is not None:
            raise paused
        self.require(action, resource)
        self._last_hold += 1
        self._holds[self._last_hold] = HeldRight(action, resource, close)
        return self._last_hold

    def release(self, hold: int) -> None:
        """Forgets a hold whose producer or consumer has closed by itself."""
        self._holds.pop(hold, None)

    @property
    def holds(self) -> int:
        return len(self._holds)

    def decide_again(self) -> int:
        """Closes the holds that the present policy no longer allows; returns how many."""
        policy = self._policy()
        lost = 0
        for number, held in list(self._holds.items()):
            decision = decide(self.identity, held.action, held.resource, policy)
            if not decision.is_allowed:
                del self._holds[number]
                self._on_denied(self, held.action, held.resource, decision)
                held.close(denial(self.identity, held.action, held.resource, decision))
                lost += 1
        return lost

    def end(self, reason: errors.IcestreamError) -> None:
        """Ends the session: every hold is closed with the reason, and every later request is refused with it."""
        self.closed = reason
        self.close_holds(reason)
        if self.on_end is not None:
            self.on_end(reason)

    def close_holds(self, reason: errors.IcestreamError) -> int:
        """Closes every hold with the reason; returns how many. The session itself stays open."""
        holds, self._holds = self._holds, {}
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
    if identity.principal.kind is PrincipalKind.ANONYMOUS:
        return errors.Unauthenticated(
            f"{action.value} on {resource} needs a credential",
            hint="send a token, or connect with a client certificate",
        )
    return errors.PermissionDenied(
        f"{identity.principal} may not {action.value} on {resource}: {decision.reason}",
        hint=f"`icestream security explain {identity.principal} {action.value} {resource}` shows the rules",
    )


def expired(identity: CallerIdentity) -> errors.Unauthenticated:
    """The error of a session whose credential has expired."""
    return errors.Unauthenticated(f"the credential of {identity.principal} has expired", hint="log in again")


def open_session() -> AccessSession:
    """A session for which security is off: of tests, and of brokers in memory."""
    return AccessSession(ANONYMOUS_IDENTITY, "", "", AccessPolicy, lambda *denied: None)
