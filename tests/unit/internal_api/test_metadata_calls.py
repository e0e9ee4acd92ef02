"""The metadata store over the local socket: the contract of every store, and what only a connection can do to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.frontends.native.public_calls import PUBLIC
from icestream.internal_api.metadata_calls import METADATA_METHODS
from icestream.metadata import command as cmd
from icestream.metadata.entry import Event
from icestream.metadata.remote_store import RemoteStore
from icestream.metadata.remote_watch import RemoteWatch
from icestream.metadata.store import MemoryStore, MetadataStore
from icestream.metadata.watch import Changes, Resync
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import SimulatedClock, SystemClock
from icestream.runtime.randomness import SystemRandomness
from tests.support.faulty_store import FaultyStore
from tests.support.local_broker import kept_link, local_broker
from tests.support.metadata_machine import HANGS_SECONDS, settle
from tests.unit.metadata import test_store_contract as contract

pytestmark = pytest.mark.asyncio
Answer = TypeVar("Answer")

# Every promise of a metadata store, kept over the socket.
globals().update({name: test for name, test in vars(contract).items() if name.startswith("test_")})


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest_asyncio.fixture
async def store(clock: SimulatedClock, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    async with (
        local_broker(tmp_path / "broker.sock", MemoryStore(clock), clock),
        kept_link(tmp_path / "broker.sock") as keeper,
    ):
        remote_store = RemoteStore(keeper, SystemClock(), SystemRandomness())
        await remote_store.ready()
        yield remote_store
        await remote_store.close()


# --- what only a connection can do ------------------------------------------------------------------------------------


async def within(coming: Awaitable[Answer]) -> Answer:
    return await asyncio.wait_for(coming, HANGS_SECONDS)


async def remote(keeper: LinkKeeper) -> RemoteStore:
    remote_store = RemoteStore(keeper, SystemClock(), SystemRandomness())
    await within(remote_store.ready())
    return remote_store


async def test_a_command_whose_reply_was_lost_is_applied_once(tmp_path: Path) -> None:
    """The broker does it and goes away before it answers; the next one is asked again."""
    broker_store = FaultyStore()
    broker_store.halt_named_clients()
    path = tmp_path / "broker.sock"
    async with local_broker(path, broker_store) as broker, kept_link(path) as keeper:
        store = await remote(keeper)
        allocating = asyncio.ensure_future(store.allocate_id("x"))
        await within(broker_store.halted.wait())
        await broker.go_away()
        broker_store.resume()
        await broker.listen()
        assert await within(allocating) == 1
        assert await within(store.allocate_id("x")) == 2
        assert keeper.links_opened == 2


async def test_a_read_is_retried(tmp_path: Path) -> None:
    broker_store = FaultyStore()
    broker_store.halt_named_clients()
    path = tmp_path / "broker.sock"
    async with local_broker(path, broker_store) as broker, kept_link(path) as keeper:
        store = await remote(keeper)
        await broker_store.put("/a", b"1")
        await broker.go_away()
        reading = asyncio.ensure_future(store.get("/a"))
        await settle()
        await broker.listen()
        entry = await within(reading)
        assert entry is not None
        assert entry.value == b"1"


async def test_an_unavailable_broker_leaves_a_write_unknown_and_fails_a_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "METADATA_REMOTE_SECONDS_MAX", 0.3)
    broker_store = FaultyStore()
    broker_store.halt_named_clients()
    path = tmp_path / "broker.sock"
    async with local_broker(path, broker_store) as broker, kept_link(path) as keeper:
        store = await remote(keeper)
        writing = asyncio.ensure_future(store.put("/a", b""))
        await within(broker_store.halted.wait())
        await broker.go_away()
        with pytest.raises(errors.OutcomeUnknown):
            await within(writing)
        with pytest.raises(errors.NotReady):
            await within(store.get("/a"))
        with pytest.raises(errors.NotReady):
            await within(store.put("/a", b""))  # it was never sent: nothing can have happened
        broker_store.resume()
        await broker.listen()
        await keeper.wait_connected(HANGS_SECONDS)
        assert await within(store.put("/b", b"")) > 0


@pytest.mark.parametrize("refusal", [errors.DiskFull, errors.InFlightFull, errors.LogStopped, errors.InvalidInput])
async def test_hazard_13_a_refusal_after_a_lost_attempt_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: type[errors.IcestreamError]
) -> None:
    """The first attempt was applied: a committer that gets "refused" would remove the files of a commit that landed."""
    broker_store = FaultyStore()
    broker_store.halt_named_clients()
    path = tmp_path / "broker.sock"
    async with local_broker(path, broker_store) as broker, kept_link(path) as keeper:
        store = await remote(keeper)
        allocating = asyncio.ensure_future(store.allocate_id("x"))
        await within(broker_store.halted.wait())
        await broker.go_away()
        broker_store.errors = [refusal("not now")] * 2
        broker_store.resume()
        await broker.listen()
        assert await within(allocating) == 1, "the refusals are over, and the answer is that of the first try"
        broker_store.errors = [refusal("not now")]
        with pytest.raises(refusal):
            await within(store.allocate_id("x"))  # and the answer to a first try is believed

        monkeypatch.setattr(limits, "METADATA_REMOTE_SECONDS_MAX", 0.3)
        broker_store.halt_named_clients()
        writing = asyncio.ensure_future(store.put("/a", b""))
        await within(broker_store.halted.wait())
        await broker.go_away()
        broker_store.errors = [refusal("not now")] * 1_000
        await broker.listen()
        with pytest.raises(errors.OutcomeUnknown):
            await within(writing)


async def test_an_unready_broker_is_reported_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, a catalog without a majority answered only after 30 s, and that the broker was unreachable."""
    broker_store = FaultyStore()
    path = tmp_path / "broker.sock"
    async with local_broker(path, broker_store), kept_link(path) as keeper:
        store = await remote(keeper)
        broker_store.errors = [errors.NotReady("the cluster has no leader")] * 3
        assert await within(store.put("/a", b"1")) > 0, "an election is waited for"
        monkeypatch.setattr(limits, "METADATA_LEADERLESS_SECONDS_MAX", 0.3)
        broker_store.errors = [errors.NotReady("the cluster has no leader")] * 1_000
        for request in (store.put("/a", b"2"), store.get("/a")):
            with pytest.raises(errors.NotReady, match="the cluster has no leader"):
                await within(request)
        broker_store.errors = []
        entry = await within(store.get("/a"))
        assert entry is not None
        assert entry.value == b"1"


