"""The index of a file: a search by offset or by time ends in the stretch that a walk over all sections would find."""

from __future__ import annotations

import struct
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.model.shard import ShardKey, TopicIdentity
from icestream.wal import format as wire
from icestream.wal.index import FileIndex, ShardIndex, decode_index, index_entries
from tests.support.hypothesis_effort import HALF, QUARTER
from tests.support.mutations import bit_flips, decoded_or_refused, mutated, truncations

STRIDE = limits.INDEX_STRIDE_BYTES
HOUR_US = 3_600_000_000
YEAR_US = 365 * 24 * HOUR_US


class LaidOutFile(NamedTuple):
    """One section as it lies in the file."""

    key: ShardKey
    base: int
    rows: int
    time_us: int
    position: int
    body_bytes: int


KEYS = [ShardKey(1, 0), ShardKey(1, 1), ShardKey(2, 0)]
# A clock that ticks, stands, and steps by an hour and by a year in both directions.
STEPS = st.sampled_from([0, 1, 1_000, -1, -HOUR_US, HOUR_US, YEAR_US, -YEAR_US])
SIZES = st.one_of(st.integers(0, 200), st.integers(1, 3 * STRIDE), st.sampled_from([STRIDE - 64, STRIDE]))


@st.composite
def files(draw: st.DrawFn) -> list[LaidOutFile]:
    """Sections of a few shards in one file, with holes between the offsets of a shard (declared gaps)."""
    laid: list[LaidOutFile] = []
    position, time_us = wire.RECORDS_START + 64, 1_700_000_000_000_000
    next_offset = dict.fromkeys(KEYS, 0)
    for _ in range(draw(st.integers(1, 30))):
        key = draw(st.sampled_from(KEYS))
        time_us += draw(STEPS)
        base = next_offset[key] + draw(st.sampled_from([0, 0, 0, 7]))
        rows, size = draw(st.integers(1, 5)), draw(SIZES)
        laid.append(LaidOutFile(key, base, rows, time_us, position, size))
        next_offset[key] = base + rows
        position += wire.ENTRY_BYTES + wire.HEADER_BYTES + wire.padded(size)
    return laid


def index_of(laid: list[LaidOutFile]) -> FileIndex:
    index = FileIndex()
    for key in sorted({section.key for section in laid}):
        index.add_topic(TopicIdentity(key.topic_id, f"/default/{key.topic_id}"))
    for section in laid:
        index.add(section.key, section.base, section.rows, 3, section.time_us, section.position, section.body_bytes)
    return index


def walked(laid: list[LaidOutFile], key: ShardKey, chain: tuple[int, int]) -> list[LaidOutFile]:
    """The sections that a reader meets on its way back from the first position of the chain to the second."""
    start, stop = chain
    own = [section for section in laid if section.key == key]
    assert {start, stop} <= {section.position for section in own}
    return [section for section in own if stop <= section.position <= start]


def footer_of(index: FileIndex) -> bytes:
    return wire.encode_record(wire.RecordKind.FOOTER, 1, 1, 1, 0, 8192, wire.ALIGN, index.sections())


def decoded(footer: bytes) -> dict[ShardKey, ShardIndex]:
    header = wire.decode_header(footer, 0, 8192)
    indexes = {}
    for entry in wire.decode_entries(footer, 0, header):
        assert wire.check_section(footer, 0, header, entry)
        if entry.kind == wire.SectionKind.INDEX:
            body = footer[entry.body_position - 8192 :][: entry.body_bytes]
            indexes[ShardKey(entry.topic_id, entry.shard)] = decode_index(entry, body)
    return indexes


# --- searches against a linear walk -----------------------------------------------------------------------------------


@HALF
@given(files(), st.booleans())
def test_every_offset_is_in_the_range_the_search_returns(laid: list[LaidOutFile], sealed: bool) -> None:
    index = index_of(laid)
    shards = decoded(footer_of(index)) if sealed else index.shards
    for section in laid:
        for offset in range(section.base, section.base + section.rows):
            assert section in walked(laid, section.key, shards[section.key].chain_for_offset(offset))


@HALF
@given(files(), st.integers(-10, 200))
def test_any_offset_gives_a_range_of_the_shard(laid: list[LaidOutFile], offset: int) -> None:
    """Below the first, inside a gap, behind the last: the walk still meets the next section that there is."""
    for key, shard in index_of(laid).shards.items():
        sections = walked(laid, key, shard.chain_for_offset(offset))
        following = [section for section in laid if section.key == key and section.base + section.rows > offset]
        assert not following or following[0] in sections


