"""The client for code without an event loop: the same names, with calls that block. One implementation, two faces.

A thread of its own runs the loop on which the asyncio client lives; every call goes over to it and waits. Any thread
may use a client, its producers and its subscriptions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from icestream import errors, limits
from icestream.client.address import Address
from icestream.client.asked import Gap, TypeName
from icestream.client.batch import MessageId
from icestream.client.client import Client, TopicInfo
from icestream.client.message import NOTED, Message, Noted
from icestream.client.options import ClientOptions
from icestream.client.producer import Payload, Producer
from icestream.client.subscription import Subscription
from icestream.client.whence import Whence
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness

if TYPE_CHECKING:
    from icestream.client.arrow import ArrowBatch

Answer = TypeVar("Answer")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="icestream-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """The result of a coroutine that runs over there."""
        if not self._thread.is_alive() or self._thread is threading.current_thread():
            work.close()
            raise errors.ClientClosed("the client is closed", hint="use it inside `with icestream.connect_sync()`")
        answer = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return answer.result()
        except CancelledError:
            raise errors.ClientClosed("the client was closed") from None
        except BaseException:
            answer.cancel()
            raise

    def call_soon(self, call: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            raise errors.ClientClosed("the client is closed") from None

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class BlockingMessage(Message):
    """A message whose ack goes over to the client's thread."""

    __slots__ = ("_thread",)
    _thread: LoopThread

    def ack(self) -> Noted:
        self._thread.call_soon(super().ack)
        return NOTED

    def nack(self, delay: float = 0.0) -> Noted:
        self._thread.call_soon(super().nack, delay)
        return NOTED


