"""The methods of a CALL: arguments checked, the broker asked, a document back. docs/protocol.md lists them."""

from __future__ import annotations

import reprlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.topic import Producer, Topic
from icestream.frontends.native.native_consumer import NativeConsumer
from icestream.model.subscription import Dispatch, Start, StartAt, SubscriptionType
from icestream.model.topic_end import RestEnd, TableEnd
from icestream.model.topic_name import TopicName

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
    failure: records.FailurePolicyRecord | None = None
    messages_per_key: int = 1
    picks: bool = False


class SeekSubscription(msgspec.Struct):
    topic: str
    subscription: str
    start: StartAt
    start_value: int = 0
    shard: int | None = None


class CreateTopic(msgspec.Struct):
    topic: str
    shards: int = 1
    dispatch: Dispatch = Dispatch.RELIABLE
    policies: records.TopicPolicies = records.TopicPolicies()


class ChangeTopicPolicies(msgspec.Struct):
    topic: str
    policies: dict[str, Any] = {}


class ListTopics(msgspec.Struct):
    after: str = ""


class TopicOnly(msgspec.Struct):
    topic: str


class DeleteTopic(msgspec.Struct):
    """What is nil goes by the topic's policies."""

    topic: str
    table: TableEnd | None = None
    rest: RestEnd | None = None


class TopicAndSubscription(msgspec.Struct):
    topic: str
    subscription: str


# A policy that is not in force because its name is misspelt is worse than an error.
_STRICT: Final[dict[str, type[msgspec.Struct]]] = {
    "policies": records.TopicPolicies,
    "failure": records.FailurePolicyRecord,
}


def arguments_of(kind: type[Arguments], given: Document) -> Arguments:
    for name, policies in _STRICT.items():
        _check_names(name, given.get(name), policies.__struct_fields__)
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise errors.InvalidInput(f"the arguments do not fit: {error}", hint="docs/protocol.md lists them") from None


def _check_names(what: str, given: object, known: tuple[str, ...]) -> None:
    unknown = [name for name in given if name not in known] if isinstance(given, dict) else ()
    if unknown:
        raise errors.InvalidInput(f"{what} has no {reprlib.repr(unknown[0])}", hint=f"there are {', '.join(known)}")


async def open_producer(connection: NativeConnection, given: Document) -> Document:
    asked = arguments_of(OpenProducer, given)
    if len(asked.instance.encode()) > limits.NAME_BYTES_MAX:
        raise errors.InvalidInput("the instance of a producer is too long", hint=f"{limits.NAME_BYTES_MAX} bytes fit")
    connection.check_room()
    broker = connection.broker
    producer = await broker.open_producer(
        TopicName.parse(asked.topic),
        asked.producer,
        create=asked.create,
        shards=asked.shards,
        instance=asked.instance,
        resumes=asked.resumes,
    )
    producer.peer = connection.peer
    try:
        if producer.epoch > 1:  # what its life before has in flight is stored or not before we tell which
            await broker.storage.wait_durable()
    except BaseException:
        broker.close_producer(producer)
        raise
    handle = connection.keep_producer(producer)
    shards = range(producer.topic.record.shards)
    last_sequence = broker.last_sequence if asked.resumes else broker.last_sequence_of_all
    return {
        "handle": handle,
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "shards": len(shards),
        "last_sequences": [last_sequence(producer, shard) for shard in shards],
        "recent": [recent(connection, producer, shard) for shard in shards] if asked.resumes else [],
        "max_message_bytes": producer.topic.policies.max_message_bytes or 0,
        "max_batch_bytes": broker.storage.batch_bytes_max,
    }


def recent(connection: NativeConnection, producer: Producer, shard: int) -> list[int]:
    """First number, messages, base offset of its last batches in the shard, one behind the other."""
    found = connection.broker.recent_batches(producer, shard)
    return [number for batch in found[-limits.PRODUCER_WINDOW_BATCHES :] for number in batch]


async def close_producer(connection: NativeConnection, given: Document) -> Document:
    producer = connection.producers.pop(arguments_of(Handle, given).handle, None)
    if producer is not None:
        connection.broker.close_producer(producer)
    return {}


async def reset_producer(connection: NativeConnection, given: Document) -> Document:
    asked = arguments_of(ResetProducer, given)
    producer = connection.producers.get(asked.handle)
    if producer is None:
        raise errors.UnknownHandle(f"this connection has no producer {asked.handle}")
    connection.broker.reset_producer(producer, asked.shard)
    return {
        "last_sequence": connection.broker.last_sequence(producer, asked.shard),
        "recent": recent(connection, producer, asked.shard),
    }


