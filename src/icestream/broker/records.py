"""What the broker writes into the metadata store, and under which keys.

    /namespaces/{namespace}                                     Namespace
    /topics/{namespace}/{topic}                                 TopicRecord
    /subscriptions/{namespace}/{topic}/{subscription}           SubscriptionRecord
    /planned_subscriptions/{namespace}/{topic}/{subscription}   PlannedSubscription, until it is made (planned.py)
    /producers/{namespace}/{topic}/{producer}                   ProducerRecord
    /consumers/{namespace}/{topic}/{subscription}/{consumer}    ConsumerRecord
    /persistent_storage/iceberg/subscriptions/{subscription}/{namespace}/{topic}     CursorRecord, the seed's key;
                                                                `{topic}` is `name-part-N` where there are more shards
    /deleted_topics/{id}                                        DeletedTopic, until nothing is left of it
    /node_logs/{node}                                           this node has had a log (server/log_identity.py)
    /counters/topic, subscription, producer, consumer           ids: never used twice
    /schemas/…                                                  schema_records.py
    /danube/…                                                   frontends/danube: ids of its clients

The keys of producers and consumers have a time to live (roster.py).

Values are JSON, so that an operator can read them. Fields that are not known are kept out of the way: a later version
may add some. No part of a key can contain `/` (model/topic_name.py), so exact names never match longer ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from icestream import errors
from icestream.model import table_layout, topic_deletion_policy
from icestream.model.subscription import DispatchMode, FailurePolicy, PoisonPolicy, RedeliveryBackoff, SubscriptionType
from icestream.model.topic_deletion_policy import DeletedRestPolicy, DeletedTablePolicy
from icestream.model.topic_name import TopicName

NAMESPACES = "/namespaces/"
TOPICS = "/topics/"
SUBSCRIPTIONS = "/subscriptions/"
PENDING_SUBSCRIPTIONS = "/planned_subscriptions/"
PRODUCERS = "/producers/"
CONSUMERS = "/consumers/"
CURSORS = "/persistent_storage/iceberg/subscriptions/"
DELETED_TOPICS = "/deleted_topics/"
NODE_LOGS = "/node_logs/"


class NodeLogRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node has had a log (server/log_identity.py)."""

    log: str = ""  # its id, in hex digits; empty where an older version wrote the record


