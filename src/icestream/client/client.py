"""A client: one connection that is kept up, and the producers and subscriptions that live on it.

    connecting   the first connection; what goes wrong is raised
    here         calls, producers and subscriptions work
    away         the connection is lost: a try after each backoff; calls wait, producers hold what they were given
    closed       for good

At the end of a loop tick everything that producers and subscriptions have to say leaves in one write. Nothing runs
while nothing happens, but a heartbeat on a silent connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple

from icestream import errors, limits
from icestream.client.address import Address
from icestream.client.asked import SubscriptionAsked, TypeName
from icestream.client.backoff import Backoff
from icestream.client.connection import Connection, Document, open_connection
from icestream.client.endpoint import Endpoint
from icestream.client.options import ClientOptions
from icestream.client.producer import Producer
from icestream.client.subscription import Subscription
from icestream.client.whence import Whence
from icestream.protocol import document, handshake
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness
from icestream.runtime.tasks import Tasks

_log = logging.getLogger("icestream.client")
# While an old connection of ours is not yet known to be dead, it is in our own way.
_PASSING: Final = (errors.PolicyReached, errors.SubscriptionTaken)


class TopicInfo(NamedTuple):
    topic: str
    shards: int
    dispatch: str
    producers: int
    subscriptions: list[str]


class Client:
    """`icestream.connect` makes one; it connects by `async with` or `await`."""

    def __init__(self, address: Address, options: ClientOptions, clock: Clock, randomness: Randomness) -> None:
        self.address = address
        self.options = options
        self.clock = clock
        self.randomness = randomness
        self.tasks = Tasks(self._task_failed)
        self._hello = handshake.Hello(
            client=options.name,
            frame_bytes_max=limits.FRAME_BYTES_MAX,
            compression=(handshake.ZSTD,) if options.compression else (),
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: Connection | None = None
        self._since_ns = 0  # when it was opened
        self._backoff = Backoff(randomness)
        self._why: errors.IcestreamError = errors.ConnectionLost(f"not connected to {address} yet")
        self._here = asyncio.Event()
        self._lost = asyncio.Event()
        self._is_closed = self._was_started = False
        self._endpoints: dict[Endpoint, None] = {}
        self._dirty: list[Endpoint] = []
        self.connections = 0  # how many there were

    # --- what a user calls ---

    def producer(
        self,
        topic: str,
        *,
        name: str | None = None,
        create: bool = True,
        shards: int = 1,
        pending_bytes: int = limits.CLIENT_PENDING_BYTES_DEFAULT,
    ) -> Producer:
        """`async with client.producer("/default/orders") as producer:` sends messages to a topic.

        `name`: who it is; another one of the same name fences it. Left out, nobody else has it. `create`: makes the
        topic when it is not there, with so many `shards`. `pending_bytes`: how much may wait for an answer.
        """
        self._check_open()
        return Producer(self, topic, name, create, shards, pending_bytes)

    def subscribe(
        self,
        topic: str,
        subscription: str,
        *,
        type: TypeName = "shared",  # noqa: A002  # the word of the protocol
        start: Whence = "latest",
        consumer: str | None = None,
        prefetch: int = limits.CLIENT_PREFETCH_DEFAULT,
        buffer_bytes: int = limits.CLIENT_BUFFER_BYTES_DEFAULT,
        take_timeout: float | None = None,
        dedup: bool = False,
        key_patterns: Sequence[str] = (),
        failure: dict[str, Any] | None = None,
    ) -> Subscription:
        """`async with client.subscribe("/default/orders", "billing") as messages:` gets the messages of a topic.

        `start`: where a subscription that is not there yet begins: "earliest", "latest", an offset, a time with a zone.
        `consumer`: who it is; one that comes again under its name takes its place. `prefetch`, `buffer_bytes`: what may
        wait for the application at most. `take_timeout`: seconds after which messages that are not taken are a
        SlowConsumer. `dedup`: what was handed out once is not handed out again. `failure`: the policy for messages that
        fail, of a subscription that is made.
        """
        self._check_open()
        asked = SubscriptionAsked(
            topic, subscription, type, start, consumer, prefetch, buffer_bytes, take_timeout, dedup,
            tuple(key_patterns), failure,
        )  # fmt: skip
        return Subscription(self, asked)

    async def create_topic(
        self,
        topic: str,
        *,
        shards: int = 1,
        dispatch: Literal["reliable", "non-reliable"] = "reliable",
        **policies: int,
    ) -> TopicInfo:
        """Raises AlreadyExists. `policies`: for example `max_message_bytes=1_000_000`."""
        arguments = {"topic": topic, "shards": shards, "dispatch": dispatch, "policies": policies}
        return _topic_info(await self.call("create_topic", arguments))

    async def delete_topic(self, topic: str) -> None:
        """With its subscriptions."""
        await self.call("delete_topic", {"topic": topic})

    async def describe_topic(self, topic: str) -> TopicInfo:
        return _topic_info(await self.call("describe_topic", {"topic": topic}, repeats=True))

    async def list_topics(self) -> list[str]:
        found = await self.call("list_topics", {}, repeats=True)
        return list(document.texts_of(found, "topics", limits.DOCUMENT_ITEMS_MAX, limits.TOPIC_NAME_BYTES_MAX))

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        await self.call("delete_subscription", {"topic": topic, "subscription": subscription})

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    async def close(self) -> None:
        """Waits for what producers have sent and for the acks of subscriptions, then leaves."""
        if self._is_closed:
            return
        self._is_closed = True
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

    async def __aenter__(self) -> Client:
        if not self._was_started:
            self._was_started = True
            self._loop = asyncio.get_running_loop()
            try:
                self._use(await self._first_connection())
            except BaseException:
                self._is_closed = True
                raise
            self.tasks.start(self._keep_connected(), "client")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Client]:
        return self.__aenter__().__await__()

    def _check_open(self) -> None:
        if self._is_closed or not self._was_started:
            state = "closed" if self._is_closed else "not connected yet"
            raise errors.ClientClosed(f"the client is {state}", hint="use it inside `async with icestream.connect()`")

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
        connection, _ = await open_connection(self.address, self._hello, self, self.options.connect_seconds)
        if connection.is_lost:
            raise connection.lost_error()
        return connection

    async def _keep_connected(self) -> None:
        while True:
            await self._lost.wait()
            self._lost.clear()
            if self.clock.monotonic_ns() - self._since_ns > limits.CLIENT_STABLE_SECONDS * 1e9:
                self._backoff.reset()
            while self._connection is None:
                await self.clock.sleep(self._backoff.next_seconds())
                try:
                    self._use(await self._connect())
                    _log.info("connected to %s again", self.address)
                except errors.IcestreamError as error:
                    self._why = error

    def _use(self, connection: Connection) -> None:
        self._connection = connection
        self._since_ns = self.clock.monotonic_ns()
        self.connections += 1
        self._here.set()
        self.tasks.start(connection.watch(self.clock, self.options.heartbeat_seconds), "client-heartbeat")
        for endpoint in self._endpoints:
            self.tasks.start(self.open_again(endpoint, connection), "client-open")

    def lost(self, connection: Connection, error: errors.IcestreamError) -> None:
        if connection is not self._connection:
            return
        _log.warning("%s; connecting again", connection.lost_error().message)
        self._connection = None
        self._why = error
        self._here.clear()
        self._lost.set()
        for endpoint in list(self._endpoints):
            endpoint.detach(error)

    def drained(self) -> None:
        for endpoint in self._endpoints:
            self.plan(endpoint)

    # --- ticks ---

    def plan(self, endpoint: Endpoint) -> None:
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
        """Waits for a connection. One that is lost under the call is ConnectionLost, unless it `repeats`."""
        self._check_open()
        while True:
            connection = await self._connected()
            try:
                return await self.ask(connection, method, arguments)
            except errors.ConnectionLost:
                if not (repeats and connection.is_lost):
                    raise

    async def _connected(self) -> Connection:
        while self._connection is None:
            try:
                async with asyncio.timeout(self.options.call_seconds):
                    await self._here.wait()
            except TimeoutError:
                raise errors.ConnectionLost(
                    f"not connected to {self.address}: {self._why.message}", hint=self._why.hint
                ) from None
        return self._connection

    async def ask(self, connection: Connection, method: str, arguments: Document, *, undo: str = "") -> Document:
        answer = connection.call(method, arguments)
        try:
            async with asyncio.timeout(self.options.call_seconds):
                return await asyncio.shield(answer)
        except TimeoutError:
            seconds = f"{self.options.call_seconds:g} s"
            raise errors.ConnectionLost(f"{self.address} did not answer {method} in {seconds}") from None
        finally:
            if not answer.done():
                answer.add_done_callback(lambda late: self._undo(connection, undo, late))

    def _undo(self, connection: Connection, undo: str, late: asyncio.Future[Document]) -> None:
        if late.cancelled() or late.exception() is not None or not undo or connection.is_lost:
            return
        handle = late.result().get("handle")
        self.tasks.start(self.tell(connection, undo, {"handle": handle}), "client-undo")

    async def tell(self, connection: Connection, method: str, arguments: Document) -> None:
        if not connection.is_lost:
            with contextlib.suppress(errors.IcestreamError):
                await self.ask(connection, method, arguments)

    # --- endpoints ---

    async def open(self, endpoint: Endpoint) -> None:
        self._check_open()
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

    def _task_failed(self, error: BaseException) -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "a task of an Icestream client failed", "exception": error}
        )


def _topic_info(found: Document) -> TopicInfo:
    return TopicInfo(
        document.text_of(found, "topic", limits.TOPIC_NAME_BYTES_MAX),
        document.number_of(found, "shards", 1, limits.SHARDS_PER_TOPIC_MAX),
        document.text_of(found, "dispatch", limits.NAME_BYTES_MAX),
        document.number_of(found, "producers", 0, 2**63 - 1),
        list(document.texts_of(found, "subscriptions", limits.DOCUMENT_ITEMS_MAX, limits.NAME_BYTES_MAX)),
    )
