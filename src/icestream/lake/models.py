"""Models of the API's requests and responses. They validate requests, and OpenAPI is generated from them.

Only the form is checked here; the broker checks names, states and rules between values. Numbers are limited to the
broker's range.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Generic, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from icestream import limits

Item = TypeVar("Item")
Number = Annotated[int, Field(ge=0, le=limits.OFFSET_MAX)]
Milliseconds = Annotated[int, Field(ge=0, le=limits.FAILURE_POLICY_VALUE_MAX)]
Name = Annotated[str, Field(min_length=1, max_length=limits.NAME_BYTES_MAX)]
SubscriptionKind = Literal["exclusive", "shared", "failover", "key-shared"]
DispatchKind = Literal["reliable", "non-reliable"]
TableEnd = Literal["keep", "drop", "purge"]
RestEnd = Literal["commit", "discard"]
StartKind = Literal["latest", "earliest", "offset", "time", "snapshot"]


_DIGITS: Final = re.compile(r"[0-9]{1,19}")


def _parse_digits(value: object) -> object:
    """The number of a string of digits; any other value is returned unchanged, and the type rejects it."""
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else value


# 64-bit ids are strings in JSON: parsers that read numbers as doubles (jq, JavaScript) round those beyond 2^53.
IdText = Annotated[str, BeforeValidator(str)]
IdNumber = Annotated[int, BeforeValidator(_parse_digits)]
StartValue = Annotated[
    Number,
    BeforeValidator(_parse_digits),
    Field(description="An offset, microseconds since 1970, or the id of a snapshot, as a number or a string."),
]


class RequestModel(BaseModel):
    """The body of a request. Unknown keys are errors, so that a misspelt one is not ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class ResponseModel(BaseModel):
    """A response."""

    model_config = ConfigDict(extra="ignore")


class Listing(ResponseModel, Generic[Item]):
    items: list[Item]
    next: str | None = Field(description="`after` of the next page; null on the last page.")


class Problem(ResponseModel):
    """The body of every error response (RFC 9457)."""

    type: str = Field(description="`urn:icestream:error:<code>`")
    title: str
    status: int
    detail: str = Field(description="What happened.")
    instance: str
    code: str = Field(description="As in the native protocol.")
    hint: str = Field(description="What to do about it; may be empty.")
    retryable: bool = Field(description="Whether a retry may succeed.")


# --- namespaces and topics --------------------------------------------------------------------------------------------


class TopicPolicies(RequestModel):
    """null: inherited from the namespace, else unlimited or the current setting of the table. 0: unlimited."""

    max_producers: Number | None = None
    max_subscriptions: Number | None = None
    max_consumers_per_topic: Number | None = None
    max_consumers_per_subscription: Number | None = None
    max_publish_rate: Number | None = Field(default=None, description="Messages per second.")
    max_dispatch_rate: Number | None = Field(default=None, description="Messages per second and subscription.")
    max_message_bytes: Number | None = None
    retention_bytes: Number | None = Field(
        default=None,
        description="Bytes of the topic in the log; the oldest messages beyond it are dropped (a declared gap).",
    )
    retention_ms: Number | None = Field(default=None, description="Age of messages in the log; older ones are dropped.")
    partitioning: Name | None = Field(
        default=None,
        description="Partitioning of its table: none; hour, day or month of append_time; key, or "
        "bucket[16] of the key.",
    )
    compression: Name | None = Field(
        default=None,
        description="Compression of its data files: zstd, gzip, snappy, lz4 or uncompressed; zstd:9 sets a level.",
    )
    target_file_bytes: Number | None = Field(default=None, description="Target size of its data files.")
    deleted_table: TableEnd | None = Field(
        default=None, description="What happens to its table when the topic is deleted; null: as the settings say."
    )
    deleted_rest: RestEnd | None = Field(
        default=None,
        description="What happens to its uncommitted messages when the topic is deleted; null: as the settings say.",
    )


class NewNamespace(RequestModel):
    namespace: Name
    policies: TopicPolicies = TopicPolicies()


