"""Hazard 16 on a file system of a few MiB: it fills up, refuses, drains and goes on, and nothing acked is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from icestream import errors
from icestream.limits import CHECKPOINT_EVERY_BYTES, KIB, MIB
from icestream.model import envelope
from icestream.model.block import encode_block
from icestream.model.sync_mode import SyncMode
from icestream.wal.log_options import LogOptions
from icestream.wal.open_log import open_log
from tests.process.conftest import MakeDisk, Start
from tests.support.acked_messages import RETRY_SECONDS, WAIT_SECONDS, AckedMessages
from tests.support.process_run import ProcessRun
from tests.support.small_disk import SmallDisk

DISK_BYTES = 24 * MIB
PLENTY = 1 << 40


def options(mode: SyncMode = SyncMode.ALWAYS, **more: int) -> LogOptions:
    """No quota stands in the way: the disk is the bound."""
    fields = {"file_bytes": MIB, "spare_files": 1, "quota_bytes": PLENTY, "topic_quota_bytes": PLENTY} | more
    return LogOptions(mode=mode, **fields)


async def reopened(disk: SmallDisk, keeper: AckedMessages, chosen: LogOptions) -> None:
    """Stops the log in order and opens it again."""
    await keeper.log.close()
    keeper.attach(await open_log(disk.path / "log", chosen))


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", list(SyncMode))
# To the last block, and with a rest that is too small for a log file.
@pytest.mark.parametrize("disk_bytes", [DISK_BYTES, DISK_BYTES + 300 * KIB])
# A checkpoint now and then while it fills, and none before it is full.
@pytest.mark.parametrize("checkpoint_every_bytes", [2 * MIB, CHECKPOINT_EVERY_BYTES])
async def test_hazard_16_a_full_disk_refuses_drains_and_resumes(
    make_disk: MakeDisk, mode: SyncMode, disk_bytes: int, checkpoint_every_bytes: int
) -> None:
    disk = make_disk(disk_bytes)
    chosen = options(mode, checkpoint_every_bytes=checkpoint_every_bytes)
    keeper = AckedMessages(await open_log(disk.path / "log", chosen))
    refusal = await keeper.fill()
    assert isinstance(refusal, errors.DiskFull), repr(refusal)
    assert sum(map(len, keeper.acked.values())) > disk_bytes // 2
    await keeper.check()

    floor = len(keeper.acked) * 3 // 4
    await keeper.drain(floor)
    for _ in range(100):
        await keeper.send_patiently()
    await keeper.check(floor)

    await reopened(disk, keeper, chosen)
    assert keeper.log.report.clean
    await keeper.check(floor)
    await keeper.send_patiently()
    await keeper.check(floor)
    await keeper.log.close()


@pytest.mark.asyncio
async def test_hazard_16_draining_a_full_disk_uses_the_ballast(make_disk: MakeDisk) -> None:
    disk = make_disk(DISK_BYTES)
    chosen = options(ballast_bytes=5 * MIB)
    keeper = AckedMessages(await open_log(disk.path / "log", chosen))
    refusal = await keeper.fill()
    assert isinstance(refusal, errors.DiskFull), repr(refusal)
    for _ in range(3):
        # as the pipeline does: data files and metadata first, and only then the log becomes smaller
        (disk.path / "round").write_bytes(bytes(4 * MIB))
        await keeper.drain(len(keeper.acked))
        (disk.path / "round").unlink()  # a warehouse elsewhere would not even need it
        for _ in range(50):
            await keeper.send_patiently()
        assert not keeper.log.lifecycle.ballast.is_released
        assert isinstance(await keeper.fill(), errors.DiskFull)
    await keeper.log.close()
    keeper.attach(await open_log(disk.path / "log", chosen))
    await keeper.check(keeper.shard.floor)
    await keeper.log.close()


@pytest.mark.asyncio
async def test_hazard_16_space_freed_by_others_is_used(make_disk: MakeDisk) -> None:
    disk = make_disk(DISK_BYTES)
    ballast = disk.path / "ballast"
    ballast.write_bytes(bytes(16 * MIB))
    keeper = AckedMessages(await open_log(disk.path / "log", options()))
    assert isinstance(await keeper.fill(), errors.DiskFull)
    ballast.unlink()
    for _ in range(100):
        await keeper.send_patiently()
    await reopened(disk, keeper, options())
    await keeper.check()
    await keeper.log.close()


@pytest.mark.asyncio
async def test_hazard_16_all_appends_waiting_for_room_are_refused_too(make_disk: MakeDisk) -> None:
    """A producer that waits behind others must not wait for ever when those are refused."""
    disk = make_disk(6 * MIB)
    keeper = AckedMessages(await open_log(disk.path / "log", options(in_flight_bytes=200 * KIB)))
    batch = keeper.log.batch(keeper.shard, encode_block(1, {envelope.PAYLOAD: [bytes(60_000)]}))

    async def produce() -> None:
        while True:
            await keeper.log.append([batch])

    producers = [asyncio.create_task(produce()) for _ in range(16)]
    ended = await asyncio.wait_for(asyncio.gather(*producers, return_exceptions=True), WAIT_SECONDS)
    assert [type(end) for end in ended] == [errors.DiskFull] * len(producers)
    await keeper.log.close()


@pytest.mark.asyncio
async def test_hazard_16_a_log_on_a_full_disk_can_be_closed_while_an_append_waits(make_disk: MakeDisk) -> None:
    disk = make_disk(10 * MIB)
    ballast = disk.path / "ballast"
    ballast.write_bytes(bytes(4 * MIB))
    keeper = AckedMessages(await open_log(disk.path / "log", options(spare_files=0)))
    await keeper.fill()
    batch = keeper.log.batch(keeper.shard, encode_block(1, {envelope.PAYLOAD: [bytes(120_000)]}))
    answer = keeper.log.submit([batch])
    await asyncio.sleep(0)
    # an append tries to make a file, but not so soon after the last try
    while not keeper.log.lifecycle.preparing:
        with pytest.raises(errors.DiskFull):
            await answer
        await asyncio.sleep(RETRY_SECONDS)
        answer = keeper.log.submit([batch])
        await asyncio.sleep(0)
    await asyncio.wait_for(keeper.log.close(), WAIT_SECONDS)
    assert isinstance(answer.exception(), errors.DiskFull)
    ballast.unlink()
    keeper.attach(await open_log(disk.path / "log", options(spare_files=0)))
    await keeper.check()
    await keeper.log.close()


@pytest.mark.parametrize("mode", list(SyncMode))
def test_hazard_16_after_kill_9_on_a_full_disk_the_start_reports_the_reason_and_loses_nothing(
    make_disk: MakeDisk, start: Start, mode: SyncMode
) -> None:
    disk = make_disk(12 * MIB)
    ballast = disk.path / "ballast"
    ballast.write_bytes(bytes(4 * MIB))
    run = ProcessRun(disk.path / "log", 16, start)
    run.choices = {"file_bytes": (MIB,), "quota_bytes": (PLENTY,), "topic_quota_bytes": (PLENTY,), "spare_files": (0,)}
    run.plan.producers = []
    run.plan.disk_fails = True
    run.plan.work = "fill"
    child = run.start(mode)
    run.open(child)
    assert child.wait_for("refused", run.hear)[1] == "disk_full"
    run.kill(child, 0)

    run.plan.work = "look"
    full = run.start(mode)
    for line in full.lines():
        run.hear(line)
        if line[0] in ("closed", "not_opened"):
            break
    assert line[0] == "closed" or line[1] == "disk_full", line
    full.wait()

    ballast.unlink()
    child = run.start(mode)
    run.open(child)
    child.wait_for("closed", run.hear)
    run.history.check_order()
    if mode is SyncMode.ALWAYS:
        run.history.check_no_gaps()
    assert run.history.acks > 100


def test_the_small_disk_has_the_requested_size(make_disk: MakeDisk, tmp_path: Path) -> None:
    disk = make_disk(4 * MIB)
    with pytest.raises(OSError, match="No space left"):
        (disk.path / "more").write_bytes(bytes(5 * MIB))
    (disk.path / "more").unlink()
    assert disk.free_bytes == 4 * MIB
    assert list((tmp_path / "disk0").iterdir()) == [], "the mount is visible outside of its namespace"
