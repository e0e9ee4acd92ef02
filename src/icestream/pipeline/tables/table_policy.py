"""How the table of a topic is laid out: partitions, compression, size of files. Pure.

The values are those of model/table_layout.py. A topic's policy is written into the properties of its table, so that
engines that compact it do the same. What the policy leaves open is taken from the table
(`write.parquet.compression-codec`, `write.target-file-size-bytes`, its default partition spec), so that other engines
may change it. All of it can be changed at any time: existing files stay as they are.

`partitioning=auto` is decided anew once an hour, and whenever the table is loaded (auto_partitioning.py).
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
from icestream.model.table_layout import MqttColumnsPolicy
from icestream.pipeline.round_plan import MqttTarget, TableTarget
from icestream.pipeline.tables import auto_partitioning

CODEC: Final = "write.parquet.compression-codec"
LEVEL: Final = "write.parquet.compression-level"
TARGET: Final = "write.target-file-size-bytes"
# For every table that we create: with a commit every five seconds, old metadata files would fill the disk.
_PROPERTIES: Final = {"format-version": "2", "write.metadata.delete-after-commit.enabled": "true"}


def new_layout(policy: Mapping[str, str]) -> Object:
    """Returns the partition spec and properties of a new table."""
    properties = _PROPERTIES | _policy_properties(policy)
    name = "none" if is_automatic(policy) else policy.get("partitioning", "none")
    spec = partition(name, topic_schema.new_schema())
    return {"partition-spec": spec, "properties": properties}


def _policy_properties(policy: Mapping[str, str]) -> dict[str, str]:
    """Returns the table properties of a policy."""
    codec, level = table_layout.codec_and_level(policy.get("compression", ""))
    properties = {CODEC: codec, LEVEL: level, TARGET: policy.get("target_file_bytes", "")}
    return {name: value for name, value in properties.items() if value}


def partition(name: str, schema: Object) -> Object:
    """Returns the partition spec of this name, for a table of this schema; not for `auto`, which names none. Raises
    InvalidInput for an unknown name."""
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


# --- an existing table ------------------------------------------------------------------------------------------------


def evolution(table: TableMetadata, policy: Mapping[str, str]) -> list[Object]:
    """Returns the updates that a table needs: columns of a newer release, partitions and properties of the policy. No
    column is removed, and none changes its id."""
    schema = table.current_schema
    names = {field["name"] for field in schema["fields"]}
    updates: list[Object] = []
    expected = [*topic_schema.new_schema()["fields"], *(topic_schema.mqtt_fields() if has_mqtt(policy) else ())]
    if missing := [field for field in expected if field["name"] not in names]:
        updates += _add_columns(table, schema, missing)
    partitioning_name = automatic_partitioning(table) if is_automatic(policy) else policy.get("partitioning")
    if partitioning_name is not None:
        spec = partition(partitioning_name, schema)
        current = default_spec(table)
        # Compared by meaning, not by id: an engine may have set the same partitioning before.
        if not partitioning.same(spec, current):
            updates += [{"action": "add-spec", "spec": spec}, {"action": "set-default-spec", "spec-id": -1}]
    return updates + _properties(table.properties, policy)


def is_automatic(policy: Mapping[str, str]) -> bool:
    """True if the growth of the table decides about its partitions."""
    return policy.get("partitioning") == table_layout.AUTO


def automatic_partitioning(table: TableMetadata) -> str:
    """Returns the partitioning that a table with `partitioning=auto` has from now on."""
    current, schema = default_spec(table), table.current_schema
    names = (name for name in ("day", "hour") if partitioning.same(partition(name, schema), current))
    return auto_partitioning.choose(next(names, "none"), auto_partitioning.table_growth(table))


def has_mqtt(policy: Mapping[str, str]) -> bool:
    """True for a topic with MQTT messages: its table has columns of their topics."""
    return policy.get("mqtt_columns") == MqttColumnsPolicy.ON


def _properties(properties: Mapping[str, str], policy: Mapping[str, str]) -> list[Object]:
    """Returns the updates that bring the properties of a table in line with the policy."""
    policy_properties = _policy_properties(policy)
    updates: list[Object] = []
    if changed := {name: value for name, value in policy_properties.items() if properties.get(name) != value}:
        updates.append({"action": "set-properties", "updates": changed})
    if CODEC in policy_properties and LEVEL not in policy_properties and LEVEL in properties:
        # The level belongs to another codec, or to an earlier policy.
        updates.append({"action": "remove-properties", "removals": [LEVEL]})
    return updates


def _add_columns(table: TableMetadata, schema: Object, missing: list[Object]) -> list[Object]:
    """New columns are optional, because existing rows do not have them."""
    last = table.fields["last-column-id"]
    added = []
    for field in missing:
        last += 1
        column = {**field, "id": last, "required": False}
        if isinstance(field["type"], dict):
            column["type"] = {**field["type"], "key-id": last + 1, "value-id": last + 2}
            last += 2
        added.append(column)
    new_schema = {**schema, "fields": [*schema["fields"], *added]}
    new_schema.pop("schema-id", None)
    return [
        {"action": "add-schema", "schema": new_schema, "last-column-id": last},
        {"action": "set-current-schema", "schema-id": -1},
    ]


def default_spec(table: TableMetadata) -> Object:
    default_id = table.fields["default-spec-id"]
    spec: Object = next(spec for spec in table.fields["partition-specs"] if spec["spec-id"] == default_id)
    return spec


def data_folder(table: TableMetadata) -> str:
    path = table.properties.get("write.data.path") or table.properties.get("write.folder-storage.path")
    return (path or f"{table.location}/data").rstrip("/")


def target_of(
    table: TableMetadata, policy: Mapping[str, str], storage: Mapping[str, Any], mqtt: MqttTarget | None = None
) -> TableTarget:
    """Returns how tasks write files for a table: the policy first, then the table's properties, then defaults."""
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
        mqtt=mqtt,
        clustering=policy.get("clustering", ""),
    )
