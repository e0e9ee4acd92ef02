"""A producer: `send` returns a future for each message; all sends of a loop tick leave together, one block per shard.

opening   not known to the broker yet
open      messages go out as their lanes (lane.py) let them; a lost connection only pauses it
failed    another one took its name, its topic is gone: everything pending fails, and so does every `send`
closed
"""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections.abc import Generator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Final

from icestream import errors, limits
from icestream.client.batch import Batch, MessageId, headers_of
from icestream.client.connection import Connection
from icestream.client.instant import microseconds
from icestream.client.publishing import Publishing
from icestream.client.session import Session
from icestream.client.waiters import Waiters
from icestream.model.topic_name import TopicName, check_name

Payload = bytes | bytearray | memoryview
_Future: Final = asyncio.Future
_MESSAGE_BYTES: Final = limits.CLIENT_MESSAGE_BYTES
_BLOCK_BYTES: Final = 256  # head, directory and padding of a block
_PATIENCE_SHARE: Final = 0.9  # of the time that every message has


class Producer:
    """Sends messages to a topic. What one producer sends to a shard is stored in the order in which it was sent.

    `Client.producer` makes one; it is opened by `async with` or `await`. A lost connection only pauses it: what has no
    answer is sent again, and nothing is stored twice.
    """

    def __init__(
        self, session: Session, topic: str, name: str | None, create: bool, shards: int, pending_bytes: int
    ) -> None:
        self._topic = str(TopicName.parse(topic))
        own_name = f"{socket.gethostname()}-{session.randomness.token(8).hex()}" if name is None else name
        self._name = check_name("producer", own_name)
        self._error: errors.IcestreamError | None = None
        self._endpoint = _ProducerEndpoint(self)
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._out = Publishing(session, self._endpoint, self._topic, self._name, create, shards)
        self._send_ns = int(session.options.send_seconds * 1e9)
        self._is_closing = False
        # Of each shard, the batch that takes messages in this tick: always the one that its lane collects in. All
        # messages look here, whatever they carry, so that none goes into a batch in front of a newer one.
        self._open: dict[int, Batch] = {}
        self._turn = 0  # the shard of messages without a key, for this tick
        self._is_planned = False
        self._is_watched = False
        self._pending_max = pending_bytes
        self._pending_bytes = 0
        self._room = Waiters()
        self._batch_bytes = limits.CLIENT_BATCH_BYTES_MAX
        self._fixed_bytes = _BLOCK_BYTES + len(self._name.encode()) + len(self._topic.encode())

    # --- what a user calls ---

    def send(
        self,
        payload: Payload,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        publish_time: datetime | int | None = None,
    ) -> asyncio.Future[MessageId]:
        """Sends a message at the end of this tick of the loop; await the future to know that it is stored, and where.

        Messages with the same key go to the same shard, by CRC-32 of the key; those without a key go to one shard after
        the other, all of a tick to the same. `publish_time` is now, or a time with a zone, or microseconds since 1970.
        Raises InFlightFull when too much is pending: `await ready()` first.
        """
        if self._pending_bytes >= self._pending_max:
            raise self._full()
        if type(payload) is not bytes:
            payload = bytes_of(payload)
        size = len(payload) + _MESSAGE_BYTES
        if key is not None or headers or publish_time is not None:
            return self._send_with(payload, size, key, headers, publish_time)
        batch = self._open.get(self._turn)
        if batch is None or batch.bytes + size > self._batch_bytes:
            batch = self._batch_of(self._turn, size)
        self._pending_bytes += size
        batch.bytes += size
        future: asyncio.Future[MessageId] = _Future(loop=self._loop)
        batch.payloads.append(payload)
        batch.futures.append(future)
        if not self._is_planned:
            self._plan()
        return future

    async def ready(self) -> None:
        """Waits until there is room for another message. Raises why there never will be."""
        while self._pending_bytes >= self._pending_max:
            self._check_open()
            await self._room.wait()
        self._check_open()

    async def flush(self) -> None:
        """Waits until every message sent so far is stored or has failed; its future says which."""
        waiting: list[asyncio.Future[None]] = []
        for batch in [batch for lane in self._out.lanes for batch in lane if batch.futures]:
            waiting.append(self._loop.create_future())
            batch.settled.append(waiting[-1])
        if waiting:
            await asyncio.wait(waiting)

    @property
    def topic(self) -> str:
        """The topic that it sends to."""
        return self._topic

    @property
    def name(self) -> str:
        """Its name: another producer of the same name fences it."""
        return self._name

    @property
    def error(self) -> errors.IcestreamError | None:
        """Why it has failed for good. None: it has not."""
        return self._error

    @property
    def pending_bytes(self) -> int:
        """Bytes of messages that were sent and have no answer, with what it costs to remember them."""
        return self._pending_bytes

    @property
    def shards(self) -> int:
        """How many shards the topic has."""
        return len(self._out.lanes)

    async def close(self) -> None:
        """Waits until everything is stored or has failed, then leaves."""
        if self._is_closing:
            return
        self._is_closing = True
        self._open.clear()
        try:
            await self.flush()
        finally:
            self._session.forget(self._endpoint)
            await self._out.leave()
            self._end(errors.ClientClosed(f"producer {self.name} was closed"))

    async def __aenter__(self) -> Producer:
        if not self._out.was_open and not self._is_closing:
            await self._session.open(self._endpoint)
        self._check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Producer]:
        return self.__aenter__().__await__()

    # --- collecting ---

    def _send_with(
        self,
        payload: bytes,
        size: int,
        key: bytes | str | None,
        headers: Mapping[str, str] | None,
        publish_time: datetime | int | None,
    ) -> asyncio.Future[MessageId]:
        key_bytes = key if type(key) is bytes else _key_of(key)
        checked = headers_of(headers) if headers else None
        time_us = None if publish_time is None else microseconds(publish_time)
        shard, lanes = self._turn, self._out.lanes
        if key_bytes is not None and lanes:
            size += len(key_bytes)
            shard = zlib.crc32(key_bytes) % len(lanes)
        if checked:
            size += sum(len(name.encode()) + len(value.encode()) + 8 for name, value in checked.items())
        batch = self._open.get(shard)
        if batch is None or batch.bytes + size > self._batch_bytes:
            batch = self._batch_of(shard, size)
        self._pending_bytes += size
        future: asyncio.Future[MessageId] = _Future(loop=self._loop)
        batch.add(payload, future, size)
        batch.add_extra(key_bytes, checked, time_us)
        if not self._is_planned:
            self._plan()
        return future

    def _batch_of(self, shard: int, size: int) -> Batch:
        """The batch of a shard that takes messages until this tick ends, with room for `size` bytes: the one that the
        lane collects in, or a new one behind it. Raises ClientClosed, MessageTooLarge, or why the producer failed."""
        self._check_open()
        if (own := size - _MESSAGE_BYTES) > limits.MESSAGE_BYTES_MAX:  # the topic's own bound is the broker's to judge
            raise errors.MessageTooLarge(
                f"a message of {own} bytes", hint=f"at most {limits.MESSAGE_BYTES_MAX} bytes are possible"
            )
        lane = self._out.lanes[shard]
        batch, now_ns = lane.collecting, self._session.clock.monotonic_ns()
        if batch is None or batch.bytes + size > self._batch_bytes:
            batch = self._begin(shard, now_ns)
            lane.begin(batch)
        elif batch.deadline_ns - now_ns < _PATIENCE_SHARE * self._send_ns:
            batch = self._begin(shard, now_ns)  # what comes late must not fail with what came first
            lane.begin(batch)
        self._open[shard] = batch
        return batch

    def _begin(self, shard: int, now_ns: int) -> Batch:
        batch = Batch(shard, self._session.clock.wall_us(), now_ns + self._send_ns)
        if not self._is_watched:
            self._is_watched = True
            self._session.tasks.start(self._watch(), f"producer-{self.name}-watch")
        return batch

    async def _watch(self) -> None:
        try:
            await self._out.watch(self._session.options.send_seconds)
        finally:
            self._is_watched = False

    def _check_open(self) -> None:
        self._session.check_loop()
        if self._error is not None:
            raise self._error
        if self._is_closing or not self._out.was_open:
            state = "closed" if self._is_closing else "not open yet"
            raise errors.ClientClosed(f"producer {self.name} is {state}", hint="use one inside its own `async with`")

    def _full(self) -> errors.IcestreamError:
        return errors.InFlightFull(
            f"{self._pending_bytes} bytes of producer {self.name} wait for an answer",
            hint="await producer.ready() before send(), or raise pending_bytes",
        )

    # --- as an endpoint of the client (_ProducerEndpoint) ---

    def _plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            self._session.plan(self._endpoint)

    def _flush_on(self, connection: Connection | None) -> None:
        self._is_planned = False
        self._open.clear()
        if lanes := self._out.lanes:
            self._turn = (self._turn + 1) % len(lanes)
        self._out.flush_on(connection)

    def _released(self, batch: Batch) -> None:
        self._pending_bytes -= batch.bytes
        if self._room and self._pending_bytes < self._pending_max:
            self._room.wake()

    def _lanes_changed(self) -> None:
        self._open.clear()
        self._turn %= len(self._out.lanes)
        self._batch_bytes = self._out.batch_bytes_max - self._fixed_bytes

    def _move_to(self, session: Session) -> None:
        self._session = session
        self._out.move_to(session)

    def _fail(self, error: errors.IcestreamError) -> None:
        if self._error is None:
            self._error = error
        self._session.forget(self._endpoint)
        self._end(error)

    def _end(self, error: errors.IcestreamError) -> None:
        self._open.clear()
        self._out.fail_pending(error)
        self._room.wake()


