"""How the table of a topic is laid out: partitions, compression, size of files. Pure.

The words are those of model/table_layout.py. What a topic's policy says is written into its table, so that engines that
compact it do the same; what it leaves open, the table says itself (`write.parquet.compression-codec`,
`write.target-file-size-bytes`, its default partition spec), so that other engines may change it too. All of it can be
changed at any time: files that are there keep what they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from icestream import limits
from icestream.catalog.topic_rules import topic_schema
from icestream.iceberg import partitioning
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.model import table_layout
from icestream.pipeline.round_plan import TableTarget

CODEC: Final = "write.parquet.compression-codec"
LEVEL: Final = "write.parquet.compression-level"
TARGET: Final = "write.target-file-size-bytes"
# Of every table that we make: at a commit every five seconds old metadata files would fill the disk.
_PROPERTIES: Final = {"format-version": "2", "write.metadata.delete-after-commit.enabled": "true"}


def new_layout(policy: Mapping[str, str]) -> Object:
    """Of a table that is made: what goes with the envelope's schema."""
    properties = _PROPERTIES | _chosen(policy)
    spec = partition(policy.get("partitioning", "none"), topic_schema.new_schema())
    return {"partition-spec": spec, "properties": properties}


def _chosen(policy: Mapping[str, str]) -> dict[str, str]:
    """The properties that say the same."""
    codec, level = table_layout.codec_and_level(policy.get("compression", ""))
    said = {CODEC: codec, LEVEL: level, TARGET: policy.get("target_file_bytes", "")}
    return {name: value for name, value in said.items() if value}


def partition(name: str, schema: Object) -> Object:
    """The spec that makes such partitions, for a table of this schema. Raises InvalidInput when there are none such."""
    table_layout.check_partitioning(name)
    ids = {field["name"]: field["id"] for field in schema["fields"]}
    if name == "none":
        return {"spec-id": 0, "fields": []}
    if name in table_layout.OF_TIME:
        field = {"source-id": ids["append_time"], "name": f"append_time_{name}", "transform": name}
    elif name == "key":
        field = {"source-id": ids["key"], "name": "key", "transform": "identity"}
    else:
        field = {"source-id": ids["key"], "name": "key_bucket", "transform": name}
    return {"spec-id": 0, "fields": [field]}


# --- a table that is there --------------------------------------------------------------------------------------------


def evolution(table: TableMetadata, policy: Mapping[str, str]) -> list[Object]:
    """The updates that bring a table in line: columns that a newer release has, partitions and properties as the
    policy says. No column is taken away, and none changes its id."""
    schema = table.current_schema
    found = {field["name"] for field in schema["fields"]}
    updates: list[Object] = []
    if missing := [one for one in topic_schema.new_schema()["fields"] if one["name"] not in found]:
        updates += _with_columns(table, schema, missing)
    wanted = policy.get("partitioning")
    if wanted is not None:
        spec = partition(wanted, schema)
        current = default_spec(table)
        if not partitioning.same(spec, current):
            updates += [{"action": "add-spec", "spec": spec}, {"action": "set-default-spec", "spec-id": -1}]
    return updates + _properties(table.properties, policy)


def _properties(found: Mapping[str, str], policy: Mapping[str, str]) -> list[Object]:
    wanted = _chosen(policy)
    updates: list[Object] = []
    if changed := {name: value for name, value in wanted.items() if found.get(name) != value}:
        updates.append({"action": "set-properties", "updates": changed})
    if CODEC in wanted and LEVEL not in wanted and LEVEL in found:  # it was of another codec, or another policy
        updates.append({"action": "remove-properties", "removals": [LEVEL]})
    return updates


def _with_columns(table: TableMetadata, schema: Object, missing: list[Object]) -> list[Object]:
    """New columns are optional: rows that are there have none."""
    last = table.fields["last-column-id"]
    added = []
    for field in missing:
        last += 1
        made = {**field, "id": last, "required": False}
        if isinstance(field["type"], dict):
            made["type"] = {**field["type"], "key-id": last + 1, "value-id": last + 2}
            last += 2
        added.append(made)
    made_schema = {**schema, "fields": [*schema["fields"], *added]}
    made_schema.pop("schema-id", None)
    return [
        {"action": "add-schema", "schema": made_schema, "last-column-id": last},
        {"action": "set-current-schema", "schema-id": -1},
    ]


def default_spec(table: TableMetadata) -> Object:
    found: Object = next(
        one for one in table.fields["partition-specs"] if one["spec-id"] == table.fields["default-spec-id"]
    )
    return found


def data_folder(table: TableMetadata) -> str:
    found = table.properties.get("write.data.path") or table.properties.get("write.folder-storage.path")
    return (found or f"{table.location}/data").rstrip("/")


def target_of(table: TableMetadata, policy: Mapping[str, str], storage: Mapping[str, Any]) -> TableTarget:
    codec, level = table_layout.codec_and_level(policy.get("compression", ""))
    properties = table.properties
    codec = codec or properties.get(CODEC) or "zstd"
    level = level or ("" if policy.get("compression") else properties.get(LEVEL, ""))
    size = policy.get("target_file_bytes") or properties.get(TARGET, "")
    return TableTarget(
        location=data_folder(table),
        schema=table.current_schema,
        spec=default_spec(table),
        codec=codec,
        codec_level=int(level) if level.lstrip("-").isdigit() else None,
        target_bytes=int(size) if size.isdigit() and int(size) else limits.DATA_FILE_BYTES_TARGET,
        storage=dict(storage),
    )
