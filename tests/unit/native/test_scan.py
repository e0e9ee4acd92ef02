"""The native scanner against the Python one, on logs that were cut, flipped, recycled and misaligned."""

from __future__ import annotations

import mmap
import struct
import zlib
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from icestream.wal import format as wire
from icestream.wal.record_scan import find_headers_python, scan_records_python

native = pytest.importorskip("icestream_native", reason="the native extension is not built (make native)")

START = wire.RECORDS_START
GENERATION = 7
SECTIONS = st.builds(
    wire.RecordSection,
    *[st.integers(0, 200)] * 2,
    st.just(1),
    st.just(0),
    *[st.integers(0, 200)] * 5,
    st.binary(max_size=300),
)


def log_of(
    sections_per_record: list[list[wire.RecordSection]], generation: int = GENERATION, footer: bool = False
) -> bytes:
    """The bytes of a file from its first record on."""
    log = bytearray()
    lsn = 1
    for sections in sections_per_record:
        log += encoded(wire.RecordKind.DATA, lsn, generation, START + len(log), sections)
        lsn += 1
    if footer:
        log += encoded(wire.RecordKind.FOOTER, lsn, generation, START + len(log), [])
    return bytes(log)


def encoded(kind: int, lsn: int, generation: int, position: int, sections: list[wire.RecordSection]) -> bytes:
    return wire.encode_record_python(kind, lsn, generation, max(lsn - 2, 0), 11, position, 8, sections)


def check_against_the_oracle(log: bytes, start: int = START, generation: int = GENERATION, lsn: int = 1) -> Any:
    scanned = native.scan_records(log, start, generation, lsn)
    assert scanned == scan_records_python(log, start, generation, lsn)
    assert native.find_headers(log, start, generation, lsn) == find_headers_python(log, start, generation, lsn)
    return scanned


LOGS = st.builds(log_of, st.lists(st.lists(SECTIONS, max_size=3), max_size=5), footer=st.booleans())


@given(LOGS, st.integers(0, 100))
def test_good_logs(log: bytes, tail: int) -> None:
    _, end, _, reason = check_against_the_oracle(log + bytes(tail))
    assert (end - START, reason) in {(len(log), "end"), (len(log), "bad"), (len(log) - 64, "footer")}


@given(LOGS, st.data())
def test_cut_logs(log: bytes, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(log)))
    _, end, _, _ = check_against_the_oracle(log[:length])
    assert end - START <= length


