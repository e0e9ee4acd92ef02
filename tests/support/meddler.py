"""Somebody else who changes the tables of topics, as other engines do, without a word to the pipeline."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icestream.catalog.document.values import Object
from icestream.catalog.identifier import Identifier
from icestream.catalog.table import table as tables
from icestream.catalog.table.table import Table
from icestream.model import ShardKey
from icestream.model.written import WrittenFile
from icestream.pipeline.commit.expiry import History
from icestream.pipeline.commit.manifest_reader import ManifestReader
from icestream.pipeline.commit.snapshot import Appended, new_snapshot
from icestream.pipeline.tables import table_policy
from icestream.runtime.clock import SystemClock
from icestream.warehouse.catalog import Done, Outcome, TableCatalog, TableChange
from tests.support.fault_world import FaultWorld, name_of


class Meddler:
    """A catalog in which somebody is a little faster, once: when the so-many-th request comes."""

    def __init__(self, inner: TableCatalog, world: FaultWorld, deed: str, request: int) -> None:
        self._inner = inner
        self._world = world
        self._deed = deed
        self._requests_left = request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, identifier: Identifier, change: TableChange) -> Outcome:
        await self.meddle()
        return await self._inner.commit(identifier, change)

    async def commit_all(self, changes: Mapping[Identifier, TableChange]) -> dict[Identifier, Outcome]:
        await self.meddle()
        return await self._inner.commit_all(changes)

    @property
    def is_done(self) -> bool:
        return self._requests_left <= 0

    async def meddle(self) -> None:
        self._requests_left -= 1
        if self._requests_left:
            return
        name = name_of(1)
        table = tables.load((await self._inner.load(name)).metadata)
        before = await self._world.rows(1)
        updates = _rollback(table) if self._deed == "rollback" else await self._snapshot(table)
        assert isinstance(await self._inner.commit(name, TableChange([], updates)), Done)
        after = await self._world.rows(1)
        for shard, rows in before.items():
            gone = {at for at, _ in rows} - {at for at, _ in after.get(shard, [])}
            self._world.forgone.setdefault(ShardKey(1, shard), set()).update(gone)
        assert bool(self._world.forgone[ShardKey(1, 0)]) == (self._deed == "rollback")

    async def _snapshot(self, table: Table) -> list[Object]:
        """An append without rows, or all rows in one new file."""
        reader = ManifestReader(self._world.avro)
        manifests, appended, summary = await reader.manifests(table), [], {}
        if self._deed == "compaction":
            paths = [path for one in manifests for path in await self._world.avro.files(one.path)]
            spec = table_policy.default_spec(table)
            layout = reader.layout(table, table.current_schema, spec)
            appended, manifests = [Appended(layout, [_together(table, paths)])], []
            summary = {"operation": "replace"}
        now_ms = SystemClock().wall_us() // 1000
        token, number = uuid.uuid4().bytes, uuid.uuid4().int >> 66
        made = new_snapshot(table, manifests, appended, {}, number, 0, token, now_ms, History(), summary)
        for file in made.files:
            await self._world.files.create(file.location, file.pieces)
        return made.updates


def _rollback(table: Table) -> list[Object]:
    current = table.snapshots.find(table.current_snapshot_id or 0)
    assert current is not None
    parent = current["parent-snapshot-id"]
    return [{"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": parent}]


def _together(table: Table, paths: list[str]) -> WrittenFile:
    rows = pa.concat_tables([pq.read_table(path.removeprefix("file:")) for path in paths])
    location = f"{table.location}/data/{uuid.uuid4()}.parquet"
    path = Path(location.removeprefix("file:"))
    pq.write_table(rows, path)
    schema_id, spec_id = table.fields["current-schema-id"], table.fields["default-spec-id"]
    return WrittenFile(1, location, path.stat().st_size, len(rows), [], schema_id, spec_id, [], {}, {}, {}, {}, {}, [4])
