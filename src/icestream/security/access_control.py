"""The access control of a node: the present policy, and every session that depends on it.

    Authenticator     credential -> identity, or Unauthenticated (authenticator.py)
    new_session       identity -> AccessSession
    apply             a new policy: holds are decided again, in slices, so that 100,000 of them do not stall the loop

There is one instance in the broker process. While security is off, every credential is accepted unread and every
session is anonymous, as on a broker that was never secured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from icestream import errors, limits
from icestream.runtime.clock import Clock
from icestream.security.access_policy import OPEN_POLICY, AccessPolicy, Decision
from icestream.security.access_session import AccessSession
from icestream.security.action import Action
from icestream.security.credential import Credential
from icestream.security.principal import ANONYMOUS_IDENTITY, CallerIdentity
from icestream.security.resource import Resource

Denied = Callable[[AccessSession, Action, Resource, Decision], None]


class Authenticating(Protocol):
    async def authenticate(self, credential: Credential, address: str, listener: str) -> CallerIdentity:
        """Returns the identity of a credential. Raises Unauthenticated; Refused where too many logins wait."""


def _ignore_denial(session: AccessSession, action: Action, resource: Resource, decision: Decision) -> None:
    pass


class AccessControl:
    def __init__(
        self, clock: Clock, authenticator: Authenticating | None = None, on_denied: Denied = _ignore_denial
    ) -> None:
        self._clock = clock
        self._authenticator = authenticator
        self._on_denied = on_denied
        self._policy = OPEN_POLICY
        self._sessions: set[AccessSession] = set()

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
        if credential is None or not self.is_enabled or self._authenticator is None:
            return self.new_session(ANONYMOUS_IDENTITY, address, listener)
        return self.new_session(
            await self._authenticator.authenticate(credential, address, listener), address, listener
        )

    def new_session(self, identity: CallerIdentity, address: str, listener: str) -> AccessSession:
        """Returns a session of an identity; `close_session` forgets it."""
        session = AccessSession(identity, address, listener, lambda: self._policy, self._on_denied)
        self._sessions.add(session)
        return session

    def close_session(self, session: AccessSession) -> None:
        """Forgets a session whose connection or request is over."""
        self._sessions.discard(session)

    async def apply(self, policy: AccessPolicy) -> None:
        """Makes a policy the present one. New requests are decided by it at once, open holds before this returns."""
        self._policy = policy
        deadline = self._clock.monotonic_ns() + limits.ACCESS_SLICE_NS
        for session in list(self._sessions):
            session.decide_again()
            if self._clock.monotonic_ns() >= deadline:
                await asyncio.sleep(0)
                deadline = self._clock.monotonic_ns() + limits.ACCESS_SLICE_NS

    def end_sessions(self, is_ended: Callable[[CallerIdentity], bool], reason: errors.IcestreamError) -> int:
        """Ends every session whose credential was revoked or has expired; returns how many."""
        ended = [session for session in self._sessions if is_ended(session.identity)]
        for session in ended:
            session.end(reason)
        return len(ended)
