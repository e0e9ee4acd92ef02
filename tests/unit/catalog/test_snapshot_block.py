"""Blocks of marks: what snapshots held that are in no table any more."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.catalog import snapshot_block
from icestream.catalog.snapshot_block import MarkBlock
from icestream.catalog.topic_rules.snapshot_mark import SnapshotMark

OFFSETS = st.integers(1, limits.OFFSET_MAX)
MARKS = st.builds(
    SnapshotMark,
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, limits.METADATA_TIME_MS_MAX),
    st.dictionaries(st.integers(0, limits.SHARDS_PER_TOPIC_MAX - 1), OFFSETS, max_size=6),
)


@given(st.lists(MARKS, max_size=200))
def test_marks_are_restored_in_order(marks: list[SnapshotMark]) -> None:
    """Offsets and times may go back: a table was rewound, a clock was set."""
    full, open_block = snapshot_block.add_marks(MarkBlock(), marks)
    blocks = [snapshot_block.decode("k", snapshot_block.encode(block)) for block in (*full, open_block)]
    assert blocks == [*full, open_block]
    assert [block.number for block in blocks] == list(range(len(blocks)))
    assert [mark for block in blocks for mark in block.marks()] == marks
    assert all(block.is_full for block in full)
    assert all(
        snapshot_block.may_hold(snapshot_block.encode(block), mark.snapshot_id)
        for block in blocks
        for mark in block.marks()
    )
    assert not open_block.is_full


@given(st.lists(MARKS, max_size=100), st.lists(st.integers(1, 20), max_size=10))
def test_marks_may_be_added_one_by_one_or_together(marks: list[SnapshotMark], parts: list[int]) -> None:
    full, open_block, left = [], MarkBlock(), marks
    for count in (*parts, len(marks)):
        more, open_block = snapshot_block.add_marks(open_block, left[:count])
        full, left = full + more, left[count:]
        open_block = snapshot_block.decode("k", snapshot_block.encode(open_block))
    assert (full, open_block) == snapshot_block.add_marks(MarkBlock(), marks)


def test_a_mark_of_one_shard_is_small_and_many_shards_fill_a_block_sooner() -> None:
    few = [SnapshotMark(2**62 + number, 1_700_000_000_000 + 5_000 * number, {0: 500 * number}) for number in range(64)]
    (full,), _ = snapshot_block.add_marks(MarkBlock(), few)
    assert len(snapshot_block.encode(full)) < 20 * limits.SNAPSHOT_MARKS_PER_BLOCK
    many = [SnapshotMark(number, number, dict.fromkeys(range(256), 10**12 + number)) for number in range(64)]
    full_ones, _ = snapshot_block.add_marks(MarkBlock(), many)
    assert all(len(snapshot_block.encode(block)) < 16_000 for block in full_ones), "far below what a value may be"
    assert len(full_ones) == 16


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_distinguished_from_a_block(value: bytes) -> None:
    decoded = None
    with contextlib.suppress(errors.MetadataDamaged):
        decoded = snapshot_block.decode("k", value)
    assert decoded is None or snapshot_block.decode("k", snapshot_block.encode(decoded)) == decoded


@pytest.mark.parametrize(
    "hostile",
    [
        (2, 0, []),
        (1, -1, []),
        (1, 0, [(1, -1, {})]),
        (1, 0, [(1, 0, {0: -1})]),
        (1, 0, [(1, 0, {0: 5}), (2, 0, {0: -6})]),
        (1, 0, [(1, 0, {limits.SHARDS_PER_TOPIC_MAX: 1})]),
        (1, 0, [(1, 0, {0: limits.OFFSET_MAX}), (2, 0, {0: 1})]),
        (1, 0, [(2**63, 0, {})]),
        (1, 0, [(1, limits.METADATA_TIME_MS_MAX + 1, {})]),
        (1, 0, [(number, 0, {}) for number in range(limits.SNAPSHOT_MARKS_PER_BLOCK + 1)]),
        (1, 0),
        [1, 0, {}],
        "no block",
    ],
)
def test_invalid_blocks_are_refused(hostile: object) -> None:
    with pytest.raises(errors.MetadataDamaged, match="not a block of snapshot marks"):
        snapshot_block.decode("k", msgspec.msgpack.encode(hostile))
