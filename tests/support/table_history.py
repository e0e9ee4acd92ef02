"""What the snapshots of a table are made of, for models: rows by shard and offset, also of snapshots that expired."""

from __future__ import annotations

from dataclasses import dataclass, field

from icestream.catalog.topic_rules.removal import Removal

Row = tuple[int, int]  # shard, offset


@dataclass
class SnapshotHistory:
    parents: dict[int, int | None] = field(default_factory=dict)
    rows: dict[int, list[Row]] = field(default_factory=dict)
    deletes: dict[int, set[Row]] = field(default_factory=dict)

    def lineage(self, snapshot_id: int | None) -> list[int]:
        ids = []
        while snapshot_id is not None:
            ids.append(snapshot_id)
            snapshot_id = self.parents[snapshot_id]
        return ids

    def content(self, snapshot_id: int | None) -> list[Row]:
        content: list[Row] = []
        for ancestor in reversed(self.lineage(snapshot_id)):
            gone = self.deletes.get(ancestor, set())
            content = [row for row in content if row not in gone] + self.rows.get(ancestor, [])
        return content


def rows_of(removal: Removal) -> set[Row]:
    return {(shard, offset) for shard, (start, end) in removal.ranges.items() for offset in range(start, end)}
