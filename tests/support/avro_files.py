"""Manifest lists and manifests as an engine writes them: as much of them as the tests read."""

from __future__ import annotations

import io
from typing import Any

import fastavro

from tests.support.tables import add, point, snapshot
from tests.support.warehouse import CatalogWorld

LIST = {
    "type": "record",
    "name": "manifest_file",
    "fields": [{"name": "manifest_path", "type": "string"}, {"name": "manifest_length", "type": "long"}],
}
DATA_FILE = {
    "type": "record",
    "name": "r2",
    "fields": [
        {"name": "content", "type": "int"},
        {"name": "file_path", "type": "string"},
        {"name": "file_format", "type": "string"},
        {"name": "record_count", "type": "long"},
        {"name": "file_size_in_bytes", "type": "long"},
    ],
}
MANIFEST = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [
        {"name": "status", "type": "int"},
        {"name": "snapshot_id", "type": ["null", "long"]},
        {"name": "sequence_number", "type": ["null", "long"]},
        {"name": "data_file", "type": DATA_FILE},
    ],
}


def encoded(schema: dict[str, Any], records: list[dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    fastavro.writer(buffer, fastavro.parse_schema(schema), records, codec="deflate")
    return buffer.getvalue()


def manifest_list(*paths: str) -> bytes:
    return encoded(LIST, [{"manifest_path": path, "manifest_length": 1} for path in paths])


def manifest(*paths: str, snapshot_id: int = 1, status: int = 1) -> bytes:
    def entry(path: str) -> dict[str, Any]:
        file = {
            "content": 0,
            "file_path": path,
            "file_format": "PARQUET",
            "record_count": 10,
            "file_size_in_bytes": 1_000,
        }
        return {"status": status, "snapshot_id": snapshot_id, "sequence_number": 1, "data_file": file}

    return encoded(MANIFEST, [entry(path) for path in paths])


def appended(world: CatalogWorld, location: str, number: int, *more: str) -> list[dict[str, Any]]:
    """A snapshot with two data files of its own, and `more` of others: the files are written, the updates are handed
    back."""
    files = [f"{location}/data/rows-{number}-{part}.parquet" for part in (1, 2)]
    where, names = f"{location}/metadata/manifest-{number}.avro", f"{location}/metadata/snap-{number}.avro"
    for path in files:
        world.write(path)
    world.write(where, manifest(*files, *more, snapshot_id=number))
    world.write(names, manifest_list(where))
    added = snapshot(number, None if number == 1 else number - 1, **{"manifest-list": names})
    added["timestamp-ms"] = world.clock.wall_us() // 1000
    return [add(added), point("main", number)]