@HALF
@given(files(), st.booleans(), st.sampled_from([-1, 0, 1, HOUR_US // 2]))
def test_hazard_32_start_at_a_time_when_the_clock_steps(laid: list[LaidOutFile], sealed: bool, aside: int) -> None:
    index = index_of(laid)
    shards = decoded(footer_of(index)) if sealed else index.shards
    times = {section.time_us + aside for section in laid} | {-(2**63), 0, 2**63 - 1}
    for key, shard in shards.items():
        for time_us in times:
            oracle = next((section for section in laid if section.key == key and section.time_us >= time_us), None)
            chain = shard.chain_for_time(time_us)
            assert (chain is None) == (oracle is None)
            if chain is not None:
                later = [section for section in walked(laid, key, chain) if section.time_us >= time_us]
                assert later[0] == oracle


@QUARTER
@given(files())
def test_hazard_20_points_are_bounded_by_the_bytes_and_stretches_by_the_stride(laid: list[LaidOutFile]) -> None:
    for key, shard in index_of(laid).shards.items():
        own = [section for section in laid if section.key == key]
        own_bytes = sum(section.body_bytes + wire.ENTRY_BYTES for section in own)
        assert shard.own_bytes == own_bytes
        assert len(shard.positions) <= 1 + own_bytes // STRIDE
        largest = max(section.body_bytes for section in own) + wire.ENTRY_BYTES
        for position in shard.positions:
            base = next(section.base for section in own if section.position == position)
            stretch = walked(laid, key, shard.chain_for_offset(base))[:-1]
            assert shard.chain_for_offset(base)[1] == position  # and does not begin before it has to
            assert sum(section.body_bytes + wire.ENTRY_BYTES for section in stretch) < STRIDE + largest


# --- what it remembers ------------------------------------------------------------------------------------------------


@QUARTER
@given(files())
def test_the_footer_matches_the_index(laid: list[LaidOutFile]) -> None:
    index = index_of(laid)
    decoded_shards = decoded(footer_of(index))
    assert decoded_shards.keys() == index.shards.keys()
    for key, shard in decoded_shards.items():
        own = [section for section in laid if section.key == key]
        original = index.shards[key]
        assert (shard.base_offsets, shard.running_max, shard.positions) == (
            original.base_offsets, original.running_max, original.positions,
        )  # fmt: skip
        assert (shard.first_offset, shard.end_offset) == (own[0].base, own[-1].base + own[-1].rows)
        assert (shard.last_position, shard.append_time_us) == (own[-1].position, own[-1].time_us)
        assert shard.max_time_us == max(section.time_us for section in own)
        assert (shard.epoch, shard.own_bytes) == (3, original.own_bytes)


@QUARTER
@given(files())
def test_live_bytes_are_counted_by_topic(laid: list[LaidOutFile]) -> None:
    expected: dict[int, int] = {}
    for section in laid:
        topic = section.key.topic_id
        expected[topic] = expected.get(topic, 0) + section.body_bytes + wire.ENTRY_BYTES
    assert index_of(laid).live_bytes() == expected


@QUARTER
@given(files(), st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20), max_size=4))
def test_the_footer_is_exactly_as_large_as_was_reserved(laid: list[LaidOutFile], names: list[str]) -> None:
    """At every moment the reserved bytes are those that the seal will need, padding included."""
    index = FileIndex()
    assert index.footer_bytes == len(footer_of(index))
    for number, name in enumerate(names):
        index.add_topic(TopicIdentity(100 + number, name))
    for section in laid:
        index.add(section.key, section.base, section.rows, 3, section.time_us, section.position, section.body_bytes)
        assert index.footer_bytes == len(footer_of(index))


@QUARTER
@given(files())
def test_the_footer_never_needs_more_than_was_reserved(laid: list[LaidOutFile]) -> None:
    """Less would be a file that grows beyond its capacity at its seal."""
    index = FileIndex()
    for section in laid:
        index.add_topic(TopicIdentity(section.key.topic_id, "n"))
        index.add(section.key, section.base, section.rows, 3, section.time_us, section.position, section.body_bytes)
        assert len(footer_of(index)) <= index.footer_bytes


def test_a_topic_is_named_once() -> None:
    index = FileIndex()
    for _ in range(3):
        index.add_topic(TopicIdentity(1, "/default/a"))
    assert [section.topic_id for section in index.sections()] == [1]
    assert index.footer_bytes == len(footer_of(index))


def test_sections_are_sorted_by_topic_and_shard() -> None:
    index = FileIndex()
    for topic_id, shard in ((3, 0), (1, 2), (1, 0), (2, 5)):
        index.add_topic(TopicIdentity(topic_id, "n"))
        index.add(ShardKey(topic_id, shard), 0, 1, 1, 1, 4160, 8)
    order = [(section.kind, section.topic_id, section.shard) for section in index.sections()]
    topics = [(int(wire.SectionKind.TOPIC), number, 0) for number in (1, 2, 3)]
    assert order == topics + [(int(wire.SectionKind.INDEX), *key) for key in ((1, 0), (1, 2), (2, 5), (3, 0))]


def test_a_count_beyond_32_bits_is_capped() -> None:
    index = FileIndex()
    for number in range(3):
        index.add(KEYS[0], number * 2**31, 2**31, 1, 1, 4160 + 64 * number, 8)
    (section,) = index.sections()
    assert section.rows == 2**32 - 1
    assert decoded(footer_of(index))[KEYS[0]].end_offset == 3 * 2**31


def test_only_messages_are_indexed() -> None:
    kinds = (wire.SectionKind.RESERVE, wire.SectionKind.GAP, wire.SectionKind.MESSAGES)
    sections = [wire.RecordSection(1, 0, kind, 0, 1, 0, 5, 2, 0, b"12345678") for kind in kinds]
    record = wire.encode_record(wire.RecordKind.DATA, 1, 1, 0, 5, 4096, 8, sections)
    index = FileIndex()
    index_entries(index, wire.decode_entries(record, 0, wire.decode_header(record, 0, 4096)))
    assert list(index.shards) == [ShardKey(1, 0)]
    shard = index.shards[ShardKey(1, 0)]
    assert (shard.end_offset, shard.last_position, shard.own_bytes) == (2, 4096 + 64 + 2 * 64, 8 + 64)


# --- the bytes --------------------------------------------------------------------------------------------------------

ENTRY = wire.SectionEntry(1, 0, int(wire.SectionKind.INDEX), 0, 3, 10, 5, 20, 0, 0, 0, 0, 0)
BODY = struct.pack("<qQIIq", 30, 70_000, 5_000, 2, 99) + struct.pack("<qqqqII", 10, 25, -(2**63), 99, 4160, 4900)


def test_an_index_section_matches_the_documented_bytes() -> None:
    index = FileIndex()
    index.add(KEYS[0], 10, 15, 3, 99, 4160, STRIDE)
    index.add(KEYS[0], 25, 5, 3, 5, 4900, 100)
    (section,) = index.sections()
    assert section[:9] == (1, 0, wire.SectionKind.INDEX, 0, 3, 10, 5, 20, 0)
    own_bytes = STRIDE + 64 + 100 + 64
    head = struct.pack("<qQIIq", 30, own_bytes, 4900, 2, 99)
    assert section.body == head + struct.pack("<qqqqII", 10, 25, -(2**63), 99, 4160, 4900)


def test_every_truncation_of_an_index_is_refused() -> None:
    assert decode_index(ENTRY, BODY).chain_for_offset(26) == (5_000, 4900)
    for cut in truncations(BODY):
        with pytest.raises(errors.DecodeError):
            decode_index(ENTRY, cut)


def test_an_index_without_a_point_is_refused() -> None:
    with pytest.raises(errors.DecodeError):
        decode_index(ENTRY, struct.pack("<qQIIq", 30, 70_000, 5_000, 0, 99))


def test_every_flip_of_an_index_is_read_or_refused() -> None:
    for bit, flipped in bit_flips(BODY):
        index = decoded_or_refused(lambda data: decode_index(ENTRY, data), flipped)
        is_count = 8 * 20 <= bit < 8 * 24
        assert (index is None) == is_count, bit


@given(st.one_of(mutated(BODY), st.binary(max_size=120)))
def test_hostile_index_sections_are_read_or_refused(body: bytes) -> None:
    index = decoded_or_refused(lambda data: decode_index(ENTRY, data), body)
    assert index is None or len(body) == 32 + 20 * len(index.positions)
