"""The broker's records in the metadata store, and their keys.

    /namespaces/{namespace}                                     NamespaceRecord
    /topics/{namespace}/{topic}                                 TopicRecord
    /subscriptions/{namespace}/{topic}/{subscription}           SubscriptionRecord
    /planned_subscriptions/{namespace}/{topic}/{subscription}   PendingSubscription, until the subscription exists
                                                                (subscription_registry.py)
    /producers/{namespace}/{topic}/{producer}                   ProducerRecord
    /consumers/{namespace}/{topic}/{subscription}/{consumer}    ConsumerRecord
    /persistent_storage/iceberg/subscriptions/{subscription}/{namespace}/{topic}     CursorRecord, with the seed's key;
                                                                `{topic}` is `name-part-N` if the topic has several
                                                                shards
    /deleted_topics/{id}                                        DeletedTopicRecord, until the deletion is completed
    /tombstones/{id}                                            TombstoneRecord, with a time to live: of a deleted topic
    /tombstone_names/{id}{key}                                  what was at the key of a deleted topic: subscriptions,
                                                                cursors, producers (topic_tombstones.py)
    /node_logs/{node}                                           NodeLogRecord (processes/node/log_identity.py)
    /counters/topic, subscription, producer, consumer           ids: never reused
    /schemas/…                                                  schema_registry_records.py
    /danube/…                                                   frontends/danube: the ids of its clients

The keys of producers and consumers have a time to live (name_registry.py).

Values are JSON, so that an operator can read them. Unknown fields are ignored, because a later version may add some. No
part of a key can contain `/` (model/topic_name.py), so a name never matches a longer one as a prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from icestream import errors
from icestream.model.subscription_options import (
    DispatchMode,
    FailurePolicy,
    SubscriptionType,
)
from icestream.model.topic_deletion_policy import DeletedRestPolicy, DeletedTablePolicy
from icestream.model.topic_name import TopicName
from icestream.model.topic_origin import TopicOrigin
from icestream.model.topic_policies import PolicyValues

NAMESPACES = "/namespaces/"
TOPICS = "/topics/"
SUBSCRIPTIONS = "/subscriptions/"
PENDING_SUBSCRIPTIONS = "/planned_subscriptions/"
PRODUCERS = "/producers/"
CONSUMERS = "/consumers/"
CURSORS = "/persistent_storage/iceberg/subscriptions/"
DELETED_TOPICS = "/deleted_topics/"
TOMBSTONES = "/tombstones/"
TOMBSTONE_NAMES = "/tombstone_names/"
NODE_LOGS = "/node_logs/"


class NodeLogRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """States that a node has had a log (processes/node/log_identity.py)."""

    log: str = ""  # the id of the log, in hex digits; empty if an older version wrote the record


class NamespaceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A namespace, and the policies that its topics inherit."""

    policies: PolicyValues = PolicyValues()


class TopicRecord(msgspec.Struct, frozen=True):
    """A topic. Its offsets and messages are in the log and the table, not here."""

    id: int
    shards: int
    dispatch: DispatchMode
    created_ms: int
    node: str
    policies: PolicyValues = PolicyValues()
    is_partitioned: bool = False  # created by naming partitions, as Danube's clients do; naming more extends it
    owner: str = ""  # the id of the node that serves it (topic_owners.py); `node` is its name at creation
    takeover_end: int = 0  # the highest offset at which a shard continued after a takeover; 0 without one
    dead_letters_of: str = ""  # the topic for whose dead letters the broker created this one: its rules apply here
    restored_from: list[TopicOrigin] = []  # the oldest first: what is erased here is erased from their backups, too

    @property
    def is_named_by_shard(self) -> bool:
        """True if its shards have names of their own, `name-part-N`, in cursor keys and for Danube's clients."""
        return self.is_partitioned or self.shards > 1

    @property
    def incarnation(self) -> int:
        """The topic id: ids rise and are never reused, so a topic that is created again has a higher one."""
        return self.id


class StoredIdentity(msgspec.Struct, frozen=True, omit_defaults=True):
    """The principal that set something which the broker does later, with what its credential said then."""

    principal: str
    roles: list[str] = []
    claims: dict[str, str] = {}


class SubscriptionRecord(msgspec.Struct, frozen=True):
    """A subscription. Its position in each shard is a CursorRecord of its own, because it changes all the time."""

    id: int
    type: SubscriptionType
    created_ms: int
    failure: FailurePolicy = FailurePolicy()
    max_dispatch_rate: int | None = None
    dead_letters_before: str | None = None  # of the former policy: it may hold a letter that no cursor accounts for
    max_unacked_messages: int | None = None  # in each shard; None: the default of the broker's settings
    principal: str = ""  # whose name it is: of the first consumer; empty: no owner (name_owner.py)
    dead_letters_by: StoredIdentity | None = None  # named the dead-letter topic; None: set while security was off


