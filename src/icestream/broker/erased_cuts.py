"""The cut of each shard below which messages were erased: readers take nothing below it from memory or log (hazard 81).

Everything below a cut is committed, and the table has it without the erased rows; the scanner reports those as gaps.
Memory and log may hold them until the log is retired. The records lie in the metadata store, written in the same
transaction as the commit that removes the rows (catalog/topic_rules/erase_claim.py). A broker reads them at its start
and follows them by a watch; with each change the caches of the topic are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from icestream import errors, limits
from icestream.catalog import catalog_keys
from icestream.catalog.topic_rules.erased_record import ErasedRecord
from icestream.metadata.store import MetadataStore
from icestream.metadata.watch import Resync
from icestream.model.shard import ShardKey
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock

_log = get_logger("broker")


class ErasedCuts:
    """The cuts of all topics; 0 where nothing was erased."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._cuts: dict[int, Mapping[int, int]] = {}  # by topic id and shard
        self.on_changed: Callable[[int, Mapping[int, int]], None] = lambda topic_id, cut: None

    def below(self, key: ShardKey) -> int:
        cut = self._cuts.get(key.topic_id)
        return 0 if cut is None else cut.get(key.shard, 0)

    async def load(self) -> None:
        """Reads all records. A damaged one is logged and counts as none: the lake process refuses to read its table."""
        self._cuts = {}
        for key, entry in await self._store.list_all(catalog_keys.ERASED):
            self._apply(key, entry.value)

    async def run(self) -> None:
        """Follows the records until it is cancelled."""
        while True:
            try:
                # The watch begins before the records are read: no change between the two is missed.
                changes = self._store.watch(catalog_keys.ERASED, await self._store.revision())
                await self.load()
                async for change in changes:
                    if isinstance(change, Resync):
                        await self.load()
                        continue
                    for event in change.events:
                        self._apply(event.key, event.value)
            except errors.IcestreamError as error:
                _log.warning("watch of erased offsets interrupted", reason=error.message)
            await self._clock.sleep(limits.LINK_RETRY_SECONDS_MAX)

    def _apply(self, key: str, value: bytes | None) -> None:
        number = key.removeprefix(catalog_keys.ERASED)
        if not number.isdigit():
            return
        if value is None:
            self._cuts.pop(int(number), None)
            return
        try:
            cut = msgspec.json.decode(value, type=ErasedRecord).cut
        except msgspec.MsgspecError as error:
            _log.error("erased offsets of a topic are unreadable", key=key, reason=str(error))
            return
        self._cuts[int(number)] = cut
        self.on_changed(int(number), cut)
