"""One sync of the disks for all commits that wait for one: what others wrote is made durable together.

nobody syncs     a sync begins at once
one is running   it may have passed what the newcomer's engine wrote last: he waits for the next one, with all
                 others who come meanwhile
producers write  the next one begins after a rest, some times as long as the last one took. A sync of a whole disk
to that disk     holds up the acks that meet it; engines commit in seconds, producers in fractions of milliseconds.
                 Who comes behind the rest does not notice
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Final

from icestream import limits
from icestream.runtime.clock import Clock

Sync = Callable[[Collection[Path]], Awaitable[bool]]
_NEVER: Final = -(10**18)


class _Group:
    """Those who are served by one sync that has not begun."""

    def __init__(self) -> None:
        self.paths: set[Path] = set()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(_looked_at)


def _looked_at(done: asyncio.Future[None]) -> None:
    """An error that everybody has turned away from is no news."""
    if not done.cancelled():
        done.exception()


class SharedSync:
    def __init__(self, sync: Sync, clock: Clock) -> None:
        """`sync`: of the disks of these folders; whether producers write to one of them."""
        self._sync = sync
        self._clock = clock
        self._waiting: _Group | None = None
        self._turn = asyncio.Lock()
        self._leading: set[asyncio.Task[None]] = set()
        self._rest_until_ns = _NEVER

    async def of(self, paths: Collection[Path]) -> None:
        group = self._waiting
        if group is None:
            group = self._waiting = _Group()
            task = asyncio.create_task(self._lead(group))
            self._leading.add(task)
            task.add_done_callback(self._leading.discard)
        group.paths.update(paths)
        await asyncio.shield(group.done)

    async def _lead(self, group: _Group) -> None:
        """Not in the task of the one who came first: he may be cut off, and the others wait."""
        try:
            async with self._turn:
                await self._rest()
                self._waiting = None  # from here on others are too late
                began_ns = self._clock.monotonic_ns()
                if await self._sync(group.paths):
                    now_ns = self._clock.monotonic_ns()
                    took_ns = min((now_ns - began_ns) * limits.CATALOG_SYNC_REST_TIMES, limits.CATALOG_SYNC_REST_NS_MAX)
                    self._rest_until_ns = now_ns + took_ns
        except asyncio.CancelledError:
            group.done.cancel()
            raise
        except BaseException as error:  # noqa: BLE001  # whoever waits must hear of it
            group.done.set_exception(error)
        else:
            group.done.set_result(None)
        finally:
            if self._waiting is group:
                self._waiting = None

    async def _rest(self) -> None:
        left_ns = self._rest_until_ns - self._clock.monotonic_ns()
        if left_ns > 0:
            await self._clock.sleep(left_ns / 1e9)
