"""Session: keeps one connection to a broker open, for the producers and subscriptions (endpoints) of a client.

    new            `start` was not called yet
    connecting     the first connection; errors are raised to the caller of `start`
    connected      calls, producers and subscriptions work
    disconnected   an attempt to connect after each backoff; calls wait, producers buffer their messages.
                   A connection that is only silent is replaced as liveness.py describes
    closed         permanently: waiting calls fail, endpoints finish what they have

At the end of a loop tick everything that endpoints have to send leaves in one write. While nothing happens only a
heartbeat runs, on a silent connection. A session belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from icestream import errors, limits
from icestream.client.address import Address, parse_address
from icestream.client.client_connection import ClientConnection, open_connection
from icestream.client.client_credential import ClientCredential
from icestream.client.liveness import Liveness, liveness
from icestream.rpc import handshake
from icestream.rpc.backoff import RetryBackoff
from icestream.rpc.client_tls import ClientTls
from icestream.rpc.document import Document
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness
from icestream.runtime.tasks import Tasks

_log = logging.getLogger("icestream.client")
# Errors that an old connection of the same endpoint causes, until the broker notices that it is dead.
_STALE_CONNECTION_ERRORS: Final = (errors.PolicyReached, errors.SubscriptionTaken)


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options of `connect`. Times are in seconds."""

    name: str = ""
    wait_seconds: float = 0.0
    connect_seconds: float = limits.CLIENT_CONNECT_SECONDS_DEFAULT
    call_seconds: float = limits.CLIENT_CALL_SECONDS_DEFAULT
    send_seconds: float = limits.CLIENT_SEND_SECONDS_DEFAULT
    heartbeat_seconds: float = limits.CLIENT_HEARTBEAT_SECONDS_DEFAULT
    compression: bool = False
    tls: ClientTls | None = None
    credential: ClientCredential | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raises InvalidInput."""
        if not _is_number(self.wait_seconds) or not self.wait_seconds >= 0:
            raise errors.InvalidInput(f"wait={self.wait_seconds!r} is not a duration", hint="0 seconds or more")
        for name in ("connect_timeout", "call_timeout", "send_timeout", "heartbeat"):
            seconds = getattr(self, f"{name.removesuffix('_timeout')}_seconds")
            if not _is_number(seconds) or not seconds > 0:
                raise errors.InvalidInput(f"{name}={seconds!r} is not a duration", hint="it is in seconds, above 0")
        if not _is_short_text(self.name):
            raise errors.InvalidInput(
                f"client name must be str of at most {limits.NAME_BYTES_MAX} bytes, got {self.name!r:.40}"
            )


def _is_short_text(value: object) -> bool:
    return isinstance(value, str) and len(value.encode(errors="replace")) <= limits.NAME_BYTES_MAX


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


class Endpoint(Protocol):
    """A producer or a consumer: it outlives connections. Only the session calls these methods; their underscores keep
    them out of the public API of `Producer`."""

    async def _open_on(self, connection: ClientConnection) -> None:
        """Registers at the broker on `connection`. Raises the broker's refusal."""

    def _use_session(self, session: Session) -> None:
        """Moves to another session, because another node serves its topic. It was not open yet."""

    def _flush(self, connection: ClientConnection | None) -> None:
        """Queues what is to be sent, at the end of a tick. `connection`: None while not connected."""

    def _detach(self, error: errors.IcestreamError) -> None:
        """Leaves a lost connection; `_open_on` follows with the next one."""

    def _fail(self, error: errors.IcestreamError) -> None:
        """Ends it permanently."""

    async def close(self) -> None:
        """Completes what is pending, then leaves the session."""


