"""A checkpoint: the state of the log at a synced LSN, so that older files may be reused (hazard 4).

A file `checkpoint-<lsn>-<serial>` is one record of kind CHECKPOINT (format.py) at position 0, generation 0, `lsn` = the
LSN it covers, with one section each of
    LOG      16 bytes log_id | u64 next_file_number | u8 clean | 7 zero
    TOPICS   per topic   i64 id | i64 incarnation | u16 name bytes | name
    SHARDS   per shard   i64 topic_id | u32 shard | u64 epoch | i64 next | i64 reserved | i64 append_time_us | i64 floor
    GAPS     per gap     i64 topic_id | u32 shard | i64 start | i64 end | u64 epoch | u8 state | u16 size | reason
    WINDOWS  per window  i64 topic_id | u32 shard | i64 producer | i32 epoch | i64 expected | i64 used_us | i64 start |
                         u16 n, then n times i64 first_sequence | u32 count | i64 base_offset | i64 lsn
    EPOCHS   per producer  i64 id | i32 highest epoch | i32 highest epoch whose window was evicted, -1 for none. It may
                         contain epochs above the LSN: they are in use, so no other producer may use them
    CURRENT  u64 number of the log file that gets the next record (log_file.py: the current file). Without one (full
             disk, clean stop): of the newest file that is not sealed yet or keeps its name without a record. 0 if there
             is none of these either: the checkpoint covers every record of the log.
                         OPTIONAL; a checkpoint of an older version has no such section
It is written under a temporary name, synced, renamed, and the directory synced. `next` is the shard's *synced* offset.
`clean`: the log was closed in order and ends at this LSN, so reserved offsets were not used either.
The newest two are kept, and a file is freed only when both cover it and contain floors beyond it: losing the newest one
costs scanning, never state.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from icestream import errors, limits
from icestream.model.shard import DeclaredGap, GapState, ShardKey, TopicIdentity
from icestream.wal import format as wire
from icestream.wal.producer_sequences import SequenceWindow, StoredBatch
from icestream.wal.state import LogState

_LOG = struct.Struct("<16sQB7x")
_TOPIC = struct.Struct("<qqH")
_SHARD = struct.Struct("<qIQqqqq")
_GAP = struct.Struct("<qIqqQBH")
_WINDOW = struct.Struct("<qIqiqqqH")
_SENT = struct.Struct("<qIqq")
_EPOCH = struct.Struct("<qii")
_CURRENT = struct.Struct("<Q")


@dataclass(slots=True)
class Checkpoint:
    """A decoded checkpoint; `current` is the number of the current file, 0 for none."""

    lsn: int
    log_id: bytes
    next_file_number: int
    clean: bool
    state: LogState
    current: int = 0


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    """A checkpoint on disk, with what decides which files may be freed."""

    name: str
    lsn: int
    floors: dict[ShardKey, int]
    current: int  # the log file that it names, 0 for none

    @classmethod
    def of(cls, name: str, checkpoint: Checkpoint) -> KeptCheckpoint:
        """What must be remembered of a checkpoint file."""
        floors = {key: shard.floor for key, shard in checkpoint.state.shards.items()}
        return cls(name, checkpoint.lsn, floors, checkpoint.current)


def encode_checkpoint(checkpoint: Checkpoint, shards: bytes, windows: bytes, epochs: bytes, now_us: int) -> bytes:
    """The bytes of a checkpoint file.

    `shards`: from `freeze_shards` at the LSN of the checkpoint. `windows`, `epochs`: the joined slices of
    `window_slices` and `epoch_slices`.
    """
    state = checkpoint.state
    bodies = (
        (wire.SectionKind.LOG, _LOG.pack(checkpoint.log_id, checkpoint.next_file_number, checkpoint.clean)),
        (wire.SectionKind.TOPICS, b"".join(_encode_topic(topic) for topic in state.topics.values())),
        (wire.SectionKind.SHARDS, shards),
        (wire.SectionKind.GAPS, b"".join(_encode_gap(gap) for gaps in state.gaps.values() for gap in gaps)),
        (wire.SectionKind.WINDOWS, windows),
        (wire.SectionKind.EPOCHS, epochs),
    )
    sections = [wire.RecordSection(0, 0, kind, 0, 0, 0, 0, 0, 0, body) for kind, body in bodies]
    current = _CURRENT.pack(checkpoint.current)
    sections.append(wire.RecordSection(0, 0, wire.SectionKind.CURRENT, wire.OPTIONAL, 0, 0, 0, 0, 0, current))
    return wire.encode_record(
        wire.RecordKind.CHECKPOINT, checkpoint.lsn, 0, checkpoint.lsn, now_us, 0, wire.ALIGN, sections
    )


def _encode_topic(topic: TopicIdentity) -> bytes:
    name = topic.name.encode()
    return _TOPIC.pack(topic.id, topic.incarnation, len(name)) + name


def freeze_shards(state: LogState, *, clean: bool) -> bytes:
    """The SHARDS section for the present synced LSN."""
    return b"".join(
        _SHARD.pack(
            # After an orderly close nothing beyond `synced` was assigned, so the reservation is given back and leaves
            # no gap.
            *shard.key, shard.epoch, shard.synced, shard.synced if clean else max(shard.reserved, shard.synced),
            shard.append_time_us, shard.floor,
        )
        for shard in state.shards.values()
    )  # fmt: skip


def _encode_gap(gap: DeclaredGap) -> bytes:
    reason = gap.reason.encode()
    return _GAP.pack(*gap.key, gap.start, gap.end, gap.epoch, gap.state, len(reason)) + reason


def window_slices(state: LogState, lsn: int, size: int = limits.CHECKPOINT_SLICE_WINDOWS) -> Iterator[bytes]:
    """The producer windows at `lsn`, in slices, so that the event loop can run in between.

    A window that changes between two slices is still encoded as it was at `lsn`: newer batches are left out, and those
    at `lsn` stay in the window until the last slice is encoded. A producer without batches at `lsn` is left out: the
    records after the checkpoint contain it.
    """
    windows = list(state.producers.windows())
    state.producers.checkpoint_lsn = lsn
    try:
        for start in range(0, len(windows), size):
            yield b"".join(_encode_window(*window, lsn) for window in windows[start : start + size])
    finally:
        state.producers.checkpoint_lsn = None


def epoch_slices(state: LogState, size: int = limits.CHECKPOINT_SLICE_EPOCHS) -> Iterator[bytes]:
    """The epochs of all producers at the first slice, in slices."""
    epochs = state.producers.epochs()
    for start in range(0, len(epochs), size):
        yield b"".join(_EPOCH.pack(*fields) for fields in epochs[start : start + size])


def _encode_window(key: ShardKey, producer_id: int, newest: SequenceWindow, lsn: int) -> bytes:
    """The window as it was at `lsn`; empty if the producer had stored nothing then."""
    window = newest.at(lsn)
    if window is None:
        return b""
    sent = [batch for batch in window.sent if batch.lsn <= lsn][-limits.PRODUCER_WINDOW_BATCHES :]
    expected = sent[-1].first_sequence + sent[-1].rows
    head = _WINDOW.pack(*key, producer_id, window.producer_epoch, expected, window.used_us, window.start, len(sent))
    return head + b"".join(_SENT.pack(*batch) for batch in sent)


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Decodes a checkpoint file. Raises DecodeError for anything that is not a complete and good checkpoint."""
    header = wire.decode_header(data, 0, 0)
    entries = wire.decode_entries(data, 0, header)
    # One bad section makes the whole useless: the older checkpoint and a longer scan give the same state.
    if header.kind != wire.RecordKind.CHECKPOINT or not all(
        wire.check_section(data, 0, header, entry) for entry in entries
    ):
        raise errors.DecodeError("not a valid checkpoint")
    bodies = {entry.kind: data[entry.body_position :][: entry.body_bytes] for entry in entries}
    try:
        log_id, next_number, clean = _LOG.unpack(bodies[wire.SectionKind.LOG])
        state = LogState(lsn=header.lsn)
        for topic in _decode_topics(bodies[wire.SectionKind.TOPICS]):
            state.declare_topic(topic)
        _decode_shards(state, bodies[wire.SectionKind.SHARDS])
        for gap in _decode_gaps(bodies[wire.SectionKind.GAPS]):
            state.declare_gap(gap)
        _decode_windows(state, bodies[wire.SectionKind.WINDOWS])
        for producer, epoch, evicted in _EPOCH.iter_unpack(bodies[wire.SectionKind.EPOCHS]):
            state.producers.restore_epoch(producer, epoch, evicted)
        # 0 where a checkpoint of an older version has no such section.
        (current,) = _CURRENT.unpack(bodies.get(wire.SectionKind.CURRENT, bytes(_CURRENT.size)))
    except (struct.error, KeyError, ValueError, UnicodeDecodeError, errors.InvalidInput) as error:
        raise errors.DecodeError(f"checkpoint is inconsistent: {error}") from None
    return Checkpoint(header.lsn, log_id, next_number, bool(clean), state, current)


