"""The callers of HTTP requests: the broker verifies their credentials and decides about their rights (ADR 57).

    authorization          caller
    none                   the principal of the client certificate; without one anonymous, which has the rights that
                           `anonymous` was granted
    Bearer TOKEN           the principal of the token
    anything else          401

The lake process decides nothing by itself. It opens a session of the broker for the credential of a request, and keeps
it for CALLER_SESSION_SECONDS, for the next requests with the same credential; it is closed when the last of them has
ended. Each request asks the broker about its
rights, so a changed policy holds for the next request; a session whose token was revoked or has expired is ended by the
broker, and the next question about it is refused. A session belongs to one connection of the local socket: its number
means another session on the next connection, so a caller keeps the link by which it was opened.

While security is off, every request is made by UNSECURED, and the broker is asked once in SECURITY_OFF_SECONDS whether
that is still so.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec
from starlette.types import Scope

from icestream import errors, limits
from icestream.admin_api.security_api import LOGIN, IssuedToken, LoginRequest
from icestream.admin_api.session_api import (
    CLOSE_SESSION,
    DECIDE_RIGHTS,
    OPEN_SESSION,
    DecideRights,
    OpenedSession,
    OpenSession,
    RightDecisions,
    SessionCredential,
    SessionOnly,
)
from icestream.catalog.tokens import Tokens
from icestream.rpc.document import Document
from icestream.rpc.link import Link
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks
from icestream.security.access_policy import Decision
from icestream.security.access_session import denial
from icestream.security.action import Action
from icestream.security.credential import BEARER_HINT, bearer_token
from icestream.security.principal import ANONYMOUS, CallerIdentity, Principal, PrincipalKind
from icestream.security.resource import Resource

Right = tuple[Action, Resource]
AUTHENTICATED: Final = "icestream.authenticated"  # in the state of a request
CLIENT_CERTIFICATE: Final = "icestream.client_certificate"  # the same: the verified one of its connection, in DER
# A certificate belongs to the listener whose settings name its authority; catalog and API have one in common.
_TLS_LISTENERS: Final = {"iceberg": "lake", "pipeline": "http"}
_ALLOWED: Final = Decision(True, "security is off")


class RequestCaller:
    """The client that made a request. Without a link: security is off, and everything is allowed."""

    def __init__(
        self,
        link: Link | None = None,
        session: int = 0,
        principal: Principal = ANONYMOUS,
        expires_us: int | None = None,
    ) -> None:
        self._link = link
        self._session = session
        self.principal = principal
        self.expires_us = expires_us  # when the credential ends, microseconds since 1970; None: it does not
        self.requests = 0  # that are in progress

    @property
    def is_secured(self) -> bool:
        """False while security is off."""
        return self._link is not None

    @property
    def is_anonymous(self) -> bool:
        return self.principal.kind is PrincipalKind.ANONYMOUS

    async def decide(self, rights: Sequence[Right], *, is_listing: bool = False) -> list[Decision]:
        """Returns the decision about each right, in their order. `is_listing`: a denial is no event of the audit, it
        only hides something. Raises Unauthenticated if the credential has ended meanwhile."""
        if self._link is None:
            return [_ALLOWED] * len(rights)
        decisions: list[Decision] = []
        for start in range(0, len(rights), limits.DECISIONS_PER_CALL_MAX):
            texts = [
                (action.value, str(resource))
                for action, resource in rights[start : start + limits.DECISIONS_PER_CALL_MAX]
            ]
            request = DecideRights(session=self._session, rights=texts, is_listing=is_listing)
            answer = await self._link.call(DECIDE_RIGHTS.name, msgspec.to_builtins(request))
            decisions += (
                Decision(each.is_allowed, each.reason) for each in msgspec.convert(answer, RightDecisions).decisions
            )
        return decisions

    async def allows(self, rights: Sequence[Right]) -> list[bool]:
        """Returns which of the rights the caller has: for listings."""
        return [decision.is_allowed for decision in await self.decide(rights, is_listing=True)]

    async def require(self, rights: Sequence[Right]) -> None:
        """Raises PermissionDenied or Unauthenticated unless the caller has all of the rights."""
        decisions = await self.decide(rights)
        for (action, resource), decision in zip(rights, decisions, strict=True):
            if not decision.is_allowed:
                raise self.denial(action, resource, decision)

    def denial(self, action: Action, resource: Resource, decision: Decision) -> errors.IcestreamError:
        """The error of a denied request."""
        return denial(CallerIdentity(self.principal), action, resource, decision)

    def unauthenticated(self) -> errors.Unauthenticated:
        """The error of a request without a credential. Its text is the same whatever was asked for (hazard 123)."""
        return errors.Unauthenticated("this request needs a credential", hint=BEARER_HINT)

    async def call(self, keeper: LinkKeeper, method: str, arguments: dict[str, Any]) -> Document:
        """Makes a call of the broker on behalf of this caller, whose rights decide. Raises the broker's error."""
        if self._link is None:
            return await keeper.call(method, arguments)
        return await self._link.call(method, {**arguments, "session": self._session})

    async def log_in(self, name: str, password: str) -> IssuedToken:
        """Returns a new token of a user, for its password. Raises Unauthenticated, Refused."""
        assert self._link is not None
        request = msgspec.to_builtins(LoginRequest(name=name, password=password))
        return msgspec.convert(await self._link.call(LOGIN.name, {**request, "session": self._session}), IssuedToken)

    async def close(self) -> None:
        """Ends the session in the broker. Never raises: a session ends with its connection anyway."""
        if self._link is None:
            return
        try:
            await self._link.call(CLOSE_SESSION.name, msgspec.to_builtins(SessionOnly(self._session)))
        except errors.IcestreamError:
            return