class Session:
    """A connection to one broker that is opened again when it is lost."""

    def __init__(
        self, address: Address, options: ClientOptions, clock: Clock, randomness: Randomness, node: str = ""
    ) -> None:
        """`node`: the name of the node at that address, if a redirect of another node named it."""
        self.address = address
        self._node = node
        self.options = options
        self.clock = clock
        self.randomness = randomness
        self.tasks = Tasks(_report_task_failure)
        self.connections = 0  # how many were opened
        self._hello = handshake.Hello(
            client=options.name,
            frame_bytes_max=limits.FRAME_BYTES_MAX,
            compression=(handshake.ZSTD,) if options.compression else (),
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: ClientConnection | None = None
        self._connected_ns = 0  # when the connection was opened
        self._backoff = RetryBackoff(randomness, last_seconds=limits.CLIENT_RECONNECT_SECONDS_MAX)
        self._replacements = 0  # of silent connections, one after the other
        self._last_error: errors.IcestreamError = errors.ConnectionLost(f"not connected to {address} yet")
        self._connected_event = asyncio.Event()
        self._lost_event = asyncio.Event()
        self._is_closed = False
        # Returns the session to the node that a redirect names (SessionPool).
        self.follow_redirect: Callable[[errors.TopicElsewhere], Awaitable[Session]] = _raise_redirect
        self._endpoints: dict[Endpoint, None] = {}
        self._to_flush: list[Endpoint] = []

    # --- opening and closing ---

    async def start(self) -> None:
        """Connects, unless it has done so before. Raises ConnectionLost, or the broker's refusal."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            try:
                self._use(await self._first_connection())
            except BaseException:
                self._is_closed = True
                raise
            self.tasks.start(self._keep_connected(), "client")
        self.check_open()

    async def close(self) -> None:
        """Waits for pending messages of producers and acks of subscriptions, then disconnects."""
        if self._is_closed:
            return
        self._is_closed = True
        self._connected_event.set()  # calls that wait for a connection look again, and fail
        try:
            for endpoint in reversed(list(self._endpoints)):  # as nested `async with` would close them
                await endpoint.close()
        finally:
            await self.tasks.stop()
            connection, self._connection = self._connection, None
            closed = errors.ClientClosed("the client was closed")
            for endpoint in list(self._endpoints):
                endpoint._fail(closed)
            if connection is not None:
                await connection.close()

    def check_open(self) -> None:
        """Raises ClientClosed, or InvalidInput on another event loop."""
        if self._is_closed or self._loop is None:
            state = "closed" if self._is_closed else "not connected yet"
            raise errors.ClientClosed(f"the client is {state}", hint="use it inside `async with icestream.connect()`")
        self.check_loop()

    def check_loop(self) -> None:
        """Raises InvalidInput on another event loop or thread: a session is not thread-safe."""
        try:
            running_loop = asyncio.get_running_loop()
        except RuntimeError:
            running_loop = None
        if running_loop is not self._loop:
            raise errors.InvalidInput(
                "this client belongs to another event loop or thread",
                hint="use icestream.connect_sync() with threads, or one client for each event loop",
            )

    @property
    def is_connected(self) -> bool:
        """True if there is a connection now."""
        return self._connection is not None

    @property
    def disconnect_reason(self) -> str:
        """Why there is no connection, or was none recently."""
        return self._last_error.message if self._connection is None else "the broker was disconnected"

    # --- connecting ---

    async def _first_connection(self) -> ClientConnection:
        """Returns a connection. Raises ConnectionLost immediately, or after retries for `wait_seconds`."""
        end_ns = self.clock.monotonic_ns() + int(self.options.wait_seconds * 1e9)
        backoff = RetryBackoff(self.randomness)
        while True:
            try:
                return await self._connect()
            except errors.ConnectionLost:
                if self.clock.monotonic_ns() >= end_ns:
                    raise
            await self.clock.sleep(backoff.next_seconds())

    async def _connect(self) -> ClientConnection:
        """Opens one connection. Raises ConnectionLost, which names the node if it is known, or a refusal, such as
        Unauthenticated."""
        try:
            credential = await self.options.credential.current() if self.options.credential is not None else None
            hello = self._hello._replace(credential=credential)
            connection, _ = await open_connection(
                self.address, hello, self, self.options.connect_seconds, self.options.tls
            )
        except errors.ConnectionLost as error:
            if not self._node:
                raise
            hint = f"start {self._node} again; `icestream cluster status` shows the nodes of a cluster"
            raise errors.ConnectionLost(f"{self._node} is down: {error.message}", hint=hint) from None
        if connection.is_lost:
            raise connection.lost_error()
        return connection

    async def _keep_connected(self) -> None:
        """Reconnects whenever the connection is lost; runs until the session is closed."""
        while True:
            await self._lost_event.wait()
            self._lost_event.clear()
            # A pause before the first attempt too: after a restart of a broker all of its clients come at once, and
            # the random backoff spreads them.
            self._reset_backoff_if_stable()
            await self.clock.sleep(self._backoff.next_seconds())
            connection = await self._reconnect(lambda: self._connection is None)
            if connection is not None:
                self._use(connection)
                _log.info("reconnected to %s", self.address)

    def _reset_backoff_if_stable(self) -> None:
        """Forgets earlier failures after a connection that lasted; one that is lost at once must not reset them."""
        if self.clock.monotonic_ns() - self._connected_ns > limits.CLIENT_STABLE_SECONDS * 1e9:
            self._backoff.reset()

    async def _reconnect(self, is_needed: Callable[[], bool]) -> ClientConnection | None:
        """Returns the first connection that opens; None when `is_needed` becomes false.

        Attempts overlap: an attempt without an answer does not delay the next one, because its packets may be lost.
        """

        async def attempt() -> ClientConnection | None:
            try:
                return await self._connect()
            except errors.Unauthenticated as error:
                # The credential has ended or was revoked: nothing would change that, unless it is supplied anew.
                self._last_error = error
                for endpoint in list(self._endpoints):
                    endpoint._fail(error)
                return None
            except errors.IcestreamError as error:
                self._last_error = error
                return None

        attempts: list[asyncio.Task[ClientConnection | None]] = []
        pause: asyncio.Task[None] | None = None
        try:
            while is_needed():
                while len(attempts) >= limits.CLIENT_CONNECTS_MAX:
                    await _abandon(attempts.pop(0))
                attempts.append(asyncio.create_task(attempt()))
                pause = asyncio.create_task(self.clock.sleep(self._backoff.next_seconds()))
                while not pause.done():
                    await asyncio.wait([pause, *attempts], return_when=asyncio.FIRST_COMPLETED)
                    for ended in [task for task in attempts if task.done()]:
                        attempts.remove(ended)
                        if (connection := ended.result()) is not None and not connection.is_lost:
                            return connection
            return None
        finally:
            for task in attempts:
                await _abandon(task)
            if pause is not None:
                pause.cancel()

    def _use(self, connection: ClientConnection) -> None:
        """Makes this the connection of the session, and opens all endpoints on it."""
        self._connection = connection
        self._connected_ns = self.clock.monotonic_ns()
        self.connections += 1
        self._connected_event.set()
        self.tasks.start(self._watch_liveness(connection), "client-heartbeat")
        # Each in a task of its own: an endpoint that is refused and retries must not hold up the others.
        for endpoint in self._endpoints:
            self.tasks.start(self.reopen_endpoint(endpoint, connection), "client-open")

    async def _watch_liveness(self, connection: ClientConnection) -> None:
        """Sends a PING on a silent connection, and tries to replace the connection if it stays silent (liveness.py)."""
        while not connection.is_lost:
            if self.clock.monotonic_ns() - self._connected_ns > limits.CLIENT_STEADY_SECONDS * 1e9:
                self._replacements = 0
            bounds = liveness(self.options.heartbeat_seconds, self._replacements)
            # Any bytes are a sign of life, so a busy connection needs no PING: two numbers are compared, and no timer
            # is set for each read.
            reads = connection.reads
            await self.clock.sleep(bounds.ping_seconds)
            if connection.reads != reads or connection.is_lost:
                continue
            with contextlib.suppress(errors.InFlightFull):  # then one of the waiting calls serves as the PING
                connection.ping()
            await self.clock.sleep(bounds.doubt_seconds)
            if connection.reads == reads and not connection.is_lost:
                await self._replace_silent(connection, reads, bounds)

    async def _replace_silent(self, silent: ClientConnection, reads: int, bounds: Liveness) -> None:
        """Tries to replace a silent connection. Returns when it has spoken, was replaced, or has timed out."""
        timeout = self.tasks.start(self._end_silent(silent, reads, bounds), "client-silence")
        connection: ClientConnection | None = None
        try:
            self._reset_backoff_if_stable()
            connection = await self._reconnect(lambda: silent.reads == reads and not silent.is_lost)
            if connection is not None:
                # The broker answers here; perhaps the old connection recovers in the same moment, and need not be lost.
                await self.clock.sleep(bounds.grace_seconds)
            is_silent = silent.reads == reads and not silent.is_lost
            if connection is not None and is_silent and not connection.is_lost:
                self._replacements += 1
                silent.end(errors.ConnectionLost(f"{self.address} was silent, and answered on another connection"))
                self._use(connection)
        finally:
            timeout.cancel()
            if connection is not None and connection is not self._connection:
                connection.end(errors.ConnectionLost("the connection is not needed"))

    async def _end_silent(self, silent: ClientConnection, reads: int, bounds: Liveness) -> None:
        """Ends a connection that stays silent until its timeout, also if no other one opens."""
        await self.clock.sleep(bounds.timeout_seconds - bounds.ping_seconds - bounds.doubt_seconds)
        if silent.reads == reads:
            silent.end(errors.ConnectionLost(f"{self.address} was silent for {bounds.timeout_seconds:g} s"))

    def on_connection_lost(self, connection: ClientConnection, error: errors.IcestreamError) -> None:
        """Detaches the endpoints and wakes the reconnect; a replaced connection that ends later is ignored."""
        if connection is not self._connection:
            return
        _log.warning("%s; reconnecting", connection.lost_error().message)
        self._connection = None
        self._last_error = error
        if not self._is_closed:
            self._connected_event.clear()
        self._lost_event.set()
        for endpoint in list(self._endpoints):
            endpoint._detach(error)

    def on_writable(self) -> None:
        """Flushes all endpoints: they send nothing while the socket is full."""
        for endpoint in self._endpoints:
            self.schedule_flush(endpoint)

    # --- the end of a loop tick ---

    def schedule_flush(self, endpoint: Endpoint) -> None:
        """Calls the endpoint's `_flush` at the end of this tick."""
        self._to_flush.append(endpoint)
        if len(self._to_flush) == 1 and self._loop is not None:
            self._loop.call_soon(self._flush_endpoints)

    def _flush_endpoints(self) -> None:
        """Lets endpoints queue their frames, then writes all of them at once: one system call for a tick."""
        endpoints, self._to_flush = self._to_flush, []
        connection = self._connection
        for endpoint in endpoints:
            endpoint._flush(connection)
        if connection is not None:
            connection.write()

    # --- calls ---

    async def call(self, method: str, arguments: Document, *, repeats: bool = False) -> Document:
        """Calls the broker, or the node that it redirects to. Waits for a connection.

        Raises ConnectionLost if the connection is lost during the call, unless the call `repeats`.
        """
        self.check_open()
        while True:
            connection = await self._wait_connected()
            try:
                return await self.call_on(connection, method, arguments)
            except errors.TopicElsewhere as redirect:
                # Followed once: a second redirect is raised. Two nodes that name each other would be a loop.
                other = await self.follow_redirect(redirect)
                return await other.call_on(await other._wait_connected(), method, arguments)
            except errors.ConnectionLost:
                if not (repeats and connection.is_lost):
                    raise

    async def _wait_connected(self) -> ClientConnection:
        """Returns the connection, once there is one. Raises ConnectionLost after `call_seconds`, ClientClosed."""
        while self._connection is None:
            self.check_open()
            try:
                async with asyncio.timeout(self.options.call_seconds):
                    await self._connected_event.wait()
            except TimeoutError:
                raise errors.ConnectionLost(
                    f"not connected to {self.address}: {self._last_error.message}", hint=self._last_error.hint
                ) from None
        return self._connection

    async def call_on(
        self, connection: ClientConnection, method: str, arguments: Document, *, undo: str = ""
    ) -> Document:
        """Calls the broker on this connection. Raises ConnectionLost if it is lost, or no reply comes in time.

        `undo`: the method that reverts the call; it is called with the handle of a reply that comes too late.
        """
        # Shielded: the broker carries out the call anyway. If the caller is gone when the reply comes, what the call
        # has opened must be closed again, or it would stay registered as long as the connection lives.
        reply = connection.call(method, arguments)
        is_received = False
        try:
            async with asyncio.timeout(self.options.call_seconds):
                result = await asyncio.shield(reply)
                is_received = True
                return result
        except TimeoutError:
            seconds = f"{self.options.call_seconds:g} s"
            raise errors.ConnectionLost(
                f"{self.address} did not answer {method} within {seconds}",
                hint="it may have been carried out; retry, or raise call_timeout",
            ) from None
        finally:
            # Also for a reply that arrived in the moment in which the caller was cancelled.
            if not is_received:
                reply.add_done_callback(lambda late: self._undo_late_reply(connection, undo, late))

    def _undo_late_reply(self, connection: ClientConnection, undo: str, late: asyncio.Future[Document]) -> None:
        """Closes what a call has opened, if its caller did not get the reply."""
        if late.cancelled() or late.exception() is not None or not undo or connection.is_lost:
            return
        handle = late.result().get("handle")
        self.tasks.start(self.notify(connection, undo, {"handle": handle}), "client-undo")

    async def notify(self, connection: ClientConnection, method: str, arguments: Document) -> None:
        """Calls the broker on this connection, ignoring errors."""
        if not connection.is_lost:
            with contextlib.suppress(errors.IcestreamError):
                await self.call_on(connection, method, arguments)

    # --- endpoints ---

    async def open_endpoint(self, endpoint: Endpoint) -> None:
        """Opens an endpoint for the first time, on the node that serves its topic. Raises the broker's refusal."""
        try:
            await self._open_here(endpoint)
        except errors.TopicElsewhere as redirect:
            other = await self.follow_redirect(redirect)
            endpoint._use_session(other)
            await other._open_here(endpoint)

    async def _open_here(self, endpoint: Endpoint) -> None:
        """Opens an endpoint on this session, again if the connection is lost meanwhile."""
        self.check_open()
        while True:
            connection = await self._wait_connected()
            try:
                await endpoint._open_on(connection)
            except errors.ConnectionLost:
                if not connection.is_lost:
                    raise
            if not connection.is_lost:
                break
            endpoint._detach(connection.lost_error())
        self._endpoints[endpoint] = None

    async def reopen_endpoint(self, endpoint: Endpoint, connection: ClientConnection) -> None:
        """Opens an endpoint again, with retries while the connection lives. Fails the endpoint on a permanent error."""
        backoff = RetryBackoff(self.randomness)
        begin_ns = self.clock.monotonic_ns()
        while connection is self._connection and endpoint in self._endpoints:
            try:
                await endpoint._open_on(connection)
                return
            except errors.IcestreamError as error:
                if connection.is_lost:
                    return
                waited_seconds = (self.clock.monotonic_ns() - begin_ns) / 1e9
                if self._is_permanent(error, waited_seconds):
                    endpoint._fail(error)
                    return
            await self.clock.sleep(backoff.next_seconds())

    def _is_permanent(self, error: errors.IcestreamError, waited_seconds: float) -> bool:
        """True if opening an endpoint again cannot succeed by waiting."""
        # The old connection of the same endpoint may still count at the broker, until its heartbeat runs out.
        if isinstance(error, _STALE_CONNECTION_ERRORS):
            return waited_seconds >= self.options.call_seconds
        return not error.retryable and not isinstance(error, errors.PersistentStorageError)

    def remove_endpoint(self, endpoint: Endpoint) -> None:
        """Forgets an endpoint that has closed or failed: it is not opened again."""
        self._endpoints.pop(endpoint, None)


async def _abandon(attempt: asyncio.Task[ClientConnection | None]) -> None:
    """Cancels an attempt to connect, and closes its connection if it has just opened."""
    attempt.cancel()
    await asyncio.wait([attempt])
    if not attempt.cancelled() and (connection := attempt.result()) is not None:
        connection.end(errors.ConnectionLost("the connection is not needed"))


async def _raise_redirect(redirect: errors.TopicElsewhere) -> Session:
    raise redirect


def _report_task_failure(error: BaseException) -> None:
    asyncio.get_running_loop().call_exception_handler(
        {"message": "a task of an Icestream client failed", "exception": error}
    )


class SessionPool:
    """The sessions of one client: one to the configured broker, and one to each node that it redirects to.

    In a cluster a topic is served by one node; the other nodes answer with a redirect to it. All producers,
    subscriptions and calls for that node share one connection. Redirects are not cached: a topic is looked up with
    every request.
    """

    def __init__(self, first: Session) -> None:
        self._first = first
        self._redirected: dict[Address, Session] = {}
        first.follow_redirect = self.session_for

    async def session_for(self, redirect: errors.TopicElsewhere) -> Session:
        """Returns the session to the node that the redirect names.

        Raises the redirect itself if it names no address, and ConnectionLost with the node's name if that node is down:
        the client may be connected to another node all the time.
        """
        native_address = redirect.details.get("native")
        if not native_address:
            raise redirect
        address = parse_address(native_address)
        if address == self._first.address:
            raise redirect  # that node has just answered that it does not serve the topic
        session = self._redirected.get(address)
        if session is None:
            first = self._first
            node = redirect.details.get("node", f"the node at {address}")
            session = Session(address, first.options, first.clock, first.randomness, node)
            session.follow_redirect = self.session_for
            try:
                await session.start()
            except errors.ConnectionLost as lost:
                raise errors.ConnectionLost(f"{redirect.message}, and {lost.message}", hint=lost.hint) from None
            if address in self._redirected:  # another task has connected meanwhile
                await session.close()
            else:
                self._redirected[address] = session
        return self._redirected[address]

    async def close(self) -> None:
        """Closes all sessions, the configured one last."""
        for session in self._redirected.values():
            await session.close()
        await self._first.close()