class _ProducerEndpoint:
    """A producer, as the session and the batches of it see it: what is not for its user."""

    __slots__ = ("_producer",)

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def plan(self) -> None:
        self._producer._plan()

    def released(self, batch: Batch) -> None:
        self._producer._released(batch)

    def lanes_changed(self) -> None:
        self._producer._lanes_changed()

    async def open_on(self, connection: Connection) -> None:
        await self._producer._out.open_on(connection)

    def move_to(self, session: Session) -> None:
        self._producer._move_to(session)

    def flush_on(self, connection: Connection | None) -> None:
        self._producer._flush_on(connection)

    def detach(self, error: errors.IcestreamError) -> None:
        self._producer._out.detach()

    def fail(self, error: errors.IcestreamError) -> None:
        self._producer._fail(error)

    async def close(self) -> None:
        await self._producer.close()


def bytes_of(payload: object) -> bytes:
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise errors.InvalidInput(f"a payload is bytes, not {type(payload).__name__}", hint="text.encode() makes bytes")


def _key_of(key: bytes | str | None) -> bytes | None:
    if key is None or type(key) is bytes:
        return key
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError:
            raise errors.InvalidInput("a key is not valid Unicode") from None
    if isinstance(key, bytes):
        return bytes(key)
    raise errors.InvalidInput(f"a key is bytes or text, not {type(key).__name__}")
