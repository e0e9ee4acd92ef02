"""The client for code without an event loop: the same names as the asyncio client, with blocking calls.

The asyncio client runs on an event loop in a thread of its own (loop_thread.py); every call is handed to that thread
and waits for the result. Any thread may use a client, its producers and its subscriptions.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal

from icestream import errors, limits
from icestream.client.acks import check_delay_ms
from icestream.client.address import DEFAULT, Address, parse_address
from icestream.client.batch import MessageId
from icestream.client.client import Client, TopicInfo, TopicPolicies
from icestream.client.client_credential import TokenSupplier, client_credential
from icestream.client.consumer import Consumer
from icestream.client.delivered_rows import DeliveredRows
from icestream.client.loop_thread import LoopThread
from icestream.client.message import COMPLETED_ACK, CompletedAck, Gap, Message
from icestream.client.producer import Payload, Producer, payload_bytes
from icestream.client.session import ClientOptions
from icestream.client.stalls import Stall
from icestream.client.start_position import StartPosition
from icestream.client.subscribe_call import TypeName
from icestream.client.subscription import Subscription
from icestream.rpc.client_tls import ClientTls, tls_of_variables
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness

if TYPE_CHECKING:
    from icestream.client.arrow import ArrowBatch

# Clients that are closed when the interpreter exits. A producer may outlive the variable of its client, so the clients
# are referenced here.
_open_clients: Final[set[BlockingClient]] = set()


def connect_sync(
    address: str = DEFAULT,
    *,
    name: str = "",
    wait: float = 0.0,
    connect_timeout: float = limits.CLIENT_CONNECT_SECONDS_DEFAULT,
    call_timeout: float = limits.CLIENT_CALL_SECONDS_DEFAULT,
    send_timeout: float = limits.CLIENT_SEND_SECONDS_DEFAULT,
    heartbeat: float = limits.CLIENT_HEARTBEAT_SECONDS_DEFAULT,
    compression: bool = False,
    tls: ClientTls | None = None,
    token: str | TokenSupplier | None = None,
    token_file: str | Path | None = None,
    user: str | None = None,
    password: str | None = None,
) -> BlockingClient:
    """`with icestream.connect_sync() as client:` is `connect` with blocking calls. Any thread may use the client.

    Without `with` it connects with its first call: `client = icestream.connect_sync()`, and `client.close()` at the
    end. Clients that are still open when the interpreter exits are closed then.
    """
    credential = client_credential(token, token_file, user, password)
    tls = tls if tls is not None else tls_of_variables(os.environ)
    options = ClientOptions(
        name, wait, connect_timeout, call_timeout, send_timeout, heartbeat, compression, tls, credential
    )
    return BlockingClient(parse_address(address), options)


class BlockingClient:
    """A connection to a broker, with blocking calls. Any thread may use it.

    `icestream.connect_sync` makes one. It connects with `with`, with `open`, or with the first call. Close it when it
    is not needed any more (`with` does); a client that is still open when the interpreter exits is closed then.
    """

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self._address = address
        self._options = options
        self._opening = threading.Lock()
        self._opened: tuple[LoopThread, Client] | None = None
        self._is_closed = False

    def open(self) -> BlockingClient:
        """Connects. Raises ConnectionLost or the broker's refusal; it may be called again then."""
        self._opened_client()
        return self

    async def _connect(self) -> Client:
        return await Client(self._address, self._options, SystemClock(), SystemRandomness())

    def close(self) -> None:
        """Waits for pending messages of producers and acks of subscriptions, then disconnects. Calls of other threads
        that still wait raise ClientClosed."""
        with self._opening:
            self._is_closed = True
            opened, self._opened = self._opened, None
        _open_clients.discard(self)
        # Outside of the lock: closing waits for pending messages, and other threads must be able to see that it closes.
        if opened is not None:
            thread, client = opened
            try:
                thread.run(client.close())
            finally:
                thread.close()

    @property
    def is_connected(self) -> bool:
        """True if there is a connection to the broker now."""
        opened = self._opened
        return opened is not None and opened[1].is_connected

    def __enter__(self) -> BlockingClient:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _opened_client(self) -> tuple[LoopThread, Client]:
        """Connects, unless it is connected. Raises ConnectionLost, ClientClosed, or the broker's refusal."""
        with self._opening:  # one thread connects, others that call meanwhile wait for it
            if self._is_closed:
                raise errors.ClientClosed("the client is closed", hint="connect_sync() makes another client")
            if self._opened is None:
                thread = LoopThread()
                try:
                    self._opened = thread, thread.run(self._connect())
                except BaseException:
                    thread.close()
                    raise
                _open_clients.add(self)
            return self._opened

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
        """`with client.producer("/default/orders") as producer:` sends messages to a topic, as `Client.producer`."""
        thread, client = self._opened_client()

        async def opened() -> Producer:
            return await client.producer(topic, name=name, create=create, shards=shards, pending_bytes=pending_bytes)

        return BlockingProducer(thread, thread.run(opened()))

    def subscribe(
        self,
        topic: str,
        subscription: str,
        *,
        type: TypeName = "shared",  # noqa: A002  # the word of the protocol
        start: StartPosition = "latest",
        consumer: str | None = None,
        prefetch: int | None = None,
        buffer_bytes: int = limits.CLIENT_BUFFER_BYTES_DEFAULT,
        take_timeout: float | None = None,
        dedup: bool = False,
        key_patterns: Sequence[str] = (),
        failure: dict[str, Any] | None = None,
        messages_per_key: int = 1,
        stall_timeout: float | None = limits.CLIENT_STALL_SECONDS,
    ) -> BlockingSubscription:
        """`with client.subscribe("/default/orders", "billing") as messages:` gets the messages of a topic, as
        `Client.subscribe` does."""
        thread, client = self._opened_client()

        async def opened() -> Subscription:
            return await client.subscribe(
                topic, subscription, type=type, start=start, consumer=consumer, prefetch=prefetch,
                buffer_bytes=buffer_bytes, take_timeout=take_timeout, dedup=dedup, key_patterns=key_patterns,
                failure=failure, messages_per_key=messages_per_key, stall_timeout=stall_timeout,
            )  # fmt: skip

        return BlockingSubscription(thread, thread.run(opened())._consumer, dedup)

    def create_topic(
        self,
        topic: str,
        *,
        shards: int = 1,
        dispatch: Literal["reliable", "non-reliable"] = "reliable",
        **policies: int | str,
    ) -> TopicInfo:
        """Creates a topic. Raises AlreadyExists. `policies`: for example `max_message_bytes=1_000_000`."""
        thread, client = self._opened_client()
        return thread.run(client.create_topic(topic, shards=shards, dispatch=dispatch, **policies))

    def delete_topic(
        self,
        topic: str,
        *,
        table: Literal["keep", "drop", "purge"] | None = None,
        rest: Literal["commit", "discard"] | None = None,
    ) -> None:
        """Deletes a topic with its subscriptions, as `Client.delete_topic` does."""
        thread, client = self._opened_client()
        thread.run(client.delete_topic(topic, table=table, rest=rest))

    def describe_topic(self, topic: str) -> TopicInfo:
        """Shards, dispatch, producers and subscriptions of a topic. Raises UnknownTopic."""
        thread, client = self._opened_client()
        return thread.run(client.describe_topic(topic))

    def topic_policies(self, topic: str) -> TopicPolicies:
        """Returns the policies of a topic: its own, and those in effect (the namespace's where it has none)."""
        thread, client = self._opened_client()
        return thread.run(client.topic_policies(topic))

    def change_topic_policies(self, topic: str, **changes: int | str | None) -> TopicPolicies:
        """Changes policies of a topic with immediate effect; None removes a policy."""
        thread, client = self._opened_client()
        return thread.run(client.change_topic_policies(topic, **changes))

    def list_topics(self) -> list[str]:
        """The names of all topics, in order."""
        thread, client = self._opened_client()
        return thread.run(client.list_topics())

    def delete_subscription(self, topic: str, subscription: str) -> None:
        """Deletes a subscription with its positions; its consumers end. Raises UnknownSubscription."""
        thread, client = self._opened_client()
        thread.run(client.delete_subscription(topic, subscription))


