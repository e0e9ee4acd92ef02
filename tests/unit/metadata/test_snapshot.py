"""Snapshots: the same commands give the same bytes, taken at once or in slices beside others; and back again."""

from __future__ import annotations

import hashlib
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata import snapshot
from icestream.metadata.entry import Entry
from icestream.metadata.snapshot import Frozen, encode_snapshot, load_snapshot
from icestream.metadata.state_machine import StateMachine
from tests.support.hypothesis_effort import HALF, QUARTER
from tests.support.metadata_machine import reader_of
from tests.support.mutations import bit_flips, mutated, truncations


def filled(seed: int, commands: int = 300) -> StateMachine:
    """A machine with some of everything."""
    machine, chance = StateMachine(), random.Random(seed)
    for number in range(commands):
        machine.apply(envelope(chance, number))
    return machine


def envelope(chance: random.Random, number: int) -> cmd.Envelope:
    key = f"/{chance.choice('abc')}/{chance.randrange(40)}"
    command = chance.choice(
        [
            cmd.Put(key, chance.randbytes(chance.randrange(60))),
            cmd.PutWithTtl(key, b"leased", chance.randrange(1, 500)),
            cmd.Delete(key),
            cmd.AllocateMonotonicId(chance.choice("xy")),
            cmd.DeletePrefix(f"{key}/"),
            cmd.Put("", b"rejected"),
        ]
    )
    client = chance.choice([b"", b"one", b"two", chance.randbytes(3)])
    return cmd.Envelope(cmd.VERSION, client, number, number * 10, command)


SMALL = filled(5, 30)
BYTES = encode_snapshot(SMALL)


def loaded_or_refused(data: bytes) -> StateMachine | None:
    try:
        return load_snapshot(reader_of(data))
    except (errors.DecodeError, errors.FormatUnknown):
        return None


# --- the same bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_equal_commands_give_equal_digests(seed: int) -> None:
    first, second = (hashlib.sha256(encode_snapshot(filled(seed))).hexdigest() for _ in range(2))
    assert first == second
    assert first != hashlib.sha256(encode_snapshot(filled(seed + 100))).hexdigest()


@pytest.mark.parametrize("seed", range(5))
def test_a_loaded_state_continues_like_the_original(seed: int) -> None:
    machine = filled(seed)
    twin = load_snapshot(reader_of(encode_snapshot(machine)))
    chance, other = random.Random(seed), random.Random(seed)
    for number in range(200, 400):
        assert twin.apply(envelope(other, number)) == machine.apply(envelope(chance, number))
    assert encode_snapshot(twin) == encode_snapshot(machine)
    assert twin.expired(10**9, 100) == machine.expired(10**9, 100)
    assert twin.size_bytes == machine.size_bytes


@pytest.mark.parametrize(
    "change",
    [
        cmd.Envelope(1, b"", 0, 10**6, cmd.Put("", b"")),  # only the time
        cmd.Envelope(1, b"two", 10**6, 0, cmd.Delete("/none")),  # only a client
        cmd.Envelope(1, b"", 0, 0, cmd.Put("/zzz", b"")),
        cmd.Envelope(1, b"", 0, 0, cmd.PutWithTtl("/a/1", b"leased", 5)),
    ],
)
def test_every_difference_of_state_changes_the_digest(change: cmd.Envelope) -> None:
    machine = load_snapshot(reader_of(BYTES))
    machine.apply(change)
    assert encode_snapshot(machine) != BYTES


def test_the_layout_is_as_documented() -> None:
    machine = StateMachine()
    machine.apply(cmd.Envelope(1, b"c", 9, 1000, cmd.PutWithTtl("/k", b"v", 5)))
    decode = msgspec.msgpack.decode
    data = encode_snapshot(machine)
    assert data[:12] == b"ICESMETA" + (1).to_bytes(4, "little")
    at, chunks = 12, []
    while at < len(data):
        size, kind = (int.from_bytes(data[here : here + 4], "little") for here in (at, at + 4))
        chunks.append((kind, decode(data[at + 8 : at + 8 + size])))
        at += 8 + size
    assert chunks == [
        (1, [1, 1000, 1, 1]),
        (2, [["/k", [b"v", 1, 1, 1, 1005, 0]]]),
        (3, [[b"c", 9, 1000, ["done", 1, True, False, 0]]]),
        (4, None),
    ]


# --- in slices --------------------------------------------------------------------------------------------------------


@HALF
@given(st.integers(0, 2**32), st.integers(1, 7), st.integers(1, 400))
def test_commands_applied_meanwhile_do_not_change_a_snapshot(seed: int, entries: int, size: int) -> None:
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(snapshot, "_SLICE_ENTRIES", entries)
        patched.setattr(snapshot, "_SLICE_BYTES", size)
        machine = filled(chance.randrange(10), 120)
        whole = encode_snapshot(machine)
        frozen = Frozen(machine)
        parts = []
        for part in frozen.slices():
            parts.append(part)
            for number in range(chance.randrange(6)):
                machine.apply(envelope(chance, 1000 + number))
        frozen.end()
        assert b"".join(parts) == whole
        assert frozen.visited_most <= entries
        assert len(frozen._preimages) == 0, "what was passed is not kept"


