"""Whose call it is: each call is admitted by the credential of its own metadata, and gets the use cases of its session.

    authorization: Bearer TOKEN    the token: ours, of an external issuer, or Danube's (security/authenticator.py)
    without that header            the verified certificate of the connection; without one `anonymous`
    any other header               gives no identity: `x-danube-internal-broker` is not read (hazard 114)

Danube's producers and consumers outlive a connection, so a session is not that of a connection: calls with the same
credential from the same host share one, on whichever connection they come. It holds the rights of what they opened
(security/access_session.py) and is closed

    at once         by AccessControl, when its credential expires or is revoked: its producers and streams end
    by `sweep`      when it holds nothing and had no call since the last sweep

A `Call` remembers its session while that is open. The native wire has one Call for a set of metadata of a connection,
so a burst of messages costs one comparison, and nothing is verified or decided for a message (hazard 124). A batch of
requests is split by session before anything else is done with it (hazard 106).

While security is off, nothing is read: all calls have one session.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.broker.guarded_broker import BrokerDoor, GuardedBroker
from icestream.frontends.danube.handlers import (
    AUTHORIZATION,
    Call,
    HandlerTable,
    OutStream,
    Streaming,
    Unary,
    status_number,
)
from icestream.frontends.danube.request_batch import BatchedMethod, RequestBatch
from icestream.runtime.tasks import Tasks
from icestream.security.authenticator import unauthenticated
from icestream.security.caller_address import address_group
from icestream.security.credential import BearerCredential, CertificateCredential, Credential

_SCHEME: Final = "bearer "


class SessionKey(NamedTuple):
    """What calls have in common that share a session. `digest`: of the credential, empty without one."""

    listener: str
    digest: bytes
    host: str


class CallAdmission:
    """The sessions of Danube's clients, on all listeners of the front end."""

    def __init__(self, door: BrokerDoor, tasks: Tasks, sessions_max: int = limits.DANUBE_SESSIONS_MAX) -> None:
        self._door = door
        self._tasks = tasks
        self._sessions_max = sessions_max
        self._unsecured = door.admit_anonymous("", "danube")  # of all calls while security is off
        self._sessions: dict[SessionKey, GuardedBroker] = {}
        self._used: set[GuardedBroker] = set()  # since the last sweep

    def __len__(self) -> int:
        return len(self._sessions)

    # --- admission ---

    def find(self, call: Call) -> GuardedBroker | None:
        """The session of a call that was admitted before; None if its credential has to be verified."""
        client = self._unsecured
        if self._door.is_secured:
            admitted = call.admitted
            # What was admitted while security was off is not remembered: its credential was not read.
            if admitted is None or admitted is self._unsecured or admitted.session.closed is not None:
                return None
            client = admitted
            self._used.add(client)
        call.admitted = client
        return client

    async def admit(self, call: Call, listener: str) -> GuardedBroker:
        """The session of a call. Raises Unauthenticated, and NotReady while the policy may be outdated."""
        if (client := self.find(call)) is not None:
            return client
        credential = _credential(call)
        key = SessionKey(listener, _digest(credential), address_group(call.peer))
        client = self._find_session(key)
        if client is None:
            authenticated = await self._door.authenticate(credential, call.peer, listener)
            client = self._find_session(key)  # a concurrent call may have opened it meanwhile
            if client is None:
                client = self._add_session(key, authenticated)
            else:
                self._door.leave(authenticated)
        self._used.add(client)
        call.admitted = client
        if not client.session.is_anonymous:
            call.recognise()
        return client

    def _find_session(self, key: SessionKey) -> GuardedBroker | None:
        client = self._sessions.get(key)
        return client if client is not None and client.session.closed is None else None

    def _add_session(self, key: SessionKey, client: GuardedBroker) -> GuardedBroker:
        if (former := self._sessions.pop(key, None)) is not None:
            self._door.leave(former)
        if len(self._sessions) >= self._sessions_max:
            self.sweep()
        if len(self._sessions) >= self._sessions_max:
            self._door.leave(client)
            raise errors.Refused(
                f"Danube's clients have {len(self._sessions)} sessions already", hint="try again in some seconds"
            )
        self._sessions[key] = client
        return client

    def sweep(self) -> None:
        """Closes the sessions that hold nothing and had no call since the last sweep, and forgets closed ones."""
        idle = errors.NotReady("the session was idle", hint="call again")
        for key, client in list(self._sessions.items()):
            session = client.session
            if session.closed is None and not session.holds and client not in self._used:
                # Ended, not only forgotten: a call in flight must not open anything that no revocation would reach.
                session.end(idle)
            if session.closed is not None:
                del self._sessions[key]
                self._door.leave(client)
        self._used.clear()

    # --- handlers ---

    def guarded(self, table: HandlerTable, listener: str, delay_failure: Callable[[], Awaitable[None]]) -> HandlerTable:
        """The same handlers, behind the admission. `delay_failure` waits before a stream is refused: clients open it
        again without a pause."""
        return HandlerTable(
            {path: self._guarded_unary(handler, listener) for path, handler in table.unary.items()},
            {path: self._guarded_stream(handler, listener, delay_failure) for path, handler in table.streams.items()},
            {path: self._guarded_batches(method, listener) for path, method in table.batched.items()},
        )

    def _guarded_unary(self, handler: Unary, listener: str) -> Unary:
        async def serve(raw: bytes, call: Call) -> bytes:
            if self.find(call) is None:
                await self.admit(call, listener)
            return await handler(raw, call)

        return serve

    def _guarded_stream(
        self, handler: Streaming, listener: str, delay_failure: Callable[[], Awaitable[None]]
    ) -> Streaming:
        async def serve(raw: bytes, call: Call, stream: OutStream) -> None:
            try:
                await self.admit(call, listener)
            except errors.IcestreamError:
                await delay_failure()
                raise
            await handler(raw, call, stream)

        return serve

    def _guarded_batches(self, method: BatchedMethod, listener: str) -> BatchedMethod:
        return BatchedMethod(method.columns, method.echo, lambda batch: self._split(method, listener, batch))

    def _split(self, method: BatchedMethod, listener: str, batch: RequestBatch) -> None:
        """Handles the rows of each session by themselves."""
        if not self._door.is_secured:
            batch.admitted = self._unsecured
            method.handle(batch)
            return
        rows: dict[GuardedBroker, list[int]] = {}
        for call, call_rows in batch.callers().items():
            client = self.find(call)
            if client is None:
                self._tasks.start(self._admit_rows(method, listener, call, batch.part(call_rows)), "danube-admission")
            else:
                rows.setdefault(client, []).extend(call_rows)
        for client, client_rows in rows.items():
            part = batch.part(sorted(client_rows))
            part.admitted = client
            method.handle(part)

    async def _admit_rows(self, method: BatchedMethod, listener: str, call: Call, batch: RequestBatch) -> None:
        try:
            batch.admitted = await self.admit(call, listener)
            method.handle(batch)
        except Exception as error:  # noqa: BLE001 (whatever the error, the callers of all rows wait for a status)
            batch.fail_all(status_number(error))


def _credential(call: Call) -> Credential | None:
    """Raises Unauthenticated for a header that is not `Bearer TOKEN`."""
    header = call.metadata.get(AUTHORIZATION)
    if header is None:
        return CertificateCredential(call.certificate) if call.certificate else None
    token = header[len(_SCHEME) :].strip()
    if not header.lower().startswith(_SCHEME) or not token:
        raise unauthenticated()
    return BearerCredential(token)


def _digest(credential: Credential | None) -> bytes:
    """The sessions remember no token."""
    match credential:
        case BearerCredential(token):
            return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
        case CertificateCredential(certificate):
            return hashlib.sha256(b"certificate " + certificate).digest()
        case _:
            return b""
