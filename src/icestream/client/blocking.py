"""The client for code without an event loop: the same names, with calls that block. One implementation, two faces.

A thread of its own runs the loop on which the asyncio client lives; every call goes over to it and waits. Any thread
may use a client, its producers and its subscriptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal

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


class BlockingClient:
    """`icestream.connect_sync` makes one; it connects by `with` or `open`."""

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self._address = address
        self._options = options
        self._opened: tuple[LoopThread, Client] | None = None
        self._is_closed = False

    def open(self) -> BlockingClient:
        """Connects. Raises what goes wrong; it may be tried again then."""
        if self._is_closed:
            raise errors.ClientClosed("the client is closed", hint="connect_sync() makes another one")
        if self._opened is None:
            thread = LoopThread()
            try:
                self._opened = thread, thread.run(self._connect())
            except BaseException:
                thread.close()
                raise
        return self

    async def _connect(self) -> Client:
        return await Client(self._address, self._options, SystemClock(), SystemRandomness())

    def close(self) -> None:
        """Waits for what producers have sent and for the acks of subscriptions. Whoever still waits is told."""
        self._is_closed = True
        opened, self._opened = self._opened, None
        if opened is not None:
            thread, client = opened
            try:
                thread.run(client.close())
            finally:
                thread.close()

    @property
    def is_connected(self) -> bool:
        return self._opened is not None and self._opened[1].is_connected

    def __enter__(self) -> BlockingClient:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _here(self) -> tuple[LoopThread, Client]:
        if self._opened is None:
            state = "closed" if self._is_closed else "not connected yet"
            raise errors.ClientClosed(f"the client is {state}", hint="use it inside `with icestream.connect_sync()`")
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
        **policies: int | str,
    ) -> TopicInfo:
        thread, client = self._here()
        return thread.run(client.create_topic(topic, shards=shards, dispatch=dispatch, **policies))

    def delete_topic(
        self,
        topic: str,
        *,
        table: Literal["keep", "drop", "purge"] | None = None,
        rest: Literal["commit", "discard"] | None = None,
    ) -> None:
        thread, client = self._here()
        thread.run(client.delete_topic(topic, table=table, rest=rest))

    def describe_topic(self, topic: str) -> TopicInfo:
        thread, client = self._here()
        return thread.run(client.describe_topic(topic))

    def topic_policies(self, topic: str) -> TopicPolicies:
        thread, client = self._here()
        return thread.run(client.topic_policies(topic))

    def change_topic_policies(self, topic: str, **changes: int | str | None) -> TopicPolicies:
        thread, client = self._here()
        return thread.run(client.change_topic_policies(topic, **changes))

    def list_topics(self) -> list[str]:
        thread, client = self._here()
        return thread.run(client.list_topics())

    def delete_subscription(self, topic: str, subscription: str) -> None:
        thread, client = self._here()
        thread.run(client.delete_subscription(topic, subscription))
