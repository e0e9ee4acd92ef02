"""`broker`: topics, subscriptions, delivery."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool

from icestream import limits
from icestream.settings import units
from icestream.settings.section import ONLINE, Section

_SIZE = units.size(0)


class BrokerSection(Section):
    """Topics, subscriptions and delivery."""

    auto_create_topics: StrictBool = Field(
        default=True,
        description="A producer that opens a topic which is not there makes it, with one shard. Consumers never do: a "
        "misspelt name would wait for ever.",
        json_schema_extra=ONLINE,
    )
    cursor_flush_ms: Annotated[int, units.duration("ms", 1, limits.CURSOR_FLUSH_MS_MAX)] = Field(
        default=limits.CURSOR_FLUSH_MS_DEFAULT,
        description="How long after a change the cursors of subscriptions are written. After a crash, what was acked "
        "in this time is delivered again; an orderly stop writes them all. The seed's variable "
        "`DANUBE_SUB_CURSOR_FLUSH_MS` sets it too.",
    )
    max_unacked_messages: Annotated[int, units.count(1, limits.UNACKED_MAX)] = Field(
        default=limits.UNACKED_MAX_DEFAULT,
        description="Messages of a subscription, in each shard, that may be delivered and not acked. At the bound "
        "nothing new is delivered until an ack comes. Of a shared subscription one consumer has eight ninths of them "
        "at most, so that a slow one leaves room to the others.",
    )
    deleted_table: Literal["keep", "drop", "purge"] = Field(
        default="keep",
        description="What becomes of the table of a topic that is deleted, where neither the topic's policies nor its "
        "namespace's say: it stays as a table like any other, is dropped, or dropped with its files. With another "
        "catalog: keep.",
    )
    deleted_rest: Literal["commit", "discard"] = Field(
        default="commit",
        description="What becomes of the messages of such a topic that are in no table yet: the pipeline brings them "
        "into the table before it is let go of, and the log keeps them until then; or they go.",
    )
    undelete_grace_ms: Annotated[int, units.duration("ms", 0, limits.UNDELETE_GRACE_MS_MAX)] = Field(
        default=limits.UNDELETE_GRACE_MS_DEFAULT,
        description="How long `icestream topic undelete` brings a deleted topic back, with its subscriptions and "
        "cursors, unless its table was purged; 0: never. A week covers a holiday, and its records are small.",
    )
    tail_bytes: Annotated[int, _SIZE] = Field(
        default=limits.TAIL_BYTES_DEFAULT,
        description="Memory for the newest messages of all topics, from which consumers that are caught up are served "
        "without reading the disk.",
    )
    tail_enabled: StrictBool = Field(
        default=True,
        description="Whether there is such memory. Without it every message is delivered from the log's files.",
    )
    tail_ttl_ms: Annotated[int, units.duration("ms", 0, limits.TAIL_TTL_MS_MAX)] = Field(
        default=0,
        description="How long a message stays there at most; 0: until the memory is needed for newer ones.",
    )