@given(LOGS, st.data())
def test_flipped_logs(log: bytes, data: st.DataObject) -> None:
    assume(log)
    flipped = bytearray(log)
    for _ in range(data.draw(st.integers(1, 3))):
        flipped[data.draw(st.integers(0, len(log) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    check_against_the_oracle(bytes(flipped))


def test_every_flip_of_a_small_log() -> None:
    """hazard 5: no flip of a byte under a CRC is read as a good record, lengths included."""
    sections = [
        wire.RecordSection(1, 0, 1, 0, 1, 0, 0, 1, 0, b"12345678"),
        wire.RecordSection(2, 0, 1, 0, 1, 0, 0, 1, 0, b"abc"),
    ]
    log = log_of([sections, [], sections])
    padding = {64 + 2 * 64 + 8 + 3 + byte for byte in range(5)}
    padding |= {len(log) - 5 + byte for byte in range(5)}
    for bit in range(8 * len(log)):
        flipped = bytearray(log)
        flipped[bit // 8] ^= 1 << bit % 8
        records, _, _, reason = check_against_the_oracle(bytes(flipped))
        assert (len(records) == 3) == (bit // 8 in padding), bit
        assert reason == ("end" if bit // 8 in padding else "bad")


@given(LOGS, LOGS, st.data())
def test_recycled_files(fresh: bytes, old: bytes, data: st.DataObject) -> None:
    """New records over the old ones of another generation: where the new ones end, the scan does."""
    recycled = data.draw(st.sampled_from([old, log_of([[]] * 30, generation=GENERATION - 1)]))
    mixed = fresh + recycled[len(fresh) :]
    check_against_the_oracle(mixed)
    check_against_the_oracle(mixed, generation=GENERATION - 1)


def test_old_records_never_pass_for_new_ones() -> None:
    old = log_of([[]] * 10, generation=GENERATION - 1)
    new = log_of([[]] * 4)
    records, end, next_lsn, reason = native.scan_records(new + old[len(new) :], START, GENERATION, 1)
    assert (len(records), end, next_lsn, reason) == (4, START + len(new), 5, "bad")
    assert len(native.find_headers(new + old[len(new) :], START, GENERATION, 1)) == 4


@given(LOGS, st.integers(0, 64), st.integers(0, 6))
def test_from_any_position(log: bytes, skip: int, lsn: int) -> None:
    check_against_the_oracle(log[skip:], start=START + skip, lsn=lsn)


@given(LOGS, st.integers(-16, 16))
def test_records_must_be_at_their_position(log: bytes, shift: int) -> None:
    records = check_against_the_oracle(log, start=START + shift)[0]
    assert shift == 0 or not records


def test_kinds() -> None:
    log = encoded(wire.RecordKind.DATA, 1, GENERATION, START, [])
    log += encoded(wire.RecordKind.REPAIR, 9, GENERATION, START + len(log), [])
    log += encoded(wire.RecordKind.DATA, 10, GENERATION, START + len(log), [])
    records, _, next_lsn, reason = check_against_the_oracle(log)
    assert ([record[1] for record in records], next_lsn, reason) == ([1, 9, 10], 11, "end")
    for kind, expected in ((wire.RecordKind.CHECKPOINT, "bad"), (wire.RecordKind.FOOTER, "footer"), (99, "bad")):
        more = log + encoded(kind, 11, GENERATION, START + len(log), [])
        _, end, _, reason = check_against_the_oracle(more)
        assert (end, reason) == (START + len(log), expected)


def test_a_repair_may_not_move_back() -> None:
    log = encoded(wire.RecordKind.DATA, 5, GENERATION, START, [])
    log += encoded(wire.RecordKind.REPAIR, 5, GENERATION, START + len(log), [])
    records, _, _, reason = check_against_the_oracle(log, lsn=5)
    assert (len(records), reason) == (1, "bad")


@pytest.mark.parametrize(
    ("field", "at", "value"),
    [
        ("body_position", 44, 0),
        ("body_position", 44, START),
        ("body_position", 44, 2**32 - 1),
        ("body_bytes", 48, 2**31),
    ],
)
def test_sections_must_be_inside_their_record(field: str, at: int, value: int) -> None:
    """Even with all CRCs in order."""
    log = bytearray(log_of([[wire.RecordSection(1, 0, 1, 0, 1, 0, 0, 1, 0, b"12345678")]]))
    struct.pack_into("<I", log, 64 + at, value)
    struct.pack_into("<I", log, 124, zlib.crc32(log[64:124]))
    struct.pack_into("<I", log, 60, zlib.crc32(log[64:128], zlib.crc32(log[:60])))
    records, _, _, reason = check_against_the_oracle(bytes(log))
    assert (records, reason) == ([], "bad"), field


@pytest.mark.parametrize("size", [4, 300_000])
def test_any_bytes_are_scanned(size: int) -> None:
    """Small and large: from some size on, and only for `bytes`, the GIL is given away."""
    log = log_of([[wire.RecordSection(1, 0, 1, 0, 1, 0, 0, 1, 0, bytes(size))]] * 3)
    expected = scan_records_python(log, START, GENERATION, 1)
    headers = find_headers_python(log, START, GENERATION, 1)
    with mmap.mmap(-1, len(log)) as mapped:
        mapped.write(log)
        for data in (log, bytearray(log), memoryview(log), mapped):
            assert native.scan_records(data, START, GENERATION, 1) == expected
            assert native.find_headers(data, START, GENERATION, 1) == headers
            assert native.crc32(data) == zlib.crc32(log)


def test_non_bytes_are_refused() -> None:
    for data in ("text", 7, None):
        with pytest.raises(TypeError):
            native.scan_records(data, START, GENERATION, 1)
    with pytest.raises(BufferError):
        native.scan_records(memoryview(bytes(256))[::2], START, GENERATION, 1)


@given(st.binary(max_size=2000), st.integers(0, 2**32 - 1))
def test_crc32_is_that_of_zlib(data: bytes, value: int) -> None:
    assert native.crc32(data, value) == zlib.crc32(data, value)
    assert native.crc32(data) == zlib.crc32(data)
