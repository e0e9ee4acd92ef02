"""An Iceberg table in AWS Glue, in the form that Iceberg's clients share. Pure.

    Parameters          table_type = ICEBERG, metadata_location, previous_metadata_location, and the table's properties
    StorageDescriptor   location and columns, for tools of AWS that know nothing of Iceberg

`VersionId` counts the changes of a table: an update with the version that was read is refused if another update was
applied since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from icestream import errors
from icestream.catalogs.pointer_catalog import TablePointer
from icestream.iceberg.identifier import Identifier, Namespace
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object

_TYPES: Final = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "date": "date",
    "time": "string",
    "string": "string",
    "uuid": "string",
    "timestamp": "timestamp",
    "timestamptz": "timestamp",
    "timestamp_ns": "timestamp",
    "timestamptz_ns": "timestamp",
    "binary": "binary",
}
_TABLE_TYPE: Final = "ICEBERG"


def database_of(namespace: Namespace) -> str:
    """Returns the database of a namespace. Raises InvalidInput for a namespace of several levels."""
    if len(namespace) != 1:
        raise errors.InvalidInput(
            f"namespace {'.'.join(namespace)} has {len(namespace)} levels, Glue databases have one",
            hint="use one level",
        )
    return namespace[0]


def table_input(
    identifier: Identifier, location: str, table: TableMetadata, before: Mapping[str, Any] | None
) -> Object:
    """Returns the TableInput of a table. `before`: the table as Glue has it; its other parameters are kept."""
    parameters = dict((before or {}).get("Parameters") or {})
    previous = parameters.get("metadata_location")
    parameters |= {**table.properties, "table_type": _TABLE_TYPE, "metadata_location": location}
    if previous is not None:
        parameters["previous_metadata_location"] = previous
    return {
        "Name": identifier.name,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": parameters,
        "StorageDescriptor": {"Columns": list(_columns(table)), "Location": table.location},
    }


def renamed_input(name: str, glue_table: Mapping[str, Any]) -> Object:
    members = ("TableType", "Owner", "Parameters", "StorageDescriptor", "Description")
    return {"Name": name, **{key: glue_table[key] for key in members if key in glue_table}}


def pointer_of(identifier: Identifier, glue_table: Mapping[str, Any]) -> TablePointer:
    parameters = glue_table.get("Parameters") or {}
    location = parameters.get("metadata_location")
    if str(parameters.get("table_type")).upper() != _TABLE_TYPE or not location:
        raise errors.UnknownTable(f"{identifier} is a Glue table, but not an Iceberg table")
    return TablePointer(str(location), glue_table.get("VersionId"))


def is_iceberg(glue_table: Mapping[str, Any]) -> bool:
    return str((glue_table.get("Parameters") or {}).get("table_type")).upper() == _TABLE_TYPE


def _columns(table: TableMetadata) -> Iterator[Object]:
    """Yields the columns of the current schema, then those of older schemas, as Iceberg's Glue client writes them."""
    current = table.current_schema
    names: set[str] = set()
    for schema in (current, *(schema for schema in table.fields["schemas"] if schema is not current)):
        for field in schema["fields"]:
            if field["name"] not in names:
                names.add(field["name"])
                yield _column(field, schema is current)


def _column(field: Object, is_current: bool) -> Object:
    """Returns a column as Iceberg's Glue client writes it."""
    column: Object = {
        "Name": field["name"],
        "Type": glue_type(field["type"]),
        "Parameters": {
            "iceberg.field.id": str(field["id"]),
            "iceberg.field.optional": str(not field.get("required", False)).lower(),
            "iceberg.field.current": str(is_current).lower(),
        },
    }
    return column | {"Comment": field["doc"]} if field.get("doc") else column


def glue_type(iceberg_type: Any) -> str:
    """Returns the Glue type for an Iceberg type, nested types included."""
    if isinstance(iceberg_type, str):
        return "binary" if iceberg_type.startswith("fixed") else _TYPES.get(iceberg_type, iceberg_type.replace(" ", ""))
    match iceberg_type.get("type"):
        case "struct":
            fields = ",".join(f"{field['name']}:{glue_type(field['type'])}" for field in iceberg_type["fields"])
            return f"struct<{fields}>"
        case "list":
            return f"array<{glue_type(iceberg_type['element'])}>"
        case "map":
            return f"map<{glue_type(iceberg_type['key'])},{glue_type(iceberg_type['value'])}>"
        case other:
            return str(other)