class BlockingProducer:
    def __init__(self, thread: LoopThread, producer: Producer) -> None:
        self._thread = thread
        self._producer = producer
        self.topic = producer.topic
        self.name = producer.name

    def send(
        self,
        payload: Payload,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        publish_time: datetime | int | None = None,
    ) -> MessageId:
        """Returns when the message is stored. `send_all` is far faster for many."""
        return self._thread.run(self._send(payload, key, headers, publish_time))

    async def _send(
        self,
        payload: Payload,
        key: bytes | str | None,
        headers: Mapping[str, str] | None,
        publish_time: datetime | int | None,
    ) -> MessageId:
        await self._producer.ready()
        return await self._producer.send(payload, key=key, headers=headers, publish_time=publish_time)

    def send_all(self, payloads: Iterable[Payload], *, key: bytes | str | None = None) -> list[MessageId]:
        """Sends them together; returns when all are stored. Raises the first error, when all are settled."""
        return self._thread.run(self._send_all(list(payloads), key))

    async def _send_all(self, payloads: list[Payload], key: bytes | str | None) -> list[MessageId]:
        sent: list[asyncio.Future[MessageId]] = []
        for payload in payloads:
            await self._producer.ready()
            sent.append(self._producer.send(payload, key=key))
        await asyncio.gather(*sent, return_exceptions=True)
        return [one.result() for one in sent]

    def close(self) -> None:
        self._thread.run(self._producer.close())

    def __enter__(self) -> BlockingProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BlockingSubscription:
    """An iterator of messages that waits for the next one."""

    def __init__(self, thread: LoopThread, subscription: Subscription, deduplicates: bool) -> None:
        self._thread = thread
        self._subscription = subscription
        self._deduplicates = deduplicates
        self._messages: list[Message] = []  # taken over, the next one last
        self.topic = subscription.topic
        self.name = subscription.name
        self.consumer = subscription.consumer

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        message = self.receive()
        if message is None:
            raise StopIteration
        return message

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None when the time is over, or the subscription was closed."""
        while True:
            while self._messages:
                message = self._messages.pop()
                # one whose connection is lost comes again; where that is dropped, this is the only one
                if message.is_current or self._deduplicates:
                    return message
            taken = self._thread.run(self._take(timeout))
            if not taken:
                return None
            for message in taken:
                cast("BlockingMessage", message)._thread = self._thread
            self._messages = taken[::-1]

    async def _take(self, seconds: float | None) -> list[Message]:
        try:
            async with asyncio.timeout(seconds):
                return await self._subscription.take(limits.CLIENT_SYNC_CHUNK, BlockingMessage)
        except TimeoutError:
            return []

    def batches(self, max_messages: int = 10_000) -> Iterator[ArrowBatch]:
        """Messages as Arrow; `ack` them with `subscription.ack(batch)`."""
        found = self._subscription.batches(max_messages)

        async def following() -> ArrowBatch | None:
            return await anext(found, None)

        while (batch := self._thread.run(following())) is not None:
            yield batch

    def ack(self, batch: ArrowBatch) -> None:
        self._thread.call_soon(batch.ack)

    def ack_through(self, message: Message) -> None:
        async def note() -> None:
            self._subscription.ack_through(message)

        self._thread.run(note())

    def flush(self) -> None:
        self._thread.run(self._subscription.flush())

    def seek(self, start: Whence, *, shard: int | None = None) -> None:
        self._thread.run(self._subscription.seek(start, shard=shard))
        self._messages = []

    @property
    def gaps(self) -> list[Gap]:
        return list(self._subscription.gaps)

    def close(self) -> None:
        self._thread.run(self._subscription.close())

    def __enter__(self) -> BlockingSubscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BlockingClient:
    """`icestream.connect_sync` makes one; it connects by `with` or `open`."""

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self._address = address
        self._options = options
        self._thread: LoopThread | None = None
        self._client: Client | None = None

    def open(self) -> BlockingClient:
        if self._thread is None:
            self._thread = LoopThread()
            try:
                self._client = self._thread.run(self._connect())
            except BaseException:
                self._thread.close()
                raise
        return self

    async def _connect(self) -> Client:
        return await Client(self._address, self._options, SystemClock(), SystemRandomness())

    def close(self) -> None:
        if self._thread is not None and self._client is not None:
            client, self._client = self._client, None
            try:
                self._thread.run(client.close())
            finally:
                self._thread.close()

    def __enter__(self) -> BlockingClient:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _here(self) -> tuple[LoopThread, Client]:
        if self._thread is None or self._client is None:
            raise errors.ClientClosed("the client is not open", hint="use it inside `with icestream.connect_sync()`")
        return self._thread, self._client

    # --- the same as Client ---

    def producer(
        self,
        topic: str,
        *,
        name: str | None = None,
        create: bool = True,
        shards: int = 1,
        pending_bytes: int = limits.CLIENT_PENDING_BYTES_DEFAULT,
    ) -> BlockingProducer:
        thread, client = self._here()

        async def opened() -> Producer:
            return await client.producer(topic, name=name, create=create, shards=shards, pending_bytes=pending_bytes)

        return BlockingProducer(thread, thread.run(opened()))

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
    ) -> BlockingSubscription:
        thread, client = self._here()

        async def opened() -> Subscription:
            return await client.subscribe(
                topic, subscription, type=type, start=start, consumer=consumer, prefetch=prefetch,
                buffer_bytes=buffer_bytes, take_timeout=take_timeout, dedup=dedup, key_patterns=key_patterns,
                failure=failure,
            )  # fmt: skip

        return BlockingSubscription(thread, thread.run(opened()), dedup)

    def create_topic(
        self,
        topic: str,
        *,
        shards: int = 1,
        dispatch: Literal["reliable", "non-reliable"] = "reliable",
        **policies: int,
    ) -> TopicInfo:
        thread, client = self._here()
        return thread.run(client.create_topic(topic, shards=shards, dispatch=dispatch, **policies))

    def delete_topic(self, topic: str) -> None:
        thread, client = self._here()
        thread.run(client.delete_topic(topic))

    def describe_topic(self, topic: str) -> TopicInfo:
        thread, client = self._here()
        return thread.run(client.describe_topic(topic))

    def list_topics(self) -> list[str]:
        thread, client = self._here()
        return thread.run(client.list_topics())

    def delete_subscription(self, topic: str, subscription: str) -> None:
        thread, client = self._here()
        thread.run(client.delete_subscription(topic, subscription))
