"""Whether files that are already written can still be added to a table that has changed since (hazard 30). Pure.

They can if the table still has the columns of the files under the same ids, with types that can read them, requires no
column that they lack, and still has the partition spec that they were written for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.model.task_messages import WrittenFile

# Type promotions of Iceberg: (type in the file, type of the column).
_PROMOTIONS: Final = {("int", "long"), ("float", "double")}


def incompatibility(table: TableMetadata, files: Sequence[WrittenFile]) -> str:
    """Returns why the files cannot be added to the table; empty if they can."""
    schemas = {schema["schema-id"]: schema for schema in table.fields["schemas"]}
    spec_ids = {spec["spec-id"] for spec in table.fields["partition-specs"]}
    for spec_id in sorted({file.spec_id for file in files}):
        if spec_id not in spec_ids:
            return f"partition spec {spec_id} is gone"
    for schema_id in sorted({file.schema_id for file in files}):
        if schema_id not in schemas:
            return f"schema {schema_id} is gone"
        if reason := _unreadable(schemas[schema_id], table.current_schema):
            return reason
    return ""


def _unreadable(file_schema: Object, current_schema: Object) -> str:
    """Returns why the current schema cannot read files of another schema; empty if it can."""
    file_fields = {field["id"]: field for field in file_schema["fields"]}
    for field in current_schema["fields"]:
        file_field = file_fields.get(field["id"])
        if file_field is None and field["required"] and field.get("initial-default") is None:
            return f"column {field['name']} is required, and the files do not have it"
        if file_field is not None and not _can_read(file_field["type"], field["type"]):
            return f"column {field['name']} has another type"
        if file_field is not None and field["required"] and not file_field["required"]:
            return f"column {field['name']} is required now"
    return ""


def _can_read(file_type: Any, column_type: Any) -> bool:
    return bool(file_type == column_type) or (str(file_type), str(column_type)) in _PROMOTIONS
