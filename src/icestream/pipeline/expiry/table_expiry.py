"""Expires snapshots and tags of one table in a commit of its own: of a table that has no commits, or on request.

The rule is that of every commit (commit/snapshot_expiry.py), and two more:

    bytes of tags       tags of the pipeline keep at most `TagLimits.bytes_max`; the oldest go first (tag_bytes.py)
    the last progress   the newest snapshot in the history of main that says which offsets are committed stays, if a
                        commit of another engine is main: without it ingest does not know its next offset (hazard 95)

The commit requires that main has not moved since, in any catalog. A snapshot that got a branch or tag since stays
(iceberg/updates.py, KEEP_REFERENCED).
"""

from __future__ import annotations

from typing import NamedTuple

from icestream import limits
from icestream.catalog.topic_rules.removal import TOPIC_ID
from icestream.catalog.topic_rules.snapshot_progress import lineage
from icestream.catalogs.table_catalog import CommitOutcome, TableCatalog, TableChange
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.updates import expiry_of
from icestream.iceberg.values import Object
from icestream.pipeline.commit.snapshot_expiry import TagRetention, expired, tag_updates
from icestream.pipeline.expiry.tag_bytes import TagBytes, TagBytesCount, kept_snapshots
from icestream.runtime.clock import Clock


class ExpiryPlan(NamedTuple):
    """What expires of a table."""

    snapshot_ids: tuple[int, ...]
    old_tags: tuple[str, ...]  # by their age
    surplus_tags: tuple[str, ...]  # because tags keep too many bytes

    @property
    def is_empty(self) -> bool:
        return not (self.snapshot_ids or self.old_tags or self.surplus_tags)


class TableExpiry:
    """Plans and commits the expiry of tables."""

    def __init__(
        self,
        catalog: TableCatalog,
        reader: ManifestReader,
        clock: Clock,
        tags: TagRetention,
        tag_bytes_max: int = limits.TAG_BYTES_DEFAULT,
    ) -> None:
        """`tag_bytes_max`: of each table; 0: no bound."""
        self._catalog = catalog
        self._reader = reader
        self._clock = clock
        self._tags = tags
        self._tag_bytes_max = tag_bytes_max

    async def plan(self, table: TableMetadata, history_ms: int) -> ExpiryPlan:
        """`history_ms`: how long the topic keeps its messages; 0: for ever. Reads the manifests of tagged snapshots, if
        there is a bound. Raises what reading a table raises."""
        now_ms = self._clock.wall_us() // 1000
        updates = tag_updates(table, self._tags.bounded(history_ms), now_ms)
        old = [update["ref-name"] for update in updates if update["action"] == "remove-snapshot-ref"]
        surplus = (await self.tag_bytes(table, old)).surplus if self._tag_bytes_max else ()
        spared = _last_progress(table)
        gone = expired(table, now_ms, [*old, *surplus], adds_snapshot=False)
        snapshot_ids = [number for number in gone if number != spared]
        return ExpiryPlan(tuple(snapshot_ids), tuple(old), surplus)

    async def tag_bytes(self, table: TableMetadata, removed_tags: list[str]) -> TagBytes:
        """What tags of the pipeline keep, and which of them are too many."""
        kept = kept_snapshots(table, removed_tags)
        if not kept.tagged:
            return TagBytes(0, ())
        named: set[str] = set()
        for snapshot_id in sorted(kept.others):
            named.update(await self._files(table, snapshot_id))
        count = TagBytesCount(self._tag_bytes_max, named)
        for snapshot_id, tags in kept.tagged:
            count.add(tags, {} if count.is_full else await self._files(table, snapshot_id))
        return count.result

    async def _files(self, table: TableMetadata, snapshot_id: int) -> dict[str, int]:
        """The data and delete files of a snapshot, with their bytes."""
        snapshot = table.snapshots.find(snapshot_id)
        if snapshot is None:
            return {}
        files: dict[str, int] = {}
        for manifest in await self._reader.manifest_files(snapshot["manifest-list"]):
            for entry in await self._reader.entries(manifest.path):
                if entry.is_live:
                    files[entry.file_path] = entry.file_size_bytes
        return files

    async def commit(self, identifier: Identifier, table: TableMetadata, plan: ExpiryPlan) -> CommitOutcome:
        """`table`: as it was planned."""
        requirements: list[Object] = [
            {"type": "assert-table-uuid", "uuid": table.uuid},
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": table.current_snapshot_id},
        ]
        updates: list[Object] = [
            {"action": "remove-snapshot-ref", "ref-name": name} for name in (*plan.old_tags, *plan.surplus_tags)
        ]
        if plan.snapshot_ids:
            updates.append(expiry_of(plan.snapshot_ids))
        return await self._catalog.commit(identifier, TableChange(requirements, updates))


def _last_progress(table: TableMetadata) -> int | None:
    """The newest snapshot of main that records committed offsets."""
    for snapshot in lineage(table, table.current_snapshot_id):
        if TOPIC_ID in (snapshot.get("summary") or {}):
            return int(snapshot["snapshot-id"])
    return None