UNSECURED: Final = RequestCaller()


class RequestCallers(Protocol):
    """Identifies the callers of requests."""

    async def identify(
        self, authorization: Sequence[str], address: str, listener: str, certificate: bytes = b""
    ) -> RequestCaller:
        """Returns the caller of a request. `authorization`: its headers of that name; `certificate`: that of its
        connection, which counts without a token. Raises Unauthenticated."""

    def release(self, caller: RequestCaller) -> None:
        """The request of a caller that was identified or opened has ended."""

    async def open(self, credential: SessionCredential, address: str, listener: str) -> RequestCaller:
        """Returns the caller with this credential; it is not kept for other requests. Raises Unauthenticated."""

    async def is_secured(self) -> bool:
        """Whether security is on; once it is, it stays so. Raises NotReady."""


class UnsecuredCallers:
    """For tests, and for applications without a broker: security is off."""

    async def identify(
        self, authorization: Sequence[str], address: str, listener: str, certificate: bytes = b""
    ) -> RequestCaller:
        return UNSECURED

    def release(self, caller: RequestCaller) -> None:
        """Does nothing: there is no session."""

    async def open(self, credential: SessionCredential, address: str, listener: str) -> RequestCaller:
        return UNSECURED

    async def is_secured(self) -> bool:
        return False


