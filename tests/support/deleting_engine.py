"""Deletes rows of a topic's table as engines do that merge on read: by delete files, in a snapshot of their own.

The delete manifest has fields that our own manifests have not (`referenced_data_file`, a field that no release knows),
so that a rewrite of it is seen to keep them.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.iceberg import table_metadata as tables
from icestream.iceberg.conversions import BOUND_LENGTH
from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.manifests import ManifestEntry
from icestream.iceberg.manifests import manifest_file_of_record as manifest_file
from icestream.iceberg.table_metadata import TableMetadata
from icestream.model import ShardKey
from icestream.pipeline.commit.snapshot_builder import build_snapshot
from icestream.pipeline.commit.snapshot_expiry import TagRetention
from icestream.runtime.clock import SystemClock
from tests.support.fault_world import FaultWorld, name_of

POSITIONS, VALUES = 1, 2
_PATH, _POSITION = 2_147_483_546, 2_147_483_545
FOREIGN_FIELD = {"name": "engine_note", "type": ["null", "string"], "default": None, "field-id": 9_000}
_REFERENCED = {"name": "referenced_data_file", "type": ["null", "string"], "default": None, "field-id": 143}


async def table_of(world: FaultWorld, topic_id: int = 1) -> TableMetadata:
    return tables.load((await world.catalog.load(name_of(topic_id))).metadata)


async def live_entries(world: FaultWorld, content: int = 0, topic_id: int = 1) -> list[ManifestEntry]:
    """The live entries of main, of data files (0) or of delete files (1)."""
    table = await table_of(world, topic_id)
    reader = ManifestCache(world.avro)
    manifests = await reader.current_manifests(table)
    return [
        entry
        for manifest in manifests
        if bool(manifest.content) == bool(content)
        for entry in await reader.live_entries(manifest)
    ]


async def delete_by_position(
    world: FaultWorld, positions: Mapping[str, Sequence[int]], *, is_one_file: bool = False, topic_id: int = 1
) -> None:
    """Deletes rows by their places. `positions`: by data file. `is_one_file`: one delete file for all of them."""
    for location, rows in positions.items():
        _forgo(world, topic_id, pq.read_table(_path(location)).take(list(rows)))
    parts = [positions] if is_one_file else [{location: rows} for location, rows in positions.items()]
    entries = [await _position_deletes(world, part, topic_id) for part in parts]
    rows = sum(map(len, positions.values()))
    await _commit(world, entries, {"added-position-deletes": str(rows)}, topic_id)


async def delete_by_value(world: FaultWorld, shard: int, offsets: Sequence[int], topic_id: int = 1) -> None:
    """Deletes rows by the values of their columns `shard` and `offset`."""
    table = await table_of(world, topic_id)
    ids = {field["name"]: field["id"] for field in table.current_schema["fields"]}
    world.forgone.setdefault(ShardKey(topic_id, shard), set()).update(
        set(offsets) & world.published[ShardKey(topic_id, shard)].keys()
    )
    fields = [
        pa.field(name, type_, False, {b"PARQUET:field_id": str(ids[name]).encode()})
        for name, type_ in (("shard", pa.int32()), ("offset", pa.int64()))
    ]
    rows = pa.table([pa.array([shard] * len(offsets), pa.int32()), pa.array(offsets, pa.int64())], pa.schema(fields))
    entry = _entry(table, rows, VALUES, {"equality_ids": [ids["shard"], ids["offset"]]})
    await _commit(world, [entry], {"added-equality-deletes": str(len(offsets))}, topic_id)


async def delete_by_key(world: FaultWorld, shard: int, offset: int, key: bytes, topic_id: int = 1) -> None:
    """Deletes the row of a key, by the value of the column `key`: the delete file has the key, and so have its
    bounds."""
    table = await table_of(world, topic_id)
    ids = {field["name"]: field["id"] for field in table.current_schema["fields"]}
    world.forgone.setdefault(ShardKey(topic_id, shard), set()).add(offset)
    fields = [pa.field("key", pa.binary(), False, {b"PARQUET:field_id": str(ids["key"]).encode()})]
    bounds = [{"key": ids["key"], "value": key[:BOUND_LENGTH]}]
    more = {"equality_ids": [ids["key"]], "lower_bounds": bounds, "upper_bounds": bounds}
    entry = _entry(table, pa.table([[key]], pa.schema(fields)), VALUES, more)
    await _commit(world, [entry], {"added-equality-deletes": "1"}, topic_id)


def _forgo(world: FaultWorld, topic_id: int, rows: Any) -> None:
    for shard, offset in zip(rows["shard"].to_pylist(), rows["offset"].to_pylist(), strict=True):
        world.forgone.setdefault(ShardKey(topic_id, shard), set()).add(offset)


async def _position_deletes(world: FaultWorld, positions: Mapping[str, Sequence[int]], topic_id: int) -> Any:
    places = sorted((location, row) for location, rows in positions.items() for row in rows)
    fields = [
        pa.field("file_path", pa.utf8(), False, {b"PARQUET:field_id": str(_PATH).encode()}),
        pa.field("pos", pa.int64(), False, {b"PARQUET:field_id": str(_POSITION).encode()}),
    ]
    rows = pa.table([[path for path, _ in places], [row for _, row in places]], pa.schema(fields))
    paths = sorted(positions)
    bounds = {
        "lower_bounds": [{"key": _PATH, "value": paths[0].encode()}],
        "upper_bounds": [{"key": _PATH, "value": paths[-1].encode()}],
    }
    named = {"referenced_data_file": paths[0]} if len(paths) == 1 else {}
    return _entry(await table_of(world, topic_id), rows, POSITIONS, bounds | named)


def _entry(table: TableMetadata, rows: Any, content: int, more: Mapping[str, Any]) -> Any:
    location = f"{table.location}/data/{uuid.uuid4()}-deletes.parquet"
    pq.write_table(rows, _path(location))
    file = {
        "content": content,
        "file_path": location,
        "file_format": "PARQUET",
        "partition": {},
        "record_count": rows.num_rows,
        "file_size_in_bytes": _path(location).stat().st_size,
        "engine_note": "from elsewhere",
        **more,
    }
    return {"status": 1, "snapshot_id": None, "sequence_number": None, "file_sequence_number": None, "data_file": file}


async def _commit(world: FaultWorld, entries: Sequence[Any], summary: Mapping[str, str], topic_id: int) -> None:
    table = await table_of(world, topic_id)
    reader = ManifestCache(world.avro)
    manifests = await reader.current_manifests(table)
    number, snapshot_id = table.fields["last-sequence-number"] + 1, uuid.uuid4().int >> 66
    location = f"{table.location}/metadata/{uuid.uuid4()}-deletes.avro"
    # Of the spec without partitions, if there are several: the entries have none.
    plain = {spec["spec-id"] for spec in table.fields["partition-specs"] if not spec["fields"]}
    data_manifests = (manifest for manifest in manifests if not manifest.content)
    sample = min(data_manifests, key=lambda manifest: manifest.spec_id not in plain)
    data = _delete_manifest(_path(sample.path).read_bytes(), entries)
    rows = sum(entry["data_file"]["record_count"] for entry in entries)
    deletes = manifest_file(
        {
            **sample.record,
            "manifest_path": location,
            "manifest_length": len(data),
            "content": 1,
            "sequence_number": number,
            "min_sequence_number": number,
            "added_snapshot_id": snapshot_id,
            "added_files_count": len(entries),
            "existing_files_count": 0,
            "deleted_files_count": 0,
            "added_rows_count": rows,
            "existing_rows_count": 0,
            "deleted_rows_count": 0,
        }
    )
    await world.files.create(location, [data])
    counts = {"operation": "delete", "added-delete-files": str(len(entries)), **summary}
    now_ms = SystemClock().wall_us() // 1000
    built = build_snapshot(
        table, [deletes, *manifests], [], {}, snapshot_id, 0, uuid.uuid4().bytes, now_ms, TagRetention(), counts
    )
    for file in built.files:
        await world.files.create(file.location, file.chunks)
    await world.making.commits.commit(name_of(topic_id), CommitRequest([], built.updates))


def _delete_manifest(sample: bytes, entries: Sequence[Any]) -> bytes:
    """A manifest of delete files, in the form of one of the table's data manifests and with fields of its own."""
    reader = fastavro.reader(io.BytesIO(sample))
    schema = cast("dict[str, Any]", reader.writer_schema)
    (data_file,) = (field["type"] for field in schema["fields"] if field["name"] == "data_file")
    data_file["fields"] = [*data_file["fields"], _REFERENCED, FOREIGN_FIELD]
    metadata = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
    encoded = io.BytesIO()
    fastavro.writer(encoded, schema, entries, metadata=metadata | {"content": "deletes"})
    return encoded.getvalue()


def _path(location: str) -> Path:
    return Path(location.removeprefix("file:"))
