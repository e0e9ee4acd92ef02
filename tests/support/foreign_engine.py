"""A foreign engine that changes the tables of topics without telling the pipeline."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icestream import errors
from icestream.catalog.topic_rules import topic_schema
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.catalogs.table_catalog import CommitOutcome, TableCatalog, TableChange
from icestream.iceberg import table_metadata as tables
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.model import ShardKey
from icestream.model.task_messages import WrittenFile
from icestream.pipeline.commit.snapshot_builder import ManifestChange, build_snapshot
from icestream.pipeline.commit.snapshot_expiry import TagRetention
from icestream.pipeline.tables import table_policy
from icestream.runtime.clock import SystemClock
from tests.support.fault_world import FaultWorld, name_of


class ExpectedReaction(Enum):
    """The reactions that hazard 21 and docs/lake.md promise."""

    GOES_ON = auto()  # what is not in main any more is told as missing
    REFUSED = auto()  # the engine gets 403, and the topic goes on
    STOPS = auto()  # this topic alone, with the command that settles it


# `forced`: with `icestream-force`, as an operator who insists.
OWN = {
    "append": ExpectedReaction.GOES_ON,
    "compaction": ExpectedReaction.GOES_ON,
    "expiry": ExpectedReaction.GOES_ON,
    "rollback": ExpectedReaction.GOES_ON,
    "delete": ExpectedReaction.GOES_ON,
    "add a column": ExpectedReaction.GOES_ON,
    "partition": ExpectedReaction.GOES_ON,
    "replace": ExpectedReaction.REFUSED,
    "drop": ExpectedReaction.REFUSED,
    "rename": ExpectedReaction.REFUSED,
    "replace, forced": ExpectedReaction.STOPS,
    "drop, forced": ExpectedReaction.STOPS,
    "rename, forced": ExpectedReaction.GOES_ON,  # a topic goes with its table
}
# A foreign catalog refuses nothing, and only our records tell what was committed.
FOREIGN = {
    "append": ExpectedReaction.GOES_ON,
    "compaction": ExpectedReaction.GOES_ON,
    "expiry": ExpectedReaction.GOES_ON,
    "rollback": ExpectedReaction.STOPS,
    "delete": ExpectedReaction.GOES_ON,
    "add a column": ExpectedReaction.GOES_ON,
    "partition": ExpectedReaction.GOES_ON,
    "replace": ExpectedReaction.STOPS,
    "drop": ExpectedReaction.STOPS,
    "drop and make anew": ExpectedReaction.STOPS,
    "rename": ExpectedReaction.STOPS,
}
NAME, ELSEWHERE = name_of(1), Identifier(("default",), "elsewhere")


class ForeignEngine:
    """A catalog in which another engine commits first, once: just before the given request."""

    def __init__(self, inner: TableCatalog, world: FaultWorld, deed: str, request: int) -> None:
        self._inner = inner
        self._world = world
        self._deed, _, self._force = deed.partition(", ")
        self._requests_left = request
        self.was_refused = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, identifier: Identifier, change: TableChange) -> CommitOutcome:
        await self.meddle()
        return await self._inner.commit(identifier, change)

    async def commit_all(self, changes: Mapping[Identifier, TableChange]) -> dict[Identifier, CommitOutcome]:
        await self.meddle()
        return await self._inner.commit_all(changes)

    @property
    def is_done(self) -> bool:
        return self._requests_left <= 0

    async def meddle(self) -> None:
        self._requests_left -= 1
        if self._requests_left:
            return
        before = await self._world.rows(1)
        try:
            await self._do()
        except errors.TopicTableConflict:
            self.was_refused = True
        if self._deed in ("rollback", "delete"):
            after = await self._world.rows(1)
            for shard, rows in before.items():
                gone = {at for at, _ in rows} - {at for at, _ in after.get(shard, [])}
                self._world.forgone.setdefault(ShardKey(1, shard), set()).update(gone)
            assert any(self._world.forgone.values())

    async def _do(self) -> None:
        making, is_forced = self._world.making.tables, bool(self._force)
        match self._deed:
            case "drop":
                await making.drop(NAME, is_forced=is_forced)
            case "drop and make anew":
                await making.drop(NAME)
                await making.create(NAME, {"schema": topic_schema.new_schema()})
            case "rename":
                await making.rename(NAME, ELSEWHERE, is_forced=is_forced)
                self._world.names[1] = ELSEWHERE
            case _:
                updates = await self._updates()
                await self._world.making.commits.commit(NAME, CommitRequest([], updates, is_forced))

    async def _updates(self) -> list[Object]:
        table = tables.load((await self._inner.load(NAME)).metadata)
        current = table.snapshots.find(table.current_snapshot_id or 0)
        assert current is not None
        match self._deed:
            case "rollback":
                parent = current["parent-snapshot-id"]
                return [{"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": parent}]
            case "expiry":
                older = [snapshot["snapshot-id"] for snapshot in table.snapshots if snapshot is not current]
                assert older
                return [{"action": "remove-snapshots", "snapshot-ids": older}]
            case "add a column":
                number = table.fields["last-column-id"] + 1
                added = {"id": number, "name": "note", "required": False, "type": "string"}
                fields = [*table.current_schema["fields"], added]
                schema = {"type": "struct", "fields": fields}
                return [
                    {"action": "add-schema", "schema": schema, "last-column-id": number},
                    {"action": "set-current-schema", "schema-id": -1},
                ]
            case "partition":
                source = next(
                    column["id"] for column in table.current_schema["fields"] if column["name"] == "append_time"
                )
                spec = {"fields": [{"source-id": source, "transform": "hour", "name": "append_hour"}]}
                return [{"action": "add-spec", "spec": spec}, {"action": "set-default-spec", "spec-id": -1}]
            case "replace":
                schema = {"type": "struct", "fields": [{"id": 900, "name": "n", "required": False, "type": "int"}]}
                return [
                    {"action": "add-schema", "schema": schema, "last-column-id": 900},
                    {"action": "set-current-schema", "schema-id": -1},
                    {"action": "remove-snapshot-ref", "ref-name": "main"},
                ]
        return await self._snapshot(table)

    async def _snapshot(self, table: TableMetadata) -> list[Object]:
        """An append without rows; all rows in one new file; or those of one file less."""
        reader = ManifestCache(self._world.avro)
        manifests, appended, summary = await reader.current_manifests(table), [], {}
        if self._deed != "append":
            entries = [entry for manifest in manifests for entry in await reader.live_entries(manifest)]
            paths = sorted(entry.file_path for entry in entries)
            spec = table_policy.default_spec(table)
            layout = reader.layout(table, table.current_schema, spec)
            retained = paths if self._deed == "compaction" else paths[1:]
            appended, manifests = [ManifestChange(layout, [_together(table, retained)])], []
            summary = {"operation": "replace"}
            if self._deed == "delete":
                gone = {"deleted-data-files": str(len(paths)), "deleted-records": str(sum(map(_rows, paths)))}
                summary = {"operation": "delete", **gone}  # all files went, and one came
        now_ms = SystemClock().wall_us() // 1000
        token, number = uuid.uuid4().bytes, uuid.uuid4().int >> 66
        built = build_snapshot(table, manifests, appended, {}, number, 0, token, now_ms, TagRetention(), summary)
        for file in built.files:
            await self._world.files.create(file.location, file.chunks)
        return built.updates


def _rows(location: str) -> int:
    return int(pq.read_metadata(location.removeprefix("file:")).num_rows)


def _together(table: TableMetadata, paths: list[str]) -> WrittenFile:
    rows = pa.concat_tables([pq.read_table(path.removeprefix("file:")) for path in paths])
    location = f"{table.location}/data/{uuid.uuid4()}.parquet"
    path = Path(location.removeprefix("file:"))
    pq.write_table(rows.replace_schema_metadata(), path)  # the footers of the files do not fit any more
    schema_id, spec_id = table.fields["current-schema-id"], table.fields["default-spec-id"]
    numbers = {column["name"]: column["id"] for column in table.current_schema["fields"]}
    offsets, shards = rows["offset"].to_pylist(), rows["shard"].to_pylist()
    low, high = (
        {numbers["offset"]: struct.pack("<q", bound(offsets)), numbers["shard"]: struct.pack("<i", bound(shards))}
        for bound in (min, max)
    )
    size = path.stat().st_size
    return WrittenFile(1, location, size, len(rows), [], schema_id, spec_id, [], {}, {}, {}, low, high, [4])
