"""The scanner: it gives the records that were written, up to the first that is not good, and never one that was not.

The native twin is compared with the Python one in tests/unit/native/test_scan.py on cut, flipped and recycled logs;
here on logs whose records were moved, doubled, taken out and overwritten.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icestream.runtime.native import native
from icestream.wal import format as wire
from icestream.wal.record_scan import (
    Headers,
    Scan,
    ScannedRecord,
    decode_good_header,
    find_headers_python,
    scan_records_python,
)
from tests.support.mutations import bit_flips, mutated, truncations

START = wire.RECORDS_START
NUMBER = 9
SCANNERS: list[Callable[..., Scan]] = [scan_records_python]
FINDERS: list[Callable[..., Headers]] = [find_headers_python]
if native:
    SCANNERS.append(native.scan_records)
    FINDERS.append(native.find_headers)
both_scanners = pytest.mark.parametrize("scan", SCANNERS)
both_finders = pytest.mark.parametrize("find", FINDERS)

BODIES = st.lists(st.lists(st.binary(max_size=60), max_size=3), max_size=6)


def section(topic_id: int, body: bytes) -> wire.RecordSection:
    return wire.RecordSection(topic_id, 0, wire.SectionKind.MESSAGES, 0, 1, 0, 0, 1, 0, body)


def log_of(bodies: list[list[bytes]], *, number: int = NUMBER, lsn: int = 1, start: int = START) -> list[bytes]:
    """Records with these section bodies, one after the other."""
    records: list[bytes] = []
    position = start
    for count, parts in enumerate(bodies):
        sections = [section(1 + topic, body) for topic, body in enumerate(parts)]
        front = (wire.RecordKind.DATA, lsn + count, number, max(lsn + count - 2, 0), 1_000 + count)
        records.append(wire.encode_record_python(*front, position, 8, sections))
        position += len(records[-1])
    return records


def contents(data: bytes, scanned: Scan) -> list[list[bytes]]:
    """The bodies of the records that a scan accepted."""
    bodies = []
    for position, *_ in scanned[0]:
        header = wire.decode_header(data, position - START, position)
        entries = wire.decode_entries(data, position - START, header)
        bodies.append([data[entry.body_position - START :][: entry.body_bytes] for entry in entries])
    return bodies


SMALL_BODIES = [[b"12345678", b"abc"], [], [b"last"]]
SMALL = b"".join(log_of(SMALL_BODIES))


@both_scanners
@given(bodies=BODIES, zeros=st.integers(0, 200))
def test_a_scan_returns_the_written_records(scan: Callable[..., Scan], bodies: list[list[bytes]], zeros: int) -> None:
    records = log_of(bodies, lsn=40)
    data = b"".join(records) + bytes(zeros)
    scanned = scan(data, START, NUMBER, 40)
    end = START + sum(map(len, records))
    assert scanned[1:] == (end, 40 + len(bodies), "bad" if zeros >= wire.HEADER_BYTES else "end")
    assert contents(data, scanned) == bodies
    position = START
    for count, (record, row) in enumerate(zip(records, scanned[0], strict=True)):
        lsn = 40 + count
        expected = (position, lsn, 1, lsn - 2, 1_000 + count, 64 + 64 * len(bodies[count]), len(record))
        assert row == (*expected, len(bodies[count]))
        position += len(record)
        assert ScannedRecord(*row).end == position


@both_scanners
def test_a_truncated_log_returns_its_whole_records(scan: Callable[..., Scan]) -> None:
    records = log_of(SMALL_BODIES)
    for cut in truncations(SMALL):
        whole = [record for number, record in enumerate(records) if sum(map(len, records[: number + 1])) <= len(cut)]
        scanned = scan(cut, START, NUMBER, 1)
        assert contents(cut, scanned) == SMALL_BODIES[: len(whole)]
        left = len(cut) - sum(map(len, whole))
        assert scanned[3] == ("end" if left < wire.HEADER_BYTES else "bad")


@both_scanners
def test_hazard_05_after_a_flip_no_changed_record_is_accepted(scan: Callable[..., Scan]) -> None:
    records = log_of(SMALL_BODIES)
    ends = [sum(map(len, records[: number + 1])) for number in range(len(records))]
    accepted = 0
    for bit, flipped in bit_flips(SMALL):
        scanned = scan(flipped, START, NUMBER, 1)
        hit = next(number for number, end in enumerate(ends) if bit >> 3 < end)
        bodies = contents(flipped, scanned)
        assert bodies == SMALL_BODIES[: len(bodies)]
        assert len(bodies) in (hit, len(records))  # up to the flipped record, or all when it hit padding
        accepted += len(bodies) == len(records)
    assert accepted == 8 * (5 + 4)


@both_scanners
@given(old=BODIES, new=BODIES)
def test_hazard_05_a_recycled_file_ends_where_its_new_records_end(
    scan: Callable[..., Scan], old: list[list[bytes]], new: list[list[bytes]]
) -> None:
    """The old bytes behind them are good records of the file's past, even with the LSN that is due."""
    past = b"".join(log_of(old, number=NUMBER - 1))
    fresh = b"".join(log_of(new))
    data = fresh + past[len(fresh) :]
    scanned = scan(data, START, NUMBER, 1)
    assert scanned[1:3] == (START + len(fresh), 1 + len(new))
    assert contents(data, scanned) == new


