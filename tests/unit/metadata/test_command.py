"""The commands as bytes: they come back as they went, and nothing else passes for one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.metadata import command as cmd
from tests.support.hypothesis_effort import HALF
from tests.support.mutations import bit_flips, mutated, truncations

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUE = st.binary(max_size=40)
NUMBER = st.integers(-(2**63), 2**63 - 1)
COMPARISONS = st.one_of(
    st.builds(cmd.Absent, TEXT), st.builds(cmd.AtRevision, TEXT, NUMBER), st.builds(cmd.HasValue, TEXT, VALUE)
)
OPERATIONS = st.one_of(
    st.builds(cmd.Put, TEXT, VALUE),
    st.builds(cmd.PutWithTtl, TEXT, VALUE, NUMBER),
    st.builds(cmd.Delete, TEXT),
    st.builds(cmd.DeletePrefix, TEXT),
)
COMMANDS = st.one_of(
    OPERATIONS,
    st.builds(cmd.CompareAndSwap, COMPARISONS, VALUE, NUMBER),
    st.builds(cmd.AllocateMonotonicId, TEXT, NUMBER),
    st.builds(cmd.ExpireTtlKeys, st.lists(st.tuples(TEXT, NUMBER), max_size=3)),
    st.builds(cmd.Txn, *(st.lists(strategy, max_size=3) for strategy in (COMPARISONS, OPERATIONS, OPERATIONS))),
)
ENVELOPES = st.builds(cmd.Envelope, st.just(cmd.VERSION), VALUE, NUMBER, NUMBER, COMMANDS)
EXAMPLE = cmd.Envelope(
    cmd.VERSION, b"client", 7, 1_700_000_000_000, cmd.Txn([cmd.Absent("/a")], [cmd.Put("/a", b"1"), cmd.Delete("/b")])
)


def decoded_or_refused(data: bytes) -> cmd.Envelope | None:
    try:
        return cmd.decode_envelope(data)
    except (errors.DecodeError, errors.FormatUnknown):
        return None


@HALF
@given(ENVELOPES)
def test_an_envelope_round_trips(envelope: cmd.Envelope) -> None:
    data = cmd.encode_envelope(envelope)
    decoded = cmd.decode_envelope(data)
    assert decoded == envelope
    assert cmd.encode_envelope(decoded) == data


def test_the_bytes_of_a_command_do_not_change() -> None:
    """Logs of older versions hold them."""
    envelope = cmd.Envelope(1, b"c", 2, 3, cmd.PutWithTtl("/k", b"v", 4))
    assert cmd.encode_envelope(envelope).hex() == "9501c4016302039" + "4a77075745f74746ca22f6bc4017604"


@pytest.mark.parametrize("version", [0, 2, 250])
def test_an_unknown_version_is_never_skipped(version: int) -> None:
    array: list[Any] = [version, b"", 0, 0, ["put", "/a", b""]]
    with pytest.raises(errors.FormatUnknown, match=f"version {version}"):
        cmd.decode_envelope(msgspec.msgpack.encode(array))


def test_a_newer_version_is_distinguished_from_garbage() -> None:
    with pytest.raises(errors.FormatUnknown, match="version 2"):
        cmd.decode_envelope(msgspec.msgpack.encode([2, {"another": "layout"}]))


@pytest.mark.parametrize(
    "array",
    [
        [1, b"", 0, 0, ["rename", "/a", "/b"]],
        [1, b"", 0, 0, ["put", "/a", b"", 1]],
        [1, b"", 0, 0, ["put", "/a"]],
        [1, b"", 0, 0, ["put", "/a", "text"]],
        [1, b"", 0, 0, ["put", "/a", b""], 0],
        [1, "", 0, 0, ["put", "/a", b""]],
        [1, b"", 0, 0, ["txn", [], [["cas", ["absent", "/a"], b""]], []]],
        [1, b"", 0, 0],
        ["1", b"", 0, 0, ["put", "/a", b""]],
        {},
        None,
        1,
    ],
)
def test_invalid_commands_are_refused(array: Any) -> None:
    with pytest.raises(errors.DecodeError):
        cmd.decode_envelope(msgspec.msgpack.encode(array))


def test_truncation_and_flipped_bits_raise_only_decode_errors() -> None:
    data = cmd.encode_envelope(EXAMPLE)
    assert all(decoded_or_refused(part) is None for part in truncations(data))
    flipped = [decoded_or_refused(damaged) for _, damaged in bit_flips(data)]
    assert EXAMPLE not in flipped


@HALF
@given(st.one_of(mutated(cmd.encode_envelope(EXAMPLE)), st.binary(max_size=60)))
def test_hostile_bytes_are_a_command_or_refused(data: bytes) -> None:
    decoded = decoded_or_refused(data)
    assert decoded is None or decoded.version == cmd.VERSION


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(errors.DecodeError):
        cmd.decode_envelope(b"\x91" * 100_000)
