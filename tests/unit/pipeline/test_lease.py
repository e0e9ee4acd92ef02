"""The lease of the driver, on a clock that moves when told."""

from __future__ import annotations

import asyncio

import pytest

from icestream import errors
from icestream.catalog import keys, records
from icestream.catalog.records import LeaseRecord
from icestream.metadata.store import MemoryStore
from icestream.pipeline.driver.lease import DriverLease
from icestream.runtime.clock import SimulatedClock

pytestmark = pytest.mark.asyncio
TTL = 15.0


async def pass_time(clock: SimulatedClock, seconds: float) -> None:
    """In steps, so that whoever sleeps gets his turns."""
    for _ in range(int(seconds)):
        clock.advance(1.0)
        for _ in range(20):
            await asyncio.sleep(0)


async def holder(store: MemoryStore) -> int | None:
    entry = await store.get(keys.LEASE)
    return None if entry is None else records.decode(LeaseRecord, keys.LEASE, entry).epoch


async def test_it_is_held_as_long_as_it_is_renewed() -> None:
    clock = SimulatedClock()
    store = MemoryStore(clock)
    lease = DriverLease(store, clock)
    with pytest.raises(errors.LeaseLost):
        lease.check()
    await lease.take()
    await pass_time(clock, 10 * TTL)
    assert lease.check() == await holder(store)
    await lease.give_up()
    assert await holder(store) is None
    assert not lease.is_held
    await store.close()


async def test_a_second_one_waits_until_the_first_is_gone() -> None:
    clock = SimulatedClock()
    store = MemoryStore(clock)
    first, second = DriverLease(store, clock, "a"), DriverLease(store, clock, "b")
    await first.take()
    waiting = asyncio.create_task(second.take())
    await pass_time(clock, 3 * TTL)
    assert not waiting.done()
    assert first._renewing is not None
    first._renewing.cancel()  # as if it stood still
    await pass_time(clock, 2 * TTL)
    await waiting
    assert not first.is_held
    assert second.check() > first.epoch
    await second.give_up()
    await store.close()


async def test_who_stands_still_knows_that_it_is_lost_before_another_has_it() -> None:
    clock = SimulatedClock()
    store = MemoryStore(clock)
    lease = DriverLease(store, clock)
    await lease.take()
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
    await first.take()
    await second.take()
    assert await holder(store) == second.epoch
    await pass_time(clock, TTL)
    assert not first.is_held
    await first.give_up()
    assert await holder(store) == second.epoch
    await second.give_up()
    await store.close()
