"""A catalog of our own on a real disk, the committer of the pipeline over it, and files as its tasks write them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog import Catalog
from icestream.catalog.catalog_records import LeaseRecord
from icestream.catalogs.embedded import EmbeddedCatalog
from icestream.catalogs.table_catalog import TableCatalog
from icestream.iceberg.file_io import LocalFiles, open_local
from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.metadata.store import MemoryStore, MetadataStore
from icestream.model.backlog_messages import ShardBacklog, TopicBacklog
from icestream.model.pipeline_file_name import data_name
from icestream.model.task_messages import CoveredRange, WrittenFile
from icestream.pipeline.commit.committer import Committer, Result
from icestream.pipeline.commit.file_presence import FilePresenceCheck
from icestream.pipeline.commit.offset_ledger import OffsetLedger, TopicCommit
from icestream.pipeline.commit.snapshot_expiry import TagRetention
from icestream.pipeline.round_judgement import OffsetClaim
from icestream.pipeline.tables import table_policy
from icestream.pipeline.tables.embedded_ledger import EmbeddedLedger
from icestream.pipeline.tables.foreign_ledger import ForeignLedger
from icestream.pipeline.tables.topic_table import TopicTable
from icestream.readers.embedded_table_views import EmbeddedTableViews
from icestream.readers.foreign_table_views import ForeignTableViews
from icestream.readers.snapshot_reader import SnapshotReader
from icestream.readers.table_views import TableViews
from icestream.runtime.clock import Clock, SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import InlineOffload
from tests.support import table_verification

NUMBERS = count(1)
HOUR_US = 3_600_000_000


def topic(topic_id: int = 1, name: str = "/default/orders", shards: int = 1, **policy: str) -> TopicBacklog:
    backlogs = [ShardBacklog(shard, 0, 0, 1_000_000) for shard in range(shards)]
    return TopicBacklog(topic_id, name, topic_id, backlogs, 1_000, 1_000, 0, dict(policy))


class CommitterHarness:
    def __init__(
        self,
        folder: Path,
        store: MetadataStore | None = None,
        clock: Clock | None = None,
        history: TagRetention | None = None,
        fixed: tuple[str, ...] | None = None,
        wrap: Any = None,
        is_foreign: bool = False,
        lease: str = "",
        is_cluster: bool = False,
    ) -> None:
        """`wrap`: makes another catalog of the one that commits go to. `is_foreign`: it is used as a foreign
        catalog. `is_cluster`: files may be on other machines."""
        self.folder = folder
        self.clock = clock or SystemClock()
        self.store = store or MemoryStore(self.clock)
        self.files = LocalFiles(open_local, InlineOffload())
        self.making = Catalog(self.store, self.files, self.clock, SystemRandomness(), f"file:{folder}")
        embedded: TableCatalog = EmbeddedCatalog(self.making)
        self.catalog: TableCatalog = wrap(embedded) if wrap else embedded
        avro = ManifestReader(self.files, InlineOffload())
        self.books: OffsetLedger = EmbeddedLedger(self.store, embedded, self.making, fixed, lease)
        if is_foreign:
            self.books = ForeignLedger(self.store, self.catalog, avro, fixed, self.clock, lease)
        self.reader = ManifestCache(avro)
        self.committer = Committer(
            self.catalog,
            self.books,
            self.files,
            self.reader,
            self.clock,
            SystemRandomness(),
            history or TagRetention(),
            FilePresenceCheck(self.files) if is_cluster else None,
        )
        self.epoch = 1
        self._lease = lease
        if isinstance(self.store, MemoryStore):  # another may be away when the test has ended
            table_verification.note(lambda: self._tables(avro, is_foreign), self.files)

    def _tables(self, avro: ManifestReader, is_foreign: bool) -> TableViews:
        if is_foreign:
            return ForeignTableViews(self.store, EmbeddedCatalog(self.making), SnapshotReader(avro), self.clock)
        return EmbeddedTableViews(self.making, avro, self.clock)

    async def lease(self, epoch: int) -> None:
        self.epoch = epoch
        await self.store.put(catalog_keys.lease_key(self._lease), catalog_records.encode(LeaseRecord(epoch)))

    async def open(self, backlog: TopicBacklog) -> TopicTable:
        return await self.books.open(backlog)

    def brought(self, table: TopicTable, rows: int, shard: int = 0, files: int = 1, hour: int = 0) -> TopicCommit:
        """The next so many offsets of a shard, in so many files."""
        start = table.positions[shard].next
        bounds = [start + rows * number // files for number in range(files + 1)]
        written = [self.write(table, shard, low, high, hour) for low, high in pairwise(bounds) if low < high]
        claims = [OffsetClaim(shard, table.positions[shard].epoch, start, start + rows)]
        return self.round(table, claims, written)

    def round(self, table: TopicTable, claims: Sequence[OffsetClaim], written: Sequence[WrittenFile]) -> TopicCommit:
        committer = self.committer
        return TopicCommit(table, committer.new_round_id(), self.epoch, claims, written, committer.new_snapshot_id())

    async def commit(self, *rounds: TopicCommit) -> dict[int, Result]:
        results: dict[int, Result] = {}
        await self.committer.commit(rounds, results)
        return results

    def write(self, table: TopicTable, shard: int, start: int, end: int, hour: int = 0) -> WrittenFile:
        """A Parquet file of these offsets, all of the same hour."""
        target = table_policy.target_of(table.table, table.policy, {})
        location = f"{target.location}/{data_name(self.epoch, f'{next(NUMBERS):032x}')}"
        path = Path(location.removeprefix("file:"))
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(_rows(target.schema, shard, start, end, hour * HOUR_US), path)
        ids = {field["name"]: field["id"] for field in target.schema["fields"]}
        bounds = _bounds(ids, shard, start, end, hour * HOUR_US)
        return WrittenFile(
            table.topic_id,
            location,
            path.stat().st_size,
            end - start,
            [CoveredRange(shard, start, end)],
            target.schema["schema-id"],
            target.spec["spec-id"],
            [_partition(field, start, hour) for field in target.spec["fields"]],
            dict.fromkeys(ids.values(), 100),
            dict.fromkeys(ids.values(), end - start),
            {number: 0 if name in _FILLED else end - start for name, number in ids.items()},
            {number: low for number, (low, _) in bounds.items()},
            {number: high for number, (_, high) in bounds.items()},
            [4],
        )


_FILLED = ("shard", "offset", "publish_time", "append_time", "key", "payload")


def _partition(field: Mapping[str, Any], start: int, hour: int) -> object:
    return {"hour": hour, "day": hour // 24, "identity": b"k", "month": 0}.get(field["transform"], 0)


def _bounds(ids: Mapping[str, int], shard: int, start: int, end: int, time_us: int) -> dict[int, tuple[bytes, bytes]]:
    def long(value: int) -> bytes:
        return struct.pack("<q", value)

    return {
        ids["shard"]: (struct.pack("<i", shard),) * 2,
        ids["offset"]: (long(start), long(end - 1)),
        ids["publish_time"]: (long(time_us),) * 2,
        ids["append_time"]: (long(time_us),) * 2,
        ids["key"]: (b"k", b"k"),
    }


_ARROW = {
    "int": pa.int32(),
    "long": pa.int64(),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "string": pa.string(),
}


def _rows(schema: Mapping[str, Any], shard: int, start: int, end: int, time_us: int) -> pa.Table:
    count_of = end - start
    values: dict[str, list[Any]] = {
        "shard": [shard] * count_of,
        "offset": list(range(start, end)),
        "publish_time": [time_us] * count_of,
        "append_time": [time_us] * count_of,
        "key": [b"k"] * count_of,
        "payload": [b"%d" % offset for offset in range(start, end)],
    }
    fields, columns = [], []
    for field in schema["fields"]:
        kind = _kind(field["type"])
        metadata = {b"PARQUET:field_id": b"%d" % field["id"]}
        fields.append(pa.field(field["name"], kind, not field["required"], metadata))
        columns.append(pa.array(values.get(field["name"], [None] * count_of), kind))
    return pa.table(columns, pa.schema(fields))


def _kind(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        return _ARROW[kind]
    key = pa.field("key", pa.string(), False, {b"PARQUET:field_id": b"%d" % kind["key-id"]})
    value = pa.field("value", pa.string(), True, {b"PARQUET:field_id": b"%d" % kind["value-id"]})
    return pa.map_(key, value)
