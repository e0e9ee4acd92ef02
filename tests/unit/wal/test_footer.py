"""Footers: what a sealed file says of itself, and that a bad one costs a scan and nothing else (hazard 20)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.model import envelope
from icestream.model.block import encode_block
from icestream.model.shard import ShardKey, TopicIdentity
from icestream.model.sync_mode import SyncMode
from icestream.runtime.simulated_disk import SimulatedDisk, SimulatedFile
from icestream.wal import format as wire
from icestream.wal.appender import AppendBatch, Appender
from icestream.wal.footer import load_index, read_footer, rebuild_footer
from icestream.wal.index import FileIndex
from icestream.wal.log_copy import LogFileBuilder
from icestream.wal.log_file import Seal
from icestream.wal.notes import topic_section
from icestream.wal.state import LogState
from tests.support.hypothesis_effort import QUARTER
from tests.support.mutations import bit_flips, mutated, truncations

NUMBER = 4
TOPICS = [TopicIdentity(1, "/default/a"), TopicIdentity(2, "/default/ü", 7)]


def sealed_file(batches: list[list[tuple[int, int, bytes]]]) -> tuple[SimulatedFile, Seal]:
    """A file with a record for each list of (topic, time, body), closed with footer and seal."""
    copy = LogFileBuilder(NUMBER)
    offsets = {1: 10, 2: 0}
    copy.add(wire.RecordKind.DATA, 21, 20, 0, [topic_section(topic) for topic in TOPICS])
    for number, batch in enumerate(batches):
        sections = []
        for topic_id, time_us, body in batch:
            fields = (1, offsets[topic_id], time_us, 2)
            sections.append(wire.RecordSection(topic_id, 0, wire.SectionKind.MESSAGES, 0, *fields, 0, body))
            offsets[topic_id] += 2
        copy.add(wire.RecordKind.DATA, 22 + number, 20, 0, sections)
    content, seal = copy.finish()
    disk = SimulatedDisk(0)
    disk.replace("log", bytes(wire.RECORDS_START) + content)
    return disk.open("log"), seal


def comparable(index: FileIndex) -> object:
    """Everything a reader can learn from an index."""
    return index.topics, index.marks, {
        key: (
            shard.first_offset, shard.end_offset, shard.epoch, shard.append_time_us, shard.max_time_us,
            shard.own_bytes, shard.last_position, shard.base_offsets, shard.running_max, shard.positions,
        )
        for key, shard in index.shards.items()
    }  # fmt: skip


SMALL = [[(1, 5, b"one"), (2, 5, b"two")], [(1, 4, b"three")]]
BATCH = st.tuples(st.sampled_from([1, 2]), st.integers(0, 9), st.integers(0, 70_000).map(bytes))


@QUARTER
@given(st.lists(st.lists(BATCH, min_size=1, max_size=2, unique_by=lambda batch: batch[0]), min_size=1, max_size=4))
def test_hazard_20_a_footer_matches_a_scan(batches: list[list[tuple[int, int, bytes]]]) -> None:
    file, seal = sealed_file(batches)
    footer = read_footer(file, seal)
    assert footer is not None
    assert comparable(footer) == comparable(rebuild_footer(file, seal))
    assert footer.topics == {topic.id: topic for topic in TOPICS}


@QUARTER
@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 2), st.integers(0, 1), st.integers(0, 70_000)), min_size=1, max_size=4),
        min_size=1,
        max_size=5,
    ),
    st.lists(st.sampled_from([1, 1_000, -1_000, -3_600_000_000]), min_size=5, max_size=5),
    st.sampled_from(SyncMode),
)
def test_hazard_20_the_footer_written_by_the_log_matches_a_scan(
    ticks: list[list[tuple[int, int, int]]], steps: list[int], mode: SyncMode
) -> None:
    """The appender keeps its index by hand while it builds records: its footer must be the one that a scan rebuilds."""
    appender = Appender(LogState(lsn=20), mode)
    for topic in TOPICS:
        appender.state.declare_topic(topic)
    for number in (NUMBER, NUMBER + 1):
        appender.file_ready(number, 4 * 1024 * 1024)
        if number == NUMBER:
            appender.rotate()
    now_us = 1_700_000_000_000_000
    for tick, step in zip(ticks, steps, strict=False):
        now_us += step
        batches = []
        for topic_id, shard_number, size in tick:
            shard = appender.state.shard(ShardKey(topic_id, shard_number))
            shard.epoch = 3
            batches.append(AppendBatch(shard, 2, encode_block(2, {envelope.PAYLOAD: [bytes(size), b""]})))
        assert len(appender.append(batches, now_us)) == len(batches)
    appender.rotate()
    disk = SimulatedDisk(0)
    disk.replace("log", b"")
    file = disk.open("log")
    writes = appender.drain_writes()
    for write in writes:
        file.write_at(write.position, write.data)
    appender.progress(writes[-1].ticket, writes[-1].ticket)
    (sealed,) = appender.drain_sealed()
    footer = read_footer(file, sealed.seal)
    assert footer is not None
    assert comparable(footer) == comparable(rebuild_footer(file, sealed.seal))


def test_without_a_footer_the_records_are_scanned() -> None:
    file, seal = sealed_file(SMALL)
    expected = comparable(load_index(file, seal))
    bare = Seal(seal.number, seal.first_lsn, seal.last_lsn, seal.end_position, 0, 0)
    file.truncate(seal.end_position)
    assert read_footer(file, bare) is None
    assert read_footer(file, seal) is None
    assert comparable(load_index(file, bare)) == comparable(load_index(file, seal)) == expected


def test_hazard_20_no_flip_in_a_footer_is_believed() -> None:
    file, seal = sealed_file(SMALL)
    expected = comparable(load_index(file, seal))
    footer = file.read_at(seal.footer_position, seal.footer_bytes)
    ignored = 0
    for bit, flipped in bit_flips(footer):
        file.write_at(seal.footer_position, flipped)
        found_footer = read_footer(file, seal)
        ignored += found_footer is None
        assert found_footer is None or comparable(found_footer) == expected, bit
        if bit % 61 == 0:
            assert comparable(load_index(file, seal)) == expected
    assert ignored > 0.9 * 8 * len(footer)


@given(mutated(sealed_file(SMALL)[0].read_at(sealed_file(SMALL)[1].footer_position, 10_000)))
def test_a_mutated_footer_is_rebuilt(footer: bytes) -> None:
    file, seal = sealed_file(SMALL)
    expected = comparable(load_index(file, seal))
    file.write_at(seal.footer_position, footer)
    assert comparable(load_index(file, seal)) == expected


def test_a_cut_footer_is_rebuilt() -> None:
    file, seal = sealed_file(SMALL)
    expected = comparable(load_index(file, seal))
    for cut in truncations(file.read_at(seal.footer_position, seal.footer_bytes)):
        file.truncate(seal.footer_position + len(cut))
        assert read_footer(file, seal) is None
    assert comparable(load_index(file, seal)) == expected


def test_the_footer_of_another_file_is_not_accepted() -> None:
    """A recycled file: the old footer stands at the same place, good in itself."""
    file, seal = sealed_file(SMALL)
    other = Seal(NUMBER + 1, *(getattr(seal, name) for name in Seal.__slots__[1:]))
    assert read_footer(file, other) is None


def test_a_record_that_is_no_footer_is_not_accepted() -> None:
    file, seal = sealed_file(SMALL)
    first = wire.decode_header(file.read_at(wire.RECORDS_START, 4096), 0, wire.RECORDS_START)
    wrong = Seal(seal.number, 21, 23, seal.end_position, wire.RECORDS_START, first.record_bytes)
    assert read_footer(file, wrong) is None


def test_damage_below_the_seal_is_reported_with_its_position() -> None:
    """Sealed means synced: a bad record there is never cut off."""
    file, seal = sealed_file(SMALL)
    entry = load_index(file, seal).shards[ShardKey(2, 0)].last_position
    file.write_at(entry + 16, b"\xff")
    bare = Seal(seal.number, seal.first_lsn, seal.last_lsn, seal.end_position, 0, 0)
    with pytest.raises(errors.LogDamaged, match=r"log file 4 is damaged at position \d+") as caught:
        load_index(file, bare)
    assert "repair" in caught.value.hint
