"""Offsets of shards that commits record in the metadata store, beside the table, and that readers of a broker obey.

    first kept   what a retention has raised (hazard 86): every reader of every tier starts there, whatever log files,
                 caches and snapshots still hold
    erased       the cut below which messages were erased (hazard 81): everything below it is committed, and readers
                 take nothing below it from memory or log, which may hold erased messages until the log is retired. The
                 table has it without the erased rows, and the scanner reports those as gaps

The records are written in the transaction of the commit that removes the rows (catalog_records.RetainedRecord,
topic_rules/erased_record.py). A broker reads them at its start and follows them by a watch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from icestream import errors, limits
from icestream.catalog import catalog_keys
from icestream.catalog.catalog_records import RetainedRecord
from icestream.catalog.topic_rules.erased_record import ErasedRecord
from icestream.metadata.store import MetadataStore
from icestream.metadata.watch import Resync
from icestream.model.shard import ShardKey
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock

RETENTION_REASON: Final = "removed by the topic's retention"  # of the gap below the first kept offset
_log = get_logger("broker")


class FollowedOffsets:
    """An offset for each shard of all topics; 0 where none is recorded."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        prefix: str,
        subject: str,
        decode: Callable[[bytes], Mapping[int, int]],
    ) -> None:
        """`decode`: the offsets of a record by shard; raises MsgspecError. `subject`: what they are, for the log."""
        self._store = store
        self._clock = clock
        self._prefix = prefix
        self._subject = subject
        self._decode = decode
        self._offsets: dict[int, Mapping[int, int]] = {}  # by topic id and shard
        self.on_changed: Callable[[int, Mapping[int, int]], None] = lambda topic_id, offsets: None

    def of(self, key: ShardKey) -> int:
        offsets = self._offsets.get(key.topic_id)
        return 0 if offsets is None else offsets.get(key.shard, 0)

    async def load(self) -> None:
        """Reads all records. A damaged one is logged and counts as none: of first kept offsets more is readable then,
        and tables with damaged erased offsets are refused by the lake process."""
        entries = await self._store.list_all(self._prefix)
        self._offsets = {}
        for key, entry in entries:
            self._apply(key, entry.value)

    async def run(self) -> None:
        """Follows the records until it is cancelled."""
        while True:
            try:
                # The watch begins before the records are read: no change between the two is missed.
                changes = self._store.watch(self._prefix, await self._store.revision())
                await self.load()
                async for change in changes:
                    if isinstance(change, Resync):
                        await self.load()
                        continue
                    for event in change.events:
                        self._apply(event.key, event.value)
            except errors.IcestreamError as error:
                _log.warning("watch of recorded offsets interrupted", offsets=self._subject, reason=error.message)
            await self._clock.sleep(limits.LINK_RETRY_SECONDS_MAX)

    def _apply(self, key: str, value: bytes | None) -> None:
        number = key.removeprefix(self._prefix)
        if not number.isdigit():
            return
        topic_id = int(number)
        if value is None:
            self._offsets.pop(topic_id, None)
            return
        try:
            offsets = self._decode(value)
        except msgspec.MsgspecError as error:
            _log.error("recorded offsets of a topic are unreadable", offsets=self._subject, key=key, reason=str(error))
            return
        self._offsets[topic_id] = offsets
        self.on_changed(topic_id, offsets)


def first_kept_offsets(store: MetadataStore, clock: Clock) -> FollowedOffsets:
    def decode(value: bytes) -> Mapping[int, int]:
        return msgspec.json.decode(value, type=RetainedRecord).first

    return FollowedOffsets(store, clock, catalog_keys.RETAINED, "first kept offsets", decode)


def erased_cuts(store: MetadataStore, clock: Clock) -> FollowedOffsets:
    def decode(value: bytes) -> Mapping[int, int]:
        return msgspec.json.decode(value, type=ErasedRecord).cut

    return FollowedOffsets(store, clock, catalog_keys.ERASED, "erased offsets", decode)
