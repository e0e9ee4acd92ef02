"""The public methods of a CALL: decode the arguments, call the broker, return a document (docs/protocol.md)."""

from __future__ import annotations

import reprlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from icestream import errors, limits
from icestream.admin_api.admin_call import Answer, answer_document
from icestream.admin_api.subscription_api import SeekResult, SeekSubscription, SubscriptionOnly
from icestream.admin_api.topic_api import (
    ChangeTopicPolicies,
    CreateTopic,
    DeleteTopic,
    DeletionReport,
    EffectivePolicies,
    FormerTopicTable,
    ListTopics,
    ReturnReport,
    ShardTakeover,
    TakeoverReport,
    TombstoneList,
    TopicNames,
    TopicOnly,
    TopicOutline,
    TopicTombstone,
    UndeleteTopic,
)
from icestream.broker.broker_topic import BrokerProducer, BrokerTopic
from icestream.broker.guarded_broker import GuardedBroker
from icestream.frontends.native.native_consumer import NativeConsumer
from icestream.model.subscription_options import (
    FailurePolicy,
    StartAt,
    SubscriptionStart,
    SubscriptionType,
)
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from icestream.security.access_session import AccessSession

if TYPE_CHECKING:
    from icestream.frontends.native.native_connection import NativeConnection

Document = dict[str, Any]
Arguments = TypeVar("Arguments", bound=msgspec.Struct)


class OpenProducer(msgspec.Struct):
    topic: str
    producer: str
    create: bool | None = None
    shards: int = 1
    instance: str = ""
    resumes: bool = False


class Handle(msgspec.Struct):
    handle: int


class ResetProducer(msgspec.Struct):
    handle: int
    shard: int


class Subscribe(msgspec.Struct):
    topic: str
    subscription: str
    consumer: str
    type: SubscriptionType = SubscriptionType.EXCLUSIVE
    start: StartAt = StartAt.LATEST
    start_value: int = 0
    key_patterns: list[str] = []
    failure: FailurePolicy | None = None
    messages_per_key: int = 1
    picks: bool = False


# Arguments whose unknown fields are refused: a misspelt policy must not be ignored silently.
_STRICT_ARGUMENTS: Final[dict[str, type[msgspec.Struct]]] = {
    "policies": PolicyValues,
    "failure": FailurePolicy,
}


def decode_arguments(kind: type[Arguments], arguments: Document) -> Arguments:
    for name, policies in _STRICT_ARGUMENTS.items():
        _check_field_names(name, arguments.get(name), policies.__struct_fields__)
    try:
        return msgspec.convert(arguments, kind)
    except msgspec.ValidationError as error:
        raise errors.InvalidInput(f"invalid arguments: {error}", hint="docs/protocol.md lists them") from None


def _check_field_names(argument: str, fields: object, allowed: tuple[str, ...]) -> None:
    unknown = [name for name in fields if name not in allowed] if isinstance(fields, dict) else ()
    if unknown:
        raise errors.InvalidInput(
            f"unknown field {reprlib.repr(unknown[0])} in {argument}", hint=f"allowed: {', '.join(allowed)}"
        )


class Caller(NamedTuple):
    """The origin of a call: its connection, and the broker as far as the session of the call may use it."""

    connection: NativeConnection
    broker: GuardedBroker

    @property
    def session(self) -> AccessSession:
        """The session that decides: of the client of the connection, or of the client that a process calls for."""
        return self.broker.session


async def open_producer(caller: Caller, arguments: Document) -> Document:
    request = decode_arguments(OpenProducer, arguments)
    if len(request.instance.encode()) > limits.NAME_BYTES_MAX:
        raise errors.InvalidInput(
            f"producer instance exceeds the limit of {limits.NAME_BYTES_MAX} bytes",
            hint="use a shorter instance",
        )
    caller.connection.check_handle_limit()
    broker = caller.broker
    producer = await broker.open_producer(
        TopicName.parse(request.topic),
        request.producer,
        create=request.create,
        shards=request.shards,
        instance=request.instance,
        resumes=request.resumes,
    )
    producer.peer = caller.connection.peer
    try:
        if producer.epoch > 1:
            # Batches of the producer's previous epoch may be in flight; `last_sequences` is final once they settled.
            await broker.wait_durable()
    except BaseException:
        broker.close_producer(producer)
        raise
    handle = caller.connection.register_producer(producer)
    shards = range(producer.topic.record.shards)
    last_sequence = broker.last_sequence if request.resumes else broker.last_sequence_of_name
    return {
        "handle": handle,
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "shards": len(shards),
        "last_sequences": [last_sequence(producer, shard) for shard in shards],
        "recent": [recent_batches(caller.broker, producer, shard) for shard in shards] if request.resumes else [],
        "max_message_bytes": producer.topic.policies.max_message_bytes or 0,
        "max_batch_bytes": broker.batch_bytes_max,
    }


