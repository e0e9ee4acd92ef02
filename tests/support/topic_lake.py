"""The table of a topic with real Parquet files, in this process: what the pipeline and other engines make of one."""

from __future__ import annotations

import io
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog import Catalog
from icestream.catalog.operations.file_rules import FileRules
from icestream.catalog.topic_rules import topic_schema as table_envelope
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.iceberg.file_io import LocalFiles, open_local
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.table_metadata import TableMetadata
from icestream.metadata.store import MemoryStore, MetadataStore
from icestream.model import envelope
from icestream.model.block import iter_blocks
from icestream.model.pipeline_file_name import data_name
from icestream.model.scan_messages import ScanKind, ScanRequest, ScanResponse
from icestream.readers.embedded_table_views import EmbeddedTableViews
from icestream.readers.file_reader import FileReader
from icestream.readers.lazy_scanner import LazyScanner, file_opener
from icestream.readers.row_group_cache import open_row_group_cache
from icestream.readers.row_group_cache_options import RowGroupCacheOptions
from icestream.readers.scanner import Scanner
from icestream.readers.sections import TYPES
from icestream.runtime.clock import Clock, SimulatedClock
from icestream.runtime.randomness import SeededRandomness
from icestream.runtime.tasks import InlineOffload
from tests.support import table_verification

TOPIC, TOPIC_ID = "/default/orders", 12
TABLE = Identifier(("default",), "orders")
LEASE = 1
Row = Mapping[str, Any]


def _pairs(record: str, key: int, value: int) -> dict[str, Any]:
    fields = [{"name": "key", "type": "int", "field-id": key}, {"name": "value", "type": "bytes", "field-id": value}]
    return {"type": "array", "items": {"type": "record", "name": record, "fields": fields}, "logicalType": "map"}


def _optional(name: str, number: int, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None, "field-id": number}


_NULLS = _pairs("nulls", 121, 122)
_NULLS["items"]["fields"][1]["type"] = "long"
_FILE = {
    "type": "record",
    "name": "r2",
    "fields": [
        {"name": "content", "type": "int", "field-id": 134},
        {"name": "file_path", "type": "string", "field-id": 100},
        {"name": "file_format", "type": "string", "field-id": 101},
        {"name": "partition", "type": {"type": "record", "name": "r102", "fields": []}, "field-id": 102},
        {"name": "record_count", "type": "long", "field-id": 103},
        {"name": "file_size_in_bytes", "type": "long", "field-id": 104},
        _optional("lower_bounds", 125, _pairs("lower", 126, 127)),
        _optional("upper_bounds", 128, _pairs("upper", 129, 130)),
        _optional("null_value_counts", 110, _NULLS),
        _optional("equality_ids", 135, {"type": "array", "items": "int", "element-id": 136}),
        _optional("referenced_data_file", 143, "string"),
        _optional("content_offset", 144, "long"),
        _optional("content_size_in_bytes", 145, "long"),
    ],
}
MANIFEST = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [
        {"name": "status", "type": "int", "field-id": 0},
        {"name": "snapshot_id", "type": ["null", "long"], "field-id": 1},
        {"name": "sequence_number", "type": ["null", "long"], "field-id": 3},
        {"name": "data_file", "type": _FILE, "field-id": 2},
    ],
}
LIST = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        {"name": "manifest_path", "type": "string"},
        {"name": "content", "type": "int"},
        {"name": "sequence_number", "type": "long"},
    ],
}