class BrokerCallers:
    """Callers as the broker of this node knows them."""

    def __init__(self, keeper: LinkKeeper, clock: Clock, on_error: Callable[[BaseException], None]) -> None:
        """`on_error` gets errors of background tasks."""
        self._keeper = keeper
        self._clock = clock
        # By the digest of the credential, address and listener: the link of the session, and until when it is kept.
        self._sessions: OrderedDict[tuple[bytes, str, str], tuple[Link, int, RequestCaller]] = OrderedDict()
        self._kept: set[RequestCaller] = set()  # those of `_sessions`
        self._closing = Tasks(on_error)
        self._off: tuple[Link, int] | None = None  # security is off: by this link, until this time
        self._is_secured = False

    async def stop(self) -> None:
        await self._closing.stop()

    async def identify(
        self, authorization: Sequence[str], address: str, listener: str, certificate: bytes = b""
    ) -> RequestCaller:
        if self._keeper.link is None and self._off is not None:
            # Security was off, and without the broker there is nothing to protect but the state of this process.
            return UNSECURED
        link, now_ns = await self._link(), self._clock.monotonic_ns()
        if self._off is not None and self._off[0] is link and now_ns < self._off[1]:
            return UNSECURED
        try:
            token = bearer_token(authorization)
        except errors.Unauthenticated:
            # Without accounts the header is that of lake.token_file, which is checked elsewhere.
            caller = await self.open(SessionCredential(), address, listener)
            self.release(caller)
            if caller.is_secured:
                raise
            return UNSECURED
        credential = SessionCredential(token=token)
        if certificate and not token:
            credential, listener = SessionCredential(certificate=certificate), _TLS_LISTENERS.get(listener, listener)
        # By the digest: the cache is no list of valid tokens.
        key = hashlib.sha256(credential.certificate or token.encode()).digest(), address, listener
        cached = self._sessions.get(key)
        if cached is not None and (cached[0] is not link or now_ns >= cached[1]):
            self._forget(key)
            cached = None
        if cached is not None:
            self._sessions.move_to_end(key)
            cached[2].requests += 1
            return cached[2]
        caller = await self.open(credential, address, listener)
        if caller.is_secured and key not in self._sessions:  # a request that came meanwhile may have opened one, too
            self._sessions[key] = link, now_ns + int(limits.CALLER_SESSION_SECONDS * 1e9), caller
            self._kept.add(caller)
            while len(self._sessions) > limits.CALLER_SESSIONS_MAX:
                self._forget(next(iter(self._sessions)))
        return caller

    async def is_secured(self) -> bool:
        if not self._is_secured:
            caller = await self.identify((), "", "lake")
            self.release(caller)
            self._is_secured = caller.is_secured
        return self._is_secured

    async def open(self, credential: SessionCredential, address: str, listener: str) -> RequestCaller:
        link = await self._link()
        request = OpenSession(credential=credential, address=address, listener=listener)
        try:
            answer = await link.call(OPEN_SESSION.name, msgspec.to_builtins(request))
        except errors.ConnectionLost as error:
            raise _not_connected(error) from None
        opened = msgspec.convert(answer, OpenedSession)
        caller = RequestCaller(link, opened.session, Principal.parse(opened.principal), opened.expires_us)
        if opened.is_enabled:
            caller.requests = 1
            self._off = None
            return caller
        self._off = link, self._clock.monotonic_ns() + int(limits.SECURITY_OFF_SECONDS * 1e9)
        self._close_unused(caller)
        return UNSECURED

    def release(self, caller: RequestCaller) -> None:
        if caller.is_secured:
            caller.requests -= 1
            self._close_unused(caller)

    async def _link(self) -> Link:
        """Waits a moment for a broker that restarts. Raises NotReady: nothing was done, so a client may retry."""
        try:
            # One that was never there is not waited for.
            await self._keeper.wait_connected(limits.CALLER_LINK_SECONDS if self._keeper.links_opened else 0)
        except errors.ConnectionLost as error:
            raise _not_connected(error) from None
        assert self._keeper.link is not None
        return self._keeper.link

    def _forget(self, key: tuple[bytes, str, str]) -> None:
        caller = self._sessions.pop(key)[2]
        self._kept.discard(caller)
        self._close_unused(caller)

    def _close_unused(self, caller: RequestCaller) -> None:
        if caller.requests == 0 and caller not in self._kept:
            self._closing.start(caller.close(), "close a session")


def _not_connected(error: errors.ConnectionLost) -> errors.NotReady:
    return errors.NotReady(error.message, hint=error.hint)


# --- requests ---------------------------------------------------------------------------------------------------------


def client_address(scope: Scope) -> str:
    """The address of the client of a request, without its port: the same client keeps its session."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def client_certificate(scope: Scope) -> bytes:
    """The verified certificate of the client of a request, in DER; empty without one, and for
    a request that names the site that a browser made it for (hazard 123)."""
    # A browser shows a certificate by itself, also for a request that another site made it send; a token it does not.
    if any(name == b"origin" for name, _ in scope["headers"]):
        return b""
    certificate: bytes = scope.get("state", {}).get(CLIENT_CERTIFICATE, b"")
    return certificate


def mark_authenticated(scope: Scope, caller: RequestCaller) -> None:
    """Tells the server that clients have accounts, and whether the connection of this request belongs to one with a
    valid credential (http.py)."""
    if caller.is_secured:
        scope.setdefault("state", {})[AUTHENTICATED] = not caller.is_anonymous


def check_tokens(tokens: Tokens, caller: RequestCaller, authorization: Sequence[str]) -> None:
    """The tokens of lake.token_file, for brokers without accounts. Raises Unauthenticated; ConfigurationError beside
    accounts, because it would be unclear which of the two decides."""
    if caller.is_secured and tokens:
        raise errors.ConfigurationError(
            "lake.token_file is set, and this broker has accounts", hint="remove lake.token_file: accounts have tokens"
        )
    if not caller.is_secured and not tokens.allows(authorization[0] if authorization else None):
        raise errors.Unauthenticated("missing or invalid bearer token (lake.token_file)", hint=BEARER_HINT)
