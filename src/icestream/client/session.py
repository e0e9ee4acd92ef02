"""What a client is inside: one connection that is kept up, and the producers and subscriptions (endpoints) on it.

    new          nothing was asked for yet
    connecting   the first connection; what goes wrong is raised
    here         calls, producers and subscriptions work
    away         the connection is lost: a try after each backoff; calls wait, producers hold what they were given.
                 A connection that is only silent is replaced as liveness.py says
    closed       for good: calls that wait are told, endpoints finish what they have

At the end of a loop tick everything that producers and subscriptions have to say leaves in one write. Nothing runs
while nothing happens, but a heartbeat on a silent connection. It belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from icestream import errors, limits
from icestream.client.address import Address
from icestream.client.backoff import Backoff
from icestream.client.connection import Connection, open_connection
from icestream.client.endpoint import Endpoint
from icestream.client.liveness import Liveness, liveness
from icestream.client.options import ClientOptions
from icestream.client.questions import Document
from icestream.rpc import handshake
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness
from icestream.runtime.tasks import Tasks

_log = logging.getLogger("icestream.client")
# While an old connection of ours is not yet known to be dead, it is in our own way.
_PASSING: Final = (errors.PolicyReached, errors.SubscriptionTaken)


class Session:
    def __init__(
        self, address: Address, options: ClientOptions, clock: Clock, randomness: Randomness, node: str = ""
    ) -> None:
        """`node`: the name of the node at that address, where another node of its cluster told it."""
        self.address = address
        self._node = node
        self.options = options
        self.clock = clock
        self.randomness = randomness
        self.tasks = Tasks(_task_failed)
        self.connections = 0  # how many there were
        self._hello = handshake.Hello(
            client=options.name,
            frame_bytes_max=limits.FRAME_BYTES_MAX,
            compression=(handshake.ZSTD,) if options.compression else (),
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: Connection | None = None
        self._since_ns = 0  # when it was opened
        self._backoff = Backoff(randomness, last_seconds=limits.CLIENT_RECONNECT_SECONDS_MAX)
        self._replacements = 0  # of silent connections, one after the other
        self._why: errors.IcestreamError = errors.ConnectionLost(f"not connected to {address} yet")
        self._here = asyncio.Event()
        self._lost = asyncio.Event()
        self._is_closed = False
        self.elsewhere: Callable[[errors.TopicElsewhere], Awaitable[Session]] = _nowhere
        self._endpoints: dict[Endpoint, None] = {}
        self._dirty: list[Endpoint] = []

    # --- its life ---

    async def start(self) -> None:
        """Connects, the first time that it is asked to. Raises what goes wrong."""
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
        """Waits for what producers have sent and for the acks of subscriptions, then leaves."""
        if self._is_closed:
            return
        self._is_closed = True
        self._here.set()
        try:
            for endpoint in reversed(list(self._endpoints)):
                await endpoint.close()
        finally:
            await self.tasks.stop()
            connection, self._connection = self._connection, None
            closed = errors.ClientClosed("the client was closed")
            for endpoint in list(self._endpoints):
                endpoint.fail(closed)
            if connection is not None:
                await connection.close()

    def check_open(self) -> None:
        if self._is_closed or self._loop is None:
            state = "closed" if self._is_closed else "not connected yet"
            raise errors.ClientClosed(f"the client is {state}", hint="use it inside `async with icestream.connect()`")
        self.check_loop()

    def check_loop(self) -> None:
        """Nothing here is made for several threads."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self._loop:
            raise errors.InvalidInput(
                "this client belongs to another event loop or thread",
                hint="use icestream.connect_sync() with threads, or one client for each event loop",
            )

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def away_because(self) -> str:
        """Why there is, or lately was, no connection."""
        return self._why.message if self._connection is None else "the broker was away"

    # --- the connection ---

    async def _first_connection(self) -> Connection:
        """Fails at once, or goes on trying for as long as `wait` says."""
        end_ns = self.clock.monotonic_ns() + int(self.options.wait_seconds * 1e9)
        backoff = Backoff(self.randomness)
        while True:
            try:
                return await self._connect()
            except errors.ConnectionLost:
                if self.clock.monotonic_ns() >= end_ns:
                    raise
            await self.clock.sleep(backoff.next_seconds())

    async def _connect(self) -> Connection:
        try:
            connection, _ = await open_connection(self.address, self._hello, self, self.options.connect_seconds)
        except errors.ConnectionLost as error:
            if not self._node:
                raise
            hint = f"start {self._node} again; `icestream cluster status` shows the nodes of a cluster"
            raise errors.ConnectionLost(f"{self._node} is down: {error.message}", hint=hint) from None
        if connection.is_lost:
            raise connection.lost_error()
        return connection

    async def _keep_connected(self) -> None:
        while True:
            await self._lost.wait()
            self._lost.clear()
            self._begin_backoff()
            await self.clock.sleep(self._backoff.next_seconds())
            connection = await self._connect_again(lambda: self._connection is None)
            if connection is not None:
                self._use(connection)
                _log.info("connected to %s again", self.address)

    def _begin_backoff(self) -> None:
        if self.clock.monotonic_ns() - self._since_ns > limits.CLIENT_STABLE_SECONDS * 1e9:
            self._backoff.reset()

    async def _connect_again(self, is_needed: Callable[[], bool]) -> Connection | None:
        """The first connection that opens, of tries that follow each other. A try that gets no answer does not hold up
        the next one: it may be one whose packets were lost. None: a connection is not needed any more."""

        async def attempt() -> Connection | None:
            try:
                return await self._connect()
            except errors.IcestreamError as error:
                self._why = error
                return None

        attempts: list[asyncio.Task[Connection | None]] = []
        pause: asyncio.Task[None] | None = None
        try:
            while is_needed():
                while len(attempts) >= limits.CLIENT_CONNECTS_MAX:
                    await _abandon(attempts.pop(0))
                attempts.append(asyncio.create_task(attempt()))
                pause = asyncio.create_task(self.clock.sleep(self._backoff.next_seconds()))
                while not pause.done():
                    await asyncio.wait([pause, *attempts], return_when=asyncio.FIRST_COMPLETED)
                    for done in [one for one in attempts if one.done()]:
                        attempts.remove(done)
                        if (connection := done.result()) is not None and not connection.is_lost:
                            return connection
            return None
        finally:
            for task in attempts:
                await _abandon(task)
            if pause is not None:
                pause.cancel()

    def _use(self, connection: Connection) -> None:
        self._connection = connection
        self._since_ns = self.clock.monotonic_ns()
        self.connections += 1
        self._here.set()
        self.tasks.start(self._watch(connection), "client-heartbeat")
        for endpoint in self._endpoints:
            self.tasks.start(self.open_again(endpoint, connection), "client-open")

    async def _watch(self, connection: Connection) -> None:
        """Asks a silent connection for a sign of life, and looks for another one when none comes (liveness.py)."""
        while not connection.is_lost:
            if self.clock.monotonic_ns() - self._since_ns > limits.CLIENT_STEADY_SECONDS * 1e9:
                self._replacements = 0
            bounds = liveness(self.options.heartbeat_seconds, self._replacements)
            reads = connection.reads
            await self.clock.sleep(bounds.ask)
            if connection.reads != reads or connection.is_lost:
                continue
            with contextlib.suppress(errors.InFlightFull):  # so many calls wait that one of them will tell
                connection.ping()
            await self.clock.sleep(bounds.doubt)
            if connection.reads == reads and not connection.is_lost:
                await self._replace_silent(connection, reads, bounds)

    async def _replace_silent(self, silent: Connection, reads: int, bounds: Liveness) -> None:
        """Until it speaks, another connection has taken its place, or it is given up."""
        giving_up = self.tasks.start(self._give_up(silent, reads, bounds), "client-silence")
        connection: Connection | None = None
        try:
            self._begin_backoff()
            connection = await self._connect_again(lambda: silent.reads == reads and not silent.is_lost)
            if connection is not None:
                await self.clock.sleep(bounds.grace)
            is_silent = silent.reads == reads and not silent.is_lost
            if connection is not None and is_silent and not connection.is_lost:
                self._replacements += 1
                silent.end(errors.ConnectionLost(f"{self.address} was silent, and answered on another connection"))
                self._use(connection)
        finally:
            giving_up.cancel()
            if connection is not None and connection is not self._connection:
                connection.end(errors.ConnectionLost("the connection is not needed"))

    async def _give_up(self, silent: Connection, reads: int, bounds: Liveness) -> None:
        await self.clock.sleep(bounds.give_up - bounds.ask - bounds.doubt)
        if silent.reads == reads:
            silent.end(errors.ConnectionLost(f"{self.address} was silent for {bounds.give_up:g} s"))

    def lost(self, connection: Connection, error: errors.IcestreamError) -> None:
        if connection is not self._connection:
            return
        _log.warning("%s; connecting again", connection.lost_error().message)
        self._connection = None
        self._why = error
        if not self._is_closed:
            self._here.clear()
        self._lost.set()
        for endpoint in list(self._endpoints):
            endpoint.detach(error)

    def drained(self) -> None:
        for endpoint in self._endpoints:
            self.plan(endpoint)

    # --- ticks ---

    def plan(self, endpoint: Endpoint) -> None:
        """Calls its `flush_on` at the end of this tick."""
        self._dirty.append(endpoint)
        if len(self._dirty) == 1 and self._loop is not None:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        connection = self._connection
        for endpoint in dirty:
            endpoint.flush_on(connection)
        if connection is not None:
            connection.write()

    # --- calls ---

    async def call(self, method: str, arguments: Document, *, repeats: bool = False) -> Document:
        """Waits for a connection. One that is lost under the call is ConnectionLost, unless it `repeats`. What another
        node must answer is asked there."""
        self.check_open()
        while True:
            connection = await self._connected()
            try:
                return await self.ask(connection, method, arguments)
            except errors.TopicElsewhere as error:
                other = await self.elsewhere(error)
                return await other.ask(await other._connected(), method, arguments)
            except errors.ConnectionLost:
                if not (repeats and connection.is_lost):
                    raise

    async def _connected(self) -> Connection:
        while self._connection is None:
            self.check_open()
            try:
                async with asyncio.timeout(self.options.call_seconds):
                    await self._here.wait()
            except TimeoutError:
                raise errors.ConnectionLost(
                    f"not connected to {self.address}: {self._why.message}", hint=self._why.hint
                ) from None
        return self._connection

    async def ask(self, connection: Connection, method: str, arguments: Document, *, undo: str = "") -> Document:
        """A call on this very connection. Raises ConnectionLost when it is lost, or there is no answer in time.

        `undo`: the call that takes it back, with the handle of an answer that comes when nobody waits any more.
        """
        answer = connection.call(method, arguments)
        is_taken = False
        try:
            async with asyncio.timeout(self.options.call_seconds):
                found = await asyncio.shield(answer)
                is_taken = True
                return found
        except TimeoutError:
            seconds = f"{self.options.call_seconds:g} s"
            raise errors.ConnectionLost(f"{self.address} did not answer {method} in {seconds}") from None
        finally:
            if not is_taken:  # also an answer that came in the moment in which whoever asked was cancelled
                answer.add_done_callback(lambda late: self._undo(connection, undo, late))

    def _undo(self, connection: Connection, undo: str, late: asyncio.Future[Document]) -> None:
        if late.cancelled() or late.exception() is not None or not undo or connection.is_lost:
            return
        handle = late.result().get("handle")
        self.tasks.start(self.tell(connection, undo, {"handle": handle}), "client-undo")

    async def tell(self, connection: Connection, method: str, arguments: Document) -> None:
        """The same, where it does not matter what comes of it."""
        if not connection.is_lost:
            with contextlib.suppress(errors.IcestreamError):
                await self.ask(connection, method, arguments)

    # --- endpoints ---

    async def open(self, endpoint: Endpoint) -> None:
        """For the first time. Raises. It moves to the node that serves its topic."""
        try:
            await self._open_here(endpoint)
        except errors.TopicElsewhere as error:
            other = await self.elsewhere(error)
            endpoint.move_to(other)
            await other._open_here(endpoint)

    async def _open_here(self, endpoint: Endpoint) -> None:
        self.check_open()
        while True:
            connection = await self._connected()
            try:
                await endpoint.open_on(connection)
            except errors.ConnectionLost:
                if not connection.is_lost:
                    raise
            if not connection.is_lost:
                break
            endpoint.detach(connection.lost_error())
        self._endpoints[endpoint] = None

    async def open_again(self, endpoint: Endpoint, connection: Connection) -> None:
        """As often as it takes, while the connection lives. Fails the endpoint when there is no hope."""
        backoff = Backoff(self.randomness)
        begun_ns = self.clock.monotonic_ns()
        while connection is self._connection and endpoint in self._endpoints:
            try:
                await endpoint.open_on(connection)
                return
            except errors.IcestreamError as error:
                if connection.is_lost:
                    return
                waited_seconds = (self.clock.monotonic_ns() - begun_ns) / 1e9
                if self._is_hopeless(error, waited_seconds):
                    endpoint.fail(error)
                    return
            await self.clock.sleep(backoff.next_seconds())

    def _is_hopeless(self, error: errors.IcestreamError, waited_seconds: float) -> bool:
        if isinstance(error, _PASSING):
            return waited_seconds >= self.options.call_seconds
        return not error.retryable and not isinstance(error, errors.PersistentStorageError)

    def forget(self, endpoint: Endpoint) -> None:
        self._endpoints.pop(endpoint, None)


async def _abandon(attempt: asyncio.Task[Connection | None]) -> None:
    """Ends a try to connect, and the connection of one that had just opened."""
    attempt.cancel()
    await asyncio.wait([attempt])
    if not attempt.cancelled() and (connection := attempt.result()) is not None:
        connection.end(errors.ConnectionLost("the connection is not needed"))


async def _nowhere(error: errors.TopicElsewhere) -> Session:
    raise error


def _task_failed(error: BaseException) -> None:
    asyncio.get_running_loop().call_exception_handler(
        {"message": "a task of an Icestream client failed", "exception": error}
    )
