"""What the lake process does in the background: what nobody needs any more goes.

    partings       tables of topics that were deleted         at once; partings.py
    retired        metadata files that commits let go of      an hour after the commit
    purges         files of tables that were purged           an hour after the drop; purge.py
    leftovers      metadata files of attempts that crashed    once, an hour after the start; leftovers.py

It sleeps until the first of these is due, or until somebody purges a table or deletes a topic: idle it does nothing at
all. At work it pauses after every few hundred files, so that whoever reads or commits meanwhile is not held up. Nothing
here is needed for correctness: what fails is logged and tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from icestream import errors, limits
from icestream.catalog import catalog_keys
from icestream.catalog.cleanup.deleted_topic_tables import DeletedTopicTables
from icestream.catalog.cleanup.orphan_metadata import OrphanMetadata
from icestream.catalog.cleanup.pointers import pointed_to
from icestream.catalog.cleanup.purge import Purges
from icestream.catalog.cleanup.retired_files import RetiredFiles
from icestream.catalog.documents import Documents
from icestream.iceberg.location import normalize
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock

_log = get_logger("catalog.upkeep")


class CatalogCleanup:
    def __init__(
        self,
        store: MetadataStore,
        documents: Documents,
        retired: RetiredFiles,
        partings: DeletedTopicTables,
        purges: Purges,
        leftovers: OrphanMetadata,
        clock: Clock,
    ) -> None:
        self._store = store
        self._documents = documents
        self._retired = retired
        self._partings = partings
        self._purges = purges
        self._leftovers = leftovers
        self._clock = clock
        self._leftovers_at_ms: int | None = self._now_ms() + limits.CATALOG_FILE_GRACE_MS
        self._woken = asyncio.Event()
        retired.on_first = self._woken.set

    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1000

    async def run(self) -> None:
        """Until it is cancelled."""
        await self._store.ready()
        watching = [
            asyncio.create_task(self._watch(prefix)) for prefix in (catalog_keys.PURGES, catalog_keys.DELETED_TOPICS)
        ]
        try:
            failures = 0
            while True:
                self._woken.clear()
                try:
                    await self._work_through()
                    wait_s, failures = await self._seconds_to_next(), 0
                except (errors.IcestreamError, OSError) as error:
                    _log.warning("files that nobody needs could not be removed", reason=str(error))
                    wait_s, failures = limits.CATALOG_UPKEEP_RETRY_SECONDS * 2**failures, min(failures + 1, 6)
                await self._sleep(wait_s)
        finally:
            for one in watching:
                one.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _work_through(self) -> None:
        steps = 0
        async for _ in self.work():
            steps += 1
            if steps % limits.CATALOG_UPKEEP_FILES_AT_ONCE == 0:
                await self._clock.sleep(limits.CATALOG_UPKEEP_PAUSE_SECONDS)

    async def work(self) -> AsyncGenerator[None]:
        """All that is due, a file or table at a time."""
        async for _ in self._partings.work():
            yield
        async for _ in self._remove_retired():
            yield
        if self._leftovers_at_ms is not None and self._leftovers_at_ms <= self._now_ms():
            async for _ in self._leftovers.work(self._now_ms()):
                yield
            self._leftovers_at_ms = None
        async for _ in self._purges.work(self._now_ms()):
            yield

    async def _remove_retired(self) -> AsyncGenerator[None]:
        in_use: set[str] | None = None
        while (location := self._retired.take(self._now_ms())) is not None:
            in_use = await pointed_to(self._store) if in_use is None else in_use
            try:
                if normalize(location) not in in_use:
                    await self._documents.forget(location)
            except errors.InvalidInput as error:  # a document that others wrote may name anything as its past
                _log.warning("a metadata file outside of the warehouse stays", file=location, reason=str(error))
            yield

    async def _seconds_to_next(self) -> float | None:
        """None: there is nothing to wait for."""
        times = (self._retired.next_due_ms, await self._purges.next_due_ms(), self._leftovers_at_ms)
        due = [one for one in times if one is not None]
        return max(min(due) - self._now_ms(), 0) / 1000 + limits.CATALOG_UPKEEP_PAUSE_SECONDS if due else None

    async def _sleep(self, seconds: float | None) -> None:
        waits = {asyncio.ensure_future(self._woken.wait())}
        if seconds is not None:
            waits.add(asyncio.ensure_future(self._clock.sleep(seconds)))  # type: ignore[arg-type]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _watch(self, prefix: str) -> None:
        """Whoever writes below it wakes us. A watch that fails is begun again."""
        while True:
            with contextlib.suppress(errors.IcestreamError):
                after = await self._store.revision()
                self._woken.set()  # what came before this revision is looked for once more
                async for _ in self._store.watch(prefix, after):
                    self._woken.set()
            await self._clock.sleep(limits.CATALOG_UPKEEP_RETRY_SECONDS)