class Namespace(ResponseModel):
    namespace: str
    policies: TopicPolicies


class NewTopic(RequestModel):
    name: Name
    shards: Annotated[int, Field(ge=1, le=limits.SHARDS_PER_TOPIC_MAX)] = 1
    dispatch: DispatchKind = "reliable"
    policies: TopicPolicies = TopicPolicies()


class TopicSummary(ResponseModel):
    topic: str = Field(description="`/namespace/name`")
    id: int
    shards: int
    dispatch: DispatchKind
    node: str = Field(description="The node that serves it. Values that only this node has are null on other nodes.")
    producers: int | None = Field(description="Number of connected ones.")
    consumers: int | None = Field(description="Number of connected ones.")
    subscriptions: int | None
    lag: int | None = Field(description="Unacknowledged messages of all subscriptions.")
    published_messages: int | None = Field(description="Since the broker started.")
    published_bytes: int | None = Field(description="Since the broker started.")


class GapRange(ResponseModel):
    """A range of offsets [start, end) without messages."""

    start: int
    end: int
    reason: str
    state: str


class ShardOffsets(ResponseModel):
    shard: int
    epoch: int
    earliest: int = Field(description="The oldest offset in the log; the table may have older ones.")
    next: int = Field(description="Offset of the next message.")
    synced: int = Field(description="Every message below this offset is on disk.")
    gap_count: int
    gaps: list[GapRange] = Field(description="The newest gaps.")


class DeletedTopic(ResponseModel):
    deleted: str = Field(description="Name of the topic.")
    table: list[str] | None = Field(
        description="The levels of the namespace and the name of its table; null if it had none in the "
        "embedded catalog."
    )
    table_end: TableEnd = Field(description="What happens to the table.")
    rest: RestEnd = Field(description="What happens to uncommitted messages.")
    rest_messages: int = Field(description="Number of uncommitted messages: discarded, or being committed.")
    lost_with: str = Field(
        "", description="A removed node whose log had uncommitted messages, in unknown number; they are lost."
    )


class StalledReader(ResponseModel):
    """A shard of a subscription whose delivery is stalled."""

    reader: str = Field(description="Topic, subscription and shard.")
    shard: int
    offset: int = Field(description="The first message that cannot be read.")
    code: str = Field(description="Code of the error.")
    reason: str
    is_transient: bool = Field(description="Whether it may resolve by itself.")


class Topic(TopicSummary):
    incarnation: int
    created_ms: int
    policies: TopicPolicies = Field(description="Policies of the topic itself.")
    effective_policies: TopicPolicies = Field(description="Policies of the topic over those of its namespace.")
    held_bytes: int = Field(description="Bytes in the log.")
    shard_offsets: list[ShardOffsets]
    stalled_readers: list[StalledReader] = Field(
        default_factory=list, description="Subscriptions whose delivery is stalled; the first few."
    )


# --- subscriptions ----------------------------------------------------------------------------------------------------


class FailurePolicyModel(RequestModel):
    """The treatment of messages that fail."""

    max_redelivery_count: Milliseconds = 5
    ack_timeout_ms: Annotated[int, Field(ge=1, le=limits.FAILURE_POLICY_VALUE_MAX)] = 30_000
    base_delay_ms: Milliseconds = 1_000
    max_delay_ms: Milliseconds = 60_000
    backoff: Literal["fixed", "exponential"] = "exponential"
    poison: Literal["dead-letter", "drop", "block"] = "block"
    dead_letter_topic: str | None = None


class NewSubscription(RequestModel):
    subscription: Name
    type: SubscriptionKind = "exclusive"
    start: StartKind = "latest"
    start_value: StartValue = 0
    failure: FailurePolicyModel | None = None


class SubscriptionChange(RequestModel):
    """Changes of a subscription; omitted fields are unchanged."""

    failure: FailurePolicyModel | None = None
    max_dispatch_rate: Number | None = Field(default=None, description="null: that of the topic.")


