"""What the API takes and gives, as types: they check requests, and OpenAPI is made of them.

Names, states and rules between values are the broker's to judge; here stands only the form. Numbers stay within what
the broker can count.
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


def _number_of(value: object) -> object:
    """A text of digits as its number; anything else is for the type to refuse."""
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else value


# Ids of 64 bits are texts in JSON: readers that take all numbers for doubles (jq, JavaScript) round those beyond 2^53.
IdShown = Annotated[str, BeforeValidator(str)]
IdGiven = Annotated[int, BeforeValidator(_number_of)]
StartValue = Annotated[
    Number,
    BeforeValidator(_number_of),
    Field(description="An offset, microseconds since 1970, or the id of a snapshot, as a number or a text."),
]


class Given(BaseModel):
    """What a client sends: a misspelt key is an error, not ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class Shown(BaseModel):
    """What the broker says."""

    model_config = ConfigDict(extra="ignore")


class Listing(Shown, Generic[Item]):
    items: list[Item]
    next: str | None = Field(description="`after` of the next page; null: this is the last one.")


class Problem(Shown):
    """Every answer that is not 2xx (RFC 9457)."""

    type: str = Field(description="`urn:icestream:error:<code>`")
    title: str
    status: int
    detail: str = Field(description="What happened.")
    instance: str
    code: str = Field(description="As in the native protocol.")
    hint: str = Field(description="What a person can do; may be empty.")
    retryable: bool = Field(description="Whether the same may succeed later without anybody's help.")


# --- namespaces and topics --------------------------------------------------------------------------------------------


class Policies(Given):
    """null: the namespace's, else no bound, else what the table says. 0: no bound."""

    max_producers: Number | None = None
    max_subscriptions: Number | None = None
    max_consumers_per_topic: Number | None = None
    max_consumers_per_subscription: Number | None = None
    max_publish_rate: Number | None = Field(default=None, description="Messages in a second.")
    max_dispatch_rate: Number | None = Field(default=None, description="Messages in a second and subscription.")
    max_message_bytes: Number | None = None
    retention_bytes: Number | None = Field(
        default=None, description="Of the topic in the log; the oldest beyond it are dropped, as a declared gap."
    )
    retention_ms: Number | None = Field(default=None, description="Of a message in the log; older ones are dropped.")
    partitioning: Name | None = Field(
        default=None,
        description="Of its table: none; hour, day or month of append_time; key, or bucket[16] of the key.",
    )
    compression: Name | None = Field(
        default=None, description="Of its data files: zstd, gzip, snappy, lz4 or uncompressed; zstd:9 names a level."
    )
    target_file_bytes: Number | None = Field(
        default=None, description="How large its data files become where there is enough."
    )
    deleted_table: TableEnd | None = Field(
        default=None, description="What becomes of its table when the topic is deleted; null: as the settings say."
    )
    deleted_rest: RestEnd | None = Field(
        default=None, description="What becomes of its messages that are in no table then; null: as the settings say."
    )


class NewNamespace(Given):
    namespace: Name
    policies: Policies = Policies()


class Namespace(Shown):
    namespace: str
    policies: Policies


class NewTopic(Given):
    name: Name
    shards: Annotated[int, Field(ge=1, le=limits.SHARDS_PER_TOPIC_MAX)] = 1
    dispatch: DispatchKind = "reliable"
    policies: Policies = Policies()


class TopicLine(Shown):
    topic: str = Field(description="`/namespace/name`")
    id: int
    shards: int
    dispatch: DispatchKind
    node: str = Field(description="The node that serves it. What only that node knows is null elsewhere.")
    producers: int | None = Field(description="That are connected.")
    consumers: int | None = Field(description="That are connected.")
    subscriptions: int | None
    lag: int | None = Field(description="Messages that are not acked, over all subscriptions.")
    published_messages: int | None = Field(description="Since the broker started.")
    published_bytes: int | None = Field(description="Since the broker started.")


class Gap(Shown):
    """Offsets [start, end) that hold no message."""

    start: int
    end: int
    reason: str
    state: str


class ShardOffsets(Shown):
    shard: int
    epoch: int
    earliest: int = Field(description="The oldest message in the log; the table may have older ones.")
    next: int = Field(description="What the next message gets.")
    synced: int = Field(description="Everything below is on disk.")
    gap_count: int
    gaps: list[Gap] = Field(description="The newest ones.")


class DeletedTopic(Shown):
    deleted: str = Field(description="Its name.")
    table: list[str] | None = Field(
        description="The levels of the namespace and the name of its table; null: it had none here."
    )
    table_end: TableEnd = Field(description="What becomes of it.")
    rest: RestEnd = Field(description="What becomes of the messages that were in no table.")
    rest_messages: int = Field(description="How many these were: discarded, or on their way into the table.")
    lost_with: str = Field(
        "", description="The node, removed before, whose log had messages that were in no table: nobody knows how many."
    )


