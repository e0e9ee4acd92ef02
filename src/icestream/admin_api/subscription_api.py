"""Subscriptions, their positions and their consumers."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType

from icestream import limits
from icestream.admin_api.admin_call import AdminCall, Answer, EmptyAnswer, Listing, Name
from icestream.admin_api.topic_api import PageOfTopic
from icestream.model.field_metadata import ID_TEXT, Doc, NumberBounds
from icestream.model.subscription_options import FailurePolicy, StartAt, SubscriptionType
from icestream.model.topic_policies import Count

StartValue = Annotated[
    int,
    NumberBounds(0, limits.OFFSET_MAX),
    ID_TEXT,
    Doc("An offset, microseconds since 1970, or the id of a snapshot, as a number or a string."),
]

# --- requests ---------------------------------------------------------------------------------------------------------


class SubscriptionOnly(msgspec.Struct):
    topic: str
    subscription: str


class NewSubscription(msgspec.Struct, kw_only=True):
    subscription: Name
    type: SubscriptionType = SubscriptionType.EXCLUSIVE
    start: StartAt = StartAt.LATEST
    start_value: StartValue = 0
    failure: FailurePolicy | None = None


class CreateSubscription(NewSubscription, kw_only=True):
    topic: str


class SubscriptionChange(msgspec.Struct, kw_only=True):
    """Changes of a subscription; omitted fields are unchanged."""

    failure: FailurePolicy | UnsetType = UNSET
    max_dispatch_rate: Annotated[Count | UnsetType | None, Doc("null: that of the topic.")] = UNSET


class ChangeSubscription(SubscriptionChange, kw_only=True):
    topic: str
    subscription: str


class Seek(msgspec.Struct, kw_only=True):
    start: StartAt
    start_value: StartValue = 0
    shard: Annotated[
        Annotated[int, NumberBounds(0, limits.SHARDS_PER_TOPIC_MAX - 1)] | None, Doc("null: all shards.")
    ] = None


class SeekSubscription(Seek, kw_only=True):
    topic: str
    subscription: str


class PageOfSubscription(PageOfTopic, kw_only=True):
    subscription: str = ""


class ConsumerOnly(msgspec.Struct):
    topic: str
    subscription: str
    consumer: str


# --- answers ----------------------------------------------------------------------------------------------------------


class SubscriptionSummary(Answer):
    topic: str
    subscription: str
    id: int
    type: SubscriptionType
    consumers: Annotated[int, Doc("Number of connected ones.")]
    state: Annotated[str, Doc("`ok`, or how its delivery is stalled: `blocked`, `unreadable`, `forbidden`.")]
    lag: Annotated[int, Doc("Unacknowledged messages.")]


class ShardStall(Answer):
    """Why messages of a shard are not delivered, from which offset on, and since when."""

    kind: str
    offset: int
    reason: str
    hint: str
    since_ms: int


class SubscriptionShard(Answer):
    shard: int
    position: Annotated[int, Doc("Every message below this offset is acknowledged.")]
    next: Annotated[int, Doc("Offset of the next message of the shard.")]
    lag: int
    oldest_unacked_age_ms: Annotated[int | None, Doc("Age of the oldest unacknowledged message.")]
    acked_range_count: int
    acked_ranges: Annotated[
        list[tuple[int, int]], Doc("Acknowledged ranges [start, end) above the position; the first ones.")
    ]
    hole: Annotated[tuple[int, int] | None, Doc("First range of unacknowledged offsets below acknowledged ones.")]
    in_flight: int
    waiting_for_redelivery: int
    dead_letters_under_way: int
    blocked: Annotated[int, Doc("Messages that failed too often under the policy block.")]
    pause: Annotated[str | None, Doc("Why delivery is paused; null if it is not.")]
    stalls: list[ShardStall]
    generation: int


class SubscriptionDetails(SubscriptionSummary):
    created_ms: int
    failure: FailurePolicy
    max_dispatch_rate: int | None
    shard_positions: list[SubscriptionShard]


class SeekResult(Answer):
    generations: Annotated[list[int], Doc("Acknowledgements of deliveries before the seek are ignored.")]
    positions: Annotated[list[int], Doc("Position of each shard after the seek.")]


class ConnectedConsumer(Answer):
    consumer: str
    id: int
    peer: str
    is_active: Annotated[bool, Doc("Failover: whether it receives the messages.")]
    credit: Annotated[int, Doc("Messages that it can still receive.")]
    delivered_messages: int
    waiting_ranges: Annotated[int, Doc("Deliveries queued for its socket.")]
    key_pattern_count: int
    key_patterns: Annotated[list[str], Doc("The first key patterns.")]


SEEK: Final = AdminCall("seek", SeekSubscription, SeekResult, is_public=True)
DELETE_SUBSCRIPTION: Final = AdminCall("delete_subscription", SubscriptionOnly, EmptyAnswer, is_public=True)

PAGE_SUBSCRIPTIONS: Final = AdminCall("page_subscriptions", PageOfTopic, Listing[SubscriptionSummary])
INSPECT_SUBSCRIPTION: Final = AdminCall("inspect_subscription", SubscriptionOnly, SubscriptionDetails)
CREATE_SUBSCRIPTION: Final = AdminCall("create_subscription", CreateSubscription, SubscriptionDetails)
CHANGE_SUBSCRIPTION: Final = AdminCall("change_subscription", ChangeSubscription, SubscriptionDetails)
PAGE_CONSUMERS: Final = AdminCall("page_consumers", PageOfSubscription, Listing[ConnectedConsumer])
DISCONNECT_CONSUMER: Final = AdminCall("disconnect_consumer", ConsumerOnly, EmptyAnswer)