def recent_batches(broker: GuardedBroker, producer: BrokerProducer, shard: int) -> list[int]:
    """Sequence, message count and base offset of the producer's last batches in the shard, as one flat list."""
    batches = broker.recent_batches(producer, shard)
    return [number for batch in batches[-limits.PRODUCER_WINDOW_BATCHES :] for number in batch]


async def close_producer(caller: Caller, arguments: Document) -> Document:
    producer = caller.connection.unregister_producer(decode_arguments(Handle, arguments).handle)
    if producer is not None:
        caller.broker.close_producer(producer)
    return {}


async def reset_producer(caller: Caller, arguments: Document) -> Document:
    request = decode_arguments(ResetProducer, arguments)
    producer = caller.connection.producers.get(request.handle)
    if producer is None:
        raise errors.UnknownHandle(f"this connection has no producer {request.handle}")
    caller.broker.reset_producer(producer, request.shard)
    return {
        "last_sequence": caller.broker.last_sequence(producer, request.shard),
        "recent": recent_batches(caller.broker, producer, request.shard),
    }


async def subscribe(caller: Caller, arguments: Document) -> Document:
    request = decode_arguments(Subscribe, arguments)
    caller.connection.check_handle_limit()
    _check_messages_per_key(request)
    sink = NativeConsumer(caller.connection, request.messages_per_key, takes_picks=request.picks)
    subscription, consumer = await caller.broker.subscribe(
        TopicName.parse(request.topic),
        request.subscription,
        request.type,
        request.consumer,
        sink,
        SubscriptionStart(request.start, request.start_value),
        request.key_patterns,
        request.failure,
    )
    sink.joined(subscription, consumer)
    return {
        "handle": sink.handle,
        "consumer_id": consumer.id,
        "type": subscription.record.type.value,
        "subscription_id": subscription.record.id,
        "created_ms": subscription.record.created_ms,
        "ack_timeout_ms": subscription.record.failure.ack_timeout_ms,
        "shards": len(subscription.deliveries),
        "generations": [delivery.generation for delivery in subscription.deliveries],
        "positions": [delivery.dispatcher.acked.position for delivery in subscription.deliveries],
    }


def _check_messages_per_key(request: Subscribe) -> None:
    if not 1 <= request.messages_per_key <= limits.MESSAGES_PER_KEY_MAX:
        raise errors.InvalidInput(
            f"messages_per_key is {request.messages_per_key}",
            hint=f"allowed: 1 to {limits.MESSAGES_PER_KEY_MAX}",
        )
    if request.messages_per_key > 1 and request.type is not SubscriptionType.KEY_SHARED:
        raise errors.InvalidInput(
            f"messages_per_key requires a key-shared subscription, not {request.type.value}", hint="use key-shared"
        )


async def close_consumer(caller: Caller, arguments: Document) -> Document:
    consumer = caller.connection.consumers.get(decode_arguments(Handle, arguments).handle)
    if consumer is not None:
        consumer.leave()
    return {}


async def seek(caller: Caller, arguments: Document) -> Document:
    request = decode_arguments(SeekSubscription, arguments)
    name, start = TopicName.parse(request.topic), SubscriptionStart(request.start, request.start_value)
    await caller.broker.seek(name, request.subscription, start, request.shard)
    subscription = caller.broker.subscription(name, request.subscription)
    return _document(
        SeekResult(
            generations=[delivery.generation for delivery in subscription.deliveries],
            positions=[delivery.dispatcher.acked.position for delivery in subscription.deliveries],
        )
    )


async def create_topic(caller: Caller, arguments: Document) -> Document:
    request = decode_arguments(CreateTopic, arguments)
    name = TopicName.parse(request.topic)
    return describe(await caller.broker.create_topic(name, request.shards, request.dispatch, request.policies))


async def delete_topic(caller: Caller, arguments: Document) -> Document:
    request = decode_arguments(DeleteTopic, arguments)
    deletion = await caller.broker.delete_topic(TopicName.parse(request.topic), request.table, request.rest)
    return _document(
        DeletionReport(
            table=deletion.table,
            table_end=deletion.end,
            rest=deletion.rest,
            rest_messages=deletion.messages,
            lost_with=deletion.lost_with,
        )
    )


