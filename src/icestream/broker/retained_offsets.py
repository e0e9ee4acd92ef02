"""The first kept offset of each shard, as retentions of tables have raised it (hazard 86).

The records lie in the metadata store, written in the same transaction as the commit that removes the rows
(catalog_records.RetainedRecord). A broker reads them at its start and follows them by a watch. So every reader of every
tier starts there, whatever log files, caches and snapshots still hold.
"""

from __future__ import annotations

from typing import Final

import msgspec

from icestream import errors, limits
from icestream.catalog import catalog_keys
from icestream.catalog.catalog_records import RetainedRecord
from icestream.metadata.store import MetadataStore
from icestream.metadata.watch import Resync
from icestream.model.shard import ShardKey
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock

REASON: Final = "removed by the topic's retention"
_log = get_logger("broker")


class RetainedOffsets:
    """The first kept offsets of all topics; 0 where nothing was removed."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._first: dict[int, dict[int, int]] = {}  # by topic id and shard

    def first(self, key: ShardKey) -> int:
        shards = self._first.get(key.topic_id)
        return 0 if shards is None else shards.get(key.shard, 0)

    async def load(self) -> None:
        """Reads all records. A damaged one is logged and counts as none: more is readable then, nothing is lost."""
        entries = await self._store.list_all(catalog_keys.RETAINED)
        self._first = {}
        for key, entry in entries:
            self._apply(key, entry.value)

    async def run(self) -> None:
        """Follows the records until it is cancelled."""
        while True:
            try:
                # The watch begins before the records are read: no change between the two is missed.
                changes = self._store.watch(catalog_keys.RETAINED, await self._store.revision())
                await self.load()
                async for change in changes:
                    if isinstance(change, Resync):
                        await self.load()
                        continue
                    for event in change.events:
                        self._apply(event.key, event.value)
            except errors.IcestreamError as error:
                _log.warning("watch of first kept offsets interrupted", reason=error.message)
            await self._clock.sleep(limits.LINK_RETRY_SECONDS_MAX)

    def _apply(self, key: str, value: bytes | None) -> None:
        number = key.removeprefix(catalog_keys.RETAINED)
        if not number.isdigit():
            return
        if value is None:
            self._first.pop(int(number), None)
            return
        try:
            self._first[int(number)] = msgspec.json.decode(value, type=RetainedRecord).first
        except msgspec.MsgspecError as error:
            _log.error("first kept offsets of a topic are unreadable", key=key, reason=str(error))