@both_scanners
@given(count=st.integers(2, 6), stale=st.integers(1, 5))
def test_hazard_05_a_stale_record_of_the_same_file_is_not_returned(
    scan: Callable[..., Scan], count: int, stale: int
) -> None:
    """Equal ticks: a record that was cut stands exactly where the next one is due, with a lower LSN than is due."""
    data = b"".join(log_of([[b"new"]] * count, lsn=stale + 1))
    behind = log_of([[b"old"]] * (count + 1), lsn=1)[-1]
    scanned = scan(data + behind, START, NUMBER, stale + 1)
    assert scanned[2] == stale + 1 + count
    assert (len(scanned[0]), scanned[3]) == (count, "bad")


@both_scanners
@pytest.mark.parametrize("lsn", [0, 2, 2**63])
def test_the_first_record_must_have_the_lsn_that_is_due(scan: Callable[..., Scan], lsn: int) -> None:
    assert scan(SMALL, START, NUMBER, lsn) == ([], START, lsn, "bad")


@both_scanners
def test_an_empty_stretch_is_an_end(scan: Callable[..., Scan]) -> None:
    assert scan(b"", START, NUMBER, 5) == ([], START, 5, "end")


@both_finders
@given(bodies=BODIES, lsn_min=st.integers(0, 10), torn=st.integers(0, 6), shift=st.integers(0, 20))
def test_hazard_05_headers_after_a_torn_record_are_found(
    find: Callable[..., Headers], bodies: list[list[bytes]], lsn_min: int, torn: int, shift: int
) -> None:
    """The evidence that tells damage from a tail, wherever the search begins."""
    records = log_of(bodies)
    expected = []
    position = START
    for number, record in enumerate(records):
        if number != torn and position >= START + shift and number + 1 >= lsn_min:
            expected.append((position, number + 1, max(number - 1, 0)))
        position += len(record)
    data = b"".join(b"\xff" * len(record) if number == torn else record for number, record in enumerate(records))
    assert find(data[shift:], START + shift, NUMBER, lsn_min) == expected


@both_finders
def test_a_payload_that_looks_like_a_header_counts_only_at_its_position(find: Callable[..., Headers]) -> None:
    """A client publishes the bytes of records: only a record that names its own position is taken for a header."""
    inner = log_of([[b"inner"]], lsn=77)[0]
    outer = log_of([[inner]])
    assert find(b"".join(outer), START, NUMBER, 1) == [(START, 1, 0)]
    at_its_place = log_of([[b"inner"]], lsn=77, start=START + 128)[0]
    assert find(log_of([[at_its_place]])[0], START, NUMBER, 1)[1:] == [(START + 128, 77, 75)]


@pytest.mark.skipif(native is None, reason="the native extension is not built (make native)")
@given(mutated(b"".join(log_of([[b"a" * 30, b""], [b"bb"], [], [b"c" * 9]]))), st.integers(0, 5), st.integers(0, 9))
@example(SMALL, 1, 0)
def test_the_twins_agree_on_mutated_logs(data: bytes, lsn: int, shift: int) -> None:
    assert native is not None
    part, start = data[shift:], START + shift
    assert native.scan_records(part, start, NUMBER, lsn) == scan_records_python(part, start, NUMBER, lsn)
    assert native.find_headers(part, start, NUMBER, lsn) == find_headers_python(part, start, NUMBER, lsn)


MAGIC_OR_NOT = st.lists(st.one_of(st.just(wire.MAGIC_BYTES), st.binary(min_size=4, max_size=4)), max_size=60)


@given(MAGIC_OR_NOT.map(b"".join), st.integers(0, 100))
def test_random_bytes_contain_no_record(data: bytes, position: int) -> None:
    for scan, find in zip(SCANNERS, FINDERS, strict=True):
        reason = "bad" if len(data) >= wire.HEADER_BYTES else "end"
        assert scan(data, position, NUMBER, 1) == ([], position, 1, reason)
        assert find(data, position, NUMBER, 0) == []


def test_a_header_of_another_file_is_not_good() -> None:
    assert decode_good_header(SMALL, 0, START, NUMBER) is not None
    assert decode_good_header(SMALL, 0, START, NUMBER + 1) is None
    assert decode_good_header(SMALL, 8, START + 8, NUMBER) is None
