"""Watches: every change below a prefix, in order, once; or the word that changes were missed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.metadata.entry import Event
from icestream.metadata.watch import Changes, Resync, WatchHub
from tests.support.hypothesis_effort import HALF


def publish(hub: WatchHub, *keys: str, value: bytes | None = b"v") -> list[Event]:
    events = [Event(key, value, hub.revision + 1) for key in keys]
    hub.publish(events)
    return events


async def take(watch: AsyncIterator[Changes | Resync]) -> Changes | Resync | None:
    """The next notification of the watch without waiting; None if there is none."""
    coming = asyncio.ensure_future(anext(watch))
    for _ in range(3):
        await asyncio.sleep(0)
    if coming.done():
        return coming.result()
    coming.cancel()
    await asyncio.gather(coming, return_exceptions=True)
    return None


@pytest.mark.asyncio
async def test_a_watch_gets_each_change_below_its_prefix_once_and_in_order() -> None:
    hub = WatchHub(0)
    watch = hub.watch("/a/", 0)
    assert await take(watch) is None
    first = publish(hub, "/a/1")
    publish(hub, "/b/1")
    third = publish(hub, "/b/2", "/a/2", "/a/3", value=None)
    assert await take(watch) == Changes(1, first)
    assert await take(watch) == Changes(3, third[1:])
    assert await take(watch) is None


@pytest.mark.asyncio
async def test_a_watch_may_start_in_the_past() -> None:
    hub = WatchHub(10)
    batches = [publish(hub, f"/{number}") for number in range(3)]
    watch = hub.watch("/", 11)
    assert [await take(watch) for _ in range(3)] == [Changes(12, batches[1]), Changes(13, batches[2]), None]


@pytest.mark.asyncio
@pytest.mark.parametrize("after", [9, 0, 14, 1000])
async def test_an_unknown_revision_means_a_resync(after: int) -> None:
    """Too old, or of another store."""
    hub = WatchHub(10)
    for number in range(3):
        publish(hub, f"/{number}")
    watch = hub.watch("/", after)
    assert await take(watch) == Resync(13)
    events = publish(hub, "/next")
    assert await take(watch) == Changes(14, events)


@pytest.mark.asyncio
@pytest.mark.parametrize("bounds", [(4, 10**6), (10**6, 4 * len("/a") + 4)])
async def test_a_slow_watch_gets_a_resync_and_continues(bounds: tuple[int, int]) -> None:
    hub = WatchHub(0, *bounds)
    watch = hub.watch("/", 0)
    for _ in range(5):
        publish(hub, "/a")
    assert await take(watch) == Resync(5)
    events = publish(hub, "/a")
    assert await take(watch) == Changes(6, events)


@pytest.mark.asyncio
async def test_an_idle_watch_is_never_too_slow() -> None:
    hub = WatchHub(0, batches_max=4)
    watch = hub.watch("/quiet/", 0)
    for _ in range(100):
        publish(hub, "/loud")
    events = publish(hub, "/quiet/1")
    assert await take(watch) == Changes(101, events)


@pytest.mark.asyncio
async def test_a_batch_larger_than_the_history_is_a_resync_for_all() -> None:
    hub = WatchHub(0, bytes_max=100)
    watch = hub.watch("/", 0)
    publish(hub, "/a", value=bytes(200))
    assert await take(watch) == Resync(1)
    assert await take(watch) is None


@pytest.mark.asyncio
async def test_replacing_the_state_is_a_resync_for_all() -> None:
    hub = WatchHub(0)
    watch, waiting = hub.watch("/", 0), asyncio.ensure_future(anext(hub.watch("/none", 0)))
    publish(hub, "/a")
    await asyncio.sleep(0)
    hub.reset(50)
    assert await take(watch) == Resync(50)
    assert await waiting == Resync(50)
    events = publish(hub, "/b")
    assert await take(watch) == Changes(51, events)


@pytest.mark.asyncio
async def test_a_watch_delivers_its_changes_before_it_ends() -> None:
    hub = WatchHub(0)
    watch, waiting = hub.watch("/", 0), asyncio.ensure_future(anext(hub.watch("/none", 0)))
    events = publish(hub, "/a")
    await asyncio.sleep(0)
    hub.end(errors.LogClosed("closed"))
    assert await take(watch) == Changes(1, events)
    for ended in (waiting, anext(watch)):
        with pytest.raises(errors.LogClosed):
            await ended


@pytest.mark.asyncio
async def test_an_abandoned_watch_costs_nothing() -> None:
    hub = WatchHub(0)
    closed, dropped = hub.watch("/", 0), hub.watch("/", 0)
    closed.close()
    del dropped
    gc.collect()
    publish(hub, "/a")
    assert hub._watches == set()


@HALF
@given(
    st.lists(
        st.one_of(st.lists(st.sampled_from(["/a/1", "/a/2", "/b"]), min_size=1, max_size=2), st.none()), max_size=40
    ),
    st.integers(1, 6),
)
def test_changes_are_complete_or_a_resync_in_any_history(history: list[list[str] | None], batches: int) -> None:
    """None: the watch takes one. A watcher that applies all changes, and reads again on Resync, is current."""

    async def run() -> None:
        hub = WatchHub(0, batches_max=batches)
        watch = hub.watch("/a/", 0)
        truth: dict[str, int] = {}
        view: dict[str, int] = {}
        last = 0

        async def hear() -> bool:
            nonlocal view, last
            notification = await take(watch)
            if isinstance(notification, Resync):
                view, last = dict(truth), notification.revision
            elif notification is not None:
                assert notification.revision > last
                last = notification.revision
                view.update((event.key, event.revision) for event in notification.events)
            return notification is not None

        for keys in history:
            if keys is None:
                await hear()
            else:
                publish(hub, *keys)
                truth.update((key, hub.revision) for key in keys if key.startswith("/a/"))
        while await hear():
            pass
        assert view == truth

    asyncio.run(run())
