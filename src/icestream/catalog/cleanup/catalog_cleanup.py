"""The background clean-up of the lake process: removes what no table needs any more.

    deleted topics     their tables are detached, dropped or purged   at once; deleted_topic_tables.py
    retired files      metadata files that commits retired            an hour after the commit; retired_files.py
    purges             files of purged tables                         an hour after the drop; purge.py
    orphans            metadata files of attempts that crashed        once, an hour after the start; orphan_metadata.py

It sleeps until the first of these is due, or until a table is purged or a topic deleted; retired files are looked for
twice an hour. At work it pauses after every few hundred files, so that reads and commits are not delayed. Correctness
does not depend on it: a failure is logged and retried with backoff.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from icestream import errors, limits
from icestream.catalog import catalog_keys
from icestream.catalog.cleanup.deleted_topic_tables import DeletedTopicTables
from icestream.catalog.cleanup.orphan_metadata import OrphanMetadata
from icestream.catalog.cleanup.purge import Purges
from icestream.catalog.cleanup.retired_files import RetiredFiles
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock

_log = get_logger("catalog.cleanup")


class CatalogCleanup:
    """Runs all kinds of clean-up, one after the other."""

    def __init__(
        self,
        store: MetadataStore,
        retired: RetiredFiles,
        deleted_topics: DeletedTopicTables,
        purges: Purges,
        orphans: OrphanMetadata,
        clock: Clock,
    ) -> None:
        self._store = store
        self._retired = retired
        self._deleted_topics = deleted_topics
        self._purges = purges
        self._orphans = orphans
        self._clock = clock
        self._orphans_due_ms: int | None = self._now_ms() + limits.CATALOG_FILE_GRACE_MS
        self._wake_up = asyncio.Event()

    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1000

    async def run(self) -> None:
        """Runs until it is cancelled."""
        await self._store.ready()
        watches = [
            asyncio.create_task(self._watch(prefix)) for prefix in (catalog_keys.PURGES, catalog_keys.DELETED_TOPICS)
        ]
        try:
            failures = 0
            while True:
                self._wake_up.clear()
                try:
                    await self._run_pass()
                    wait_seconds, failures = await self._seconds_to_next(), 0
                except (errors.IcestreamError, OSError) as error:
                    _log.warning("clean-up failed, it is retried", reason=str(error))
                    wait_seconds = limits.CATALOG_UPKEEP_RETRY_SECONDS * 2**failures
                    failures = min(failures + 1, 6)
                await self._sleep(wait_seconds)
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def _run_pass(self) -> None:
        steps = 0
        async for _ in self.work():
            steps += 1
            if steps % limits.CATALOG_UPKEEP_FILES_AT_ONCE == 0:
                await self._clock.sleep(limits.CATALOG_UPKEEP_PAUSE_SECONDS)

    async def work(self) -> AsyncGenerator[None]:
        """Does all work that is due; yields after each file or table, so that the caller can pause."""
        async for _ in self._deleted_topics.work():
            yield
        async for _ in self._retired.remove_due(self._now_ms()):
            yield
        if self._orphans_due_ms is not None and self._orphans_due_ms <= self._now_ms():
            # Once for each start: only a crash leaves orphans, and each crash is followed by a start.
            async for _ in self._orphans.work(self._now_ms()):
                yield
            self._orphans_due_ms = None
        async for _ in self._purges.work(self._now_ms()):
            yield

    async def _seconds_to_next(self) -> float:
        """Returns the seconds until the next file or table is due."""
        now_ms = self._now_ms()
        # Retired files have no watch, which would be notified of every commit. A busy table has some due all the time:
        # a pass lists all of them, so passes keep a distance.
        idle_ms = now_ms + limits.CATALOG_FILE_GRACE_MS // 2
        retired_ms = max(self._retired.next_due_ms or idle_ms, now_ms + limits.CATALOG_RETIRED_PAUSE_MS)
        times = (min(retired_ms, idle_ms), await self._purges.next_due_ms(), self._orphans_due_ms)
        due_ms = min(time_ms for time_ms in times if time_ms is not None)
        return max(due_ms - now_ms, 0) / 1000 + limits.CATALOG_UPKEEP_PAUSE_SECONDS

    async def _sleep(self, seconds: float) -> None:
        """Sleeps for so long, or until a watch wakes it."""
        waits = {
            asyncio.ensure_future(self._wake_up.wait()),
            asyncio.ensure_future(self._clock.sleep(seconds)),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _watch(self, prefix: str) -> None:
        """Wakes the clean-up at every change below a prefix. A watch that fails is begun again."""
        while True:
            with contextlib.suppress(errors.IcestreamError):
                after = await self._store.revision()
                self._wake_up.set()  # for changes before this revision
                async for _ in self._store.watch(prefix, after):
                    self._wake_up.set()
            await self._clock.sleep(limits.CATALOG_UPKEEP_RETRY_SECONDS)
