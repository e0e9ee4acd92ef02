"""Records: the bytes are those that format.py documents, and nothing that was changed is taken for what was written."""

from __future__ import annotations

import itertools
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.runtime.checksum import crc32
from icestream.wal import format as wire
from tests.support.mutations import bit_flips, decoded_or_refused, mutated, truncations

U8 = st.integers(0, 2**8 - 1)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
SECTIONS = st.builds(wire.RecordSection, U64, U32, U8, U8, U64, I64, I64, U32, U32, st.binary(max_size=100))
POSITIONS = st.integers(0, 2**20).map(lambda number: 8 * number)
SMALL = [
    wire.RecordSection(17, 3, wire.SectionKind.MESSAGES, 0, 2, 100, 555, 2, 0, b"12345678abc"),
    wire.RecordSection(18, 0, wire.SectionKind.RESERVE, wire.OPTIONAL, 2, -1, 0, 0, 4160, b""),
    wire.RecordSection(19, 1, wire.SectionKind.GAP, 0, 9, 5, 0, 0, 0, b"x"),
]


def record_of(sections: list[wire.RecordSection], position: int = 4096, align: int = 8) -> bytes:
    return wire.encode_record(wire.RecordKind.DATA, 7, 3, 5, 1_700, position, align, sections)


def read_back(data: bytes, position: int = 4096) -> list[tuple[wire.SectionEntry, bytes]] | None:
    """Entries and bodies of a record whose every CRC fits; None when the record is not good."""
    header = wire.decode_header(data, 0, position)
    sections = []
    for entry in wire.decode_entries(data, 0, header):
        if not wire.check_section(data, 0, header, entry):
            return None
        start = entry.body_position - position
        sections.append((entry, data[start : start + entry.body_bytes]))
    return sections


def with_good_crcs(front: bytes, directory: bytes = b"") -> bytes:
    """A header of 60 bytes (and a directory) under a CRC that fits: what only a writer of records can make."""
    return front + struct.pack("<I", zlib.crc32(directory, zlib.crc32(front))) + directory


# --- the bytes --------------------------------------------------------------------------------------------------------


def test_crc32_has_the_published_check_value() -> None:
    assert crc32(b"123456789") == 0xCBF43926


@given(st.binary(max_size=500), U32)
def test_crc32_is_that_of_zlib(data: bytes, start: int) -> None:
    assert crc32(data, start) == zlib.crc32(data, start)


@pytest.mark.parametrize("encode", [wire.encode_record_python, wire.encode_record])
def test_a_record_matches_the_documented_bytes(encode: Any) -> None:
    body = b"12345678abc"
    entry = struct.pack("<QIBBHQqqIIIII", 17, 3, 1, 0, 0, 2, 100, 555, 2, 4096 + 128, len(body), 4711, 0)
    entry += struct.pack("<I", zlib.crc32(entry + body))
    header = struct.pack("<IBBHQQQqIIIII", 0x52575349, 1, 1, 0, 7, 3, 5, -1_700, 128, 144, 1, 4096, 0)
    header += struct.pack("<I", zlib.crc32(header + entry))
    expected = header + entry + body + bytes(5)
    section = wire.RecordSection(17, 3, 1, 0, 2, 100, 555, 2, 4711, body)
    assert encode(wire.RecordKind.DATA, 7, 3, 5, -1_700, 4096, 8, [section]) == expected
    assert expected[:4] == b"ISWR"


def test_kinds_keep_their_numbers() -> None:
    """Record kinds are on disk: a number is never reused."""
    assert {kind.name: kind.value for kind in wire.RecordKind} == {"DATA": 1, "CHECKPOINT": 2, "FOOTER": 3, "REPAIR": 4}
    assert {kind.name: kind.value for kind in wire.SectionKind} == {
        "MESSAGES": 1, "TOPIC": 2, "RESERVE": 3, "GAP": 4, "PRODUCERS": 5, "QOS2_RELEASE": 6, "REAPPEND": 7,
        "LOG": 32, "TOPICS": 33, "SHARDS": 34, "GAPS": 35, "WINDOWS": 36, "EPOCHS": 37, "CURRENT": 38,
        "INDEX": 48, "MARKS": 49,
    }  # fmt: skip
    assert frozenset(wire.SectionKind) - wire.SECTION_KINDS_KNOWN == {5, 6, 7}, "nothing applies these yet"


