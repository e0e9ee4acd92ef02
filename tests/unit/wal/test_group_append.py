"""Groups of blocks (model/block_group.py) are stored as if each of their batches had been appended alone."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.model import envelope
from icestream.model.block import NOT_NUMBERED, Numbering, encode_block
from icestream.model.block_group import BlockGroup
from icestream.model.shard import ShardKey, TopicIdentity
from icestream.model.sync_mode import SyncMode
from icestream.wal.appender import AppendBatch, Appender, AppendGroup, Placed, PlacedGroup, Result
from icestream.wal.producer_sequences import Duplicate, SequenceWindow
from icestream.wal.state import LogState

KEYS = (ShardKey(1, 0), ShardKey(1, 1), ShardKey(2, 0))
PRODUCERS = (11, 12)
EPOCH = 1


class SentBatch(NamedTuple):
    """A batch as a producer sends it; `producer` None: without numbers."""

    producer: int | None
    first: int
    rows: int
    shard: int = 0  # index in KEYS

    @property
    def numbering(self) -> Numbering | None:
        return None if self.producer is None else Numbering(self.producer, EPOCH, self.first)

    @property
    def block(self) -> bytes:
        payloads = [f"{self.producer}:{self.first + row}".encode() for row in range(self.rows)]
        return encode_block(self.rows, {envelope.PAYLOAD: payloads}, self.numbering)


def new_appender(mode: SyncMode = SyncMode.ALWAYS) -> Appender:
    state = LogState()
    for topic_id in {key.topic_id for key in KEYS}:
        state.declare_topic(TopicIdentity(topic_id, f"/default/{topic_id}"))
    for producer in PRODUCERS:
        state.producers.open(producer, EPOCH)
    appender = Appender(state, mode)
    appender.file_ready(1, 64 * limits.MIB)
    appender.rotate()
    return appender


def group_of(sent: Sequence[SentBatch]) -> tuple[BlockGroup, bytes]:
    """The group of batches that stand shard by shard."""
    blocks = [batch.block for batch in sent]
    ends = [sum(map(len, blocks[: index + 1])) for index in range(len(blocks))]
    numberings = [batch.numbering or Numbering(NOT_NUMBERED, 0, NOT_NUMBERED) for batch in sent]
    shards = [batch.shard for batch in sent]
    group = BlockGroup(
        array("I", ends),
        array("I", [batch.rows for batch in sent]),
        [numbering.producer_id for numbering in numberings],
        [numbering.producer_epoch for numbering in numberings],
        array("q", [numbering.first_sequence for numbering in numberings]),
        [last for last in range(1, len(sent) + 1) if last == len(sent) or shards[last] != shards[last - 1]],
    )
    return group, group.bodies_of(b"".join(blocks))


def append_alone(appender: Appender, sent: Sequence[SentBatch]) -> list[Result]:
    shards = [appender.state.shard(KEYS[batch.shard]) for batch in sent]
    batches = [
        AppendBatch(shard, batch.rows, batch.block, batch.numbering) for shard, batch in zip(shards, sent, strict=True)
    ]
    return appender.append(batches, 1)


def append_group(appender: Appender, sent: Sequence[SentBatch]) -> list[Result]:
    """Appends a group; returns the result of each batch."""
    group, bodies = group_of(sent)
    keys = [KEYS[sent[start].shard] for start, _ in group.shard_ranges()]
    (placed,) = appender.append([AppendGroup([appender.state.shard(key) for key in keys], bodies, group)], 1)
    assert isinstance(placed, PlacedGroup)
    results: list[Result] = []
    for base, (start, end) in zip(placed.base_offsets, group.shard_ranges(), strict=True):
        offset = base
        for index in range(start, end):
            if index in placed.rejected:
                results.append(placed.rejected[index])
            else:
                results.append(Placed(offset, placed.lsn))
                offset += sent[index].rows
    return results


def comparable(results: Sequence[Result]) -> list[object]:
    """Errors compare by identity, so their type and text stand for them."""
    return [(type(result), str(result)) if isinstance(result, errors.IcestreamError) else result for result in results]


BATCHES = st.lists(
    st.builds(
        SentBatch,
        st.sampled_from([None, *PRODUCERS]),
        st.integers(0, 6),
        st.integers(1, 3),
        st.integers(0, len(KEYS) - 1),
    ),
    min_size=1,
    max_size=8,
)


@given(st.lists(BATCHES, min_size=1, max_size=4), st.sampled_from(SyncMode))
def test_a_group_has_the_results_and_the_bytes_of_its_batches_alone(
    ticks: list[list[SentBatch]], mode: SyncMode
) -> None:
    alone, grouped = new_appender(mode), new_appender(mode)
    for batches in ticks:
        sent = sorted(batches, key=lambda batch: batch.shard)
        assert comparable(append_group(grouped, sent)) == comparable(append_alone(alone, sent))
        assert [write.data for write in grouped.drain_writes()] == [write.data for write in alone.drain_writes()]
    assert windows_of(grouped) == windows_of(alone)


def windows_of(appender: Appender) -> dict[tuple[ShardKey, int], SequenceWindow]:
    """By shard and producer: their order is that of use, and a group does not tell uses of one second apart."""
    return {(key, producer_id): window for key, producer_id, window in appender.state.producers.windows()}


def test_producers_that_send_in_order_stay_known_beyond_their_window() -> None:
    appender = new_appender()
    batches = 3 * limits.PRODUCER_WINDOW_BATCHES
    for number in range(batches):
        (placed,) = append_group(appender, [SentBatch(11, number, 1)])
        assert placed == Placed(number, number + 1)
        ticket = appender.drain_writes()[-1].ticket
        appender.progress(ticket, ticket)
    (window,) = [window for _, _, window in appender.state.producers.windows()]
    assert (window.expected, len(window.sent)) == (batches, limits.PRODUCER_WINDOW_BATCHES)
    (repeated,) = append_group(appender, [SentBatch(11, batches - 1, 1)])
    assert repeated == Duplicate(batches - 1, batches)


def test_a_producer_with_a_full_window_in_flight_is_refused() -> None:
    appender = new_appender()
    for number in range(limits.PRODUCER_WINDOW_BATCHES):
        append_group(appender, [SentBatch(11, number, 1)])
    (refused,) = append_group(appender, [SentBatch(11, limits.PRODUCER_WINDOW_BATCHES, 1)])
    assert isinstance(refused, errors.InFlightFull)


def test_a_rolled_back_group_is_expected_again() -> None:
    appender = new_appender()
    append_group(appender, [SentBatch(11, 0, 2), SentBatch(12, 0, 1)])
    appender.drain_writes()
    appender.roll_back()
    appender.file_ready(2, 64 * limits.MIB)
    appender.rotate()
    assert append_group(appender, [SentBatch(11, 0, 2), SentBatch(12, 0, 1)]) == [Placed(0, 1), Placed(2, 1)]


def test_a_group_without_room_in_any_file_gets_no_offsets() -> None:
    appender = new_appender()
    sent = [SentBatch(None, 0, 1, shard) for shard in range(len(KEYS))]
    group, bodies = group_of(sent)
    shards = [appender.state.shard(key) for key in KEYS]
    assert appender.file is not None
    appender.file.position = appender.file.capacity - 1024
    assert appender.append([AppendGroup(shards, bodies, group)], 1) == []
    assert [shard.assigned for shard in shards] == [0, 0, 0]
    appender.file_ready(2, 64 * limits.MIB)
    assert append_group(appender, sent) == [Placed(0, 1)] * 3
    assert appender.file.number == 2


@pytest.mark.parametrize("rejected", [set(), {0}, {1}, {0, 2}, {3}, {0, 1, 2, 3}])
def test_the_blocks_without_the_rejected_ones_are_the_others_in_order(rejected: set[int]) -> None:
    sent = [SentBatch(None, 0, 1), SentBatch(None, 5, 2), SentBatch(None, 9, 3), SentBatch(None, 1, 1, 2)]
    group, bodies = group_of(sent)
    kept = [[batch for index, batch in enumerate(sent) if index not in rejected and batch.shard == n] for n in (0, 2)]
    assert group.stored(rejected, bodies) == (
        [sum(batch.rows for batch in shard) for shard in kept],
        [b"".join(batch.block for batch in shard) for shard in kept],
    )


def test_every_block_of_a_group_is_found_in_the_body_of_its_shard() -> None:
    sent = [SentBatch(None, 0, 1), SentBatch(None, 5, 2), SentBatch(11, 9, 3, 1), SentBatch(12, 1, 1, 2)]
    group, bodies = group_of(sent)
    assert [group.block(index, bodies) for index in range(len(sent))] == [batch.block for batch in sent]
    assert group.size_bytes == sum(map(len, bodies))


def test_a_group_splits_into_the_groups_of_its_shards() -> None:
    sent = [
        SentBatch(11, 0, 1),
        SentBatch(None, 5, 2),
        SentBatch(12, 9, 3, 1),
        SentBatch(11, 1, 1, 2),
        SentBatch(11, 2, 1, 2),
    ]
    whole, bodies = group_of(sent)
    parts = whole.split()
    for shard, (group, body) in enumerate(zip(parts, bodies, strict=True)):
        expected, expected_bodies = group_of([batch for batch in sent if batch.shard == shard])
        assert [list(column) for column in group] == [list(column) for column in expected]
        assert [body] == expected_bodies
    assert len(parts) == 3
