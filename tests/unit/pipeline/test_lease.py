"""The lease of the driver, on a clock that moves when told."""

from __future__ import annotations

import asyncio

import pytest

from icestream import errors
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import LeaseRecord
from icestream.metadata.store import MemoryStore
from icestream.pipeline.driver.lease import DriverLease
from icestream.runtime.clock import SimulatedClock

pytestmark = pytest.mark.asyncio
TTL = 15.0


async def pass_time(clock: SimulatedClock, seconds: float) -> None:
    """Advances the clock in steps, so that sleeping tasks run in between."""
    for _ in range(int(seconds)):
        clock.advance(1.0)
        for _ in range(20):
            await asyncio.sleep(0)


async def holder(store: MemoryStore) -> int | None:
    entry = await store.get(catalog_keys.LEASE)
    return None if entry is None else catalog_records.decode(LeaseRecord, catalog_keys.LEASE, entry).epoch


async def test_the_lease_is_held_as_long_as_it_is_renewed() -> None:
    clock = SimulatedClock()
    store = MemoryStore(clock)
    lease = DriverLease(store, clock)
    with pytest.raises(errors.LeaseLost):
        lease.check()
    await lease.acquire()
    await pass_time(clock, 10 * TTL)
    assert lease.check() == await holder(store)
    await lease.release()
    assert await holder(store) is None
    assert not lease.is_held
    await store.close()


async def test_a_second_driver_waits_until_the_first_lease_has_expired() -> None:
    clock = SimulatedClock()
    store = MemoryStore(clock)
    first, second = DriverLease(store, clock, "a"), DriverLease(store, clock, "b")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    await pass_time(clock, 3 * TTL)
    assert not waiting.done()
    assert first._renewing is not None
    first._renewing.cancel()  # as if it stood still
    await pass_time(clock, 2 * TTL)
    await waiting
    assert not first.is_held
    assert second.check() > first.epoch
    await second.release()
    await store.close()


async def test_a_stopped_holder_knows_that_the_lease_is_lost_before_another_has_it() -> None:
    clock = SimulatedClock()
    store = MemoryStore(clock)
    lease = DriverLease(store, clock)
    await lease.acquire()
    assert lease._renewing is not None
    lease._renewing.cancel()
    clock.advance(TTL - 0.001)
    assert lease.is_held
    assert await holder(store) == lease.epoch
    clock.advance(0.001)
    assert not lease.is_held
    await store.close()


async def test_the_next_child_of_a_broker_need_not_wait() -> None:
    clock = SimulatedClock()
    store = MemoryStore(clock)
    first, second = DriverLease(store, clock, "node-1/child"), DriverLease(store, clock, "node-1/child")
    await first.acquire()
    await second.acquire()
    assert await holder(store) == second.epoch
    await pass_time(clock, TTL)
    assert not first.is_held
    await first.release()
    assert await holder(store) == second.epoch
    await second.release()
    await store.close()


async def test_the_epoch_is_above_that_of_any_holder_in_between() -> None:
    """Otherwise the broker and the catalog would refuse the holder's requests for ever."""
    clock = SimulatedClock()
    store = MemoryStore(clock)
    first, second, third = (DriverLease(store, clock) for _ in range(3))
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    await pass_time(clock, 1)
    await first.release()
    await third.acquire()
    await third.release()
    await pass_time(clock, TTL)
    await waiting
    assert second.epoch > third.epoch > first.epoch
    await second.release()
    await store.close()


async def test_a_cancelled_release_can_be_repeated() -> None:
    clock = SimulatedClock()
    store = MemoryStore(clock)
    lease = DriverLease(store, clock)
    await lease.acquire()
    giving = asyncio.create_task(lease.release())
    await asyncio.sleep(0)
    giving.cancel()
    await asyncio.gather(giving, return_exceptions=True)
    assert not lease.is_held
    assert await holder(store) is not None
    await lease.release()
    assert await holder(store) is None
    await store.close()


async def test_nodes_of_a_cluster_hold_separate_leases_with_distinct_epochs() -> None:
    clock = SimulatedClock()
    store = MemoryStore(clock)
    leases = [DriverLease(store, clock, name=name) for name in ("", "00000000000000aa", "00000000000000bb")]
    for lease in leases:
        await lease.acquire()
    assert len({lease.check() for lease in leases}) == 3
    for lease in leases:
        await lease.release()
    await store.close()
