"""Hazard 108: no process of the node reaches the records of security through the metadata store of the local socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata.entry import Event
from icestream.metadata.remote_store import RemoteStore
from icestream.metadata.store import MemoryStore
from icestream.metadata.watch import Changes
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from tests.support.local_broker import kept_link, local_broker

pytestmark = pytest.mark.asyncio

KEY = "/security/users/alice"


@pytest.fixture
def inner() -> MemoryStore:
    return MemoryStore()


@pytest_asyncio.fixture
async def store(inner: MemoryStore, tmp_path: Path) -> AsyncIterator[RemoteStore]:
    await inner.put(KEY, b"hash")
    async with local_broker(tmp_path / "broker.sock", inner), kept_link(tmp_path / "broker.sock") as keeper:
        remote = RemoteStore(keeper, SystemClock(), SystemRandomness())
        await remote.ready()
        yield remote
        await remote.close()


@pytest.mark.parametrize(
    "access",
    [
        lambda store: store.get(KEY),
        lambda store: store.list("/security/"),
        lambda store: store.list("/security/users/"),
        lambda store: anext(store.watch("/security/", 0)),
        lambda store: store.renew(KEY, 1),
        lambda store: store.put(KEY, b""),
        lambda store: store.put_with_ttl(KEY, b"", 1),
        lambda store: store.put_lease(cmd.Absent("/security/x"), b"", 1),
        lambda store: store.delete(KEY),
        lambda store: store.delete_prefix("/security/"),
        lambda store: store.delete_prefix("/sec"),
        lambda store: store.delete_prefix("/security/users/"),
        lambda store: store.compare_and_swap(cmd.Absent("/security/x"), b""),
        lambda store: store.txn([], [cmd.Put("/a", b""), cmd.Put(KEY, b"")]),
        lambda store: store.txn([cmd.HasValue(KEY, b"guess")], [cmd.Put("/a", b"")]),
        lambda store: store.txn([], [], [cmd.DeletePrefix("/s")]),
        lambda store: store.submit(cmd.ExpireTtlKeys([(KEY, 1)])),
    ],
)
async def test_a_call_that_names_a_record_of_security_is_refused(
    inner: MemoryStore, store: RemoteStore, access: Callable[[RemoteStore], Awaitable[object]]
) -> None:
    with pytest.raises(errors.PermissionDenied, match="belongs to the broker"):
        await access(store)
    assert [key for key, _ in await inner.list_all("/")] == [KEY]
    assert await inner.revision() == 1


async def test_wide_listings_and_watches_do_not_show_them(inner: MemoryStore, store: RemoteStore) -> None:
    await inner.txn([], [cmd.Put(f"/security/{number:04d}", b"") for number in range(limits.METADATA_LIST_MAX)])
    await inner.put("/zebra", b"")
    assert [key for key, _ in await store.list_all("/")] == ["/zebra"]
    assert [key for key, _ in await store.list("/", after="/security/0001")] == ["/zebra"]
    watch = store.watch("/", await inner.revision())
    await asyncio.sleep(0)
    revision = await inner.put(KEY, b"new hash")
    await inner.txn([], [cmd.Put(KEY, b"newer hash"), cmd.Put("/zebra", b"2")])
    seen = [change async for change in _take(watch, 2)]
    assert seen == [Changes(revision, []), Changes(revision + 1, [Event("/zebra", b"2", revision + 1)])]


async def _take(watch: AsyncIterator[object], count: int) -> AsyncIterator[object]:
    for _ in range(count):
        yield await asyncio.wait_for(anext(watch), 60)