class PendingSubscription(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings of a subscription that does not exist yet; None where the default applies."""

    failure: FailurePolicy | None = None
    max_unacked_messages: int | None = None
    dead_letters_by: StoredIdentity | None = None


class ProducerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last epoch of a producer name (hazard 7)."""

    id: int
    epoch: int
    instance: str = ""  # identifies the client's producer object that has this epoch
    since_epoch: int = 0  # the first epoch of that instance: older epochs belong to other instances
    principal: str = ""  # whose name it is; empty: no owner (name_owner.py)


class ConsumerRecord(msgspec.Struct, frozen=True):
    """The id of a consumer name: it decides which keys the consumer owns (dispatch/hash_ring.py)."""

    id: int


class CursorRecord(msgspec.Struct, frozen=True):
    """The position of a subscription in one shard.

    `snapshot_id`, `file_path` and `row_offset` say where in the topic's table the message before `offset` was read;
    null if it came from memory or the log. They are hints for people and tools, and no reader depends on them:
    compaction, expiry and restores change where a row is, never its offset.

    Ranges are written as steps, so that 4,096 of them within a million messages take 33 KB (hazard 17):
        acked      step, messages, …              a step is the distance from the end of the range before; the first
        attempts   step, messages, failures, …    one is the distance from `offset`
    """

    updated_ms: int
    offset: int
    topic_id: int  # a topic of the same name that is created again has another id
    epoch: int  # the shard epoch of the offset
    generation: int = 0  # the number of seeks: acks of deliveries before the last one are ignored (hazard 48)
    acked: list[int] = []
    attempts: list[int] = []
    snapshot_id: int | None = None
    file_path: str | None = None
    row_offset: int | None = None
    kept_below: int = 0  # non-reliable topics: history requested by a start or a seek, which waits for consumers

    def __post_init__(self) -> None:
        if min(self.offset, self.generation, self.kept_below, *self.acked, *self.attempts) < 0:
            raise errors.InvalidInput("cursor with a negative number")
        if len(self.acked) % 2 or len(self.attempts) % 3 or not all((*self.acked[1::2], *self.attempts[1::3])):
            raise errors.InvalidInput("cursor with inconsistent ranges")

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The acked ranges above the offset."""
        return [(start, end) for start, end, _ in _decode_steps(self.offset, self.acked, 2)]

    @property
    def failures(self) -> list[tuple[int, int, int]]:
        """(start, end, failures) of messages that are not acked."""
        return [(start, end, rest[0]) for start, end, rest in _decode_steps(self.offset, self.attempts, 3)]

    @property
    def end(self) -> int:
        """The offset after the highest acked one."""
        return self.offset + sum(self.acked)


def _decode_steps(offset: int, steps: list[int], width: int) -> Iterator[tuple[int, int, list[int]]]:
    """The (start, end, further numbers) of ranges that `as_steps` has encoded."""
    for index in range(0, len(steps), width):
        start = offset + steps[index]
        offset = start + steps[index + 1]
        yield start, offset, steps[index + 2 : index + width]


def as_steps(offset: int, ranges: Iterable[Sequence[int]]) -> list[int]:
    """Encodes rising ranges (start, end, …) from `offset` on in the form of a cursor."""
    steps: list[int] = []
    for start, end, *rest in ranges:
        steps += (start - offset, end - start, *rest)
        offset = end
    return steps


class DeletedTopicRecord(msgspec.Struct, frozen=True):
    """A topic whose deletion was decided and is not completed: a start resumes it (hazard 49)."""

    id: int
    namespace: str
    name: str
    shards: int
    is_partitioned: bool = False
    dropped: list[tuple[int, int]] = []  # (shard, messages) that were uncommitted at the decision and are discarded
    owner: str = ""  # the node whose log has the rest, as in the topic record
    table: DeletedTablePolicy = DeletedTablePolicy.KEEP
    rest: DeletedRestPolicy = DeletedRestPolicy.DISCARD
    of_table: dict[str, str] = {}  # the layout of its table, if committing the rest creates it
    has_no_names: bool = (
        False  # its subscriptions, cursors and producers are deleted: those of its name are a new topic's
    )


class TombstoneRecord(msgspec.Struct, frozen=True):
    """A deleted topic that can come back (topic_tombstones.py)."""

    topic: TopicRecord
    namespace: str
    name: str
    deleted_ms: int
    until_ms: int  # when the record ends
    schema: str = ""  # the record of its schema, as text; empty: it had none


Record = TypeVar("Record", bound=msgspec.Struct)


def encode(record: msgspec.Struct) -> bytes:
    """The JSON text of a record."""
    return msgspec.json.encode(record)


def decode(kind: type[Record], key: str, value: bytes) -> Record:
    """Decodes the record at a key. Raises MetadataDamaged."""
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.MsgspecError, errors.InvalidInput) as error:
        raise errors.MetadataDamaged(
            f"{key} in the metadata store is not a {kind.__name__}: {error}",
            hint="restore it from a backup, or delete the key if it may be lost",
        ) from None


# --- keys -------------------------------------------------------------------------------------------------------------


def namespace_key(namespace: str) -> str:
    return f"{NAMESPACES}{namespace}"


def topic_key(topic: TopicName) -> str:
    return f"{TOPICS}{topic.namespace}/{topic.name}"


def subscription_key(topic: TopicName, subscription: str) -> str:
    return f"{SUBSCRIPTIONS}{topic.namespace}/{topic.name}/{subscription}"


def pending_subscription_key(topic: TopicName, subscription: str) -> str:
    return f"{PENDING_SUBSCRIPTIONS}{topic.namespace}/{topic.name}/{subscription}"


def producer_key(topic: TopicName, producer: str) -> str:
    return f"{PRODUCERS}{topic.namespace}/{topic.name}/{producer}"


def consumer_key(topic: TopicName, subscription: str, consumer: str) -> str:
    return f"{CONSUMERS}{topic.namespace}/{topic.name}/{subscription}/{consumer}"


def cursor_key(topic: TopicName, subscription: str, shard: int, shards: int, *, is_partitioned: bool = False) -> str:
    return f"{CURSORS}{subscription}{topic.shard_name(shard, shards, is_partitioned=is_partitioned)}"


def tombstone_key(topic_id: int) -> str:
    return f"{TOMBSTONES}{topic_id}"


def tombstone_names_prefix(topic_id: int) -> str:
    """The keys below it end with the key of which they have the value; that begins with `/`."""
    return f"{TOMBSTONE_NAMES}{topic_id}"


def deleted_topic_key(topic_id: int) -> str:
    return f"{DELETED_TOPICS}{topic_id}"