class TopicPolicies(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bounds of a topic, or of every topic of a namespace. None: the namespace's, else none; 0: no bound.

    Three say how its table is laid out (model/table_layout.py). None: the namespace's, else the table's own. The last
    two say what becomes of it when the topic is deleted (model/topic_deletion_policy.py). None: the namespace's,
    else the settings.
    """

    max_producers: int | None = None
    max_subscriptions: int | None = None
    max_consumers_per_topic: int | None = None
    max_consumers_per_subscription: int | None = None
    max_publish_rate: int | None = None  # messages per second
    max_dispatch_rate: int | None = None  # messages per second and subscription
    max_message_bytes: int | None = None
    retention_bytes: int | None = None  # of the topic in the log; what is older is dropped, as a declared gap
    retention_ms: int | None = None  # of a message in the log
    partitioning: str | None = None
    compression: str | None = None
    target_file_bytes: int | None = None
    deleted_table: str | None = None
    deleted_rest: str | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, int) and value < 0:
                raise errors.InvalidInput(f"{name} {value} is below 0", hint="0 means no bound")
        if self.partitioning is not None:
            table_layout.check_partitioning(self.partitioning)
        if self.compression is not None:
            table_layout.check_compression(self.compression)
        if self.target_file_bytes is not None:
            table_layout.check_target_file_bytes(self.target_file_bytes)
        if self.deleted_table is not None:
            topic_deletion_policy.parse_deleted_table(self.deleted_table)
        if self.deleted_rest is not None:
            topic_deletion_policy.parse_deleted_rest(self.deleted_rest)

    def over(self, other: TopicPolicies) -> TopicPolicies:
        """These, and the other's where these say nothing."""
        mine = {name: getattr(self, name) for name in self.__struct_fields__}
        return TopicPolicies(**{name: getattr(other, name) if value is None else value for name, value in mine.items()})

    def changed(self, changes: Mapping[str, object]) -> TopicPolicies:
        """With other values; None takes one back. Raises InvalidInput."""
        mine = {name: getattr(self, name) for name in self.__struct_fields__}
        try:
            return msgspec.convert({**mine, **changes}, TopicPolicies)
        except msgspec.ValidationError as error:
            raise errors.InvalidInput(f"the policies do not fit: {error}", hint="docs/protocol.md has them") from None

    @property
    def of_table(self) -> dict[str, str]:
        """What is said of the table's layout, as the pipeline is told."""
        said = {name: getattr(self, name) for name in table_layout.NAMES}
        return {name: str(value) for name, value in said.items() if value is not None}


class NamespaceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    policies: TopicPolicies = TopicPolicies()


class TopicRecord(msgspec.Struct, frozen=True):
    id: int
    shards: int
    dispatch: DispatchMode
    created_ms: int
    node: str
    policies: TopicPolicies = TopicPolicies()
    is_partitioned: bool = False  # made by naming partitions, as Danube's clients do: it grows when more are named
    owner: str = ""  # the id of the node that serves it (neighbours.py); `node` is its name at that time
    takeover_end: int = 0  # the highest offset at which a shard went on after a takeover (takeover.py); 0 without one

    @property
    def has_parts(self) -> bool:
        """Outside, its shards have names of their own."""
        return self.is_partitioned or self.shards > 1

    @property
    def incarnation(self) -> int:
        """Ids rise and are never used twice, so a topic that is created again has a higher one."""
        return self.id


class FailurePolicyRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    max_redelivery_count: int = 5
    ack_timeout_ms: int = 30_000
    base_delay_ms: int = 1_000
    max_delay_ms: int = 60_000
    backoff: RedeliveryBackoff = RedeliveryBackoff.EXPONENTIAL
    poison: PoisonPolicy = PoisonPolicy.BLOCK
    dead_letter_topic: str | None = None

    def policy(self) -> FailurePolicy:
        return FailurePolicy(*(getattr(self, name) for name in self.__struct_fields__))

    @classmethod
    def of(cls, policy: FailurePolicy) -> FailurePolicyRecord:
        return cls(*(getattr(policy, name) for name in cls.__struct_fields__))


class SubscriptionRecord(msgspec.Struct, frozen=True):
    id: int
    type: SubscriptionType
    created_ms: int
    failure: FailurePolicyRecord = FailurePolicyRecord()
    max_dispatch_rate: int | None = None
    dead_letters_before: str | None = None  # the topic of the policy before: a letter may be there that no cursor knows
    max_unacked_messages: int | None = None  # in each shard; None: what the broker's settings say


class PendingSubscription(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one that does not exist yet will begin with. None: as every other."""

    failure: FailurePolicyRecord | None = None
    max_unacked_messages: int | None = None


class ProducerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    id: int
    epoch: int
    instance: str = ""  # which life of the producer has this epoch, in the producer's own words
    since_epoch: int = 0  # the first epoch of that life: what older ones stored is not its own


class ConsumerRecord(msgspec.Struct, frozen=True):
    id: int


class CursorRecord(msgspec.Struct, frozen=True):
    """Where a subscription stands in one shard. The Iceberg fields are the seed's, and only hints.

    Ranges are written as steps, so that 4,096 of them within a million messages have 33 KB (hazard 17):
        acked      step, messages, …              a step is the way from the end of the range before (first: `offset`)
        attempts   step, messages, failures, …
    """

    updated_ms: int
    offset: int
    topic_id: int  # of this topic only: one that is created again has other messages
    epoch: int  # the shard epoch that the offset was seen under
    generation: int = 0  # how often it was sought: acks of deliveries before that do not count (hazard 48)
    acked: list[int] = []
    attempts: list[int] = []
    snapshot_id: int | None = None
    file_path: str | None = None
    row_offset: int | None = None
    kept_below: int = 0  # of a non-reliable topic: what was asked for with a start or a seek, and waits for room

    def __post_init__(self) -> None:
        if min(self.offset, self.generation, self.kept_below, *self.acked, *self.attempts) < 0:
            raise errors.InvalidInput("a cursor with a number below 0")
        if len(self.acked) % 2 or len(self.attempts) % 3 or not all((*self.acked[1::2], *self.attempts[1::3])):
            raise errors.InvalidInput("the ranges of a cursor do not add up")

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The acked ranges above the offset."""
        return [(start, end) for start, end, _ in _walked(self.offset, self.acked, 2)]

    @property
    def failures(self) -> list[tuple[int, int, int]]:
        """(start, end, failures) of messages that are not acked."""
        return [(start, end, rest[0]) for start, end, rest in _walked(self.offset, self.attempts, 3)]

    @property
    def end(self) -> int:
        """Behind the highest offset that it knows to be acked."""
        return self.offset + sum(self.acked)


def _walked(at: int, steps: list[int], width: int) -> Iterator[tuple[int, int, list[int]]]:
    for number in range(0, len(steps), width):
        start = at + steps[number]
        at = start + steps[number + 1]
        yield start, at, steps[number + 2 : number + width]


def as_steps(offset: int, ranges: Iterable[Sequence[int]]) -> list[int]:
    """(start, end, …) of rising ranges from `offset` on, as a cursor has them."""
    steps: list[int] = []
    for start, end, *rest in ranges:
        steps += (start - offset, end - start, *rest)
        offset = end
    return steps


class DeletedTopicRecord(msgspec.Struct, frozen=True):
    """A topic whose deletion was decided and is not finished: a start goes on with it (hazard 49)."""

    id: int
    namespace: str
    name: str
    shards: int
    is_partitioned: bool = False
    dropped: list[tuple[int, int]] = []  # (shard, messages) that were in no table at the decision, and go with it
    owner: str = ""  # as of the topic: whose log has what is left of it
    table: DeletedTablePolicy = DeletedTablePolicy.KEEP
    rest: DeletedRestPolicy = DeletedRestPolicy.DISCARD
    of_table: dict[str, str] = {}  # how its table is laid out, where the rest makes it
    has_no_names: bool = False  # subscriptions, cursors and producers are gone: what has its name now is another's


Record = TypeVar("Record", bound=msgspec.Struct)


def encode(record: msgspec.Struct) -> bytes:
    return msgspec.json.encode(record)


def decode(kind: type[Record], key: str, value: bytes) -> Record:
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


def deleted_topic_key(topic_id: int) -> str:
    return f"{DELETED_TOPICS}{topic_id}"
