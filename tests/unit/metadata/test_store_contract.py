"""What every metadata store promises, whatever is behind it: memory, a log on a simulated disk, a log on this disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry, Event
from icestream.metadata.node_store import NodeStore
from icestream.metadata.open import open_metadata
from icestream.metadata.store import MemoryStore, MetadataStore
from icestream.metadata.watch import Changes, Resync
from icestream.runtime.clock import SimulatedClock
from tests.support.metadata_machine import HANGS_SECONDS, MetadataMachine, settle

pytestmark = pytest.mark.asyncio
Answer = TypeVar("Answer")


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest_asyncio.fixture(params=["memory", "simulated disk", "this disk"])
async def store(request: pytest.FixtureRequest, clock: SimulatedClock, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    metadata_store: MetadataStore
    match request.param:
        case "memory":
            metadata_store = MemoryStore(clock)
        case "simulated disk":
            machine = MetadataMachine(log_file_bytes=8 * limits.MIB)
            machine.clock = clock
            metadata_store = await machine.open()
        case _:
            metadata_store = await open_metadata(tmp_path, clock)
    await metadata_store.ready()
    yield metadata_store
    await metadata_store.close()


async def within(coming: Awaitable[Answer]) -> Answer:
    return await asyncio.wait_for(coming, HANGS_SECONDS)


async def test_a_put_value_is_returned_with_its_revisions(store: MetadataStore) -> None:
    assert await store.get("/a") is None
    assert await store.revision() == 0
    assert await store.put("/a", b"1") == 1
    assert await store.put("/a", b"2") == 2
    assert await store.get("/a") == Entry(b"2", 1, 2, 2, 0)
    assert await store.delete("/a") == 3
    assert await store.delete("/a") == 3
    assert await store.revision() == 3


async def test_keys_are_listed_in_order_and_in_pages(store: MetadataStore) -> None:
    keys = [f"/k/{number:05d}" for number in range(limits.METADATA_LIST_MAX + 5)]
    for start in range(0, len(keys), 500):
        await store.txn([], [cmd.Put(key, b"") for key in keys[start : start + 500]])
    await store.put("/other", b"")
    assert [key for key, _ in await store.list_all("/k/")] == keys
    assert [key for key, _ in await store.list("/k/", limit=2)] == keys[:2]
    assert [key for key, _ in await store.list("/k/", after=keys[1], limit=2)] == keys[2:4]
    assert len(await store.list("/k/", limit=10**6)) == limits.METADATA_LIST_MAX
    assert len(await store.list_all("")) == len(keys) + 1


async def test_a_comparison_reports_whether_it_held(store: MetadataStore) -> None:
    assert await store.compare_and_swap(cmd.Absent("/a"), b"1") == cmd.Done(1)
    assert await store.compare_and_swap(cmd.Absent("/a"), b"2") == cmd.Done(1, held=False)
    assert await store.compare_and_swap(cmd.AtRevision("/a", 1), b"2") == cmd.Done(2)
    assert await store.compare_and_swap(cmd.HasValue("/a", b"1"), b"3") == cmd.Done(2, held=False)


async def test_one_of_many_concurrent_compare_and_swaps_wins(store: MetadataStore) -> None:
    await store.put("/lease", b"")
    done = await asyncio.gather(
        *(store.compare_and_swap(cmd.AtRevision("/lease", 1), b"%d" % number) for number in range(20))
    )
    assert [outcome.held for outcome in done].count(True) == 1


async def test_a_transaction_is_applied_as_a_whole(store: MetadataStore) -> None:
    await store.put("/old", b"x")
    done = await store.txn([cmd.HasValue("/old", b"x")], [cmd.Delete("/old"), cmd.Put("/new", b"x")])
    assert done == cmd.Done(2)
    assert [key for key, _ in await store.list_all("/")] == ["/new"]
    done = await store.txn([cmd.Absent("/new")], [cmd.Delete("/new")], [cmd.Put("/else", b"")])
    assert done == cmd.Done(3, held=False)


async def test_ids_are_allocated_once(store: MetadataStore) -> None:
    firsts = await asyncio.gather(*(store.allocate_id("topic", 3) for _ in range(10)))
    assert sorted(firsts) == list(range(1, 31, 3))
    assert await store.allocate_id("other") == 1


async def test_a_prefix_is_deleted_in_as_many_steps_as_needed(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "METADATA_DELETE_KEYS_MAX", 3)
    await store.txn([], [cmd.Put(f"/a/{number}", b"") for number in range(8)])
    await store.put("/b", b"")
    assert await store.delete_prefix("/a/") == 5
    assert [key for key, _ in await store.list_all("/")] == ["/b"]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda store: store.put("", b""), errors.InvalidInput),
        (lambda store: store.put("/\ud800", b""), errors.InvalidInput),
        (lambda store: store.put("/a", bytes(limits.METADATA_VALUE_BYTES_MAX + 1)), errors.InvalidInput),
        (lambda store: store.put_with_ttl("/a", b"", 2**70), errors.InvalidInput),
        (lambda store: store.compare_and_swap(cmd.AtRevision("/a", 2**70), b""), errors.InvalidInput),
        (lambda store: store.allocate_id("x", 0), errors.InvalidInput),
        (lambda store: store.put("/counters/x", b"garbage"), errors.InvalidInput),
        (lambda store: store.txn([], [cmd.Put("/a", bytes(60_000))] * 1000), errors.InvalidInput),
    ],
)
async def test_invalid_commands_are_refused_and_change_nothing(
    store: MetadataStore, call: Callable[[MetadataStore], Awaitable[object]], error: type[errors.IcestreamError]
) -> None:
    with pytest.raises(error):
        await call(store)
    assert await store.revision() == 0
    assert await store.put("/a", b"") == 1


async def test_a_repeat_under_the_same_number_gets_the_same_answer(store: MetadataStore) -> None:
    command = cmd.AllocateMonotonicId("x")
    first = await store.submit(command, b"me", 1)
    assert await store.submit(command, b"me", 1) == first == cmd.Done(1, first_id=1)
    assert await store.submit(command, b"me", 2) == cmd.Done(2, first_id=2)
    assert isinstance(await store.submit(command, b"me", 1), cmd.Rejected)
    assert isinstance(await store.submit(command, bytes(100), 1), cmd.Rejected)


async def test_a_watch_sees_every_change_in_order(store: MetadataStore) -> None:
    before = await store.put("/a/0", b"")
    watch = store.watch("/a/", before)
    await asyncio.gather(*(store.put(f"/a/{number}", b"%d" % number) for number in range(50)))
    await store.txn([], [cmd.Put("/b", b""), cmd.Delete("/a/7"), cmd.Delete("/a/8")])
    seen = [await within(anext(watch)) for _ in range(51)]
    assert all(isinstance(change, Changes) for change in seen)
    assert [change.revision for change in seen] == list(range(before + 1, before + 52))
    assert seen[-1] == Changes(before + 51, [Event("/a/7", None, before + 51), Event("/a/8", None, before + 51)])


async def test_a_watch_from_before_the_history_gets_a_resync(store: MetadataStore) -> None:
    await store.put("/a", b"")
    watch = store.watch("/", 10**6)
    assert await within(anext(watch)) == Resync(1)


async def test_a_key_with_a_ttl_expires(store: MetadataStore, clock: SimulatedClock) -> None:
    await store.put_with_ttl("/short", b"", 1_000)
    await store.put_with_ttl("/long", b"", 60_000)
    watch = store.watch("/", 2)
    await settle()
    clock.advance(0.990)
    await settle()
    assert await store.get("/short") is not None
    clock.advance(0.011)
    assert await within(anext(watch)) == Changes(3, [Event("/short", None, 3)])
    await settle()
    clock.advance(70)
    assert await within(anext(watch)) == Changes(4, [Event("/long", None, 4)])
    assert await store.list_all("/") == []


async def test_a_renewed_key_is_kept(store: MetadataStore, clock: SimulatedClock) -> None:
    await store.put_with_ttl("/lease", b"", 1_000)
    for _ in range(5):
        await settle()
        clock.advance(0.9)
        await store.put_with_ttl("/lease", b"", 1_000)
    assert await store.get("/lease") is not None
    await store.put("/lease", b"for ever")
    await settle()
    clock.advance(10)
    await settle()
    assert await store.get("/lease") is not None


async def test_hazard_46_a_lease_is_kept_by_renewals_that_write_nothing(
    store: MetadataStore, clock: SimulatedClock
) -> None:
    lease = await store.put_lease(cmd.Absent("/lease"), b"mine", 1_000)
    assert not (await store.put_lease(cmd.Absent("/lease"), b"not mine", 1_000)).held
    written = log_end(store)
    for _ in range(20):
        await settle()
        clock.advance(0.9)
        await settle()
        assert await store.renew("/lease", lease.revision)
    assert (await store.revision(), log_end(store)) == (1, written)
    watch = store.watch("/", 1)
    clock.advance(0.999)
    await settle()
    assert await store.get("/lease") is not None
    clock.advance(0.2)
    assert await within(anext(watch)) == Changes(2, [Event("/lease", None, 2)])
    assert not await store.renew("/lease", lease.revision)


def log_end(store: MetadataStore) -> tuple[int, int]:
    if not isinstance(store, NodeStore):
        return 0, 0
    return store.node.applied_index, store.node._log.plan.planned_bytes


async def test_a_replaced_or_missing_lease_is_not_renewed(store: MetadataStore) -> None:
    first = (await store.txn([], [cmd.PutLease("/lease", b"first", 1_000)])).revision
    second = (await store.txn([], [cmd.PutLease("/lease", b"second", 1_000)])).revision
    assert not await store.renew("/lease", first)
    assert await store.renew("/lease", second)
    assert not await store.renew("/plain", await store.put("/plain", b""))
    assert not await store.renew("/expiring", await store.put_with_ttl("/expiring", b"", 1_000))
    await store.delete("/lease")
    assert not await store.renew("/lease", second)


async def test_a_short_lease_put_later_expires_first(store: MetadataStore, clock: SimulatedClock) -> None:
    await store.txn([], [cmd.PutLease("/long", b"", 60_000)])
    await settle()
    await store.txn([], [cmd.PutLease("/short", b"", 500)])
    watch = store.watch("/", 2)
    await settle()
    clock.advance(0.6)
    assert await within(anext(watch)) == Changes(3, [Event("/short", None, 3)])
    assert await store.get("/long") is not None


async def test_an_earlier_deadline_put_later_is_kept(store: MetadataStore, clock: SimulatedClock) -> None:
    await store.put_with_ttl("/long", b"", 60_000)
    await settle()
    await store.put_with_ttl("/short", b"", 100)
    watch = store.watch("/", 2)
    await settle()
    clock.advance(0.2)
    assert await within(anext(watch)) == Changes(3, [Event("/short", None, 3)])


async def test_setting_the_wall_clock_expires_nothing(store: MetadataStore, clock: SimulatedClock) -> None:
    await store.put_with_ttl("/a", b"", 1_000)
    await settle()
    clock.step(3600)
    await store.put("/b", b"")
    clock.step(-7200)
    await store.put("/b", b"")
    await settle()
    assert await store.get("/a") is not None
    watch = store.watch("/a", 3)
    clock.advance(1.01)
    assert await within(anext(watch)) == Changes(4, [Event("/a", None, 4)])


async def test_calls_after_close_raise(store: MetadataStore) -> None:
    await store.put_with_ttl("/a", b"", 1000)
    watch = store.watch("/", 1)
    waiting = asyncio.ensure_future(anext(watch))
    await settle()
    await store.close()
    await store.close()
    calls = (store.put("/a", b""), store.get("/a"), store.list("/"), store.revision(), waiting)
    for call in calls:
        with pytest.raises(errors.LogClosed):
            await call
    with pytest.raises(errors.LogClosed):
        store.watch("/", 0)
