"""The access control of a node: the present policy, and every session that depends on it.

    Authenticator     credential -> identity, or Unauthenticated (authenticator.py)
    new_session       identity -> AccessSession
    apply             a new policy: sessions whose credential ended are ended, holds are decided again, in slices, so
                      that 100,000 of them do not stall the loop. When it switches security on, every connection from
                      before is closed, so that its client connects again with its credential (hazard 112); processes of
                      the node have proved theirs and stay
    end_expired       sessions whose credential has expired are ended
    pause             no logins and no new holds, while the policy may be outdated; `close_holds` closes the open ones
    resume            after a pause

There is one instance in the broker process; PolicyWatch calls all but the first two. While security is off, every
credential is accepted unread and every session is anonymous, as on a broker that was never secured.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Protocol

from icestream import errors, limits
from icestream.runtime.clock import Clock
from icestream.security.access_policy import OPEN_POLICY, AccessPolicy, Decision
from icestream.security.access_session import AccessSession, expired
from icestream.security.action import Action
from icestream.security.credential import Credential
from icestream.security.principal import ANONYMOUS_IDENTITY, CallerIdentity
from icestream.security.resource import Resource

Decided = Callable[[AccessSession, Action, Resource, Decision], None]
# Why a credential is not valid any more; None while it is.
FindEnd = Callable[[CallerIdentity], errors.IcestreamError | None]


class Authenticating(Protocol):
    async def authenticate(self, credential: Credential, address: str, listener: str) -> CallerIdentity:
        """Returns the identity of a credential. Raises Unauthenticated; Refused where too many logins wait."""

    def is_current(self, identity: CallerIdentity) -> bool:
        """Whether the credential of an identity would still be accepted, but for its expiry."""

    def forget_tokens(self) -> None:
        """Verifies every token again when it comes next: keys or accounts may have changed."""


def _ignore_denial(session: AccessSession, action: Action, resource: Resource, decision: Decision) -> None:
    pass


def _switched_on() -> errors.Unauthenticated:
    return errors.Unauthenticated("security was switched on", hint="connect again with a credential")


class AccessControl:
    def __init__(
        self,
        clock: Clock,
        authenticator: Authenticating | None = None,
        on_denied: Decided = _ignore_denial,
        on_allowed: Decided | None = None,
    ) -> None:
        """`on_denied` and `on_allowed` record decisions for the audit. `authenticator` may be set later, because it
        reads what the policy watch of this object has loaded."""
        self._clock = clock
        self.authenticator = authenticator
        self._on_denied = on_denied
        self._on_allowed = on_allowed
        self._policy = OPEN_POLICY
        self._find_end: FindEnd = lambda _: None
        self._sessions: set[AccessSession] = set()
        self._expiries: list[tuple[int, int, AccessSession]] = []  # a heap, with entries of sessions that closed before
        self._session_count = 0  # breaks ties in the heap
        self.paused: errors.IcestreamError | None = None

    @property
    def policy(self) -> AccessPolicy:
        return self._policy

    @property
    def is_enabled(self) -> bool:
        return self._policy.is_enabled

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    async def authenticate(self, credential: Credential | None, address: str, listener: str) -> AccessSession:
        """Returns the session of a connection or request. Raises Unauthenticated for a credential that is not valid.

        Without a credential the session is anonymous: it has the rights that `anonymous` was granted.
        """
        if self.paused is not None:
            raise self.paused
        if credential is None or not self.is_enabled or self.authenticator is None:
            return self.new_session(ANONYMOUS_IDENTITY, address, listener)
        identity = await self.authenticator.authenticate(credential, address, listener)
        # The account may have been deleted or the token revoked while the password was hashed: from here to the
        # registration nothing waits, so `apply` sees either this session or the check sees its state.
        if (ended := self._ended(identity)) is not None:
            raise ended
        return self.new_session(identity, address, listener)

    def new_session(self, identity: CallerIdentity, address: str, listener: str) -> AccessSession:
        """Returns a session of an identity; `close_session` forgets it."""
        session = AccessSession(
            identity,
            address,
            listener,
            lambda: self._policy,
            self._on_denied,
            paused=lambda: self.paused,
            on_allowed=self._on_allowed,
        )
        self._sessions.add(session)
        if identity.expires_us is not None:
            self._session_count += 1
            heapq.heappush(self._expiries, (identity.expires_us, self._session_count, session))
            if len(self._expiries) > 2 * len(self._sessions) + limits.ACCESS_EXPIRIES_SPARE:
                self._expiries = [entry for entry in self._expiries if entry[2] in self._sessions]
                heapq.heapify(self._expiries)
        return session

    def close_session(self, session: AccessSession) -> None:
        """Forgets a session whose connection or request is over."""
        self._sessions.discard(session)

    async def apply(self, policy: AccessPolicy, find_end: FindEnd | None = None) -> None:
        """Makes a policy the present one, with the function that tells which credentials have ended.

        New requests are decided by it at once, open sessions and holds before this returns.
        """
        is_switched_on = policy.is_enabled and not self._policy.is_enabled
        self._policy = policy
        if find_end is not None:
            self._find_end = find_end
        if self.authenticator is not None:
            self.authenticator.forget_tokens()
        # In slices, because a node may have tens of thousands of holds. Meanwhile `require` decides by the new policy
        # already; only rights that are held live on for these moments.
        slices = _Slices(self._clock)
        for session in list(self._sessions):
            await slices.pause()
            if session.closed is None and (ended := self._ended(session.identity)) is not None:
                session.end(ended)
                continue
            is_asked = is_switched_on and not session.identity.principal.is_internal
            if not is_asked or not session.ask_to_reconnect(_switched_on()):
                for _ in session.decide_again():
                    await slices.pause()

    def _ended(self, identity: CallerIdentity) -> errors.IcestreamError | None:
        """Why the credential of an open session is not valid any more; None while it is."""
        if (ended := self._find_end(identity)) is not None:
            return ended
        if self.is_enabled and self.authenticator is not None and not self.authenticator.is_current(identity):
            return errors.Unauthenticated(f"the credential of {identity.principal} was revoked", hint="log in again")
        return None

    def end_expired(self, now_us: int) -> int:
        """Ends every session whose credential has expired; returns how many."""
        count = 0
        while self._expiries and self._expiries[0][0] <= now_us:
            _, _, session = heapq.heappop(self._expiries)
            if session in self._sessions and session.closed is None:
                session.end(expired(session.identity))
                count += 1
        return count

    def end_sessions(self, is_ended: Callable[[CallerIdentity], bool], reason: errors.IcestreamError) -> int:
        """Ends every session whose identity is one of these; returns how many."""
        ended = [session for session in self._sessions if is_ended(session.identity)]
        for session in ended:
            session.end(reason)
        return len(ended)

    def pause(self, reason: errors.IcestreamError) -> None:
        """Refuses logins and new holds from now on."""
        self.paused = reason

    def resume(self) -> None:
        """Ends a pause."""
        self.paused = None

    async def close_holds(self, reason: errors.IcestreamError) -> int:
        """Closes the holds of all sessions; returns how many. The sessions stay."""
        count, slices = 0, _Slices(self._clock)
        for session in list(self._sessions):
            await slices.pause()
            count += session.close_holds(reason)
        return count


class _Slices:
    """Work on the event loop in slices of ACCESS_SLICE_NS."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deadline = clock.monotonic_ns() + limits.ACCESS_SLICE_NS

    async def pause(self) -> None:
        """Lets the loop run if the slice is over."""
        if self._clock.monotonic_ns() >= self._deadline:
            await asyncio.sleep(0)
            self._deadline = self._clock.monotonic_ns() + limits.ACCESS_SLICE_NS
