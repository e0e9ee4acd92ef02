"""Topics, their shards and their producers."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from icestream import limits
from icestream.admin_api.admin_call import AdminCall, Answer, EmptyAnswer, Listing, Name, NoArguments, PageRequest
from icestream.model.field_metadata import Doc, NumberBounds
from icestream.model.subscription_options import DispatchMode
from icestream.model.topic_deletion_policy import DeletedRestPolicy, DeletedTablePolicy
from icestream.model.topic_policies import PolicyValues

# --- requests ---------------------------------------------------------------------------------------------------------


class TopicOnly(msgspec.Struct):
    topic: str


class TopicOptions(msgspec.Struct, kw_only=True):
    """What a new topic is created with."""

    shards: Annotated[int, NumberBounds(1, limits.SHARDS_PER_TOPIC_MAX)] = 1
    dispatch: DispatchMode = DispatchMode.RELIABLE
    policies: PolicyValues = PolicyValues()


class CreateTopic(TopicOptions, kw_only=True):
    topic: str


class NewTopic(TopicOptions, kw_only=True):
    name: Name


class DeleteTopic(msgspec.Struct):
    """`table` and `rest` default to the topic's policies."""

    topic: str
    table: DeletedTablePolicy | None = None
    rest: DeletedRestPolicy | None = None


class UndeleteTopic(msgspec.Struct):
    """`id`: which of several deleted topics of that name; null: the last one. `bring_back_erased`: also if messages
    of it were erased since from a topic that was restored from it."""

    topic: str
    id: int | None = None
    bring_back_erased: bool = False


class ListTopics(msgspec.Struct):
    after: str = ""


class PageTopics(PageRequest, kw_only=True):
    namespace: str = ""  # empty: of all namespaces


class PageOfTopic(PageRequest, kw_only=True):
    topic: str = ""


class PageOfShard(PageOfTopic, kw_only=True):
    shard: int = 0


class ChangeTopicPolicies(msgspec.Struct):
    """The policies that are named change, null unsets one; without any nothing changes."""

    topic: str
    policies: dict[str, Any] = {}


class SetTopicPolicies(msgspec.Struct):
    """All policies are replaced."""

    topic: str
    policies: PolicyValues


class ProducerOnly(msgspec.Struct):
    topic: str
    producer: str


# --- answers ----------------------------------------------------------------------------------------------------------


class TopicOutline(Answer):
    """What every client may know of a topic."""

    topic: str
    id: int
    shards: int
    dispatch: DispatchMode
    producers: int
    subscriptions: list[str]


class TopicNames(Answer):
    topics: list[str]
    next: str | None


class TopicSummary(Answer):
    topic: Annotated[str, Doc("`/namespace/name`")]
    id: int
    shards: int
    dispatch: DispatchMode
    producers: Annotated[int | None, Doc("Number of connected ones.")]
    consumers: Annotated[int | None, Doc("Number of connected ones.")]
    subscriptions: int | None
    lag: Annotated[int | None, Doc("Unacknowledged messages of all subscriptions.")]
    published_messages: Annotated[int | None, Doc("Since the broker started.")]
    published_bytes: Annotated[int | None, Doc("Since the broker started.")]
    node: Annotated[str, Doc("The node that serves it. Values that only this node has are null on other nodes.")]


class GapRange(Answer):
    """A range of offsets [start, end) without messages."""

    start: int
    end: int
    reason: str
    state: str


class TopicShard(Answer):
    shard: int
    epoch: int
    earliest: Annotated[int, Doc("The oldest offset in the log; the table may have older ones.")]
    next: Annotated[int, Doc("Offset of the next message.")]
    synced: Annotated[int, Doc("Every message below this offset is on disk.")]
    gap_count: int
    gaps: Annotated[list[GapRange], Doc("The newest gaps.")]


class StalledSubscription(Answer):
    """A shard of a subscription whose delivery is stalled."""

    reader: Annotated[str, Doc("Topic, subscription and shard.")]
    shard: int
    offset: Annotated[int, Doc("The first message that cannot be read.")]
    code: Annotated[str, Doc("Code of the error.")]
    reason: str
    is_transient: Annotated[bool, Doc("Whether it may resolve by itself.")]


class TopicDetails(TopicSummary):
    incarnation: int
    created_ms: int
    policies: Annotated[PolicyValues, Doc("Policies of the topic itself.")]
    effective_policies: Annotated[PolicyValues, Doc("Policies of the topic over those of its namespace.")]
    held_bytes: Annotated[int, Doc("Bytes in the log.")]
    shard_offsets: list[TopicShard]
    stalled_readers: Annotated[
        list[StalledSubscription], Doc("Subscriptions whose delivery is stalled; the first few.")
    ]