async def subscribe(connection: NativeConnection, given: Document) -> Document:
    asked = arguments_of(Subscribe, given)
    connection.check_room()
    _check_messages_per_key(asked)
    sink = NativeConsumer(connection, asked.messages_per_key, takes_picks=asked.picks)
    subscription, consumer = await connection.broker.subscribe(
        TopicName.parse(asked.topic),
        asked.subscription,
        asked.type,
        asked.consumer,
        sink,
        Start(asked.start, asked.start_value),
        asked.key_patterns,
        asked.failure.policy() if asked.failure else None,
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


def _check_messages_per_key(asked: Subscribe) -> None:
    if not 1 <= asked.messages_per_key <= limits.MESSAGES_PER_KEY_MAX:
        raise errors.InvalidInput(
            f"{asked.messages_per_key} messages of a key at a time",
            hint=f"1 to {limits.MESSAGES_PER_KEY_MAX} are possible",
        )
    if asked.messages_per_key > 1 and asked.type is not SubscriptionType.KEY_SHARED:
        raise errors.InvalidInput(
            f"messages_per_key has no meaning for a subscription that is {asked.type.value}", hint="use key-shared"
        )


async def close_consumer(connection: NativeConnection, given: Document) -> Document:
    consumer = connection.consumers.get(arguments_of(Handle, given).handle)
    if consumer is not None:
        consumer.leave()
    return {}


async def seek(connection: NativeConnection, given: Document) -> Document:
    asked = arguments_of(SeekSubscription, given)
    name, start = TopicName.parse(asked.topic), Start(asked.start, asked.start_value)
    await connection.broker.seek(name, asked.subscription, start, asked.shard)
    found = connection.broker.subscription(name, asked.subscription)
    return {
        "generations": [delivery.generation for delivery in found.deliveries],
        "positions": [delivery.dispatcher.acked.position for delivery in found.deliveries],
    }


async def create_topic(connection: NativeConnection, given: Document) -> Document:
    asked = arguments_of(CreateTopic, given)
    name = TopicName.parse(asked.topic)
    return describe(await connection.broker.create_topic(name, asked.shards, asked.dispatch, asked.policies))


async def delete_topic(connection: NativeConnection, given: Document) -> Document:
    asked = arguments_of(DeleteTopic, given)
    found = await connection.broker.delete_topic(TopicName.parse(asked.topic), asked.table, asked.rest)
    return {
        "table": found.table,
        "table_end": found.end,
        "rest": found.rest,
        "rest_messages": found.messages,
        "lost_with": found.lost_with,
    }


async def takeover_topic(connection: NativeConnection, given: Document) -> Document:
    found = await connection.broker.take_over_topic(TopicName.parse(arguments_of(TopicOnly, given).topic))
    shards = [{"shard": gap.key.shard, "gap_start": gap.start, "gap_end": gap.end} for gap in found.gaps]
    return {"former": found.former, "shards": shards}


async def describe_topic(connection: NativeConnection, given: Document) -> Document:
    return describe(connection.broker.topics.get(TopicName.parse(arguments_of(TopicOnly, given).topic)))


async def topic_policies(connection: NativeConnection, given: Document) -> Document:
    """Changes those that are named, nil takes one back; without any it only tells."""
    asked = arguments_of(ChangeTopicPolicies, given)
    name = TopicName.parse(asked.topic)
    if asked.policies:
        await connection.broker.change_topic_policies(name, asked.policies)
    topic = connection.broker.topics.get(name)
    return {
        "policies": policies_document(topic.record.policies),
        "effective_policies": policies_document(topic.policies),
    }


def policies_document(policies: records.TopicPolicies) -> Document:
    """All policies by name; nil where a policy is not set."""
    return {name: getattr(policies, name) for name in policies.__struct_fields__}


async def list_topics(connection: NativeConnection, given: Document) -> Document:
    """A page of them, in the order of their names; `next` is the last one, and nil when there are no more."""
    after = arguments_of(ListTopics, given).after
    key = records.TOPICS + after.removeprefix("/") if after else ""
    found = await connection.broker.store.list(records.TOPICS, key, limits.TOPICS_PAGE_MAX + 1)
    page = ["/" + key.removeprefix(records.TOPICS) for key, _ in found[: limits.TOPICS_PAGE_MAX]]
    return {"topics": page, "next": page[-1] if len(found) > len(page) else None}


async def delete_subscription(connection: NativeConnection, given: Document) -> Document:
    asked = arguments_of(TopicAndSubscription, given)
    await connection.broker.delete_subscription(TopicName.parse(asked.topic), asked.subscription)
    return {}


def describe(topic: Topic) -> Document:
    return {
        "topic": str(topic.name),
        "id": topic.record.id,
        "shards": topic.record.shards,
        "dispatch": topic.record.dispatch.value,
        "producers": len(topic.producers),
        "subscriptions": sorted(topic.subscriptions),
    }


Call = Callable[["NativeConnection", Document], Awaitable[Document]]
CALLS: Final[dict[Any, Call]] = {
    call.__name__: call
    for call in (
        open_producer, close_producer, reset_producer, subscribe, close_consumer, seek, create_topic, delete_topic,
        takeover_topic,
        describe_topic, topic_policies, list_topics, delete_subscription,
    )
}  # fmt: skip
PORTS: Final = "ports"  # a public call too, answered by the node: where it listens


class CallTable(NamedTuple):
    """What the connections of one listener may ask for. The local socket offers more (metadata_calls, admin_calls)."""

    calls: Mapping[Any, Call]
    call_bytes_max: int = limits.CALL_BYTES_MAX


PUBLIC: Final = CallTable(CALLS)