@atexit.register
def _close_all() -> None:
    """Closes all clients when the interpreter exits: pending messages are stored and acks are sent, also by programs
    that do not close their clients."""
    for client in list(_open_clients):
        with contextlib.suppress(errors.IcestreamError):  # also a client that was inherited by a fork
            client.close()


class BlockingProducer:
    """Sends messages to a topic, with blocking calls. `BlockingClient.producer` makes one; any thread may use it."""

    def __init__(self, thread: LoopThread, producer: Producer) -> None:
        self._thread = thread
        self._producer = producer

    @property
    def topic(self) -> str:
        """The topic that it sends to."""
        return self._producer.topic

    @property
    def name(self) -> str:
        """Its name: another producer of the same name fences it."""
        return self._producer.name

    def send(
        self,
        payload: Payload,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        publish_time: datetime | int | None = None,
    ) -> MessageId:
        """Sends a message, waits until it is stored, and returns where. `send_all` is far faster for many messages.

        `key`, `headers` and `publish_time` are those of `Producer.send`.
        """
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
        """Sends messages together; returns when all are stored. Raises the first error, after all have an outcome.

        Payloads that are not bytes raise InvalidInput before anything is sent.
        """
        return self._thread.run(self._send_all([payload_bytes(payload) for payload in payloads], key))

    async def _send_all(self, payloads: list[bytes], key: bytes | str | None) -> list[MessageId]:
        futures: list[asyncio.Future[MessageId]] = []
        try:
            for payload in payloads:
                await self._producer.ready()
                futures.append(self._producer.send(payload, key=key))
        finally:
            # Also after an error: the caller must not hear of it while some of its messages have no outcome yet.
            await asyncio.gather(*futures, return_exceptions=True)
        return [future.result() for future in futures]

    def flush(self) -> None:
        """Waits until every message that other threads have sent so far is stored or has failed."""
        self._thread.run(self._producer.flush())

    def close(self) -> None:
        """Waits until everything is stored or has failed, then closes the producer at the broker."""
        self._thread.run(self._producer.close())

    def __enter__(self) -> BlockingProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BlockingMessage(Message):
    """A message whose ack is handed to the client's thread."""

    __slots__ = ("_thread",)

    def __init__(self, delivered: DeliveredRows, row: int, thread: LoopThread) -> None:
        super().__init__(delivered, row)
        self._thread = thread

    def ack(self) -> CompletedAck:
        """Acknowledges the message: it was processed and is not delivered again."""
        self._call_in_thread(super().ack)
        return COMPLETED_ACK

    def nack(self, delay: float = 0.0) -> CompletedAck:
        """Rejects the message: it is delivered again after `delay` seconds, or later if the subscription's policy says
        so."""
        check_delay_ms(delay)
        self._call_in_thread(super().nack, delay)
        return COMPLETED_ACK

    def _call_in_thread(self, call: Callable[..., object], *arguments: object) -> None:
        """Calls in the client's thread, without waiting. Raises ClientClosed or the error of the subscription."""
        # Without waiting for the thread: an ack for each message would otherwise cost two thread switches. Errors of
        # the subscription are checked here, in the thread of the caller.
        self._delivered.consumer.check_open()
        self._thread.call_soon(_call_ignoring_errors, call, *arguments)