class TopicHistory(Answer):
    """The oldest readable offset of each shard, in the log or the table; null while the table cannot be read."""

    starts: list[int | None]


class EffectivePolicies(Answer):
    policies: Annotated[PolicyValues, Doc("Policies of the topic itself.")]
    effective_policies: Annotated[PolicyValues, Doc("Policies of the topic over those of its namespace.")]


class DeletionReport(Answer):
    table: Annotated[
        list[str] | None,
        Doc("The levels of the namespace and the name of its table; null if it had none in the embedded catalog."),
    ]
    table_end: Annotated[DeletedTablePolicy, Doc("What happens to the table.")]
    rest: Annotated[DeletedRestPolicy, Doc("What happens to uncommitted messages.")]
    rest_messages: Annotated[int, Doc("Number of uncommitted messages: discarded, or being committed.")]
    lost_with: Annotated[
        str, Doc("A removed node whose log had uncommitted messages, in unknown number; they are lost.")
    ] = ""


class DeletedTopic(DeletionReport, kw_only=True):
    deleted: Annotated[str, Doc("Name of the topic.")]


class FormerTopicTable(Answer):
    """The table of a topic that came back, which it has to adopt."""

    namespace: list[str]
    table: str
    uuid: str
    metadata_file: Annotated[str, Doc("Its last one: a table that was dropped is registered from it.")]


class ReturnReport(Answer):
    topic: Annotated[str, Doc("`/namespace/name`")]
    id: Annotated[int, Doc("The id that it had.")]
    shards: int
    subscriptions: Annotated[int, Doc("Number of those that came back, at their cursors.")]
    former_table: Annotated[FormerTopicTable | None, Doc("null: it had no table in the embedded catalog.")]


class TopicTombstone(Answer):
    topic: Annotated[str, Doc("`/namespace/name`")]
    id: int
    shards: int
    node: Annotated[str, Doc("The node whose log has the topic.")]
    deleted_ms: int
    until_ms: Annotated[int, Doc("How long it can come back.")]


class TombstoneList(Answer):
    topics: Annotated[list[TopicTombstone], Doc("The oldest deletion first.")]


class ShardTakeover(Answer):
    shard: int
    gap_start: int
    gap_end: int


class TakeoverReport(Answer):
    former: str
    shards: list[ShardTakeover]


class ConnectedProducer(Answer):
    producer: str
    id: int
    epoch: int
    peer: str


CREATE_TOPIC: Final = AdminCall("create_topic", CreateTopic, TopicOutline, is_public=True)
DESCRIBE_TOPIC: Final = AdminCall("describe_topic", TopicOnly, TopicOutline, is_public=True)
LIST_TOPICS: Final = AdminCall("list_topics", ListTopics, TopicNames, is_public=True)
TOPIC_POLICIES: Final = AdminCall("topic_policies", ChangeTopicPolicies, EffectivePolicies, is_public=True)
DELETE_TOPIC: Final = AdminCall("delete_topic", DeleteTopic, DeletionReport, is_public=True)
UNDELETE_TOPIC: Final = AdminCall("undelete_topic", UndeleteTopic, ReturnReport, is_public=True)
LIST_DELETED_TOPICS: Final = AdminCall("list_deleted_topics", NoArguments, TombstoneList, is_public=True)
TAKEOVER_TOPIC: Final = AdminCall("takeover_topic", TopicOnly, TakeoverReport, is_public=True)

PAGE_TOPICS: Final = AdminCall("page_topics", PageTopics, Listing[TopicSummary])
INSPECT_TOPIC: Final = AdminCall("inspect_topic", TopicOnly, TopicDetails)
TOPIC_HISTORY: Final = AdminCall("topic_history", TopicOnly, TopicHistory)
PAGE_GAPS: Final = AdminCall("page_gaps", PageOfShard, Listing[GapRange])
SET_TOPIC_POLICIES: Final = AdminCall("set_topic_policies", SetTopicPolicies, TopicDetails)
PAGE_PRODUCERS: Final = AdminCall("page_producers", PageOfTopic, Listing[ConnectedProducer])
DISCONNECT_PRODUCER: Final = AdminCall("disconnect_producer", ProducerOnly, EmptyAnswer)
