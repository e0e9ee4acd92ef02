"""A client: what a user asks for. How it stays connected: session.py."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any, Literal

from icestream import limits
from icestream.client.address import Address
from icestream.client.asked import SubscriptionAsked, TypeName
from icestream.client.consumer import Consumer
from icestream.client.options import ClientOptions
from icestream.client.producer import Producer
from icestream.client.questions import Document
from icestream.client.session import Session
from icestream.client.siblings import Siblings
from icestream.client.subscription import Subscription
from icestream.client.topic_info import TopicInfo, TopicPolicies, topic_info, topic_policies
from icestream.client.whence import Whence
from icestream.rpc import document
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness


class Client:
    """A connection to a broker, or to a cluster through one of its nodes. It comes back by itself when it is lost.

    `icestream.connect` makes one; it connects by `async with` or `await`. It belongs to the event loop that it was
    opened on.
    """

    def __init__(self, address: Address, options: ClientOptions, clock: Clock, randomness: Randomness) -> None:
        self._address = address
        self._session = Session(address, options, clock, randomness)
        self._siblings = Siblings(self._session)

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
        self._session.check_open()
        return Producer(self._session, topic, name, create, shards, pending_bytes)

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
    ) -> Subscription:
        """`async with client.subscribe("/default/orders", "billing") as messages:` gets the messages of a topic.

        `start`: where a subscription that is not there yet begins: "earliest", "latest", an offset, a time with a zone.
        (`icestream consume` has other defaults: it makes exclusive subscriptions, and begins at the earliest message.)
        `consumer`: who it is; one that comes again under its name takes its place. `prefetch`, `buffer_bytes`: what may
        wait for the application at most. `take_timeout`: seconds after which messages that are not taken are a
        SlowConsumer. `dedup`: what was handed out once is not handed out again. `failure`: the policy for messages that
        fail, of a subscription that is made, such as {"max_redelivery_count": 3, "poison": "dead-letter",
        "dead_letter_topic": "/default/failed"}; without "poison" such a message blocks what comes behind it.
        `messages_per_key`: of a key-shared subscription, how many messages of a key may be here at a time; above 1 few
        keys are fast too, and a message that fails comes again behind those of its key that were here already.
        `stall_timeout`: seconds for which stored messages may be unreadable until the iteration raises
        SubscriptionStalled; it can be gone on with. None: it waits, and `stalls` says why.
        """
        self._session.check_open()
        asked = SubscriptionAsked(
            topic, subscription, type, start, consumer, prefetch, buffer_bytes, take_timeout, dedup,
            tuple(key_patterns), failure, messages_per_key, stall_timeout,
        )  # fmt: skip
        return Subscription(Consumer(self._session, asked))

    async def create_topic(
        self,
        topic: str,
        *,
        shards: int = 1,
        dispatch: Literal["reliable", "non-reliable"] = "reliable",
        **policies: int | str,
    ) -> TopicInfo:
        """Creates a topic. Raises AlreadyExists.

        `policies`: for example `max_message_bytes=1_000_000`, `partitioning="day"`.
        """
        arguments = {"topic": topic, "shards": shards, "dispatch": dispatch, "policies": policies}
        return topic_info(await self.call("create_topic", arguments))

    async def delete_topic(
        self,
        topic: str,
        *,
        table: Literal["keep", "drop", "purge"] | None = None,
        rest: Literal["commit", "discard"] | None = None,
    ) -> None:
        """Deletes a topic with its subscriptions.

        `table`: what becomes of its table; `rest`: of messages that are in no table yet. Left out, as its policies say.
        """
        await self.call("delete_topic", {"topic": topic, "table": table, "rest": rest})

    async def describe_topic(self, topic: str) -> TopicInfo:
        """Shards, dispatch, producers and subscriptions of a topic. Raises UnknownTopic."""
        return topic_info(await self.call("describe_topic", {"topic": topic}, repeats=True))

    async def topic_policies(self, topic: str) -> TopicPolicies:
        """Policies of a topic: its own, and what holds: the namespace's count where it has none."""
        return topic_policies(await self.call("topic_policies", {"topic": topic}, repeats=True))

    async def change_topic_policies(self, topic: str, **changes: int | str | None) -> TopicPolicies:
        """Changes policies of a topic; they count from now on.

        `max_publish_rate=1000` sets one, None takes one back, those that are left out stay.
        """
        asked = {"topic": topic, "policies": changes}
        return topic_policies(await self.call("topic_policies", asked, repeats=True))

    async def list_topics(self) -> list[str]:
        """The names of all topics, in order."""
        names: list[str] = []
        after: str | None = ""
        while after is not None:
            found = await self.call("list_topics", {"after": after}, repeats=True)
            names += document.texts_of(found, "topics", limits.DOCUMENT_ITEMS_MAX, limits.TOPIC_NAME_BYTES_MAX)
            after = names[-1] if found.get("next") else None
        return names

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        """Deletes a subscription with its positions; its consumers end. Raises UnknownSubscription."""
        await self.call("delete_subscription", {"topic": topic, "subscription": subscription})

    async def call(self, method: str, arguments: Document, *, repeats: bool = False) -> Document:
        """Calls any method of the protocol (docs/protocol.md). A call whose connection is lost raises ConnectionLost,
        unless it `repeats`, which must be harmless."""
        return await self._session.call(method, arguments, repeats=repeats)

    # --- its connection ---

    @property
    def address(self) -> Address:
        """The address that it connects to; in a cluster, that of its first node."""
        return self._address

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to that address now."""
        return self._session.is_connected

    @property
    def connections(self) -> int:
        """How many connections to that address there were: more than 1 after it was lost."""
        return self._session.connections

    async def close(self) -> None:
        """Waits for what producers have sent and for the acks of subscriptions, then leaves."""
        await self._siblings.close()

    async def __aenter__(self) -> Client:
        await self._session.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Client]:
        return self.__aenter__().__await__()