def _decode_topics(body: bytes) -> Iterator[TopicIdentity]:
    at = 0
    while at < len(body):
        id_, incarnation, size = _TOPIC.unpack_from(body, at)
        at += _TOPIC.size
        yield TopicIdentity(id_, _cut(body, at, size).decode(), incarnation)
        at += size


def _cut(body: bytes, at: int, size: int) -> bytes:
    if at + size > len(body):
        raise errors.DecodeError("a text in the checkpoint is cut off")
    return body[at : at + size]


def _decode_shards(state: LogState, body: bytes) -> None:
    for topic_id, number, epoch, next_offset, reserved, time_us, floor in _SHARD.iter_unpack(body):
        shard = state.shard(ShardKey(topic_id, number))
        shard.epoch, shard.append_time_us, shard.floor = epoch, time_us, floor
        shard.assigned = shard.written = shard.synced = next_offset
        shard.reserved = shard.reserve_pending = reserved


def _decode_gaps(body: bytes) -> Iterator[DeclaredGap]:
    at = 0
    while at < len(body):
        topic_id, number, start, end, epoch, gap_state, size = _GAP.unpack_from(body, at)
        at += _GAP.size
        reason = _cut(body, at, size).decode()
        yield DeclaredGap(ShardKey(topic_id, number), start, end, epoch, reason, GapState(gap_state))
        at += size


def _decode_windows(state: LogState, body: bytes) -> None:
    at = 0
    while at < len(body):
        topic_id, number, producer, epoch, expected, used_us, start, count = _WINDOW.unpack_from(body, at)
        at += _WINDOW.size
        window = SequenceWindow(epoch, expected, used_us, start=start)
        for _ in range(count):
            window.sent.append(StoredBatch(*_SENT.unpack_from(body, at)))
            at += _SENT.size
        state.producers.restore(ShardKey(topic_id, number), producer, window)