class Seek(RequestModel):
    start: StartKind
    start_value: StartValue = 0
    shard: Annotated[int, Field(ge=0, lt=limits.SHARDS_PER_TOPIC_MAX)] | None = Field(
        default=None, description="null: all shards."
    )


class SeekResult(ResponseModel):
    positions: list[int] = Field(description="Position of each shard after the seek.")
    generations: list[int] = Field(description="Acknowledgements of deliveries before the seek are ignored.")


class SubscriptionSummary(ResponseModel):
    topic: str
    subscription: str
    id: int
    type: SubscriptionKind
    consumers: int = Field(description="Number of connected ones.")
    lag: int = Field(description="Unacknowledged messages.")


class ShardPosition(ResponseModel):
    shard: int
    position: int = Field(description="Every message below this offset is acknowledged.")
    next: int = Field(description="Offset of the next message of the shard.")
    lag: int
    oldest_unacked_age_ms: int | None = Field(description="Age of the oldest unacknowledged message.")
    acked_range_count: int
    acked_ranges: list[tuple[int, int]] = Field(
        description="Acknowledged ranges [start, end) above the position; the first ones."
    )
    hole: tuple[int, int] | None = Field(description="First range of unacknowledged offsets below acknowledged ones.")
    in_flight: int
    waiting_for_redelivery: int
    dead_letters_under_way: int
    blocked: int = Field(description="Messages that failed too often under the policy block.")
    pause: str | None = Field(description="Why delivery is paused; null if it is not.")
    generation: int


class Subscription(SubscriptionSummary):
    created_ms: int
    failure: FailurePolicyModel
    max_dispatch_rate: int | None
    shard_positions: list[ShardPosition]


class Producer(ResponseModel):
    producer: str
    id: int
    epoch: int
    peer: str


class Consumer(ResponseModel):
    consumer: str
    id: int
    peer: str
    is_active: bool = Field(description="Failover: whether it receives the messages.")
    credit: int = Field(description="Messages that it can still receive.")
    delivered_messages: int
    waiting_ranges: int = Field(description="Deliveries queued for its socket.")
    key_pattern_count: int
    key_patterns: list[str] = Field(description="The first key patterns.")


# --- the log, settings, health ----------------------------------------------------------------------------------------


class Checkpoint(ResponseModel):
    name: str
    lsn: int


class TopicGap(GapRange):
    topic: str
    shard: int


class Wal(ResponseModel):
    log_id: str
    sync_mode: str
    last_lsn: int
    released_lsn: int
    synced_lsn: int
    used_bytes: int
    warm_bytes: int = Field(
        description="Bytes already in tables and kept only as a cache; reclaimable. Part of used_bytes."
    )
    spill_bytes: int = Field(
        description="Bytes of spill logs, of topics whose tables accept no commits. Part of used_bytes."
    )
    spill_files: int = Field(description="Files of spill logs.")
    quota_bytes: int
    topic_quota_bytes: int
    in_flight_bytes: int
    tail_bytes: int
    sealed_files: int
    shards: int
    checkpoints: list[Checkpoint]
    gap_count: int
    gaps: list[TopicGap]
    clean_start: bool = Field(description="Whether the last shutdown was clean.")
    stopped: str | None = Field(description="Why the log accepts no messages; null if it does.")


class WalFile(ResponseModel):
    file: str
    bytes: int
    first_lsn: int
    last_lsn: int
    shards: int


class Setting(ResponseModel):
    key: str
    value: bool | int | str | list[str] | None
    origin: str = Field(description="default, file, env, flag, or stored: changed while the broker runs.")
    online: bool = Field(description="Whether it can be changed while the broker runs.")
    allowed: str
    description: str


class NewValue(RequestModel):
    value: bool | Annotated[int, Field(ge=-(2**63), lt=2**63)] | Annotated[str, Field(max_length=4096)] | None


class HealthCheck(ResponseModel):
    name: str
    ok: bool
    reason: str
    is_needed: bool


class Health(ResponseModel):
    ready: bool
    checks: list[HealthCheck]