def row(offset: int, shard: int = 0, **values: Any) -> Row:
    """A message of one tick for each ten offsets."""
    defaults = {"append_time": 1_000 * (offset // 10), "payload": b"m%d" % offset}
    return {"shard": shard, "offset": offset, **defaults, **values}


def rows(start: int, end: int, shard: int = 0, **values: Any) -> list[Row]:
    return [row(offset, shard, **values) for offset in range(start, end)]


def remove(entry: Any) -> None:
    """The data file of an entry, as an expiry does."""
    Path(entry["data_file"]["file_path"].removeprefix("file:")).unlink()


def damage(entry: Any, column: str = "offset") -> str:
    """The first page of a column, in all row groups, as a disk does that forgets. The file keeps its size."""
    damage_page(Path(entry["data_file"]["file_path"].removeprefix("file:")), column)
    return str(entry["data_file"]["file_path"])


def damage_page(path: Path, column: str) -> None:
    data, metadata = bytearray(path.read_bytes()), pq.read_metadata(path)
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        columns = [group.column(number) for number in range(metadata.num_columns)]
        at = next(chunk.data_page_offset for chunk in columns if chunk.path_in_schema == column)
        data[at : at + 8] = b"\xff" * 8
    path.write_bytes(data)


def damage_footer(entry: Any) -> None:
    path = Path(entry["data_file"]["file_path"].removeprefix("file:"))
    data = path.read_bytes()
    path.write_bytes(data[:-40] + b"\xff" * 32 + data[-8:])


class TopicLake:
    def __init__(
        self,
        folder: Path,
        store: MetadataStore | None = None,
        clock: Clock | None = None,
        cache: RowGroupCacheOptions | None = None,
        topic: str = TOPIC,
        topic_id: int = TOPIC_ID,
        is_secured: bool = False,
    ) -> None:
        self.topic, self.topic_id = topic, topic_id
        self.cache_options = cache or RowGroupCacheOptions()
        self.clock = clock or SimulatedClock()
        self.store = store or MemoryStore(self.clock)
        self.files = LocalFiles(open_local, InlineOffload())
        self.catalog = Catalog(self.store, self.files, self.clock, SeededRandomness(5), f"file:{folder}")
        self.manifests = ManifestReader(self.files, InlineOffload())
        self.is_secured = is_secured
        self.rules = FileRules(self.catalog.places, self._is_secured)
        self.scans = LazyScanner(
            lambda: EmbeddedTableViews(self.catalog, self.manifests, self.clock, self.rules.check),
            self.files,
            cache or RowGroupCacheOptions(),
            rule_of=self.rules.rule,
        )
        self.tables = self.scans.tables
        if isinstance(self.store, MemoryStore):  # another may be away when the test has ended
            table_verification.note(self.scans.new_tables, self.files)
        self.reader = FileReader(file_opener(self.files), open_row_group_cache(cache or RowGroupCacheOptions()))
        self.scanner = Scanner(self.tables, self.reader, InlineOffload())
        self.live: list[dict[str, Any]] = []  # entries of the current snapshot
        self._numbers = count(1)
        self._request_numbers = count(1)

    def go_on_from(self, former: TopicLake) -> None:
        """Commits behind those of another one, over the same store."""
        self.live, self._numbers = former.live, former._numbers

    async def _is_secured(self) -> bool:
        return self.is_secured

    async def bind(self, shards: int = 1, start: int = 0) -> None:
        await self.store.put(catalog_keys.LEASE, catalog_records.encode(catalog_records.LeaseRecord(LEASE)))
        await self.catalog.namespaces.create(TABLE.namespace, {})
        await self.catalog.tables.create(TABLE, {"name": TABLE.name, "schema": table_envelope.new_schema()})
        await self.catalog.topics.bind(TABLE, self.topic, self.topic_id, dict.fromkeys(range(shards), (0, start)))

    async def table(self) -> TableMetadata:
        return (await self.catalog.commits.load(TABLE)).state.table

    # --- files ---

    async def write(self, messages: Sequence[Row], groups: int = 1_000_000, *, ids: bool = True, **more: Any) -> Any:
        """A data file of these rows, in this order, named as the pipeline's are; the entry of a manifest for it.
        `bounds=False`: without them."""
        table = await self.table()
        numbers = {field["name"]: field["id"] for field in table.current_schema["fields"]}
        columns = [
            name for name in TYPES if any(message.get(name) is not None for message in messages) or name == "offset"
        ]
        arrow_table = pa.table(
            [pa.array([_arrow(message.get(name)) for message in messages], TYPES[name]) for name in columns],
            pa.schema(
                [
                    pa.field(
                        name,
                        TYPES[name],
                        metadata={b"PARQUET:field_id": b"%d" % numbers[name]} if ids else None,
                    )
                    for name in columns
                ]
            ),
        )
        path = f"{table.location}/data/{data_name(LEASE, uuid.uuid4().hex)}"
        self._write(path, arrow_table, groups, more.pop("statistics", True))
        bounds = more.pop("bounds", True)
        return self._entry(path, arrow_table, numbers if bounds else {}, **more)

    async def write_table(self, arrow_table: Any, save: Callable[[Any, Path], object], **more: Any) -> Any:
        """A data file as another engine wrote it: `save` gets the rows and the path."""
        table = await self.table()
        path = f"{table.location}/data/{uuid.uuid4()}"
        local = Path(path.removeprefix("file:"))
        local.parent.mkdir(parents=True, exist_ok=True)
        save(arrow_table, local)
        return self._entry(path, arrow_table, await self.field_ids() if more.pop("bounds", True) else {}, **more)

    async def field_ids(self) -> dict[str, int]:
        return {field["name"]: field["id"] for field in (await self.table()).current_schema["fields"]}

    def _write(self, location: str, arrow_table: Any, groups: int, statistics: bool) -> None:
        local = Path(location.removeprefix("file:"))
        local.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(arrow_table, local, row_group_size=groups, write_statistics=statistics, compression="zstd")

    def _entry(
        self, path: str, arrow_table: Any, numbers: Mapping[str, int], content: int = 0, **more: Any
    ) -> dict[str, Any]:
        lower, upper = [], []
        for name, form in (("shard", "<i"), ("offset", "<q"), ("append_time", "<q")):
            if name in numbers and name in arrow_table.column_names:
                values = arrow_table[name].cast(pa.int64()).to_pylist()
                lower.append({"key": numbers[name], "value": struct.pack(form, min(values))})
                upper.append({"key": numbers[name], "value": struct.pack(form, max(values))})
        file = {
            "content": content,
            "file_path": path,
            "file_format": "PARQUET",
            "partition": {},
            "record_count": len(arrow_table),
            "file_size_in_bytes": Path(path.removeprefix("file:")).stat().st_size,
            "lower_bounds": lower or None,
            "upper_bounds": upper or None,
        } | more
        return {"status": 1, "snapshot_id": None, "sequence_number": None, "data_file": file}

    async def write_deletes(
        self, entry: Any, positions: Iterable[int], content: int = 1, more: Mapping[str, Iterable[int]] | None = None
    ) -> Any:
        """A file that deletes rows of another by their places in it. `more`: of further files, by their paths."""
        places = {entry["data_file"]["file_path"]: positions} | dict(more or {})
        rows = sorted((path, at) for path, positions_of_path in places.items() for at in positions_of_path)
        schema = pa.schema(
            [
                pa.field("file_path", pa.string(), metadata={b"PARQUET:field_id": b"2147483546"}),
                pa.field("pos", pa.int64(), metadata={b"PARQUET:field_id": b"2147483545"}),
            ]
        )
        columns = [pa.array([path for path, _ in rows]), pa.array([at for _, at in rows], pa.int64())]
        arrow_table = pa.table(columns, schema)
        where = f"{(await self.table()).location}/data/{uuid.uuid4()}-deletes.parquet"
        self._write(where, arrow_table, 1_000_000, True)
        return self._entry(where, arrow_table, {}, content)

    # --- commits ---

    async def round(self, *ranges: tuple[int, int, int], entries: Sequence[Any] = (), epoch: int = 0) -> int:
        """Commits files as the pipeline does; ranges are (shard, start, end). The id of the snapshot."""
        number = next(self._numbers)
        claim = {
            "type": "assert-icestream-range",
            "round-id": str(uuid.UUID(int=number)),
            "topic-id": self.topic_id,
            "pipeline-epoch": LEASE,
            "ranges": [{"shard": shard, "epoch": epoch, "start": start, "end": end} for shard, start, end in ranges],
        }
        return await self._commit(number, [claim], [*self.live, *entries], "append")

    async def replace(self, entries: Sequence[Any], operation: str = "replace", **summary: str) -> int:
        """Replaces the table's files by these, as another engine does."""
        return await self._commit(next(self._numbers), [], entries, operation, **summary)

    async def _commit(
        self, number: int, claims: list[Any], entries: Sequence[Any], operation: str, **summary: str
    ) -> int:
        table = await self.table()
        sequence = table.fields.get("last-sequence-number", 0) + 1
        snapshot_id = 10_000 + number
        where = f"{table.location}/metadata"
        for entry in entries:
            if entry["sequence_number"] is None:
                entry["sequence_number"], entry["snapshot_id"] = sequence, snapshot_id
        listed = []
        for content in (0, 1):
            some = [entry for entry in entries if bool(entry["data_file"]["content"]) == bool(content)]
            if some:
                path = f"{where}/m{number}-{content}.avro"
                await self.files.create(path, [_avro(MANIFEST, some)])
                listed.append({"manifest_path": path, "content": content, "sequence_number": sequence})
        await self.files.create(f"{where}/snap-{number}.avro", [_avro(LIST, listed)])
        added = {
            "snapshot-id": snapshot_id,
            "sequence-number": sequence,
            "timestamp-ms": self.clock.wall_us() // 1000 + number,
            "manifest-list": f"{where}/snap-{number}.avro",
            "summary": {"operation": operation, **{name.replace("_", "-"): text for name, text in summary.items()}},
            "schema-id": 0,
        }
        if table.current_snapshot_id is not None:
            added["parent-snapshot-id"] = table.current_snapshot_id
        point = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
        updates = [{"action": "add-snapshot", "snapshot": added}, point]
        await self._apply(claims, updates)
        self.live = list(entries)
        return snapshot_id

    async def _apply(self, claims: list[Any], updates: list[Any]) -> None:
        await self.catalog.commits.commit(TABLE, CommitRequest(claims, updates))

    def replace_files(self, kind: str, location: str, entries: Sequence[Any]) -> None:
        """Writes a manifest or a manifest list of the table again, as a client does that may write its files. `kind`:
        the `manifest` at this location, or the `list`."""
        records = (
            entries
            if kind == "manifest"
            else [{"manifest_path": path, "content": 0, "sequence_number": 1} for path in entries]
        )
        data = _avro(MANIFEST if kind == "manifest" else LIST, records)
        Path(location.removeprefix("file:")).write_bytes(data)

    async def expire(self, *snapshots: int) -> None:
        """These, or all snapshots but the current one. Their files stay: `remove` takes them."""
        table = await self.table()
        gone = [
            snapshot["snapshot-id"]
            for snapshot in table.snapshots
            if snapshot["snapshot-id"] != table.current_snapshot_id
        ]
        updates = [{"action": "remove-snapshots", "snapshot-ids": list(snapshots) or gone}]
        await self.catalog.commits.commit(TABLE, CommitRequest([], updates))

    # --- reading ---

    async def ask(
        self, question: ScanKind, value: int = 0, shard: int = 0, bytes_max: int = 1 << 20, filters: Sequence[str] = ()
    ) -> ScanResponse:
        request = ScanRequest(
            next(self._request_numbers), question, self.topic, self.topic_id, shard, value, bytes_max, [*filters]
        )
        return await self.scanner.answer(request)

    async def read_all(
        self, position: int = 0, shard: int = 0, bytes_max: int = 1 << 20
    ) -> tuple[dict[int, bytes], list[tuple[int, int, str]]]:
        """Payloads by offset, in the order in which they came, and what was missing."""
        delivered: dict[int, bytes] = {}
        gaps: list[tuple[int, int, str]] = []
        while True:
            scanned = await self.ask(ScanKind.READ, position, shard, bytes_max)
            assert scanned.end is not None
            if position >= scanned.end:
                return delivered, gaps
            assert scanned.next_offset > position
            pieces: list[tuple[int, int]] = []
            for section in scanned.sections:
                pieces.append((section.base_offset, section.base_offset + section.rows))
                payloads = [value for block in iter_blocks(section.body) for value in block.values(envelope.PAYLOAD)]
                assert len(payloads) == section.rows
                for at, payload in enumerate(payloads, section.base_offset):
                    assert at not in delivered
                    assert isinstance(payload, bytes)
                    delivered[at] = payload
            for gap in scanned.missing:
                pieces.append((gap.start, gap.end))
                gaps.append((gap.start, gap.end, gap.reason))
            for start, end in sorted(pieces):  # without a hole, and nothing twice
                assert start == position
                position = end
            assert position == scanned.next_offset


def _avro(schema: Any, records: Sequence[Any]) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(schema), list(records), codec="deflate")
    return out.getvalue()


def _arrow(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) else value
