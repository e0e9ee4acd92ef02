"""The first page of a log file, and names: read as written, or not at all."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icestream import errors
from icestream.wal import log_file
from icestream.wal.log_file import FileHeader, Seal
from tests.support.mutations import bit_flips, decoded_or_refused, mutated, truncations

U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
HEADERS = st.builds(FileHeader, st.binary(min_size=16, max_size=16), U64, U64, U64, I64, U64)
SEALS = st.builds(Seal, U64, U64, U64, U64, U64, U64)
HEADER = FileHeader(bytes(range(16)), 7, 6, 99, 1_700_000_000_000_000, 65_536)
SEAL = Seal(7, 50, 99, 8192, 8192, 640)


def sector(content: bytes) -> bytes:
    front = content.ljust(508, b"\0")
    return front + struct.pack("<I", zlib.crc32(front))


# --- header and seal --------------------------------------------------------------------------------------------------


@given(HEADERS)
def test_header_round_trip(header: FileHeader) -> None:
    encoded = log_file.encode_header(header)
    assert len(encoded) == 512
    assert log_file.decode_header(encoded) == header
    page = log_file.encode_first_page(header)
    assert len(page) == 4096
    assert log_file.decode_header(page) == header


@given(SEALS)
def test_seal_round_trip(seal: Seal) -> None:
    encoded = log_file.encode_seal(seal)
    assert len(encoded) == 512
    assert log_file.decode_seal(encoded, seal.number) == seal


def test_header_and_seal_match_the_documented_bytes() -> None:
    header = b"ICESTLOG" + struct.pack("<II", 1, 0) + bytes(range(16))
    header += struct.pack("<QQQqQ", 7, 6, 99, 1_700_000_000_000_000, 65_536)
    assert log_file.encode_header(HEADER) == sector(header)
    seal = b"ICESSEAL" + struct.pack("<QQQQQQ", 7, 50, 99, 8192, 8192, 640)
    assert log_file.encode_seal(SEAL) == sector(seal)
    assert log_file.SEAL_POSITION == 512


def test_hazard_36_the_first_page_of_a_file_used_again_has_no_seal() -> None:
    page = log_file.encode_first_page(HEADER)
    assert log_file.decode_seal(page[512:], HEADER.number) is None
    assert not any(page[512:])


def test_hazard_05_the_seal_of_the_file_it_was_is_not_its_seal() -> None:
    assert log_file.decode_seal(log_file.encode_seal(SEAL), SEAL.number) == SEAL
    assert log_file.decode_seal(log_file.encode_seal(SEAL), SEAL.number + 1) is None


def test_no_flip_is_believed() -> None:
    for _, flipped in bit_flips(log_file.encode_header(HEADER)):
        with pytest.raises(errors.DecodeError):
            log_file.decode_header(flipped)
    assert [log_file.decode_seal(data, 7) for _, data in bit_flips(log_file.encode_seal(SEAL))] == [None] * 4096


def test_no_truncation_is_believed() -> None:
    for cut in truncations(log_file.encode_header(HEADER)):
        with pytest.raises(errors.DecodeError):
            log_file.decode_header(cut)
    assert [log_file.decode_seal(cut, 7) for cut in truncations(log_file.encode_seal(SEAL))] == [None] * 512


@given(mutated(log_file.encode_header(HEADER)), mutated(log_file.encode_seal(SEAL)))
def test_mutated_sectors_are_read_as_written_or_refused(header: bytes, seal: bytes) -> None:
    assert decoded_or_refused(log_file.decode_header, header) in (None, HEADER)
    assert log_file.decode_seal(seal, 7) in (None, SEAL)


@given(st.binary(max_size=600))
def test_random_bytes_are_refused(data: bytes) -> None:
    assert decoded_or_refused(log_file.decode_header, data) is None
    assert log_file.decode_seal(data, 7) is None


def test_zeros_are_neither() -> None:
    """The CRC of 508 zeros is not 0, so an empty sector is no sector; nor is one whose CRC is put right."""
    assert log_file.decode_seal(bytes(512), 0) is None
    assert log_file.decode_seal(sector(b""), 0) is None
    for data in (bytes(4096), sector(b"")):
        with pytest.raises(errors.DecodeError):
            log_file.decode_header(data)


def test_a_header_and_a_seal_do_not_pass_for_each_other() -> None:
    assert log_file.decode_seal(log_file.encode_header(HEADER), 7) is None
    with pytest.raises(errors.DecodeError, match="not a log file"):
        log_file.decode_header(log_file.encode_seal(SEAL))


def test_a_newer_version_is_named_as_such() -> None:
    """A newer format is not damage: its error must not suggest a repair."""
    data = bytearray(log_file.encode_header(HEADER)[:508])
    struct.pack_into("<I", data, 8, 2)
    with pytest.raises(errors.FormatUnknown, match="version 2"):
        log_file.decode_header(sector(bytes(data)))


# --- names ------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**16 - 1), st.integers(0, 2**64 - 1), st.integers(0, 10**8 - 1))
def test_names_round_trip(number: int, lsn: int, serial: int) -> None:
    name, spare = log_file.log_name(number), log_file.spare_name(number)
    assert (log_file.log_number(name), log_file.spare_number(name)) == (number, None)
    assert (log_file.log_number(spare), log_file.spare_number(spare)) == (None, number)
    checkpoint = log_file.checkpoint_name(lsn, serial)
    assert log_file.checkpoint_parts(checkpoint) == (lsn, serial)
    assert log_file.log_number(checkpoint) is None


@given(st.integers(0, 10**16 - 2), st.integers(0, 10**20 - 2), st.integers(0, 10**8 - 2), st.integers(0, 10**8 - 1))
def test_names_sort_as_their_numbers(number: int, lsn: int, serial: int, other: int) -> None:
    assert log_file.log_name(number) < log_file.log_name(number + 1)
    assert log_file.checkpoint_name(lsn, serial) < log_file.checkpoint_name(lsn, serial + 1)
    assert log_file.checkpoint_name(lsn, serial) < log_file.checkpoint_name(lsn + 1, other)


ALMOST = st.sampled_from(["log-", "spare-", "checkpoint-00000000000000000001-", "copy-", ""]).flatmap(
    lambda front: st.sampled_from([7, 8, 9, 15, 16, 17]).flatmap(
        lambda size: st.text(st.characters(categories=["Nd"]), min_size=size, max_size=size).flatmap(
            lambda digits: st.sampled_from([".wal", "", ".tmp", ".wal\n", "\n"]).map(lambda end: front + digits + end)
        )
    )
)


@given(st.one_of(st.text(max_size=40), ALMOST))
@example("log-0000000000000001.wal\n")
@example("checkpoint-00000000000000000001-00000001\n")
@example("log-" + "\u0661" * 16 + ".wal")
@example("checkpoint-00000000000000000001-00000001.tmp")
def test_only_canonical_file_names_are_recognised(name: str) -> None:
    """Otherwise two files could claim one number."""
    for number_of, name_of in (
        (log_file.log_number, log_file.log_name),
        (log_file.spare_number, log_file.spare_name),
    ):
        number = number_of(name)
        assert number is None or name_of(number) == name
    parts = log_file.checkpoint_parts(name)
    assert parts is None or log_file.checkpoint_name(*parts) == name