async def undelete_topic(caller: Caller, arguments: Document) -> Document:
    request = decode_arguments(UndeleteTopic, arguments)
    returned = await caller.broker.undelete_topic(
        TopicName.parse(request.topic), request.id, brings_back_erased=request.bring_back_erased
    )
    table = returned.table
    return _document(
        ReturnReport(
            topic=str(TopicName.parse(request.topic)),
            id=returned.record.id,
            shards=returned.record.shards,
            subscriptions=returned.subscriptions,
            former_table=None
            if table is None
            else FormerTopicTable(
                namespace=table.namespace, table=table.name, uuid=table.uuid, metadata_file=table.location
            ),
        )
    )


async def list_deleted_topics(caller: Caller, _arguments: Document) -> Document:
    topics = [
        TopicTombstone(
            topic=f"/{tombstone.namespace}/{tombstone.name}",
            id=tombstone.topic.id,
            shards=tombstone.topic.shards,
            node=tombstone.topic.node,
            deleted_ms=tombstone.deleted_ms,
            until_ms=tombstone.until_ms,
        )
        for tombstone in await caller.broker.deleted_topics()
    ]
    return _document(TombstoneList(topics=topics))


async def takeover_topic(caller: Caller, arguments: Document) -> Document:
    takeover = await caller.broker.take_over_topic(TopicName.parse(decode_arguments(TopicOnly, arguments).topic))
    shards = [ShardTakeover(shard=gap.key.shard, gap_start=gap.start, gap_end=gap.end) for gap in takeover.gaps]
    return _document(TakeoverReport(former=takeover.former_node, shards=shards))


async def describe_topic(caller: Caller, arguments: Document) -> Document:
    return describe(caller.broker.topic(TopicName.parse(decode_arguments(TopicOnly, arguments).topic)))


async def topic_policies(caller: Caller, arguments: Document) -> Document:
    """Changes the named policies (nil unsets one) and returns all of them; changes nothing if none is named."""
    request = decode_arguments(ChangeTopicPolicies, arguments)
    name = TopicName.parse(request.topic)
    if request.policies:
        await caller.broker.change_topic_policies(name, request.policies)
    topic = caller.broker.topic(name)
    return _document(EffectivePolicies(policies=topic.record.policies, effective_policies=topic.policies))


async def list_topics(caller: Caller, arguments: Document) -> Document:
    """A page of topics in name order; `next` is the last topic of the page, nil on the last page."""
    after = decode_arguments(ListTopics, arguments).after
    page = await caller.broker.page_topics("", after, limits.TOPICS_PAGE_MAX)
    return _document(TopicNames(topics=[str(name) for name in page.names], next=page.next_after))


async def delete_subscription(caller: Caller, arguments: Document) -> Document:
    request = decode_arguments(SubscriptionOnly, arguments)
    await caller.broker.delete_subscription(TopicName.parse(request.topic), request.subscription)
    return {}


def describe(topic: BrokerTopic) -> Document:
    return _document(
        TopicOutline(
            topic=str(topic.name),
            id=topic.record.id,
            shards=topic.record.shards,
            dispatch=topic.record.dispatch,
            producers=len(topic.producers),
            subscriptions=sorted(topic.subscriptions),
        )
    )


def _document(answer: Answer) -> Document:
    document: Document = answer_document(answer)
    return document


Call = Callable[[Caller, Document], Awaitable[Document]]
CALLS: Final[dict[Any, Call]] = {
    call.__name__: call
    for call in (
        open_producer, close_producer, reset_producer, subscribe, close_consumer, seek, create_topic, delete_topic,
        undelete_topic, list_deleted_topics, takeover_topic,
        describe_topic, topic_policies, list_topics, delete_subscription,
    )
}  # fmt: skip
PORTS: Final = "ports"  # a public call that the node implements: the ports it listens on


class CallTable(NamedTuple):
    """The methods that the connections of one listener may call. The local socket offers more (internal_api)."""

    calls: Mapping[Any, Call]
    call_bytes_max: int = limits.CALL_BYTES_MAX
    # Decides about a call: the method, the broker for the connection, and for the session that the call names.
    # Returns the broker of the deciding session. None: every client may make every call with its own rights.
    admit: Callable[[str, GuardedBroker, GuardedBroker | None], GuardedBroker] | None = None
    result_bytes_max: int = limits.DOCUMENT_BYTES_MAX


PUBLIC: Final = CallTable(CALLS)
