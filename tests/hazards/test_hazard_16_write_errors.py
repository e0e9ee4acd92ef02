"""Hazard 16: a failed write goes back to the last ack, a failed sync stops the node, a full disk has an exit.

The drain reserve (ballast) waits for the pipeline; a real full directory is in tests/process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from dataclasses import dataclass, field

import pytest

from icestream import errors
from icestream.model import ShardKey, SyncMode
from icestream.model.block import Numbering
from icestream.runtime.tasks import InlineOffload
from icestream.wal.appender import Placed
from icestream.wal.producer_sequences import Duplicate
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.held_offload import HeldOffload
from tests.support.held_sink import HeldSink
from tests.support.machine import HANGS_SECONDS, A, B, Machine, batch, messages, publish, settle, turn, undeclared

pytestmark = pytest.mark.asyncio
MODES = pytest.mark.parametrize("mode", list(SyncMode))
PRODUCER = 5
FAILED = (errors.OutcomeUnknown, errors.DiskFull)


@dataclass
class WriteErrorScenario:
    """A fixed run of appends, each repeated until it is stored, and what was acked."""

    machine: Machine
    acked: dict[ShardKey, dict[int, bytes]] = field(default_factory=lambda: {A: {}, B: {}})
    unknown: int = 0
    refused: int = 0

    async def run(self, log: WriteAheadLog) -> None:
        log.state.producers.open(PRODUCER, 1)
        for number in range(6):
            await self.numbered(log, [number])
            await self.plain(log, b"plain %d" % number)
        await self.numbered(log, list(range(6, 26)))  # one request over three files
        for number in range(26, 30):
            await self.numbered(log, [number])
            await self.plain(log, b"plain %d" % number)

    async def numbered(self, log: WriteAheadLog, numbers: list[int]) -> None:
        """Resends under the same numbers until every batch is answered."""
        left = list(numbers)
        for _ in range(10):
            values = {number: b"%d." % number + bytes(6000) for number in left}
            batches = [batch(log, A, values[number], numbering=Numbering(PRODUCER, 1, number)) for number in left]
            try:
                results = await self.answer(log, batches)
            except FAILED as error:
                self.count(error)
                continue
            for number, result in zip(left, results, strict=True):
                if isinstance(result, Placed | Duplicate):
                    assert result.base_offset is not None
                    self.ack(A, result.base_offset, values[number])
                else:
                    assert isinstance(result, errors.DiskFull), result
                    self.count(result)
            left = [number for number, result in zip(left, results, strict=True) if isinstance(result, Exception)]
            if not left:
                return
        raise AssertionError(f"{left} could not be stored in ten tries")

    async def plain(self, log: WriteAheadLog, value: bytes) -> None:
        for _ in range(10):
            try:
                (result,) = await self.answer(log, [batch(log, B, value)])
            except FAILED as error:
                self.count(error)
                continue
            assert isinstance(result, Placed)
            self.ack(B, result.base_offset, value)
            return
        raise AssertionError("could not be stored in ten tries")

    async def answer(self, log: WriteAheadLog, batches: list[object]) -> list[object]:
        self.machine.clock.advance(2)  # a file that could not be made is tried again after a second
        return await asyncio.wait_for(log.append(batches), HANGS_SECONDS)  # type: ignore[arg-type,return-value]

    def count(self, error: errors.IcestreamError) -> None:
        self.unknown += isinstance(error, errors.OutcomeUnknown)
        self.refused += isinstance(error, errors.DiskFull)

    def ack(self, key: ShardKey, offset: int, value: bytes) -> None:
        first_value = self.acked[key].setdefault(offset, value)
        assert first_value == value, f"offset {offset} of {key} was acked for {first_value!r:.12} and for {value!r:.12}"

    async def check(self, log: WriteAheadLog) -> None:
        for key, acked in self.acked.items():
            stored = await messages(log, key)
            lost = {offset: value[:10] for offset, value in acked.items() if stored.get(offset) != value}
            assert not lost, f"{key}: acked, but not there: {lost}"
            assert undeclared(log, key, stored) == []
            assert log.shard(*key).assigned >= len(stored)
        assert list((await messages(log, A)).values()) == [b"%d." % number + bytes(6000) for number in range(30)]


@MODES
async def test_hazard_16_a_write_that_fails_anywhere_loses_no_ack_and_no_offset(mode: SyncMode) -> None:
    after, unknown = 0, 0
    while True:
        machine = Machine(seed=after, mode=mode)
        story = WriteErrorScenario(machine)
        log = await machine.start()
        machine.disk.operations.clear()
        machine.disk.fail("write", errno.ENOSPC, after)
        await story.run(log)
        failed = sum(operation == "write" for operation, _ in machine.disk.operations) > after
        unknown += story.unknown
        assert not log.stopped
        assert log.gaps(A) == log.gaps(B) == [], "offsets that were never acked are assigned again"
        assert [log.shard(*key).assigned for key in (A, B)] == [30, 10]
        await story.check(log)
        await machine.kill()
        log = await machine.start()
        await story.check(log)
        if not failed:
            break
        after += 1
    assert after > 25
    assert unknown > 20, "appends in flight got an unknown outcome"


@MODES
async def test_hazard_16_a_sync_that_fails_anywhere_stops_the_node_and_a_restart_is_clean(mode: SyncMode) -> None:
    after, stops = 0, 0
    while True:
        machine = Machine(seed=after, mode=mode)
        story = WriteErrorScenario(machine)
        log = await machine.start()
        machine.disk.operations.clear()
        machine.disk.fail("sync", errno.ENOSPC, after)
        try:
            await story.run(log)
        except (errors.LogStopped, AssertionError):
            assert log.stopped
        failed = sum(operation == "sync" for operation, _ in machine.disk.operations) > after
        stopped = log.stopped is not None
        stops += stopped
        await machine.kill()
        log = await machine.start()
        assert log.report.sync_failed_before == stopped
        await story.run(log)
        await story.check(log)
        if not failed:
            break
        after += 1
    assert after > 5
    assert stops > 3


@MODES
@pytest.mark.parametrize("seed", range(8))
async def test_hazard_16_nothing_is_written_after_an_error_with_several_records_in_flight(
    mode: SyncMode, seed: int
) -> None:
    chance = random.Random(seed)
    machine, sink = Machine(seed, mode), HeldSink()
    log = await machine.start(sink=sink)
    waiting: list[tuple[bytes, asyncio.Future[list[object]]]] = []
    acked: dict[int, bytes] = {}
    failures = 0
    for number in range(120):
        value = b"%d." % number + bytes(chance.randrange(3000))
        waiting.append((value, log.submit([batch(log, A, value)])))  # type: ignore[arg-type]
        if chance.random() < 0.08:
            machine.disk.heal()  # one at a time: a seal that cannot be written either stops the node
            machine.disk.fail("write", errno.ENOSPC, chance.randrange(2))
        await turn(log, sink, chance.choice((0, 0, 0, 1, 2, 5)))
    machine.disk.heal()
    for _ in range(3):
        machine.clock.advance(2)
        await turn(log, sink)
    for value, answer in waiting:
        assert answer.done(), "every append is answered"
        if isinstance(answer.exception(), FAILED):
            failures += 1
            continue
        (placed,) = answer.result()
        assert isinstance(placed, Placed)
        assert placed.base_offset not in acked
        acked[placed.base_offset] = value
    assert failures > 0
    assert not log.stopped
    for _ in range(2):
        assert await messages(log, A) == acked, "acked, and nothing else: what failed never came back"
        assert list(acked) == list(range(len(acked))), "in the order they were sent, without a hole"
        await machine.kill()
        log = await machine.start()


async def test_hazard_16_appends_waiting_for_room_continue_after_a_failed_write() -> None:
    machine, sink = Machine(in_flight_bytes=7100), HeldSink()
    log = await machine.start(sink=sink)
    first = log.submit([batch(log, A, bytes(7000))])
    await settle()
    assert log.in_flight_bytes > 7100, "records are a little larger than what was asked for"
    second = asyncio.ensure_future(log.append([batch(log, A, b"waits")]))
    await settle()
    machine.disk.fail("write", errno.ENOSPC)
    await turn(log, sink)
    assert isinstance(first.exception(), errors.OutcomeUnknown)
    await turn(log, sink)
    assert second.done(), "the append still waits although nothing is in flight"
    (placed,) = second.result()
    assert placed.base_offset == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", [SyncMode.PERIODIC, SyncMode.NONE])
async def test_hazard_16_a_record_that_was_written_before_a_later_failure_is_acked(mode: SyncMode) -> None:
    """The record stays in the log and its producer goes on: "unknown" would leave a hole in its acks."""
    machine, sink = Machine(mode=mode), HeldSink()
    log = await machine.start(sink=sink)
    log.submit([batch(log, A, b"zero")])
    await turn(log, sink)
    sink.is_report_held = True
    written = log.submit([batch(log, A, b"written")])
    await settle()
    sink.step()
    failed = log.submit([batch(log, A, b"failed")])
    await settle()
    machine.disk.fail("write", errno.ENOSPC)
    sink.step()
    log._on_progress()
    assert isinstance(failed.exception(), errors.OutcomeUnknown)
    (placed,) = written.result()
    assert isinstance(placed, Placed)
    assert await messages(log, A) == {0: b"zero", placed.base_offset: b"written"}


@pytest.mark.parametrize("mode", [SyncMode.PERIODIC, SyncMode.NONE])
async def test_hazard_16_a_sync_after_a_failed_write_completes(mode: SyncMode) -> None:
    machine = Machine(mode=mode)
    log = await machine.start()
    await publish(log, A, b"one")
    await publish(log, A, b"two")
    machine.disk.fail("write", errno.ENOSPC)
    with pytest.raises(errors.OutcomeUnknown):
        await publish(log, A, b"three")
    await asyncio.wait_for(log.sync(), HANGS_SECONDS)
    assert log.shard(*A).synced == 2, "sealing the file early synced what was acked"
    await log.advance_floor({A: 2})


@pytest.mark.parametrize("operation", ["write", "sync"])
@MODES
async def test_hazard_16_a_start_on_a_full_disk_reports_it_and_the_next_one_is_clean(
    mode: SyncMode, operation: str
) -> None:
    after = 0
    while True:
        machine = Machine(seed=after, mode=mode)
        log = await machine.start()
        await publish(log, A, b"one")
        await machine.kill()
        machine.disk.operations.clear()
        machine.disk.fail(operation, errno.ENOSPC, after)
        met = await machine.try_start()
        assert isinstance(met, WriteAheadLog) or met.hint, "an error of ours, which says what to do"
        failed = sum(done == operation for done, _ in machine.disk.operations) > after
        await machine.kill()
        log = await machine.start()
        assert (await messages(log, A))[0] == b"one"
        assert await publish(log, A, b"two") == log.shard(*A).assigned - 1
        assert undeclared(log, A, await messages(log, A)) == []
        if not failed:
            break
        after += 1
    assert after >= 2


@pytest.mark.parametrize("operation", ["write", "sync", "truncate"])
async def test_hazard_16_a_clean_stop_on_a_full_disk_loses_nothing(operation: str) -> None:
    after = 0
    while True:
        machine = Machine(seed=after)
        log = await machine.start()
        stored = {await publish(log, A, b"%d" % number): b"%d" % number for number in range(3)}
        machine.disk.operations.clear()
        machine.disk.fail(operation, errno.ENOSPC, after)
        with contextlib.suppress(errors.IcestreamError):
            await asyncio.wait_for(log.close(), HANGS_SECONDS)
        failed = sum(done == operation for done, _ in machine.disk.operations) > after
        await machine.power_loss()
        log = await machine.start()
        assert await messages(log, A) == stored
        if not failed:
            break
        after += 1
    assert after >= 1


async def test_hazard_16_a_full_disk_refuses_drains_and_accepts_again() -> None:
    machine = Machine()
    log = await machine.start()
    # Less than a file is left in the end, but enough for a checkpoint: without that it needs the drain reserve.
    machine.disk.capacity = machine.disk.used_bytes() + 3 * machine.options.file_bytes + 20_000
    stored: dict[int, bytes] = {}

    async def fill() -> int:
        for number in range(1000):
            value = b"%d." % len(stored) + bytes(5000)
            machine.clock.advance(0.1)
            try:
                stored[await asyncio.wait_for(publish(log, A, value), HANGS_SECONDS)] = value
            except errors.DiskFull:
                return number
        raise AssertionError("the disk never filled")

    assert await fill() > 20
    assert await fill() == 0, "refused at once, again and again"
    for _ in range(3):
        await log.advance_floor({A: log.shard(*A).synced})
        await log.checkpoint()
        await log.checkpoint()
        machine.clock.advance(2)
        assert await fill() > 10, "space came back, and appends went on by themselves"
    readable = await messages(log, A)
    assert readable.items() <= stored.items()
    assert undeclared(log, A, readable) == []
    assert log.gaps(A) == []
    assert log.shard(*A).assigned == len(stored)
    await machine.kill()
    machine.disk.capacity += machine.options.file_bytes  # a start writes the unsealed file anew
    log = await machine.start()
    assert log.shard(*A).assigned == len(stored)


# --- errors at the start, and beside a sync ---------------------------------------------------------------------------


async def unclean(mode: SyncMode, gaps: int = 1) -> Machine:
    """A log that lost its power with numbers promised, seen and not synced."""
    machine = Machine(mode=mode)
    log = await machine.start()
    for number in range(gaps):
        await publish(log, ShardKey(1, number), b"first")
    await log.sync()
    for number in range(gaps):
        await publish(log, ShardKey(1, number), b"seen")
    await machine.power_loss()
    return machine


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("by_descriptor", [False, True])
async def test_hazard_16_a_start_that_cannot_write_its_gaps_fails(steps: int, by_descriptor: bool) -> None:
    """Whichever write of the start fails: either the log starts with the gap on disk, or it does not start."""
    machine = await unclean(SyncMode.PERIODIC)
    machine.disk.fail("write", errno.EIO, steps)
    try:
        log = await machine.start(sink=HeldSink(held=False, by_descriptor=by_descriptor))
    except errors.IcestreamError:
        machine.disk.heal()
        await machine.kill()
        log = await machine.start()
    machine.disk.heal()
    offset = await asyncio.wait_for(publish(log, A, b"another"), HANGS_SECONDS)
    assert offset > 1, "offset 1 was seen with another message"
    assert (await messages(log, A, offset))[offset] == b"another"
    await log.close()


async def test_hazard_16_gaps_that_do_not_fit_a_file_continue_in_the_next() -> None:
    machine = await unclean(SyncMode.PERIODIC, gaps=600)
    log = await machine.start()
    for number in range(600):
        assert log.gaps(ShardKey(1, number)), number
    active = log.appender.file
    assert active is not None
    assert active.position <= active.capacity
    assert all(file.seal.end_position <= machine.options.file_bytes for file in log.lifecycle.files)


async def test_hazard_06_no_sync_succeeds_after_a_failed_one() -> None:
    """The next sync of the kernel would say yes, and have dropped the pages."""
    machine = Machine(mode=SyncMode.PERIODIC)
    log = await machine.start()
    await publish(log, A, b"one")
    await log.sync()
    await publish(log, A, b"two")
    machine.disk.fail("sync", errno.EIO)
    for _ in range(3):
        machine.clock.advance(1.0)
        await settle()
        assert log.stopped
        assert log.shard(*A).synced == 1
    with pytest.raises(errors.LogStopped):
        await log.advance_floor({A: 1})
    with pytest.raises(errors.LogStopped):
        await log.checkpoint()
    await machine.power_loss()
    log = await machine.start()
    assert (await messages(log, A))[0] == b"one"


async def test_hazard_16_a_file_without_valid_records_is_removed() -> None:
    machine = Machine()
    log = await machine.start()
    await publish(log, A, b"x")
    failed = 0
    for _ in range(20):
        machine.disk.fail("write", errno.EIO)
        try:
            await publish(log, A, b"y")
        except errors.OutcomeUnknown:
            failed += 1
        machine.disk.heal()
        machine.clock.advance(2.0)
        await settle()
    await publish(log, A, b"z")
    assert failed >= 10
    assert len([name for name in machine.disk.names() if name.startswith("log-")]) <= 3


async def test_hazard_16_a_follower_never_sees_a_reverted_record() -> None:
    """The reader has the bytes in its hands when the write that made them fails: the record that takes their number
    is the one it must hand out."""
    for seed in range(40):
        machine, sink, reads = Machine(seed=seed), HeldSink(), HeldOffload()
        machine.offload = lambda name, count, reads=reads: reads if name == "wal-reads" else InlineOffload()  # type: ignore[misc]
        log = await machine.start(sink=sink)
        log.submit([batch(log, A, b"zero")])
        await turn(log, sink)
        lost = [log.submit([batch(log, A, value)]) for value in (b"OLD", bytes(7000))]
        await settle()
        machine.disk.fail("write", errno.ENOSPC)
        sink.step()
        follower = log.reader.follow(1)
        reads.hold_results()
        reading = asyncio.ensure_future(anext(follower))
        await settle()
        log._on_progress()
        assert all(isinstance(request.exception(), errors.OutcomeUnknown) for request in lost)
        new = log.submit([batch(log, A, b"NEW")])
        await turn(log, sink)
        assert new.done()
        reads.release()
        seen = [await reading, await asyncio.wait_for(anext(follower), HANGS_SECONDS)]
        lsns = [record[1] for chunk in seen for record in chunk.records]
        assert lsns == [1, 2]
        assert b"NEW" in seen[1].data
        await machine.kill()


@pytest.mark.parametrize("operation", ["write", "sync", "rename"])
async def test_hazard_16_a_failed_checkpoint_leaves_no_file(operation: str) -> None:
    """Each is written at another record, under another name: on a disk that is full they would pile up."""
    machine = Machine()
    log = await machine.start()
    for _ in range(3):
        await publish(log, A, b"x")
        before = machine.disk.names()
        for _ in range(2):  # and once more with the room of the reserve
            machine.disk.fail(operation, errno.EIO)
        await log.checkpoint()
        machine.disk.heal()
        assert machine.disk.names() in (before, [name for name in before if name != "reserve"])
    await log.checkpoint()
    assert len(log.lifecycle.checkpoints) == 2, "the checkpoint of the start, and the one that did not fail"


@pytest.mark.parametrize("after", range(4))
async def test_hazard_16_a_failed_sync_during_close_stops_the_log_and_releases_everything(after: int) -> None:
    machine, sink = Machine(), HeldSink()
    log = await machine.start(sink=sink)
    answer = log.submit([batch(log, A, b"in flight")])
    machine.disk.fail("sync", errno.EIO, after)
    closing = asyncio.ensure_future(log.close())
    await turn(log, sink)
    await asyncio.wait({closing}, timeout=HANGS_SECONDS)
    if log.stopped:
        assert closing.exception() is log.stopped, "a close after a failure reports it"
    else:
        assert closing.exception() is None
    assert answer.done()
    log = await machine.start()
    await publish(log, A, b"next")


async def test_hazard_16_the_quota_counts_a_file_while_it_is_sealed() -> None:
    machine, sink = Machine(), HeldSink()
    log = await machine.start(sink=sink)
    used = []
    for _ in range(12):
        log.submit([batch(log, A, bytes(6000))])
        await settle()
        used.append(log.lifecycle.used_bytes)
    assert log.appender.sealing(), "one file is full, and the disk has done nothing yet"
    assert used == sorted(used)
    assert used[-1] >= 12 * 6000
    await turn(log, sink)
    assert not log.appender.sealing()
    assert abs(log.lifecycle.used_bytes - used[-1]) < 1000


async def test_hazard_16_a_file_whose_seal_was_reverted_is_not_counted() -> None:
    machine, sink = Machine(), HeldSink()
    log = await machine.start(sink=sink)
    for _ in range(12):
        log.submit([batch(log, A, bytes(6000))]).add_done_callback(lambda receipt: receipt.exception())
        await settle()
    assert log.appender.sealing()
    machine.disk.fail("write", errno.ENOSPC)
    await turn(log, sink)
    assert not log.appender.sealing()
    assert log.lifecycle.used_bytes == sum(file.size for file in log.lifecycle.files) < 6000


async def test_hazard_16_the_hot_tail_is_reverted_too() -> None:
    machine, sink = Machine(), HeldSink()
    log = await machine.start(sink=sink)
    await asyncio.gather(publish(log, A, b"kept"), turn(log, sink))
    for value in (b"first of the failed", b"second of the failed"):
        log.submit([batch(log, A, value)])
        await settle()
    machine.disk.fail("write", errno.ENOSPC)
    await turn(log, sink)
    assert log.tail.held_bytes == 0
    machine.clock.advance(2)
    for value in (b"in its place", b"and behind it"):
        await asyncio.gather(publish(log, A, value), turn(log, sink))
    sections = log.tail.read(A, 1, log.shard(*A).written, 10_000)
    assert [section.base_offset for section in sections] == [1, 2]
    assert b"in its place" in sections[0].body
