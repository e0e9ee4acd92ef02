"""Hazard 5: the end of the log against a damaged middle, on the real scanner and recovery.

plain power loss    never refuses a start, never loses what was acked, never brings back what was gone before
a flipped bit       before the last synced batch is reported with file, position and command, or changes nothing
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icestream import errors
from icestream.model import ShardKey, SyncMode
from icestream.runtime.simulated_disk import Crash, SimulatedDisk
from icestream.wal import format as wire
from icestream.wal.appender import Placed
from icestream.wal.format import RECORDS_START
from icestream.wal.log_file import SEAL_POSITION, SECTOR, log_name, log_number
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.held_sink import HeldSink
from tests.support.hypothesis_effort import HALF, QUARTER
from tests.support.machine import A, B, Machine, batch, messages, publish, settle, turn, undeclared

# As every LogDamaged of a start must read: which file, where in it, what to do.
NAMES_THE_PLACE = re.compile(r"log-\d{16}\.wal is damaged at position \d+: .*icestream wal repair")


# --- plain power loss -------------------------------------------------------------------------------------------------


@dataclass
class ProcessRunPlan:
    """One run between two starts: the record sizes of each tick, and how many disk steps follow each."""

    ticks: list[list[int]]
    steps: list[int]
    recycles: bool
    crashes: list[tuple[int, bool]]  # during the next start: after how many operations, and whether power goes too


@dataclass
class EndOfLogModel:
    """The acks that producers got, and the messages that each start showed."""

    sent: int = 0
    acked: dict[tuple[ShardKey, int], bytes] = field(default_factory=dict)
    gone: set[bytes] = field(default_factory=set)  # sent, and absent after some start
    payloads: set[bytes] = field(default_factory=set)
    floors: dict[ShardKey, int] = field(default_factory=dict)

    async def check_start(self, log: WriteAheadLog) -> None:
        there: set[bytes] = set()
        for key in log.state.shards:
            stored = await messages(log, key)
            floor = self.floors.get(key, 0)
            for (where, offset), payload in self.acked.items():
                if where == key and offset >= floor:
                    assert stored.get(offset) == payload, f"acked at {offset} of {key}, now {stored.get(offset)!r:.20}"
            assert undeclared(log, key, stored) == []
            numbers = [int(stored[offset].split(b".")[0]) for offset in sorted(stored)]
            assert numbers == sorted(set(numbers)), "order changed, or a message is there twice"
            there |= set(stored.values())
        assert not there & self.gone, "a message that was gone came back"
        below_floor = {payload for (key, offset), payload in self.acked.items() if offset < self.floors.get(key, 0)}
        self.gone |= self.payloads - there - below_floor


LIVES = st.lists(
    st.builds(
        ProcessRunPlan,
        ticks=st.lists(
            # equal sizes make new records end where old ones did
            st.one_of(st.lists(st.just(400), min_size=1, max_size=4), st.lists(st.integers(0, 7000), max_size=4)),
            min_size=1, max_size=14,
        ),
        steps=st.lists(st.integers(0, 3), min_size=14, max_size=14),
        recycles=st.booleans(),
        crashes=st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=2),
    ),
    min_size=1, max_size=4,
)  # fmt: skip


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


@HALF
@given(seed=st.integers(0, 2**32), align=st.sampled_from([8, 512]), filled=st.booleans(), lives=LIVES)
def test_hazard_05_power_loss_never_refuses_loses_or_resurrects(
    seed: int, align: int, filled: bool, lives: list[ProcessRunPlan]
) -> None:
    run(check_lives(Machine(seed, align_bytes=align), EndOfLogModel(), lives, filled=filled))


async def check_lives(machine: Machine, model: EndOfLogModel, lives: list[ProcessRunPlan], *, filled: bool) -> None:
    if filled:
        await fill_and_recycle(machine, model)
    for life in lives:
        sink = HeldSink()
        log = await machine.start(sink=sink)
        await model.check_start(log)
        await work(log, sink, model, life)
        await machine.power_loss()
        for operations, power in life.crashes:
            machine.disk.crash_after(operations)
            with contextlib.suppress(Crash):
                await machine.start()
            await (machine.power_loss() if power else machine.kill())
    await model.check_start(await machine.start())


async def fill_and_recycle(machine: Machine, model: EndOfLogModel) -> None:
    """Leaves spare files that are full of good records of older generations."""
    log = await machine.start()
    for _ in range(40):
        await publish(log, A, payload(model, 400 if model.sent % 2 else 6000))
    model.floors[A] = log.shard(*A).synced
    await log.advance_floor(model.floors)
    await log.checkpoint()
    await log.checkpoint()
    model.payloads.clear()
    assert any(name.startswith("spare-") for name in machine.disk.names())
    await machine.kill()


def payload(model: EndOfLogModel, size: int) -> bytes:
    model.sent += 1
    content = b"%08d." % model.sent + bytes(size)
    model.payloads.add(content)
    return content


async def work(log: WriteAheadLog, sink: HeldSink, model: EndOfLogModel, life: ProcessRunPlan) -> None:
    waiting: list[tuple[ShardKey, bytes, asyncio.Future[list[object]]]] = []
    for sizes, steps in zip(life.ticks, life.steps, strict=False):
        for number, size in enumerate(sizes):
            key, content = (A, B)[number % 2], payload(model, size)
            waiting.append((key, content, log.submit([batch(log, key, content)])))
            if number % 2:
                await asyncio.sleep(0)  # another record of the same sync
        await turn(log, sink, steps)
    for key, content, answer in waiting:
        if answer.done():
            (placed,) = answer.result()
            assert isinstance(placed, Placed)
            model.acked[key, placed.base_offset] = content
    if life.recycles:
        floors = {key: shard.synced for key, shard in log.state.shards.items()}
        await log.advance_floor(floors)
        model.floors.update(floors)
        await log.checkpoint()


@pytest.mark.parametrize(
    ("mode", "end"),
    [
        pytest.param(SyncMode.NONE, ["write", "sync", "write", "sync"], id="records and footer, then the seal"),
        pytest.param(SyncMode.ALWAYS, ["sync", "write", "write", "sync"], id="records before, then footer and seal"),
    ],
)
def test_hazard_05_each_file_gets_its_first_record_after_the_one_before_is_synced_and_sealed(
    mode: SyncMode, end: list[str]
) -> None:
    async def fill() -> None:
        log = await machine.start()
        for number in range(60):
            await publish(log, A, b"%d" % number + bytes(5000))

    machine = Machine(mode=mode)
    run(fill())
    done: dict[str, list[str]] = {}
    written: list[str] = []
    for operation, name in machine.disk.operations:
        if not name.startswith("prepare-") or operation not in ("write", "sync"):
            continue
        done.setdefault(name, []).append(operation)
        if len(done[name]) <= 2:
            continue  # its header page, before it has its name
        if name not in written:
            for before in written:
                assert done[before][-4:] == end
            written.append(name)
        assert name == written[-1], f"{operation} of {name} after {written[-1]} was begun"
    assert len(written) > 4


# --- flips ------------------------------------------------------------------------------------------------------------


@dataclass
class WrittenLog:
    """A log whose every record was synced on its own, as bytes; and what is in it."""

    files: dict[str, bytes]
    stored: dict[ShardKey, dict[int, bytes]]
    ends: dict[str, int]  # of each file: the first byte of which a flip leaves no evidence

    def machine(self) -> Machine:
        machine = Machine()
        for name, content in self.files.items():
            machine.disk.replace(name, content)
        return machine

    def is_last_batch(self, name: str, position: int) -> bool:
        return name in self.ends and position >= self.ends[name]


async def write_log(*, checkpoint: bool, recycled: bool) -> WrittenLog:
    """Three files or more; the last one unsealed, as after kill -9."""
    machine, model = Machine(), EndOfLogModel()
    if recycled:
        await fill_and_recycle(machine, model)
    log = await machine.start()
    for number in range(24):
        await publish(log, A, payload(model, 5000 if number % 3 else 400))
        await publish(log, B, payload(model, 400), payload(model, 0))
        if checkpoint and number == 12:
            await log.checkpoint()
    stored = {key: await messages(log, key) for key in (A, B)}
    active = log.appender.file
    assert active is not None
    await machine.kill()
    files = {name: machine.disk.content(name) for name in machine.disk.names() if name != "LOCK"}
    name = next(name for name in files if log_number(name) == active.number)
    return WrittenLog(files, stored, {name: records(files[name], active.number)[-1]})


def records(content: bytes, number: int) -> list[int]:
    """The positions of the records in a file."""
    positions, at = [], wire.RECORDS_START
    while True:
        try:
            header = wire.decode_header(content, at, at)
        except errors.DecodeError:
            return positions
        if header.generation != number or header.kind != wire.RecordKind.DATA:
            return positions
        positions.append(at)
        at += header.record_bytes


async def check_flip(written: WrittenLog, name: str, bit: int) -> str:
    """Flips, starts and reads everything: "reported" or "harmless", anything else fails."""
    machine = written.machine()
    machine.disk.flip(name, bit)
    where = f"{name} bit {bit} (position {bit >> 3})"
    log = await machine.try_start()
    if not isinstance(log, WriteAheadLog):
        assert isinstance(log, errors.FormatUnknown) or NAMES_THE_PLACE.search(str(log)), f"{where}: {log}"
        return "reported"
    for key, expected in written.stored.items():
        try:
            stored = await messages(log, key)
        except errors.LogDamaged:
            return "reported"
        for offset, value in stored.items():
            assert expected.get(offset) == value, f"{where}: offset {offset} of {key} has other bytes"
        if written.is_last_batch(name, bit >> 3):
            continue
        missing = sorted(set(expected) - set(stored))
        assert not missing, f"{where}: {len(missing)} acked messages of {key} are gone and not reported"
    return "harmless"


async def check_flips(written: WrittenLog, flips: list[tuple[str, int]]) -> dict[str, int]:
    count: dict[str, int] = {}
    for name, bit in flips:
        answer = await check_flip(written, name, bit)
        count[answer] = count.get(answer, 0) + 1
    return count


@pytest.fixture(scope="module")
def written() -> WrittenLog:
    return asyncio.run(write_log(checkpoint=False, recycled=False))


@pytest.fixture(scope="module")
def written_with_past() -> WrittenLog:
    """With a checkpoint in the middle, and in files that are full of older records."""
    return asyncio.run(write_log(checkpoint=True, recycled=True))


# Fields that say how long something is or where it stands: (start, size) in a record header and in a section entry.
HEADER_LENGTHS = ((40, 4), (44, 4), (48, 4), (52, 4))
ENTRY_LENGTHS = ((40, 4), (44, 4), (48, 4), (52, 4))


def test_hazard_05_a_flip_in_any_length_field_is_reported(written: WrittenLog) -> None:
    flips: list[tuple[str, int]] = []
    for name, content in written.files.items():
        number = log_number(name)
        starts = records(content, number) if number else []
        for at in starts[:1] + starts[3:5]:
            if written.is_last_batch(name, at):
                continue
            fields = [at + start for start, _ in HEADER_LENGTHS]
            entry = at + wire.HEADER_BYTES
            fields += [entry + start for start, _ in ENTRY_LENGTHS]
            flips += [(name, 8 * position + bit) for position in fields for bit in (0, 3, 7, 12, 19, 31)]
    assert len(flips) > 250
    assert set(asyncio.run(check_flips(written, flips))) == {"reported"}


def test_hazard_05_a_flip_in_the_first_page_of_a_file_is_reported_or_harmless(
    written: WrittenLog, written_with_past: WrittenLog
) -> None:
    for log in (written, written_with_past):
        names = [name for name in log.files if log_number(name)]
        flips = [
            (name, 8 * at + 8 * byte) for name in names for at in (0, SEAL_POSITION) for byte in range(0, SECTOR, 27)
        ]
        count = asyncio.run(check_flips(log, flips))
        assert count["reported"] > 0, "a header sector that does not fit is never believed"
        assert count["harmless"] > 0, "a seal is found again from the records"


@given(data=st.data())
def test_hazard_05_a_flip_anywhere_before_the_last_batch_is_reported_or_harmless(
    written: WrittenLog, written_with_past: WrittenLog, data: st.DataObject
) -> None:
    log = data.draw(st.sampled_from([written, written_with_past]), label="which log")
    name = data.draw(st.sampled_from(sorted(log.files)), label="file")
    bit = data.draw(st.integers(0, 8 * len(log.files[name]) - 1), label="bit")
    assert asyncio.run(check_flip(log, name, bit)) in ("reported", "harmless")


def test_hazard_05_most_flips_among_the_records_are_reported(written: WrittenLog) -> None:
    """The measure of the rule: all but those in the very last batch (and in bytes that mean nothing)."""
    name, content = max((name, content) for name, content in written.files.items() if log_number(name) == 1)
    starts = records(content, 1)
    flips = [(name, 8 * position + 5) for position in range(starts[0], starts[-1], 197)]
    count = asyncio.run(check_flips(written, flips))
    assert count["reported"] > 0.95 * len(flips), count


# --- zeros, and what lies behind the end ------------------------------------------------------------------------------


def test_hazard_05_a_zeroed_header_is_not_a_record(written: WrittenLog) -> None:
    async def check() -> None:
        (active,) = written.ends
        content = written.files[active]
        starts = records(content, log_number(active) or 0)
        assert len(starts) > 3

        middle = written.machine()
        middle.disk.replace(active, content[: starts[1]] + bytes(64) + content[starts[1] + 64 :])
        with pytest.raises(errors.LogDamaged, match=f"damaged at position {starts[1]}"):
            await middle.start()

        last = written.machine()
        last.disk.replace(active, content[: starts[-1]] + bytes(64) + content[starts[-1] + 64 :])
        log = await last.start()
        assert await messages(log, A) == written.stored[A]
        assert len(written.stored[B]) - len(await messages(log, B)) == 2, "the last batch: no log can tell"

    run(check())


@example(zeros=64)
@given(zeros=st.integers(1, 5000))
@QUARTER
def test_hazard_05_a_file_of_zeros_has_no_records(zeros: int) -> None:
    async def check() -> None:
        machine = Machine()
        log = await machine.start()
        await machine.kill()
        name = "log-0000000000000001.wal"
        content = machine.disk.content(name)
        machine.disk.replace(name, (content[: wire.RECORDS_START] + bytes(zeros)).ljust(len(content), b"\0"))
        log = await machine.start()
        assert log.state.lsn == 0
        assert log.report.tail_bytes == 0

    run(check())


def test_hazard_05_the_report_names_the_torn_tail_that_was_cut() -> None:
    async def check() -> None:
        machine, sink = Machine(), HeldSink()
        log = await machine.start(sink=sink)
        log.submit([batch(log, A, b"kept")])
        await turn(log, sink)
        log.submit([batch(log, A, b"torn" + bytes(3000))])
        await turn(log, sink, 1)
        await machine.kill()
        name = "log-0000000000000001.wal"
        start = records(machine.disk.content(name), 1)[1]
        machine.disk.flip(name, 8 * (start + 1000))
        log = await machine.start()
        assert (log.report.tail_file, log.report.tail_position) == (name, start)
        assert log.report.tail_bytes > 100
        assert await messages(log, A) == {0: b"kept"}
        assert await publish(log, A, b"next") == 1

    run(check())


# --- damage that meets an earlier failed write ------------------------------------------------------------------------


def test_hazard_05_a_flip_in_the_seal_of_a_file_that_a_failed_write_ended_neither_loses_nor_resurrects() -> None:
    """Behind such a seal whole records can stand that were rolled back; their LSNs were given to others since."""

    async def check() -> None:
        machine, sink = Machine(), HeldSink()
        log = await machine.start(sink=sink)
        await acked(log, sink, A, b"first")
        taken_back = []
        for value in (b"never acked", b"torn" + bytes(3000)):
            taken_back.append(log.submit([batch(log, A, value)]))
            await turn(log, sink, 0)
        machine.disk.chance = PrefixAligned()  # type: ignore[assignment]
        machine.disk.fail("write", errno.ENOSPC)
        await turn(log, sink)
        assert all(isinstance(answer.exception(), errors.OutcomeUnknown) for answer in taken_back)
        await acked(log, sink, B, b"second")
        await acked(log, sink, B, b"third")
        await acked(log, sink, B, b"the last batch")
        await machine.kill()
        machine.disk.flip("log-0000000000000001.wal", 8 * (SEAL_POSITION + 20))
        started = await machine.try_start()
        if not isinstance(started, WriteAheadLog):
            assert "icestream wal repair" in str(started)
            return
        assert await messages(started, A) == {0: b"first"}
        stored = await messages(started, B)
        assert {offset: stored.get(offset) for offset in (0, 1)} == {0: b"second", 1: b"third"}

    run(check())


@pytest.mark.parametrize("stopped", [True, False], ids=["with a footer", "without"])
def test_hazard_05_a_lost_seal_does_not_turn_a_torn_start_of_the_next_file_into_damage(stopped: bool) -> None:
    """The records missing between two files stood at the start of the second, and no sync had reached them."""

    async def check() -> None:
        machine, sink = Machine(), HeldSink()
        log = await machine.start(sink=sink)
        await acked(log, sink, A, b"first")
        if stopped:
            closing = asyncio.ensure_future(log.close())
            await turn(log, sink)
            await closing
            log = await machine.start(sink=(sink := HeldSink()))
        else:
            machine.disk.fail("write", errno.ENOSPC)
            log.submit([batch(log, A, b"taken back")])
            await turn(log, sink)
        for value in (b"torn", b"whole"):
            log.submit([batch(log, A, value)])
            await settle()
        assert await turn(log, sink, 1) == 1, "both are written, and not synced"
        assert log.appender.file is not None
        name = log_name(log.appender.file.number)
        await machine.kill()
        machine.disk.flip("log-0000000000000001.wal", 8 * (SEAL_POSITION + 20))
        machine.disk.flip(name, 8 * (RECORDS_START + 20))
        log = await machine.start()
        assert await messages(log, A) == {0: b"first"}
        assert await publish(log, A, b"next") == 1

    run(check())


class PrefixAligned:
    """A source of chance by which a failing write loses only its last bytes."""

    def randint(self, low: int, high: int) -> int:
        return max(low, high - 8)


async def acked(log: WriteAheadLog, sink: HeldSink, key: ShardKey, value: bytes) -> None:
    answer = log.submit([batch(log, key, value)])
    await turn(log, sink)
    assert answer.done()
    answer.result()


def test_hazard_05_a_directory_sync_that_fails_while_a_file_is_freed_does_not_refuse_a_later_start() -> None:
    """A file is reused only after its old name is durably gone: else a power loss shows another file's header in it."""

    async def check(operations: int) -> bool:
        machine = Machine(seed=operations)
        log = await machine.start()
        stored = {await publish(log, A, bytes(7000)): bytes(7000) for _ in range(20)}
        await log.checkpoint()
        await log.checkpoint()
        fail_next_directory_sync(machine.disk, after_renames_of="log-")
        await log.advance_floor({A: 12})
        machine.disk.crash_after(operations)

        async def go_on() -> None:
            for _ in range(20):
                stored[await publish(log, A, bytes(7000))] = bytes(7000)

        survived = await machine.survives(go_on())
        await machine.power_loss()
        log = await machine.start()
        recovered = await messages(log, A)
        assert {offset: recovered.get(offset) for offset in stored if offset >= 12} == {
            offset: value for offset, value in stored.items() if offset >= 12
        }
        return survived

    operations = 0
    while not asyncio.run(check(operations)):
        operations += 1
    assert operations > 30


def fail_next_directory_sync(disk: SimulatedDisk, *, after_renames_of: str) -> None:
    """The directory sync that should make the next such rename durable fails once."""
    rename = disk.rename

    def renamed(old: str, new: str) -> None:
        rename(old, new)
        if old.startswith(after_renames_of) and not failed_renames:
            failed_renames.append(old)
            disk.fail("sync_directory", errno.EIO)

    failed_renames: list[str] = []
    disk.rename = renamed  # type: ignore[method-assign]
