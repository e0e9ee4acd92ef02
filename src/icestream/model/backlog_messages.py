"""Inter-process messages from a broker to the pipeline: which offsets are uncommitted, and where they are stored.

The broker syncs before it answers, so everything in a backlog is synced (hazard 0) and may become a row.

    Backlog        one broker: its log, the topics with uncommitted messages, the files that contain them
    BacklogRange   offsets [start, end) of one shard in one log file
    marks          (position, lsn) of records where a reader of a file may begin, rising; the first is its first record.
                   A task owns the bytes from one mark to another, or to `end`

A file is identified by its number, which is also its generation: a recycled file has another number (hazard 29).

The calls on the broker's local socket (internal_api/pipeline_calls.py); a Backlog crosses as the bytes of
`encode_backlog`, because a document may not have so many values:
    pipeline_backlog     wait_ms, files_max,              backlog: bytes
                         passed_over: topic ids
    pipeline_lease       lease, epoch, files, ttl_ms      token: opens these files over HTTP, while the lease lasts. No
                                                          file: the lease ends. LeaseLost: a pipeline with a higher
                                                          epoch has taken over. PositionGone: a file was freed
    pipeline_committed   positions [[topic_id, shard, offset], …], at most PIPELINE_POSITIONS_MAX; reopenings of the
                         backlog that they were made by: of shards that went back since nothing is taken      nothing
    pipeline_reopen      positions, as above: the tables end there. Floors go down, as far as the log has it
                                                          floors [[topic_id, shard, offset], …]: where they are then
    pipeline_consumed    topic_ids                        topics: [[topic_id, {shard: end}, generation], …] of those
                                                          that have a consumer, and all of them are known
    pipeline_state       state, a document; nil only asks  state, age_ms: the last one that was said
"""

from __future__ import annotations

from typing import Final

import msgspec

from icestream import errors

CLEAN_UP: Final = "clean_up"  # among `changed_settings`


class ShardBacklog(msgspec.Struct, frozen=True, array_like=True):
    shard: int
    epoch: int
    committed: int  # the committed offset (the shard's floor): everything below is in the table
    synced: int
    gaps: list[tuple[int, int]] = []  # declared gaps below `synced`: they hold no message


class TopicBacklog(msgspec.Struct, frozen=True):
    topic_id: int
    name: str
    incarnation: int
    shards: list[ShardBacklog]  # all shards, also those without uncommitted messages
    rows: int  # uncommitted messages, also those outside of the files in this answer
    bytes: int  # of the ranges in this answer, approximately
    oldest_us: int  # append time of the oldest uncommitted message, approximately
    policy: dict[str, str] = {}  # of its table: partitioning, codec, target size; what differs from the settings


class BacklogRange(msgspec.Struct, frozen=True, array_like=True):
    topic_id: int
    shard: int
    epoch: int
    start: int
    end: int
    bytes: int
    position: int = 0  # of a record: none before it in this file contains any of these offsets; 0 if unknown


class BacklogFile(msgspec.Struct, frozen=True):
    number: int
    end: int  # the position after its last synced record
    marks: list[tuple[int, int]]
    stretches: list[BacklogRange]
    spill: bool = False  # a file of a topic's spill log (hazard 8), read like any other


class RetainedTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic that keeps only some of its messages. 0: no limit."""

    topic_id: int
    name: str
    bytes_max: int = 0
    messages_max: int = 0
    age_ms: int = 0
    # The upper bound of messages that are kept because a consumer has not acked them; both 0: acks do not matter.
    unconsumed_bytes_max: int = 0
    unconsumed_age_ms: int = 0

    @property
    def is_until_consumed(self) -> bool:
        return bool(self.unconsumed_bytes_max or self.unconsumed_age_ms)


class ConsumedOffsets(msgspec.Struct, frozen=True, array_like=True):
    """What all consumers of a topic have acked, durably: subscriptions, and durable MQTT sessions."""

    topic_id: int
    ends: dict[int, int]  # by shard: everything below is acked by all of them
    # Another one once a consumer may begin below `ends`: it was created or moved. The commit of a removal compares it.
    generation: int


class PassedOver(msgspec.Struct, frozen=True):
    """The backlog of topics that the driver skips because they make no progress: only sums, which take no room."""

    rows: int = 0
    bytes: int = 0  # about
    oldest_us: int | None = None


class Backlog(msgspec.Struct, frozen=True):
    log_id: str
    directory: str  # of the log, for tasks on the same machine
    address: str  # of the broker's HTTP, for all others: GET /wal/{number}
    certificate: str  # its SHA-256, by which tasks recognise that endpoint; empty without TLS
    topics: list[TopicBacklog]
    files: list[BacklogFile]
    is_cut: bool = False  # truncated: request again after this is committed
    lsn: int = 0  # the last record that this covers
    reopenings: int = 0  # grows when floors go back, and from one life of the broker to the next
    # Settings `writer_…` and `clean_up` that were changed while the broker runs, by the last part of their path; 0 and
    # 1 for a switch. They override those that the driver started with.
    changed_settings: dict[str, int] = {}
    passed_over: PassedOver = PassedOver()
    # Topics with a retention, whether or not they have a backlog; at most RETAINED_TOPICS_MAX, the next ones next time.
    retained: list[RetainedTopic] = []


_decoder: Final = msgspec.msgpack.Decoder(Backlog)


def encode_backlog(backlog: Backlog) -> bytes:
    return msgspec.msgpack.encode(backlog)


def decode_backlog(data: bytes) -> Backlog:
    """Decodes a backlog. Raises DecodeError."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise errors.DecodeError(f"not a backlog: {error}") from None
