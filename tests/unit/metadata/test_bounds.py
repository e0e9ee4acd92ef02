"""Commands that have no meaning are refused as a whole, whatever they hold; all within the bounds is let through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata.bounds import refusal, refused_identity
from icestream.metadata.state_machine import Applied, StateMachine
from tests.support.hypothesis_effort import HALF

KEY_MAX, VALUE_MAX = limits.METADATA_KEY_BYTES_MAX, limits.METADATA_VALUE_BYTES_MAX
LONGEST = "/" + "k" * (KEY_MAX - 1)
ANY_TEXT = st.text(st.characters(), max_size=8)
ANY_NUMBER = st.integers()
ANY_VALUE = st.binary(max_size=8)
ANY_COMPARE = st.one_of(
    st.builds(cmd.Absent, ANY_TEXT),
    st.builds(cmd.AtRevision, ANY_TEXT, ANY_NUMBER),
    st.builds(cmd.HasValue, ANY_TEXT, ANY_VALUE),
)
ANY_OPERATION = st.one_of(
    st.builds(cmd.Put, ANY_TEXT, ANY_VALUE),
    st.builds(cmd.PutWithTtl, ANY_TEXT, ANY_VALUE, ANY_NUMBER),
    st.builds(cmd.Delete, ANY_TEXT),
    st.builds(cmd.DeletePrefix, ANY_TEXT),
)
ANY_COMMAND = st.one_of(
    ANY_OPERATION,
    st.builds(cmd.CompareAndSwap, ANY_COMPARE, ANY_VALUE, ANY_NUMBER),
    st.builds(cmd.AllocateMonotonicId, ANY_TEXT, ANY_NUMBER),
    st.builds(cmd.ExpireTtlKeys, st.lists(st.tuples(ANY_TEXT, ANY_NUMBER), max_size=3)),
    st.builds(cmd.Txn, *(st.lists(strategy, max_size=3) for strategy in (ANY_COMPARE, ANY_OPERATION, ANY_OPERATION))),
)


def apply(machine: StateMachine, command: cmd.Command, time_ms: int = 0) -> Applied:
    return machine.apply(cmd.Envelope(cmd.VERSION, b"", 0, time_ms, command))


@HALF
@given(st.lists(st.tuples(ANY_COMMAND, st.binary(max_size=2), ANY_NUMBER, ANY_NUMBER), max_size=12))
def test_every_possible_command_is_answered(history: list[tuple[cmd.Command, bytes, int, int]]) -> None:
    machine = StateMachine()
    for command, client, sequence, time_ms in history:
        before = dict(machine.entries.items())
        answer, events = machine.apply(cmd.Envelope(cmd.VERSION, client, sequence, time_ms, command))
        if isinstance(answer, cmd.Rejected):
            assert (dict(machine.entries.items()), events) == (before, [])
            assert answer.code in errors.BY_CODE
            answer.message.encode()  # the message can be sent to the caller
        elif not client:  # others may get the answer to an earlier command
            assert answer.revision == machine.revision
            cmd.encode_envelope(cmd.Envelope(cmd.VERSION, b"", 0, 0, command))  # and it could have been in a log


@pytest.mark.parametrize(
    "command",
    [
        cmd.Put("", b""),
        cmd.Put(LONGEST + "x", b""),
        cmd.Put("/" + "é" * (KEY_MAX // 2), b""),
        cmd.Put("/\ud800", b""),
        cmd.Put("/a", bytes(VALUE_MAX + 1)),
        cmd.PutWithTtl("/a", b"", 0),
        cmd.PutWithTtl("/a", b"", -1),
        cmd.PutWithTtl("/a", b"", limits.METADATA_TTL_MS_MAX + 1),
        cmd.Delete(""),
        cmd.DeletePrefix(""),
        cmd.CompareAndSwap(cmd.Absent("/a"), b"", -1),
        cmd.CompareAndSwap(cmd.Absent("/a"), bytes(VALUE_MAX + 1)),
        cmd.CompareAndSwap(cmd.AtRevision("/a", 2**63), b""),
        cmd.CompareAndSwap(cmd.AtRevision("/a", -1), b""),
        cmd.CompareAndSwap(cmd.HasValue("/a", bytes(VALUE_MAX + 1)), b""),
        cmd.AllocateMonotonicId(""),
        cmd.AllocateMonotonicId("x", 0),
        cmd.AllocateMonotonicId("x", limits.METADATA_IDS_PER_COMMAND_MAX + 1),
        cmd.AllocateMonotonicId("x" * KEY_MAX),
        cmd.ExpireTtlKeys([("/a", 1)] * (limits.METADATA_EXPIRE_KEYS_MAX + 1)),
        cmd.ExpireTtlKeys([("/a", 2**64)]),
        cmd.Txn([], [cmd.Put("/a", b"")] * (limits.METADATA_TXN_OPERATIONS_MAX + 1)),
        cmd.Txn([cmd.Absent("/a")] * 1000, [cmd.Put("/a", b"")] * 20, [cmd.Delete("/a")] * 5),
        cmd.Txn([], [cmd.Put("/a", bytes(VALUE_MAX))] * 16),
        cmd.Txn([cmd.HasValue("/a", bytes(VALUE_MAX))] * 16, []),
        cmd.Txn([], [], [cmd.Put("/a", bytes(VALUE_MAX))] * 16),
        cmd.Txn([], [cmd.DeletePrefix("/a/")] * (limits.METADATA_TXN_PREFIXES_MAX + 1)),
        cmd.Txn([], [cmd.Put("/good", b""), cmd.Put("", b"")]),
        cmd.Txn([cmd.Absent("")], []),
    ],
)
def test_a_command_beyond_a_bound_is_rejected_and_changes_nothing(command: cmd.Command) -> None:
    machine = StateMachine()
    apply(machine, cmd.Put("/kept", b""))
    answer, events = apply(machine, command)
    assert isinstance(answer, cmd.Rejected)
    assert answer.code == "invalid"
    assert len(answer.message) < 400
    assert (machine.revision, len(machine.entries), events) == (1, 1, [])


@pytest.mark.parametrize(
    "command",
    [
        cmd.Put(LONGEST, bytes(VALUE_MAX)),
        cmd.Put("é" * (KEY_MAX // 2), b""),
        cmd.Put("\0", b""),
        cmd.PutWithTtl("/a", b"", limits.METADATA_TTL_MS_MAX),
        cmd.CompareAndSwap(cmd.AtRevision("/a", 2**63 - 1), bytes(VALUE_MAX)),
        cmd.AllocateMonotonicId("x" * (KEY_MAX - len(cmd.COUNTERS)), limits.METADATA_IDS_PER_COMMAND_MAX),
        cmd.ExpireTtlKeys([(LONGEST, 1)] * limits.METADATA_EXPIRE_KEYS_MAX),
        cmd.Txn([], [cmd.Put("/a", b"")] * limits.METADATA_TXN_OPERATIONS_MAX),
        cmd.Txn([], [cmd.Put("/a", bytes(VALUE_MAX - 2))] * 16),
        cmd.Txn([], [cmd.DeletePrefix("/a/")] * limits.METADATA_TXN_PREFIXES_MAX),
    ],
)
def test_a_command_at_its_bounds_is_applied_and_fits_the_log(command: cmd.Command) -> None:
    assert isinstance(apply(StateMachine(), command).answer, cmd.Done)
    size = len(cmd.encode_envelope(cmd.Envelope(cmd.VERSION, bytes(64), 2**63 - 1, 2**53, command)))
    assert size <= limits.METADATA_COMMAND_BYTES_MAX <= limits.RECORD_BYTES_TARGET


@pytest.mark.parametrize(
    "command",
    [
        cmd.Put("/counters/x", b"1"),
        cmd.PutWithTtl("/counters/x", b"1", 5),
        cmd.Delete("/counters/x"),
        cmd.DeletePrefix("/counters/"),
        cmd.DeletePrefix("/counters/x"),
        cmd.DeletePrefix("/count"),
        cmd.DeletePrefix("/"),
        cmd.CompareAndSwap(cmd.Absent("/counters/x"), b"1"),
        cmd.Txn([], [cmd.Delete("/counters/x")]),
    ],
)
def test_only_the_counter_command_writes_to_a_counter(command: cmd.Command) -> None:
    """A counter that is set back would give the same id twice."""
    machine = StateMachine()
    apply(machine, cmd.AllocateMonotonicId("x", 7))
    assert isinstance(apply(machine, command).answer, cmd.Rejected)
    assert apply(machine, cmd.AllocateMonotonicId("x")).answer == cmd.Done(2, first_id=8)


@pytest.mark.parametrize(
    ("client", "sequence"), [(bytes(65), 1), (b"c", -1), (b"c", 2**63)], ids=["long name", "below 0", "64 bits"]
)
def test_invalid_client_identities_are_refused(client: bytes, sequence: int) -> None:
    machine = StateMachine()
    applied = machine.apply(cmd.Envelope(cmd.VERSION, client, sequence, 0, cmd.Put("/a", b"")))
    assert isinstance(applied.answer, cmd.Rejected)
    assert (machine.clients, machine.revision) == ({}, 0)
    assert refused_identity(bytes(64), 2**63 - 1) is None


def test_validation_and_state_machine_agree() -> None:
    assert refusal(cmd.Put("/a", b"")) is None
    assert refusal(cmd.Put("", b"")) == apply(StateMachine(), cmd.Put("", b"")).answer
