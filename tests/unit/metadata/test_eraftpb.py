"""The Raft messages on disk, byte for byte as the `raft` crate writes them; hostile bytes are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.metadata import eraftpb
from icestream.metadata.eraftpb import LogEntry, Membership, SnapshotParts
from tests.support.hypothesis_effort import HALF
from tests.support.mutations import bit_flips, decoded_or_refused, mutated, truncations

U64 = st.integers(1, 2**64 - 1)
DATA = st.binary(max_size=300)
IDS = st.lists(U64, max_size=4).map(lambda ids: tuple(sorted(ids)))
ENTRY = eraftpb.encode_entry(300, 2, 1, b"data", b"context")


# As the generated code of another protobuf library encodes them, field by field.
@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (LogEntry(1, 1, 0, b"", b""), "10011801"),
        (LogEntry(300, 2, 0, b"ab", b""), "100218ac0222026162"),
        (LogEntry(2**64 - 1, 128, 2, b"a", b"c"), "080210800118ffffffffffffffffff01220161320163"),
        (LogEntry(5, 1, 1, bytes(200), b""), "08011001180522c801" + "00" * 200),
    ],
)
def test_an_entry_has_the_bytes_of_the_crate(entry: LogEntry, expected: str) -> None:
    data = eraftpb.encode_entry(entry.index, entry.term, entry.kind, entry.data, entry.context)
    assert data.hex() == expected
    assert eraftpb.decode_entry(data) == entry


def test_membership_and_snapshot_have_the_bytes_of_the_crate() -> None:
    conf = eraftpb.encode_conf(Membership((1, 300), (7,), auto_leave=True))
    assert conf.hex() == "0a0301ac021201072801"
    parts = SnapshotParts(9, 3, eraftpb.encode_conf(Membership((1,))), b"where")
    assert eraftpb.encode_snapshot(parts).hex() == "0a057768657265" + "1209" + "0a030a0101" + "1009" + "1803"


def test_ids_are_read_packed_or_not_and_sorted() -> None:
    assert eraftpb.decode_conf(bytes.fromhex("0802080408011003")) == Membership((1, 2, 4), (3,))
    assert eraftpb.decode_conf(bytes.fromhex("0a03020401" + "120103")) == Membership((1, 2, 4), (3,))


def test_unknown_fields_are_stepped_over() -> None:
    extra = bytes.fromhex("2801" + "7a0161" + "f90100000000000000ff" + "fd01000000ff")
    assert eraftpb.decode_entry(extra + ENTRY) == eraftpb.decode_entry(ENTRY)


def test_a_field_of_fixed_width_is_not_a_snapshot() -> None:
    with pytest.raises(errors.DecodeError, match="without a snapshot"):
        eraftpb.snapshot_in(b"\x4d\x00\x00\x00\x00")  # field 9, 32 bits


@HALF
@given(U64, U64, st.integers(0, 2), DATA, DATA)
def test_an_entry_round_trips(index: int, term: int, kind: int, data: bytes, context: bytes) -> None:
    encoded = eraftpb.encode_entry(index, term, kind, data, context)
    assert eraftpb.decode_entry(encoded) == LogEntry(index, term, kind, data, context)


@HALF
@given(IDS, IDS, IDS, IDS, st.booleans(), st.integers(0, 2**64 - 1), DATA)
def test_membership_and_snapshot_round_trip(
    voters: tuple[int, ...],
    learners: tuple[int, ...],
    outgoing: tuple[int, ...],
    coming: tuple[int, ...],
    auto_leave: bool,
    index: int,
    data: bytes,
) -> None:
    conf = Membership(voters, learners, outgoing, coming, auto_leave)
    encoded = eraftpb.encode_conf(conf)
    assert eraftpb.decode_conf(encoded) == conf
    parts = SnapshotParts(index, 7, encoded, data)
    assert eraftpb.decode_snapshot(eraftpb.encode_snapshot(parts)) == parts


@pytest.mark.parametrize(
    "data",
    [
        "",
        "1001",
        "1801",
        "10ffffffffffffffffffff01",
        "1001180122ff",
        "10011801220161aa",
        "1b",
        "120110",
        "10011801" + "00",
    ],
)
def test_invalid_entries_are_refused(data: str) -> None:
    with pytest.raises(errors.DecodeError):
        eraftpb.decode_entry(bytes.fromhex(data))


def test_truncation_and_flipped_bits_raise_only_decode_errors() -> None:
    for decode in (eraftpb.decode_entry, eraftpb.decode_conf, eraftpb.decode_snapshot):
        entries = [decoded_or_refused(decode, part) for part in truncations(ENTRY)]
        entries += [decoded_or_refused(decode, damaged) for _, damaged in bit_flips(ENTRY)]
        assert len(entries) == 9 * len(ENTRY)


@HALF
@given(mutated(ENTRY))
def test_hostile_bytes_are_an_entry_or_refused(data: bytes) -> None:
    entry = decoded_or_refused(eraftpb.decode_entry, data)
    assert entry is None or 0 < entry.index < 2**64


@pytest.mark.parametrize(("me", "leader", "term"), [(1, 2, 1), (2**64 - 1, 2**63, 300), (5, 2**64 - 1, 2**40)])
def test_a_leader_is_recognised_by_the_first_bytes_of_its_messages(me: int, leader: int, term: int) -> None:
    def sent(kind: int, to: int, sender: int, at: int) -> bytes:
        head = b"\x08" + bytes([kind])
        for field, number in ((0x10, to), (0x18, sender), (0x20, at)):
            head += bytes([field]) + eraftpb._varint(number)
        return head + b"\x28\x07"

    for kind in range(1, 20):
        assert eraftpb.is_of_leader([sent(kind, me, leader, term)], me, leader, term) == (kind in (3, 7, 8))
    others = [sent(8, me, leader ^ 1, term), sent(8, me, leader, term - 1), sent(8, me ^ 4, leader, term), b""]
    assert not eraftpb.is_of_leader(others, me, leader, term)
    assert eraftpb.is_of_leader([*others, sent(8, me, leader, term)], me, leader, term)
    assert not eraftpb.is_of_leader([sent(8, me, 0, term)], me, 0, term), "there is no leader"
    assert not eraftpb.is_of_leader([], me, leader, term)