async def test_calls_before_the_first_connection_raise_not_ready(tmp_path: Path) -> None:
    store = RemoteStore(LinkKeeper(tmp_path / "none", "test", SystemClock()), SystemClock(), SystemRandomness())
    with pytest.raises(errors.NotReady):
        await store.get("/a")
    await store.close()
    with pytest.raises(errors.LogClosed):
        await store.ready()


async def test_a_watch_resumes_after_the_broker_returns(tmp_path: Path) -> None:
    inner = MemoryStore()
    path = tmp_path / "broker.sock"
    async with local_broker(path, inner) as broker, kept_link(path) as keeper:
        store = await remote(keeper)
        watch = store.watch("/a/", 0)
        await inner.put("/a/1", b"")
        assert await within(anext(watch)) == Changes(1, [Event("/a/1", b"", 1)])
        await broker.go_away()
        await inner.put("/a/2", b"")
        await inner.put("/b", b"")
        await broker.listen()
        assert await within(anext(watch)) == Changes(2, [Event("/a/2", b"", 2)])
        await inner.put("/a/2", b"x")
        assert await within(anext(watch)) == Changes(4, [Event("/a/2", b"x", 4)])


async def test_a_change_larger_than_a_frame_becomes_a_resync(tmp_path: Path) -> None:
    inner = MemoryStore()
    path = tmp_path / "broker.sock"
    async with local_broker(path, inner), kept_link(path) as keeper:
        watch = (await remote(keeper)).watch("/", 0)
        large = [cmd.Put(f"/{number}", bytes(60_000)) for number in range(12)]
        await inner.txn([], large)
        await inner.put("/a", b"")
        assert await within(anext(watch)) == Resync(1)
        assert await within(anext(watch)) == Changes(2, [Event("/a", b"", 2)])


