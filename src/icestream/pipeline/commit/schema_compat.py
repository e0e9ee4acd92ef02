"""May files that are written still enter a table that has changed since (hazard 30)? Pure.

They may when the table still has the columns that they have, under the same ids and of types that can be read so, wants
none that they lack, and still knows the partition spec that they were written for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.model.task_messages import WrittenFile

# Types that Iceberg reads as a wider one.
_WIDENED: Final = {("int", "long"), ("float", "double")}


def incompatibility(table: TableMetadata, files: Sequence[WrittenFile]) -> str:
    """Empty: they may."""
    schemas = {one["schema-id"]: one for one in table.fields["schemas"]}
    specs = {one["spec-id"] for one in table.fields["partition-specs"]}
    for spec_id in sorted({file.spec_id for file in files}):
        if spec_id not in specs:
            return f"partition spec {spec_id} is gone"
    for schema_id in sorted({file.schema_id for file in files}):
        if schema_id not in schemas:
            return f"schema {schema_id} is gone"
        if reason := _unreadable(schemas[schema_id], table.current_schema):
            return reason
    return ""


def _unreadable(written: Object, current: Object) -> str:
    old = {field["id"]: field for field in written["fields"]}
    for field in current["fields"]:
        before = old.get(field["id"])
        if before is None and field["required"] and field.get("initial-default") is None:
            return f"column {field['name']} is required, and the files have none"
        if before is not None and not _reads(before["type"], field["type"]):
            return f"column {field['name']} has another type"
        if before is not None and field["required"] and not before["required"]:
            return f"column {field['name']} is required now"
    return ""


def _reads(written: Any, wanted: Any) -> bool:
    return bool(written == wanted) or (str(written), str(wanted)) in _WIDENED
