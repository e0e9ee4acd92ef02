"""Another engine appends a file to a table, with names of files as engines choose them."""

from __future__ import annotations

import uuid
from typing import Any
from unittest import mock

from icestream.iceberg.manifest_cache import ManifestCache
from icestream.iceberg.table_metadata import TableMetadata
from icestream.model.task_messages import WrittenFile
from icestream.pipeline.commit import snapshot_builder
from icestream.pipeline.commit.snapshot_builder import ManifestChange, build_snapshot
from icestream.pipeline.commit.snapshot_expiry import TagRetention
from icestream.pipeline.tables import table_policy
from icestream.runtime.clock import SystemClock
from tests.support.fault_world import FaultWorld


async def appended_file(world: FaultWorld, table: TableMetadata, location: str) -> list[Any]:
    """The updates that append a file to a table."""
    reader = ManifestCache(world.avro)
    manifests = (await reader.current_manifests(table))[0] if False else []
    if table.current_snapshot_id is not None:
        manifests = await reader.current_manifests(table)
    schema_id, spec_id = table.fields["current-schema-id"], table.fields["default-spec-id"]
    file = WrittenFile(1, location, 4, 1, [], schema_id, spec_id, [], {}, {}, {}, {}, {}, [4])
    layout = reader.layout(table, table.current_schema, table_policy.default_spec(table))
    token, number, now_ms = uuid.uuid4().bytes, uuid.uuid4().int >> 66, SystemClock().wall_us() // 1000
    change = ManifestChange(layout, [file])
    with (  # as an engine names its files
        mock.patch.object(snapshot_builder, "manifest_name", lambda _, name, number: f"{name}-m{number}.avro"),
        mock.patch.object(
            snapshot_builder, "list_name", lambda snapshot_id, _, name: f"snap-{snapshot_id}-{name}.avro"
        ),
    ):
        built = build_snapshot(table, manifests, [change], {}, number, 0, token, now_ms, TagRetention(), {})
    for written in built.files:
        await world.files.create(written.location, written.chunks)
    return built.updates