def test_keys_added_and_removed_before_the_position_cost_a_bounded_slice() -> None:
    machine = StateMachine()
    for number in range(600):
        machine.apply(cmd.Envelope(1, b"", 0, 0, cmd.Put(f"/k/{number:06d}", b"")))
    whole = encode_snapshot(machine)
    frozen = Frozen(machine)
    slices = frozen.slices()
    parts = [next(slices), next(slices)]
    for number in range(3000):
        machine.apply(cmd.Envelope(1, b"", 0, 0, cmd.Put(f"/k/000599/{number}", b"")))
    machine.apply(cmd.Envelope(1, b"", 0, 0, cmd.DeletePrefix("/k/0005")))
    parts += slices
    frozen.end()
    assert b"".join(parts) == whole
    assert frozen.visited_most <= limits.METADATA_SNAPSHOT_SLICE_ENTRIES


def test_large_values_make_small_slices() -> None:
    machine = StateMachine()
    for number in range(100):
        machine.apply(cmd.Envelope(1, b"", 0, 0, cmd.Put(f"/{number}", bytes(limits.METADATA_VALUE_BYTES_MAX))))
    frozen = Frozen(machine)
    largest = max(len(part) for part in frozen.slices())
    frozen.end()
    assert largest < limits.METADATA_SNAPSHOT_SLICE_BYTES + 2 * limits.METADATA_VALUE_BYTES_MAX
    assert encode_snapshot(load_snapshot(reader_of(encode_snapshot(machine)))) == encode_snapshot(machine)


def test_a_finished_snapshot_leaves_no_state() -> None:
    machine = filled(1)
    frozen = Frozen(machine)
    next(frozen.slices())
    frozen.end()
    machine.apply(cmd.Envelope(1, b"", 0, 0, cmd.Put("/zzz", b"")))
    assert machine.keep_preimage is None
    assert encode_snapshot(machine)


# --- hostile bytes ----------------------------------------------------------------------------------------------------


def test_every_cut_is_noticed() -> None:
    assert all(loaded_or_refused(part) is None for part in truncations(BYTES))
    assert loaded_or_refused(BYTES + b"\0") is None
    assert loaded_or_refused(BYTES) is not None


def test_every_flipped_bit_gives_a_state_or_is_refused() -> None:
    """The digest in its name tells whether it is the right one."""
    for _, data in bit_flips(BYTES):
        state = loaded_or_refused(data)
        assert state is None or encode_snapshot(state) != BYTES


@QUARTER
@given(st.one_of(mutated(BYTES), st.binary(max_size=60).map(lambda tail: BYTES[:20] + tail)))
def test_hostile_bytes_are_a_state_or_refused(data: bytes) -> None:
    state = loaded_or_refused(data)
    assert state is None or state.revision >= 0


def test_another_version_is_distinguished_from_garbage() -> None:
    with pytest.raises(errors.FormatUnknown, match="version 2"):
        load_snapshot(reader_of(BYTES[:8] + (2).to_bytes(4, "little") + BYTES[12:]))


@pytest.mark.parametrize(
    ("rows", "revision"),
    [
        ([("/b", Entry(b"", 1, 1, 1, 0)), ("/a", Entry(b"", 1, 1, 1, 0))], 5),
        ([("/a", Entry(b"", 1, 1, 1, 0)), ("/a", Entry(b"", 1, 1, 1, 0))], 5),
        ([("", Entry(b"", 1, 1, 1, 0))], 5),
        ([("/a", Entry(b"", 2, 1, 1, 0))], 5),
        ([("/a", Entry(b"", 0, 1, 1, 0))], 5),
        ([("/a", Entry(b"", 1, 6, 1, 0))], 5),
        ([("/a", Entry(b"", 1, 1, 0, 0))], 5),
        ([("/a", Entry(b"", 1, 1, 1, -1))], 5),
        ([("/a", Entry(b"", 1, 1, 1, 9, -1))], 5),
        ([("/a", Entry(b"", 1, 1, 1, 0, 9))], 5),
    ],
)
def test_entries_that_can_not_be_are_refused(rows: list[tuple[str, Entry]], revision: int) -> None:
    head = snapshot._FRONT.pack(snapshot.MAGIC, 1) + snapshot._chunk(1, (revision, 0, len(rows), 0))
    body = snapshot._chunk(2, rows)
    with pytest.raises(errors.DecodeError):
        load_snapshot(reader_of(head + body + snapshot._chunk(4, None)))
