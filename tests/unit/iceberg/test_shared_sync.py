"""One sync for all waiting requests, and pauses between syncs of a disk that producers write to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection
from pathlib import Path

import pytest

from icestream import limits
from icestream.iceberg.shared_sync import LogDiskMonitor, SharedSync
from icestream.runtime.clock import Clock, SimulatedClock

A, B, C, D = (Path(f"/{name}") for name in "abcd")


class HeldDiskSync:
    """Disk syncs that end when the test releases them."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.begun: list[set[Path]] = []
        self.gates: list[asyncio.Future[bool]] = []
        self.shared = SharedSync(self.sync, clock or SimulatedClock())

    async def sync(self, paths: Collection[Path]) -> bool:
        self.begun.append(set(paths))
        self.gates.append(asyncio.get_running_loop().create_future())
        return await self.gates[-1]

    def ask(self, path: Path) -> asyncio.Task[None]:
        return asyncio.create_task(self.shared.sync([path]))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_requests_during_a_sync_share_the_next_one() -> None:
    disk = HeldDiskSync()
    first = disk.ask(A)
    await settle()
    others = [disk.ask(path) for path in (B, C)]
    await settle()
    assert disk.begun == [{A}]
    disk.gates[0].set_result(False)
    await settle()
    assert first.done()
    assert not any(waiter.done() for waiter in others), "what they wrote may be behind the sync that ran"
    late = disk.ask(D)
    await settle()
    assert disk.begun == [{A}, {B, C}]
    disk.gates[1].set_result(False)
    await asyncio.gather(*others)
    await settle()
    assert disk.begun == [{A}, {B, C}, {D}]
    disk.gates[2].set_result(False)
    await late


@pytest.mark.asyncio
async def test_all_waiters_get_a_failure_and_the_next_sync_is_separate() -> None:
    disk = HeldDiskSync()
    waiting = [disk.ask(path) for path in (A, B)]
    await settle()
    disk.gates[0].set_exception(OSError(5, "no"))
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["[Errno 5] no"] * 2
    again = disk.ask(A)
    await settle()
    disk.gates[1].set_result(False)
    await again


@pytest.mark.asyncio
async def test_a_cancelled_waiter_does_not_cancel_the_sync() -> None:
    disk = HeldDiskSync()
    first, second = disk.ask(A), disk.ask(B)
    await settle()
    first.cancel()
    await settle()
    disk.gates[0].set_result(False)
    await second
    assert first.cancelled()


@pytest.mark.asyncio
async def test_a_disk_that_producers_write_to_rests_between_two_syncs() -> None:
    clock = SimulatedClock()
    disk = HeldDiskSync(clock)
    first = disk.ask(A)
    await settle()
    clock.advance(0.001)
    disk.gates[0].set_result(True)
    await first
    second = disk.ask(B)
    await settle()
    assert len(disk.begun) == 1
    clock.advance(0.001 * limits.CATALOG_SYNC_REST_TIMES - 0.002)
    await settle()
    third = disk.ask(C)
    assert len(disk.begun) == 1
    clock.advance(0.002)
    await settle()
    assert disk.begun[1:] == [{B, C}], "requests during the pause share the next sync"
    clock.advance(10)
    disk.gates[1].set_result(True)
    await asyncio.gather(second, third)
    fourth = disk.ask(D)
    await settle()
    clock.advance(limits.CATALOG_SYNC_REST_NS_MAX / 1e9)
    await settle()
    assert len(disk.begun) == 3, "a sync that took long once does not hold up the next for long"
    disk.gates[2].set_result(False)
    await fourth
    fifth = disk.ask(A)
    await settle()
    assert len(disk.begun) == 4, "no producer writes to this disk: no pause"
    disk.gates[3].set_result(False)
    await fifth


def test_a_log_is_busy_while_messages_arrive_and_only_on_its_disk(tmp_path: Path) -> None:
    disk, here = LogDiskMonitor(tmp_path), {tmp_path.stat().st_dev}
    assert not disk.is_busy(here), "no log at all"
    names = [tmp_path / f"log-{number:020}.wal" for number in (9, 10, 11)]
    for name in names:
        name.write_bytes(b"")
    (tmp_path / "spare-1.wal").write_bytes(b"")
    disk.is_busy(here)
    assert not disk.is_busy(here)
    os.utime(names[1], ns=(5, 5))
    assert not disk.is_busy({-1})
    assert disk.is_busy(here)
    assert not disk.is_busy(here), "not since"
    assert not LogDiskMonitor(tmp_path / "none").is_busy(here)