class StalledReader(Shown):
    """A shard of a subscription that cannot go on."""

    reader: str = Field(description="Topic, subscription and shard.")
    shard: int
    offset: int = Field(description="The first message that cannot be read.")
    code: str = Field(description="Of the error.")
    reason: str
    is_transient: bool = Field(description="Whether it may pass by itself.")


class Topic(TopicLine):
    incarnation: int
    created_ms: int
    policies: Policies = Field(description="The topic's own.")
    effective_policies: Policies = Field(description="The topic's own over its namespace's.")
    held_bytes: int = Field(description="In the log.")
    shard_offsets: list[ShardOffsets]
    stalled_readers: list[StalledReader] = Field(
        default_factory=list, description="Subscriptions whose next messages cannot be read now; the first few."
    )


# --- subscriptions ----------------------------------------------------------------------------------------------------


class Failure(Given):
    """What happens to a message that fails."""

    max_redelivery_count: Milliseconds = 5
    ack_timeout_ms: Annotated[int, Field(ge=1, le=limits.FAILURE_POLICY_VALUE_MAX)] = 30_000
    base_delay_ms: Milliseconds = 1_000
    max_delay_ms: Milliseconds = 60_000
    backoff: Literal["fixed", "exponential"] = "exponential"
    poison: Literal["dead-letter", "drop", "block"] = "block"
    dead_letter_topic: str | None = None


class NewSubscription(Given):
    subscription: Name
    type: SubscriptionKind = "exclusive"
    start: StartKind = "latest"
    start_value: StartValue = 0
    failure: Failure | None = None


class SubscriptionChange(Given):
    """Only what is named changes."""

    failure: Failure | None = None
    max_dispatch_rate: Number | None = Field(default=None, description="null: the topic's.")


class Seek(Given):
    start: StartKind
    start_value: StartValue = 0
    shard: Annotated[int, Field(ge=0, lt=limits.SHARDS_PER_TOPIC_MAX)] | None = Field(
        default=None, description="null: all of them."
    )


class Sought(Shown):
    positions: list[int] = Field(description="For each shard, where it goes on.")
    generations: list[int] = Field(description="Acks of deliveries before it count no more.")


class SubscriptionLine(Shown):
    topic: str
    subscription: str
    id: int
    type: SubscriptionKind
    consumers: int = Field(description="That are connected.")
    lag: int = Field(description="Messages that are not acked.")


class ShardPosition(Shown):
    shard: int
    position: int = Field(description="Everything below is acked.")
    next: int = Field(description="What the next message of the shard gets.")
    lag: int
    oldest_unacked_age_ms: int | None = Field(description="Since the first message that is not acked was stored.")
    acked_range_count: int
    acked_ranges: list[tuple[int, int]] = Field(description="Above the position, [start, end); the first ones.")
    hole: tuple[int, int] | None = Field(description="The first offsets that are not acked although later ones are.")
    in_flight: int
    waiting_for_redelivery: int
    dead_letters_under_way: int
    blocked: int = Field(description="Failed too often, and the policy is block.")
    pause: str | None = Field(description="Why nothing new is delivered.")
    generation: int


class Subscription(SubscriptionLine):
    created_ms: int
    failure: Failure
    max_dispatch_rate: int | None
    shard_positions: list[ShardPosition]


class Producer(Shown):
    producer: str
    id: int
    epoch: int
    peer: str


class Consumer(Shown):
    consumer: str
    id: int
    peer: str
    is_active: bool = Field(description="Failover: it is the one that gets the messages.")
    credit: int = Field(description="Messages that it still takes.")
    delivered_messages: int
    waiting_ranges: int = Field(description="Deliveries that wait for its socket.")
    key_pattern_count: int
    key_patterns: list[str] = Field(description="The first ones.")


# --- the log, settings, health ----------------------------------------------------------------------------------------


class Checkpoint(Shown):
    name: str
    lsn: int


class TopicGap(Gap):
    topic: str
    shard: int


class Wal(Shown):
    log_id: str
    sync_mode: str
    last_lsn: int
    released_lsn: int
    synced_lsn: int
    used_bytes: int
    warm_bytes: int = Field(description="Of it: kept although nobody needs it. It counts as room.")
    spill_bytes: int = Field(description="Of it: spill logs of topics whose tables take nothing.")
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
    clean_start: bool = Field(description="The last stop was in order.")
    stopped: str | None = Field(description="Why it takes nothing any more.")


class WalFile(Shown):
    file: str
    bytes: int
    first_lsn: int
    last_lsn: int
    shards: int


class Setting(Shown):
    key: str
    value: bool | int | str | list[str] | None
    origin: str = Field(description="default, file, env, flag, or stored: changed while the broker runs.")
    online: bool = Field(description="Whether it may change while the broker runs.")
    allowed: str
    description: str


class NewValue(Given):
    value: bool | Annotated[int, Field(ge=-(2**63), lt=2**63)] | Annotated[str, Field(max_length=4096)] | None


class HealthCheck(Shown):
    name: str
    ok: bool
    reason: str
    is_needed: bool


class Health(Shown):
    ready: bool
    checks: list[HealthCheck]
