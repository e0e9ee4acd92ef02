"""Checkpoints: what the log knew at a synced LSN comes back whole, or not at all (hazard 4)."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.model.block import Numbering
from icestream.model.shard import DeclaredGap, GapState, ShardKey, TopicIdentity
from icestream.wal import format as wire
from icestream.wal.checkpoint import (
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    epoch_slices,
    freeze_shards,
    window_slices,
)
from icestream.wal.producer_sequences import Duplicate, SequenceWindow, StoredBatch
from icestream.wal.state import LogState
from tests.support.hypothesis_effort import HALF, QUARTER
from tests.support.mutations import bit_flips, decoded_or_refused, mutated, truncations

LOG_ID = bytes(range(16))
LSN = 1_000
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
OFFSETS = st.integers(0, limits.OFFSET_MAX)
I64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def states(draw: st.DrawFn) -> LogState:
    state = LogState(lsn=LSN)
    ids = draw(st.lists(st.integers(1, 2**63 - 1), unique=True, max_size=3))
    for id_ in ids:
        state.declare_topic(TopicIdentity(id_, draw(TEXT.filter(bool)), draw(st.integers(0, 2**63 - 1))))
    keys = [ShardKey(id_, number) for id_ in ids for number in draw(st.sets(st.integers(0, 2**31 - 1), max_size=2))]
    for key in keys:
        shard = state.shard(key)
        shard.epoch, shard.append_time_us = draw(st.integers(0, 2**64 - 1)), draw(I64)
        floor, synced, reserved = sorted(draw(st.tuples(OFFSETS, OFFSETS, OFFSETS)))
        shard.floor, shard.reserved, shard.reserve_pending = floor, reserved, reserved
        shard.synced = shard.written = shard.assigned = synced
        start = 0
        for _ in range(draw(st.integers(0, 2))):
            start += draw(st.integers(1, 9))
            state.declare_gap(DeclaredGap(key, start, start + 3, 1, draw(TEXT), draw(st.sampled_from(GapState))))
            start += 3
        for producer in draw(st.sets(st.integers(0, 2**63 - 1), max_size=2)):
            window = SequenceWindow(draw(st.integers(0, 2**31 - 1)), 0, draw(I64))
            first = draw(st.integers(0, 2**40))
            for rows in draw(st.lists(st.integers(1, 2**20), min_size=1, max_size=3)):
                window.sent.append(StoredBatch(first, rows, draw(OFFSETS), draw(st.integers(1, LSN))))
                first += rows
            window.expected = first
            state.producers.restore(key, producer, window)
    return state


def picture(state: LogState, *, clean: bool = False, lsn: int = LSN) -> Checkpoint:
    return Checkpoint(lsn, LOG_ID, 77, clean, state)


def encoded(checkpoint: Checkpoint) -> bytes:
    """The checkpoint in one go; the log lets its loop turn between the slices."""
    shards = freeze_shards(checkpoint.state, clean=checkpoint.clean)
    windows = b"".join(window_slices(checkpoint.state, checkpoint.lsn))
    epochs = b"".join(epoch_slices(checkpoint.state, 2))
    return encode_checkpoint(checkpoint, shards, windows, epochs, 5)


def known_state(state: LogState) -> Any:
    """Everything a checkpoint keeps of a state."""
    shards = {
        key: (
            shard.epoch, shard.synced, shard.written, shard.assigned, shard.reserved, shard.reserve_pending,
            shard.append_time_us, shard.floor,
        )
        for key, shard in state.shards.items()
    }  # fmt: skip
    return state.lsn, state.topics, shards, state.gaps, list(state.producers.windows())


def all_told(checkpoint: Checkpoint | None) -> Any:
    if checkpoint is None:
        return None
    return (
        checkpoint.lsn,
        checkpoint.log_id,
        checkpoint.next_file_number,
        checkpoint.clean,
        known_state(checkpoint.state),
    )


def small_state() -> LogState:
    state = LogState(lsn=LSN)
    state.declare_topic(TopicIdentity(5, "/default/ü", 2))
    key = ShardKey(5, 3)
    shard = state.shard(key)
    shard.epoch, shard.append_time_us, shard.floor, shard.reserved = 4, 1_234, 10, 500
    shard.synced = shard.written = shard.assigned = 100
    state.declare_gap(DeclaredGap(key, 20, 30, 4, "why", GapState.LOST))
    state.producers.restore(key, 9, SequenceWindow(1, 8, 99))
    state.producers.record(key, Numbering(9, 1, 0), 8, 40, LSN, 99, 0)
    return state


SMALL = encoded(picture(small_state()))


# --- round trip -------------------------------------------------------------------------------------------------------


@HALF
@given(states())
def test_hazard_04_the_known_state_is_restored(state: LogState) -> None:
    checkpoint = decode_checkpoint(encoded(picture(state)))
    assert (checkpoint.lsn, checkpoint.log_id, checkpoint.next_file_number, checkpoint.clean) == (
        LSN,
        LOG_ID,
        77,
        False,
    )
    assert known_state(checkpoint.state) == known_state(state)


@QUARTER
@given(states())
def test_a_checkpoint_of_a_checkpoint_is_the_same(state: LogState) -> None:
    once = encoded(picture(state))
    assert encoded(decode_checkpoint(once)) == once


@QUARTER
@given(states())
def test_hazard_03_a_clean_stop_returns_the_reserved_offsets(state: LogState) -> None:
    checkpoint = decode_checkpoint(encoded(picture(state, clean=True)))
    assert checkpoint.clean
    assert all(
        shard.reserved == shard.synced == state.shards[key].synced for key, shard in checkpoint.state.shards.items()
    )


def test_hazard_04_a_checkpoint_contains_only_synced_state() -> None:
    """Offsets and windows of records above its LSN may never have been on disk."""
    state = small_state()
    key = ShardKey(5, 3)
    shard = state.shard(key)
    shard.written, shard.assigned = 110, 120
    state.producers.record(key, Numbering(9, 1, 8), 5, 100, LSN + 1, 200, 0)
    state.producers.record(key, Numbering(10, 1, 0), 5, 105, LSN + 2, 200, 0)
    restored = decode_checkpoint(encoded(picture(state))).state
    assert (restored.shard(key).synced, restored.shard(key).assigned) == (100, 100)
    assert restored.producers.check(key, Numbering(9, 1, 0), 8) == Duplicate(40, LSN)
    assert restored.producers.last_sequence(key, 9) == 7
    assert restored.producers.last_sequence(key, 10) is None


@QUARTER
@given(states(), st.integers(1, 4))
def test_slices_of_any_size_are_the_same_windows(state: LogState, size: int) -> None:
    slices = list(window_slices(state, LSN, size))
    assert b"".join(slices) == b"".join(window_slices(state, LSN))
    assert len(slices) == -(-len(state.producers) // size)


def test_hazard_04_changes_between_two_slices_are_not_in_the_checkpoint() -> None:
    """Appends continue while the slices are built: a retry, a new producer, a new epoch, an eviction."""
    state = small_state()
    key = ShardKey(5, 3)
    for producer in (10, 11, 12):
        state.producers.record(key, Numbering(producer, 1, 0), 2, 50, LSN, 99, 0)
    before = b"".join(window_slices(state, LSN))
    slices = window_slices(state, LSN, 1)
    encoded_windows = next(slices)
    state.producers.record(key, Numbering(10, 1, 2), 2, 100, LSN + 1, 200, 0)
    state.producers.record(key, Numbering(11, 2, 0), 2, 102, LSN + 2, 200, 0)
    state.producers.record(key, Numbering(13, 1, 0), 2, 104, LSN + 3, 200, 0)
    encoded_windows += b"".join(slices)
    windows = decode_checkpoint(forged(WINDOWS=encoded_windows)).state.producers
    expected = decode_checkpoint(forged(WINDOWS=before)).state.producers
    sent = {
        producer_id: (window.producer_epoch, window.expected, list(window.sent))
        for _, producer_id, window in windows.windows()
    }
    assert sent == {
        producer_id: (window.producer_epoch, window.expected, list(window.sent))
        for _, producer_id, window in expected.windows()
    }


def test_in_always_mode_the_reserved_offset_is_the_synced_one() -> None:
    state = small_state()
    state.shard(ShardKey(5, 3)).reserved = 0
    assert decode_checkpoint(encoded(picture(state))).state.shard(ShardKey(5, 3)).reserved == 100


def test_a_checkpoint_matches_the_documented_bytes() -> None:
    bodies = {
        32: LOG_ID + struct.pack("<QB7x", 77, 0),
        33: struct.pack("<qqH", 5, 2, 11) + "/default/ü".encode(),
        34: struct.pack("<qIQqqqq", 5, 3, 4, 100, 500, 1_234, 10),
        35: struct.pack("<qIqqQBH", 5, 3, 20, 30, 4, 2, 3) + b"why",
        36: struct.pack("<qIqiqqqH", 5, 3, 9, 1, 8, 99, 0, 1) + struct.pack("<qIqq", 0, 8, 40, LSN),
        37: struct.pack("<qii", 9, 1, -1),
    }
    sections = [wire.RecordSection(0, 0, kind, 0, 0, 0, 0, 0, 0, body) for kind, body in bodies.items()]
    sections.append(wire.RecordSection(0, 0, 38, 1, 0, 0, 0, 0, 0, struct.pack("<Q", 0)))
    assert encoded(picture(small_state())) == wire.encode_record_python(2, LSN, 0, LSN, 5, 0, 8, sections)


# --- hostile bytes ----------------------------------------------------------------------------------------------------


def test_every_truncation_is_refused() -> None:
    for cut in truncations(SMALL):
        with pytest.raises(errors.DecodeError):
            decode_checkpoint(cut)


def test_no_flip_is_believed() -> None:
    expected = all_told(decode_checkpoint(SMALL))
    passed = 0
    for bit, flipped in bit_flips(SMALL):
        checkpoint = all_told(decoded_or_refused(decode_checkpoint, flipped))
        assert checkpoint in (None, expected), bit
        passed += checkpoint is not None
    header = wire.decode_header(SMALL, 0, 0)
    padding = header.record_bytes - header.header_bytes
    padding -= sum(entry.body_bytes for entry in wire.decode_entries(SMALL, 0, header))
    assert passed == 8 * padding


@given(st.one_of(st.binary(max_size=400), mutated(SMALL)))
def test_hostile_checkpoints_are_read_as_written_or_refused(data: bytes) -> None:
    assert all_told(decoded_or_refused(decode_checkpoint, data)) in (None, all_told(decode_checkpoint(SMALL)))


def forged(**changed: bytes) -> bytes:
    """A checkpoint with good CRCs around bodies of our choice."""
    header = wire.decode_header(SMALL, 0, 0)
    sections = []
    for entry in wire.decode_entries(SMALL, 0, header):
        body = SMALL[entry.body_position :][: entry.body_bytes]
        name = wire.SectionKind(entry.kind).name
        sections.append(wire.RecordSection(0, 0, entry.kind, 0, 0, 0, 0, 0, 0, changed.get(name, body)))
    return wire.encode_record(wire.RecordKind.CHECKPOINT, LSN, 0, LSN, 5, 0, 8, sections)


def body_of(kind: wire.SectionKind) -> bytes:
    header = wire.decode_header(SMALL, 0, 0)
    entry = next(entry for entry in wire.decode_entries(SMALL, 0, header) if entry.kind == kind)
    return SMALL[entry.body_position :][: entry.body_bytes]


IN_CHECKPOINTS = [wire.SectionKind(number) for number in range(32, 37)]
every_section = pytest.mark.parametrize("kind", IN_CHECKPOINTS, ids=lambda kind: kind.name)


@every_section
@QUARTER
@given(data=st.data())
def test_bodies_with_good_crcs_are_read_or_refused(kind: wire.SectionKind, data: st.DataObject) -> None:
    body = data.draw(st.one_of(st.binary(max_size=120), mutated(body_of(kind))))
    checkpoint = decoded_or_refused(decode_checkpoint, forged(**{kind.name: body}))
    assert checkpoint is None or checkpoint.lsn == LSN


@every_section
def test_a_body_that_is_cut_off_is_refused(kind: wire.SectionKind) -> None:
    """Even with good CRCs: half a name is another name."""
    for cut in truncations(body_of(kind)):
        if cut or kind is wire.SectionKind.LOG:
            with pytest.raises(errors.DecodeError):
                decode_checkpoint(forged(**{kind.name: cut}))


@every_section
def test_a_missing_section_is_noticed(kind: wire.SectionKind) -> None:
    sections = [
        wire.RecordSection(0, 0, other, 0, 0, 0, 0, 0, 0, body_of(other))
        for other in IN_CHECKPOINTS
        if other is not kind
    ]
    data = wire.encode_record(wire.RecordKind.CHECKPOINT, LSN, 0, LSN, 5, 0, 8, sections)
    with pytest.raises(errors.DecodeError):
        decode_checkpoint(data)


def test_a_record_of_another_kind_is_not_a_checkpoint() -> None:
    sections = [wire.RecordSection(0, 0, kind, 0, 0, 0, 0, 0, 0, body_of(kind)) for kind in IN_CHECKPOINTS]
    data = wire.encode_record(wire.RecordKind.DATA, LSN, 0, LSN, 5, 0, 8, sections)
    with pytest.raises(errors.DecodeError, match="not a valid checkpoint"):
        decode_checkpoint(data)


def test_hazard_04_a_shard_of_a_topic_without_a_name_is_refused() -> None:
    with pytest.raises(errors.DecodeError, match="topic id 5"):
        decode_checkpoint(forged(TOPICS=b""))