async def test_a_page_of_large_values_is_split_into_replies(tmp_path: Path) -> None:
    inner = MemoryStore()
    path = tmp_path / "broker.sock"
    async with local_broker(path, inner), kept_link(path) as keeper:
        store = await remote(keeper)
        for number in range(40):
            await inner.put(f"/{number:02d}", bytes([number]) * 60_000)
        page = await within(store.list("/", limit=35))
        assert [key for key, _ in page] == [f"/{number:02d}" for number in range(35)]
        assert all(entry.value == bytes([number]) * 60_000 for number, (_, entry) in enumerate(page))


async def test_a_watcher_that_does_not_read_gets_a_resync_and_uses_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "METADATA_WATCH_QUEUE_MAX", 4)
    inner = MemoryStore()
    path = tmp_path / "broker.sock"
    async with local_broker(path, inner), kept_link(path) as keeper:
        store = await remote(keeper)
        watch, marker = store.watch("/", 0), store.watch("/end", 0)
        await inner.put("/first", b"")
        assert await within(anext(watch)) == Changes(1, [Event("/first", b"", 1)])
        for number in range(20):
            await inner.put(f"/{number}", b"")
        await inner.put("/end", b"")
        await within(anext(marker))
        first = await within(anext(watch))
        assert isinstance(first, Resync)
        assert first.revision > 1 + limits.METADATA_WATCH_QUEUE_MAX


async def test_a_watch_that_is_closed_ends_on_both_sides(tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    async with local_broker(path, MemoryStore()) as broker, kept_link(path) as keeper:
        store = await remote(keeper)
        watch = store.watch("/", 0)
        assert isinstance(watch, RemoteWatch)
        await broker.store.put("/a", b"")
        await within(anext(watch))
        (connection,) = broker.connections
        assert len(connection.watches) == 1
        await within(watch.close())
        assert not connection.watches
        with pytest.raises(errors.LogClosed):
            await anext(watch)


async def test_watches_of_one_connection_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_WATCHES_MAX", 2)
    path = tmp_path / "broker.sock"
    async with local_broker(path, MemoryStore()), kept_link(path) as keeper:
        for _ in range(2):
            await keeper.call("metadata_watch", {"prefix": "/", "after": 0})
        with pytest.raises(errors.Refused, match="2 watches"):
            await keeper.call("metadata_watch", {"prefix": "/", "after": 0})


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("metadata_get", {}),
        ("metadata_get", {"key": 5}),
        ("metadata_list", {"prefix": "/", "limit": "many"}),
        ("metadata_submit", {"envelope": b"\xff"}),
        ("metadata_submit", {"envelope": b""}),
        ("metadata_submit", {"envelope": msgspec.msgpack.encode([99, b"", 0, 0, ["put", "/a", b""]])}),
        ("metadata_submit", {"envelope": msgspec.msgpack.encode([1, b"", 0, 0, ["burn", "/a"]])}),
        ("metadata_watch", {"prefix": "/"}),
    ],
)
async def test_invalid_calls_are_refused_and_the_connection_continues(
    tmp_path: Path, method: str, arguments: dict[str, Any]
) -> None:
    path = tmp_path / "broker.sock"
    async with local_broker(path, MemoryStore()), kept_link(path) as keeper:
        with pytest.raises(errors.IcestreamError):
            await within(keeper.call(method, arguments))
        assert (await within(keeper.call("metadata_revision", {})))["revision"] == 0
        assert keeper.links_opened == 1


async def test_the_network_does_not_offer_the_metadata_store(tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    async with local_broker(path, MemoryStore(), offered=PUBLIC), kept_link(path) as keeper:
        assert await within(keeper.call("list_topics", {})) == {"topics": [], "next": None}
        for method in METADATA_METHODS:
            with pytest.raises(errors.InvalidInput, match="unknown method"):
                await within(keeper.call(method, {"key": "/", "prefix": "/", "after": 0}))
