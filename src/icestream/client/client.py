"""Client: the asyncio client as users see it, and `connect`. session.py keeps it connected."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

from icestream import errors, limits
from icestream.client.address import DEFAULT, Address, parse_address
from icestream.client.client_credential import TokenSupplier, client_credential
from icestream.client.consumer import Consumer
from icestream.client.producer import Producer
from icestream.client.session import ClientOptions, Session, SessionPool
from icestream.client.start_position import StartPosition
from icestream.client.subscribe_call import SubscribeRequest, TypeName
from icestream.client.subscription import Subscription
from icestream.rpc import document
from icestream.rpc.client_tls import ClientTls, tls_of_variables
from icestream.rpc.document import Document
from icestream.runtime.clock import Clock, SystemClock
from icestream.runtime.randomness import Randomness, SystemRandomness


def connect(
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
    clock: Clock | None = None,
    randomness: Randomness | None = None,
) -> Client:
    """`async with icestream.connect() as client:` connects to a broker, and reconnects whenever the connection is lost.

    `address`: `icestream://host:port`, `host:port` or `unix:///path`. `name`: for the broker's logs. `wait`:
    seconds to retry while there is no broker yet. `connect_timeout`: seconds for one connection to open.
    `call_timeout`: seconds for the reply to a call. `send_timeout`: seconds within which a message must be stored.
    `heartbeat`: seconds of silence after which a PING is sent. `compression`: compresses what is sent, if the
    broker supports it. `tls`: how to connect by TLS; None: as ICESTREAM_CA_FILE says, without it plain text.
    `token`: a text, or a function that is called for each connection; `token_file`: read for each connection; or
    `user` and `password`. Without any of them the file that the variable ICESTREAM_TOKEN_FILE names, if it is set.
    `clock` and `randomness` are for tests. Raises ConnectionLost, Unauthenticated, or WrongPort if another kind of
    server answers.
    """
    credential = client_credential(token, token_file, user, password)
    tls = tls if tls is not None else tls_of_variables(os.environ)
    options = ClientOptions(
        name, wait, connect_timeout, call_timeout, send_timeout, heartbeat, compression, tls, credential
    )
    return Client(parse_address(address), options, clock or SystemClock(), randomness or SystemRandomness())


class TopicInfo(NamedTuple):
    """A topic, as its broker describes it."""

    topic: str
    shards: int
    dispatch: str
    producers: int
    subscriptions: list[str]


TopicInfo.topic.__doc__ = "The name of the topic."
TopicInfo.shards.__doc__ = "How many shards it has; messages are in order in each."
TopicInfo.dispatch.__doc__ = (
    "`reliable`: stored, acked and redelivered. `non-reliable`: only to consumers that are connected."
)
TopicInfo.producers.__doc__ = "How many producers are connected to it."
TopicInfo.subscriptions.__doc__ = "The names of its subscriptions."


class TopicPolicies(NamedTuple):
    """The policies of a topic, by name; None for a policy that is not set."""

    policies: dict[str, int | str | None]
    effective: dict[str, int | str | None]


TopicPolicies.policies.__doc__ = "The topic's own policies."
TopicPolicies.effective.__doc__ = "The policies in effect: the namespace's policy where the topic has none."


class Client:
    """A connection to a broker, or to a cluster through one of its nodes. It is opened again when it is lost.

    `icestream.connect` makes one; it connects by `async with` or `await`. It belongs to the event loop that it was
    opened on.
    """

    def __init__(self, address: Address, options: ClientOptions, clock: Clock, randomness: Randomness) -> None:
        self._address = address
        self._session = Session(address, options, clock, randomness)
        self._sessions = SessionPool(self._session)

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

        `name`: identifies the producer; another producer of the same name fences it. Default: a unique name. `create`:
        creates the topic with `shards` shards if it does not exist. `pending_bytes`: bytes of messages that may wait
        for an answer.
        """
        self._session.check_open()
        return Producer(self._session, topic, name, create, shards, pending_bytes)

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
    ) -> Subscription:
        """`async with client.subscribe("/default/orders", "billing") as messages:` gets the messages of a topic.

        `start`: where a new subscription begins: "earliest", "latest", an offset, a datetime with a time zone.
        (`icestream consume` has other defaults: exclusive subscriptions that begin at the earliest message.)
        `consumer`: the name of this consumer; a consumer that subscribes again under its name replaces itself.
        `prefetch`, `buffer_bytes`: bounds of the messages that wait for the application. `take_timeout`: seconds after
        which messages that are not taken raise SlowConsumer. `dedup`: a message is handed out only once. `failure`: the
        failure policy of a new subscription, such as {"max_redelivery_count": 3, "poison": "dead-letter",
        "dead_letter_topic": "/default/failed"}; without "poison" a message that fails too often blocks those behind it.
        `messages_per_key`: for a key-shared subscription, how many messages of a key may be in flight; above 1 few keys
        are fast too, and a message that fails is redelivered behind those of its key that were in flight already.
        `stall_timeout`: seconds for which stored messages may be unreadable until the iteration raises
        SubscriptionStalled; the iteration can be continued. None: it waits, and `stalls` has the reason.
        """
        self._session.check_open()
        request = SubscribeRequest(
            topic, subscription, type, start, consumer, prefetch, buffer_bytes, take_timeout, dedup,
            tuple(key_patterns), failure, messages_per_key, stall_timeout,
        )  # fmt: skip
        return Subscription(Consumer(self._session, request))

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
        return _decode_topic_info(await self.call("create_topic", arguments))

    async def delete_topic(
        self,
        topic: str,
        *,
        table: Literal["keep", "drop", "purge"] | None = None,
        rest: Literal["commit", "discard"] | None = None,
    ) -> None:
        """Deletes a topic with its subscriptions.

        `table`: what happens to its table; `rest`: what happens to messages that are not in the table yet. Default: the
        topic's policies.
        """
        await self.call("delete_topic", {"topic": topic, "table": table, "rest": rest})

    async def describe_topic(self, topic: str) -> TopicInfo:
        """Shards, dispatch, producers and subscriptions of a topic. Raises UnknownTopic."""
        return _decode_topic_info(await self.call("describe_topic", {"topic": topic}, repeats=True))

    async def topic_policies(self, topic: str) -> TopicPolicies:
        """Returns the policies of a topic: its own, and those in effect (the namespace's where it has none)."""
        return _decode_topic_policies(await self.call("topic_policies", {"topic": topic}, repeats=True))

    async def change_topic_policies(self, topic: str, **changes: int | str | None) -> TopicPolicies:
        """Changes policies of a topic with immediate effect.

        `max_publish_rate=1000` sets a policy, None removes it, policies that are not named stay.
        """
        arguments = {"topic": topic, "policies": changes}
        return _decode_topic_policies(await self.call("topic_policies", arguments, repeats=True))

    async def list_topics(self) -> list[str]:
        """The names of all topics, in order."""
        names: list[str] = []
        after: str | None = ""
        # Page by page: a cluster may have more topics than a reply can hold. A topic that is created meanwhile may be
        # missed, none is listed twice.
        while after is not None:
            page = await self.call("list_topics", {"after": after}, repeats=True)
            names += document.texts_of(page, "topics", limits.DOCUMENT_ITEMS_MAX, limits.TOPIC_NAME_BYTES_MAX)
            after = names[-1] if page.get("next") else None
        return names

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        """Deletes a subscription with its positions; its consumers end. Raises UnknownSubscription."""
        await self.call("delete_subscription", {"topic": topic, "subscription": subscription})

    async def call(self, method: str, arguments: Document, *, repeats: bool = False) -> Document:
        """Calls any method of the protocol (docs/protocol.md). Raises ConnectionLost if the connection is lost during
        the call, unless `repeats` allows to repeat it: the method must be idempotent."""
        return await self._session.call(method, arguments, repeats=repeats)

    # --- the connection ---

    @property
    def address(self) -> Address:
        """The address that it connects to; in a cluster, that of its first node."""
        return self._address

    @property
    def is_connected(self) -> bool:
        """True if there is a connection to that address now."""
        return self._session.is_connected

    @property
    def connections(self) -> int:
        """How many connections to that address were opened: more than 1 after a reconnect."""
        return self._session.connections

    async def close(self) -> None:
        """Waits for pending messages of producers and acks of subscriptions, then disconnects."""
        await self._sessions.close()

    async def __aenter__(self) -> Client:
        await self._session.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Client]:
        return self.__aenter__().__await__()


def _decode_topic_policies(reply: Document) -> TopicPolicies:
    """The policies of a topic from a reply. Raises DecodeError."""
    return TopicPolicies(_decode_policies(reply, "policies"), _decode_policies(reply, "effective_policies"))


def _decode_policies(reply: Document, name: str) -> dict[str, int | str | None]:
    policies = reply.get(name)
    if not isinstance(policies, dict) or not all(isinstance(value, int | str | None) for value in policies.values()):
        raise errors.DecodeError(f"{name} of a reply is not a map of policies")
    return policies


def _decode_topic_info(reply: Document) -> TopicInfo:
    """The description of a topic from a reply. Raises DecodeError."""
    return TopicInfo(
        document.text_of(reply, "topic", limits.TOPIC_NAME_BYTES_MAX),
        document.number_of(reply, "shards", 1, limits.SHARDS_PER_TOPIC_MAX),
        document.text_of(reply, "dispatch", limits.NAME_BYTES_MAX),
        document.number_of(reply, "producers", 0, 2**63 - 1),
        list(document.texts_of(reply, "subscriptions", limits.DOCUMENT_ITEMS_MAX, limits.NAME_BYTES_MAX)),
    )
