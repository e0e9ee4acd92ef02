"""The sections of the metadata log and the head of a snapshot file, as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.metadata import log_format
from icestream.metadata.core import HardState
from icestream.metadata.log_format import Identity, LogRecord, decode_record, record_bytes, sections
from icestream.metadata.snapshot_file import SnapshotHead, decode_head, encode_head, snapshot_index, snapshot_name
from icestream.wal import format as wire
from tests.support.hypothesis_effort import HALF
from tests.support.mutations import bit_flips, decoded_or_refused, mutated, truncations

U64 = st.integers(0, 2**64 - 1)
BYTES = st.binary(max_size=50)
IDENTITIES = st.builds(Identity, U64, st.binary(min_size=16, max_size=16), BYTES)
STATES = st.builds(HardState, U64, U64, U64)
HEADS = st.builds(SnapshotHead, U64, U64, st.binary(min_size=16, max_size=16), st.binary(max_size=456))
POSITION = 4096


def encoded(record_sections: list[wire.RecordSection]) -> bytes:
    return wire.encode_record(wire.RecordKind.DATA, 1, 1, 0, 0, POSITION, wire.ALIGN, record_sections)


@HALF
@given(
    st.one_of(st.none(), IDENTITIES), st.one_of(st.none(), STATES), st.integers(1, 2**62), st.lists(BYTES, max_size=5)
)
def test_a_record_round_trips(
    identity: Identity | None, state: HardState | None, first_index: int, entries: list[bytes]
) -> None:
    record = LogRecord(identity, state, first_index if entries else 0, entries)
    record_sections = sections(record)
    data = encoded(record_sections)
    assert len(data) == record_bytes(record_sections)
    assert decode_record(data, 0, POSITION, len(record_sections)) == record


def test_the_layout_is_as_documented() -> None:
    record = LogRecord(Identity(7, bytes(range(16)), b"conf"), HardState(1, 2, 3), 9, [b"a", b"bc"])
    identity, state, entries = sections(record)
    assert (identity.kind, identity.body) == (66, (7).to_bytes(8, "little") + bytes(range(16)) + b"\x04\0conf")
    assert (state.kind, state.body) == (64, b"".join(number.to_bytes(8, "little") for number in (1, 2, 3)))
    assert (entries.kind, entries.base_offset, entries.rows) == (65, 9, 2)
    assert entries.body == b"\1\0\0\0a\2\0\0\0bc"
    assert not {64, 65, 66} & wire.SECTION_KINDS_KNOWN, "the WAL would stop at them"


def test_an_unknown_mandatory_section_stops_the_start() -> None:
    optional = wire.RecordSection(0, 0, 99, wire.OPTIONAL, 0, 0, 0, 0, 0, b"x")
    assert decode_record(encoded([optional]), 0, POSITION, 1) == LogRecord()
    with pytest.raises(errors.FormatUnknown, match="kind 99"):
        decode_record(encoded([optional._replace(flags=0)]), 0, POSITION, 1)


@pytest.mark.parametrize(
    "section",
    [
        wire.RecordSection(0, 0, 64, 0, 0, 0, 0, 0, 0, bytes(23)),
        wire.RecordSection(0, 0, 66, 0, 0, 0, 0, 0, 0, bytes(25)),
        wire.RecordSection(0, 0, 66, 0, 0, 0, 0, 0, 0, bytes(27)),
        wire.RecordSection(0, 0, 65, 0, 0, 1, 0, 2, 0, b"\1\0\0\0a"),
        wire.RecordSection(0, 0, 65, 0, 0, 1, 0, 1, 0, b"\2\0\0\0a"),
        wire.RecordSection(0, 0, 65, 0, 0, 1, 0, 1, 0, b"\1\0\0\0a\0"),
    ],
)
def test_sections_that_do_not_add_up_are_refused(section: wire.RecordSection) -> None:
    with pytest.raises(errors.DecodeError):
        decode_record(encoded([section]), 0, POSITION, 1)


@HALF
@given(st.sampled_from([64, 65, 66]), mutated(b"\1\0\0\0a\2\0\0\0bc" * 3), st.integers(0, 5))
def test_hostile_sections_are_decoded_or_refused(kind: int, body: bytes, rows: int) -> None:
    data = encoded([wire.RecordSection(0, 0, kind, 0, 0, 1, 0, rows, 0, body)])
    record = decoded_or_refused(lambda damaged: decode_record(damaged, 0, POSITION, 1), data)
    assert record is None or isinstance(record, LogRecord)


def test_the_space_reserved_around_entries_is_sufficient() -> None:
    largest = LogRecord(
        Identity(2**64 - 1, bytes(16), bytes(456)), HardState(2**64 - 1, 2**64 - 1, 2**64 - 1), 1, [b""]
    )
    assert record_bytes(sections(largest)) <= log_format.RECORD_OVERHEAD_BYTES


# --- snapshot files ---------------------------------------------------------------------------------------------------


@HALF
@given(HEADS)
def test_a_file_header_round_trips(head: SnapshotHead) -> None:
    data = encode_head(head)
    assert len(data) == 512
    assert decode_head(data) == head


def test_every_cut_and_flipped_bit_of_a_head_is_noticed() -> None:
    data = encode_head(SnapshotHead(5, 2, bytes(range(16)), b"conf"))
    assert all(decoded_or_refused(decode_head, part) is None for part in truncations(data))
    assert all(decoded_or_refused(decode_head, damaged) is None for _, damaged in bit_flips(data))


def test_a_membership_that_does_not_fit_is_refused() -> None:
    with pytest.raises(errors.InvalidInput):
        encode_head(SnapshotHead(5, 2, bytes(16), bytes(457)))


def test_names_carry_index_and_digest() -> None:
    name = snapshot_name(17, "ab" * 32)
    assert name == "snapshot-00000000000000000017-" + "ab" * 32
    assert snapshot_index(name) == 17
    for other in (name[:-1], name + "0", "snapshot-17.tmp", "log-0000000000000001.wal", name.upper()):
        assert snapshot_index(other) is None
