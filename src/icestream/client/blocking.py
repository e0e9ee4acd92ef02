"""The client for code without an event loop: the same names, with calls that block. One implementation, two faces.

A thread of its own runs the loop on which the asyncio client lives; every call goes over to it and waits. Any thread
may use a client, its producers and its subscriptions.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Literal

from icestream import errors, limits
from icestream.client.address import Address
from icestream.client.asked import TypeName
from icestream.client.blocking_producer import BlockingProducer
from icestream.client.blocking_subscription import BlockingSubscription
from icestream.client.client import Client
from icestream.client.loop_thread import LoopThread
from icestream.client.options import ClientOptions
from icestream.client.producer import Producer
from icestream.client.subscription import Subscription
from icestream.client.topic_info import TopicInfo, TopicPolicies
from icestream.client.whence import Whence
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness

# Those that the interpreter closes when it exits. A producer outlives the name of its client, so they are kept here.
_open_clients: Final[set[BlockingClient]] = set()


class BlockingClient:
    """A connection to a broker, with calls that block. Any thread may use it.

    `icestream.connect_sync` makes one. It connects with `with`, with `open`, or by itself with the first call. Close it
    when it is not needed any more (`with` does); what is still open when the interpreter exits is closed then.
    """

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self._address = address
        self._options = options
        self._opening = threading.Lock()
        self._opened: tuple[LoopThread, Client] | None = None
        self._is_closed = False

    def open(self) -> BlockingClient:
        """Connects. Raises what goes wrong; it may be tried again then."""
        self._here()
        return self

    async def _connect(self) -> Client:
        return await Client(self._address, self._options, SystemClock(), SystemRandomness())

    def close(self) -> None:
        """Waits for what producers have sent and for the acks of subscriptions. Whoever still waits is told."""
        with self._opening:
            self._is_closed = True
            opened, self._opened = self._opened, None
        _open_clients.discard(self)
        if opened is not None:
            thread, client = opened
            try:
                thread.run(client.close())
            finally:
                thread.close()

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to the broker now."""
        opened = self._opened
        return opened is not None and opened[1].is_connected

    def __enter__(self) -> BlockingClient:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _here(self) -> tuple[LoopThread, Client]:
        """Connects, the first time. Raises what goes wrong."""
        with self._opening:
            if self._is_closed:
                raise errors.ClientClosed("the client is closed", hint="connect_sync() makes another one")
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
        thread, client = self._here()

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
        thread, client = self._here()
        return thread.run(client.create_topic(topic, shards=shards, dispatch=dispatch, **policies))

    def delete_topic(
        self,
        topic: str,
        *,
        table: Literal["keep", "drop", "purge"] | None = None,
        rest: Literal["commit", "discard"] | None = None,
    ) -> None:
        """Deletes a topic with its subscriptions, as `Client.delete_topic` does."""
        thread, client = self._here()
        thread.run(client.delete_topic(topic, table=table, rest=rest))

    def describe_topic(self, topic: str) -> TopicInfo:
        """Shards, dispatch, producers and subscriptions of a topic. Raises UnknownTopic."""
        thread, client = self._here()
        return thread.run(client.describe_topic(topic))

    def topic_policies(self, topic: str) -> TopicPolicies:
        """Policies of a topic: its own, and what holds: the namespace's count where it has none."""
        thread, client = self._here()
        return thread.run(client.topic_policies(topic))

    def change_topic_policies(self, topic: str, **changes: int | str | None) -> TopicPolicies:
        """Changes policies of a topic; they count from now on. None takes one back."""
        thread, client = self._here()
        return thread.run(client.change_topic_policies(topic, **changes))

    def list_topics(self) -> list[str]:
        """The names of all topics, in order."""
        thread, client = self._here()
        return thread.run(client.list_topics())

    def delete_subscription(self, topic: str, subscription: str) -> None:
        """Deletes a subscription with its positions; its consumers end. Raises UnknownSubscription."""
        thread, client = self._here()
        thread.run(client.delete_subscription(topic, subscription))


@atexit.register
def _close_all() -> None:
    """What was sent is stored, and acks are sent, also by programs that close nothing."""
    for client in list(_open_clients):
        with contextlib.suppress(errors.IcestreamError):  # one of the process that this one was forked from, too
            client.close()