def _call_ignoring_errors(call: Callable[..., object], *arguments: object) -> None:
    # A subscription that ends between the check and this call needs no acks any more.
    with contextlib.suppress(errors.IcestreamError):
        call(*arguments)


class BlockingSubscription:
    """Messages of a topic: an iterator that waits for the next message. `BlockingClient.subscribe` makes one; any
    thread may use it.

    Messages are handed over from the client's thread many at a time. One thread fetches, the others wait for it.
    """

    def __init__(self, thread: LoopThread, consumer: Consumer, deduplicates: bool) -> None:
        self._thread = thread
        self._consumer = consumer
        self._deduplicates = deduplicates
        self._changed = threading.Condition()
        self._messages: deque[Message] = deque()  # handed over, not received yet
        self._is_fetching = False

    # --- messages ---

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        message = self.receive()
        if message is None:
            raise StopIteration
        return message

    def receive(self, timeout: float | None = None) -> Message | None:
        """Returns the next message; None after `timeout` seconds, or if the subscription was closed."""
        end = None if timeout is None else monotonic() + timeout
        while True:
            seconds = None if end is None else max(0.0, end - monotonic())
            with self._changed:
                message = self._next_buffered()
                if message is not None:
                    return message
                # One thread fetches, without the lock, so that others can take what is buffered and time out.
                if self._is_fetching:
                    if not self._changed.wait(seconds):
                        return None
                    continue
                self._is_fetching = True
            if not self._fetch(seconds):
                return None

    def _next_buffered(self) -> Message | None:
        """The next message that was handed over and is still to be handed out; None if there is none."""
        while self._messages:
            message = self._messages.popleft()
            # A message whose connection is lost is delivered again, so this copy is dropped; but a subscription that
            # deduplicates drops the second delivery, so this copy is the only one.
            if message.is_current or self._deduplicates:
                return message
        return None

    def _fetch(self, seconds: float | None) -> bool:
        """Fetches messages for all threads. False if none came in time, or the subscription was closed."""
        messages: list[Message] = []
        try:
            messages = self._thread.run(self._take_messages(seconds))
        finally:
            with self._changed:
                self._messages.extend(messages)
                self._is_fetching = False
                self._changed.notify_all()
        return bool(messages)

    async def _take_messages(self, seconds: float | None) -> list[Message]:
        try:
            async with asyncio.timeout(seconds):
                chunk = await self._consumer.take_chunk_for_thread(limits.CLIENT_SYNC_CHUNK)
        except TimeoutError:
            return []
        if chunk is None:
            return []
        delivered, first, end = chunk
        return [BlockingMessage(delivered, row, self._thread) for row in range(first, end)]

    def batches(self, max_messages: int = 10_000) -> Iterator[ArrowBatch]:
        """Messages as Arrow, with the columns of the topic's table; each batch has `ack()`. Needs pyarrow."""
        from icestream.client.arrow import blocking_arrow_batches

        return blocking_arrow_batches(self._thread, self._consumer, max_messages)

    # --- acks ---

    def ack_through(self, message: Message) -> None:
        """Acks this message and everything before it in its shard. Only for exclusive and failover subscriptions."""

        async def ack_through() -> None:
            self._consumer.ack_through(message)

        self._thread.run(ack_through())

    def flush(self) -> None:
        """Waits until the broker has applied every ack so far."""
        self._thread.run(self._consumer.flush())

    # --- position and state ---

    def seek(self, start: StartPosition, *, shard: int | None = None) -> None:
        """Moves the subscription: everything from `start` on is delivered, again or for the first time, to all of its
        consumers."""
        self._thread.run(self._consumer.seek(start, shard=shard))
        with self._changed:  # messages of the old position were handed over already
            self._messages.clear()

    @property
    def topic(self) -> str:
        """The topic whose messages these are."""
        return self._consumer.topic

    @property
    def name(self) -> str:
        """The name of the subscription."""
        return self._consumer.name

    @property
    def consumer(self) -> str:
        """The name of this consumer among those of the subscription."""
        return self._consumer.consumer

    @property
    def gaps(self) -> list[Gap]:
        """Offsets without a message, as reported by the broker; the newest 1,000."""
        return list(self._consumer.gaps)

    @property
    def stalls(self) -> list[Stall]:
        """The current stalls: shard, offset, reason and hint of each; empty while messages are delivered. The iteration
        raises SubscriptionStalled for them, see `stall_timeout` of `Client.subscribe`."""
        return self._consumer.stalls

    def close(self) -> None:
        """Sends the acks, then closes the consumer. Threads that wait for a message get None."""
        self._thread.run(self._consumer.close())
        with self._changed:
            self._messages.clear()

    def __enter__(self) -> BlockingSubscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