@given(U8, U64, U64, U64, I64, POSITIONS, st.sampled_from([8, 512]), st.lists(SECTIONS, max_size=4))
def test_round_trip(
    kind: int, lsn: int, generation: int, synced: int, time_us: int, position: int, align: int, sections: Any
) -> None:
    data = wire.encode_record(kind, lsn, generation, synced, time_us, position, align, sections)
    header = wire.decode_header(data, 0, position)
    size = 64 + 64 * len(sections)
    assert header == wire.RecordHeader(kind, lsn, generation, synced, time_us, size, len(data), len(sections), position)
    assert header.end == position + len(data)
    assert len(data) % align == 0
    decoded = read_back(data, position)
    assert decoded is not None
    at = size
    for number, (section, (entry, body)) in enumerate(zip(sections, decoded, strict=True)):
        assert entry[:8] == section[:8]
        assert (entry.previous, entry.body_bytes, body) == (section.previous, len(body), section.body)
        assert (entry.position, entry.body_position) == (position + 64 + 64 * number, position + at)
        assert entry.end_offset == section.base_offset + section.rows
        assert entry.body_position % 8 == 0
        at += -(-len(body) // 8) * 8
    assert not any(data[at:])


@given(st.lists(SECTIONS, max_size=3), st.integers(0, 40))
def test_a_record_is_decoded_inside_other_bytes(sections: Any, before: int) -> None:
    data = bytes(before) + record_of(sections) + b"\xff" * 9
    for view in (data, memoryview(data)):
        header = wire.decode_header(view, before, 4096)
        entries = wire.decode_entries(view, before, header)
        assert [entry.topic_id for entry in entries] == [section.topic_id for section in sections]
        assert all(wire.check_section(view, before, header, entry) for entry in entries)


def test_a_body_in_parts_is_the_same_record() -> None:
    parts = [section._replace(body=[bytes([byte]) for byte in section.body]) for section in SMALL]
    assert record_of(parts) == record_of(SMALL)
    front = (wire.RecordKind.DATA, 7, 3, 5, 1_700, 4096, 8)
    assert wire.encode_record_python(*front, parts) == wire.encode_record_python(*front, SMALL)


# --- what is not a record ---------------------------------------------------------------------------------------------


def test_hazard_05_zeros_are_not_a_record() -> None:
    """The CRC of nothing is 0: without the magic a zeroed header would be a good, empty record."""
    assert zlib.crc32(b"") == 0
    with pytest.raises(errors.DecodeError, match="magic"):
        wire.decode_header(bytes(4096), 0, 0)


def test_hazard_05_a_record_is_good_only_where_it_was_written() -> None:
    """A copy of a record elsewhere, left by a recycled file or a misdirected write, is refused."""
    data = record_of(SMALL)
    assert read_back(data) is not None
    for position in (0, 4088, 4104, 8192, 2**32 + 4096):
        with pytest.raises(errors.DecodeError):
            wire.decode_header(data, 0, position)


def test_every_truncation_is_noticed() -> None:
    data = record_of(SMALL)
    for cut in truncations(data):
        assert decoded_or_refused(read_back, cut) is None, len(cut)


def test_hazard_05_no_flipped_bit_changes_the_meaning() -> None:
    """Only a flip in the padding, which says nothing, may pass; every length is under a CRC."""
    data = record_of(SMALL)
    original = read_back(data)
    passed = set()
    for bit, flipped in bit_flips(data):
        decoded = decoded_or_refused(read_back, flipped)
        if decoded is not None:
            assert decoded == original, bit
            passed.add(bit >> 3)
    bodies = 64 + 64 * len(SMALL)
    assert passed == {*range(bodies + 11, bodies + 16), *range(bodies + 17, bodies + 24)}


def test_hazard_19_a_flip_in_one_section_leaves_the_others_readable() -> None:
    sections = [wire.RecordSection(topic, 0, 1, 0, 1, 0, 0, 1, 0, bytes([topic]) * 40) for topic in range(1, 6)]
    data = bytearray(record_of(sections))
    header = wire.decode_header(bytes(data), 0, 4096)
    entries = wire.decode_entries(bytes(data), 0, header)
    data[entries[2].body_position - 4096 + 7] ^= 0x10
    assert [wire.check_section(data, 0, header, entry) for entry in entries] == [True, True, False, True, True]
    for entry in entries:  # alone: from its 64 bytes and its body, without the record around it
        front = data[entry.position - 4096 :][:64]
        body = data[entry.body_position - 4096 :][: entry.body_bytes]
        again = wire.decode_entry(front, 0, entry.position)
        assert wire.section_is_good(front, body, again.crc) == (entry.topic_id != 3)


@given(mutated(record_of(SMALL)))
def test_mutated_records_are_read_as_written_or_refused(data: bytes) -> None:
    decoded = decoded_or_refused(read_back, data)
    assert decoded is None or decoded == read_back(record_of(SMALL))


@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_are_refused(data: bytes, disguised: bool) -> None:
    if disguised:
        data = struct.pack("<IBB", wire.MAGIC, wire.VERSION, 1) + data[:46] + struct.pack("<I", 4096) + data[46:]
    assert decoded_or_refused(read_back, data) is None


def test_headers_with_a_good_crc_must_still_add_up() -> None:
    """Every combination of right and wrong fields: only the one where all fit each other is a header."""
    accepted = []
    fields = itertools.product(
        (wire.MAGIC, 0, wire.MAGIC ^ 1),
        (1, 0, 2),
        (64, 128, 0, 63, 2**32 - 64),
        (64, 128, 136, 132, 0, 56, 2**32 - 8),
        (0, 1, 2, 2**32 - 1),
        (4096, 0),
    )
    for magic, version, size, total, count, position in fields:
        front = struct.pack("<IBBHQQQqIIIII", magic, version, 1, 0, 1, 1, 0, 0, size, total, count, position, 0)
        data = with_good_crcs(front, bytes(64) if size == 128 else b"")
        if decoded_or_refused(lambda data: wire.decode_header(data, 0, 4096), data):
            accepted.append((magic, version, size, total, count, position))
    sizes = [(64, 0, total) for total in (64, 128, 136, 2**32 - 8)] + [
        (128, 1, total) for total in (128, 136, 2**32 - 8)
    ]
    assert accepted == [(wire.MAGIC, 1, size, total, count, 4096) for size, count, total in sizes]


def test_a_directory_is_bounded_before_it_is_read() -> None:
    count = limits.RECORD_SECTIONS_MAX + 1
    size = 64 + 64 * count
    front = struct.pack("<IBBHQQQqIIIII", wire.MAGIC, 1, 1, 0, 1, 1, 0, 0, size, size, count, 0, 0)
    with pytest.raises(errors.DecodeError, match="is inconsistent"):
        wire.decode_header(with_good_crcs(front, bytes(64 * count)), 0, 0)


@given(U32, U32)
def test_a_section_outside_its_record_is_bad_even_with_a_good_crc(body_position: int, body_bytes: int) -> None:
    entry = struct.pack("<QIBBHQqqIIIII", 1, 0, 1, 0, 0, 1, 0, 0, 1, body_position, body_bytes, 0, 0)
    start = max(body_position - 4096, 0)
    body = bytes(16)[start - 128 : start - 128 + body_bytes] if start >= 128 else b""
    directory = entry + struct.pack("<I", zlib.crc32(entry + body))
    front = struct.pack("<IBBHQQQqIIIII", wire.MAGIC, 1, 1, 0, 1, 1, 0, 0, 128, 144, 1, 4096, 0)
    inside = body_position >= 4096 + 128 and body_position + body_bytes <= 4096 + 144
    assert (read_back(with_good_crcs(front, directory) + bytes(16)) is not None) == inside


@pytest.mark.parametrize("size", range(64))
def test_a_short_entry_is_refused(size: int) -> None:
    with pytest.raises(errors.DecodeError):
        wire.decode_entry(record_of(SMALL)[64 : 64 + size], 0, 4160)


@given(st.integers(0, 10**6), st.sampled_from([1, 8, 512, 4096]))
def test_padded_is_the_next_multiple(size: int, align: int) -> None:
    result = wire.padded(size, align)
    assert result % align == 0
    assert size <= result < size + align
