"""A table in AWS Glue: the form in which Iceberg's clients keep them there. Pure.

    Parameters          table_type = ICEBERG, metadata_location, previous_metadata_location, and the table's properties
    StorageDescriptor   location and columns, for tools of AWS that know nothing of Iceberg

`VersionId` counts the changes of a table; an update that names the one that was read is refused after another.
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
_KIND: Final = "ICEBERG"


def database_of(namespace: Namespace) -> str:
    if len(namespace) != 1:
        raise errors.InvalidInput(
            f"a namespace of {len(namespace)} levels in Glue: {'.'.join(namespace)}", hint="a database has one level"
        )
    return namespace[0]


def table_input(identifier: Identifier, location: str, made: TableMetadata, before: Mapping[str, Any] | None) -> Object:
    """`before`: the table as Glue had it, whose other parameters stay."""
    parameters = dict((before or {}).get("Parameters") or {})
    previous = parameters.get("metadata_location")
    parameters |= {**made.properties, "table_type": _KIND, "metadata_location": location}
    if previous is not None:
        parameters["previous_metadata_location"] = previous
    return {
        "Name": identifier.name,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": parameters,
        "StorageDescriptor": {"Columns": list(_columns(made)), "Location": made.location},
    }


def renamed_input(name: str, found: Mapping[str, Any]) -> Object:
    kept = ("TableType", "Owner", "Parameters", "StorageDescriptor", "Description")
    return {"Name": name, **{key: found[key] for key in kept if key in found}}


def pointer_of(identifier: Identifier, found: Mapping[str, Any]) -> TablePointer:
    parameters = found.get("Parameters") or {}
    location = parameters.get("metadata_location")
    if str(parameters.get("table_type")).upper() != _KIND or not location:
        raise errors.UnknownTable(f"{identifier} is a table of Glue, but not of Iceberg")
    return TablePointer(str(location), found.get("VersionId"))


def is_iceberg(found: Mapping[str, Any]) -> bool:
    return str((found.get("Parameters") or {}).get("table_type")).upper() == _KIND


def _columns(made: TableMetadata) -> Iterator[Object]:
    """The current ones first, then those of older schemas."""
    current = made.current_schema
    seen: set[str] = set()
    for schema in (current, *(one for one in made.fields["schemas"] if one is not current)):
        for field in schema["fields"]:
            if field["name"] not in seen:
                seen.add(field["name"])
                yield _column(field, schema is current)


def _column(field: Object, is_current: bool) -> Object:
    made: Object = {
        "Name": field["name"],
        "Type": glue_type(field["type"]),
        "Parameters": {
            "iceberg.field.id": str(field["id"]),
            "iceberg.field.optional": str(not field.get("required", False)).lower(),
            "iceberg.field.current": str(is_current).lower(),
        },
    }
    return made | {"Comment": field["doc"]} if field.get("doc") else made


def glue_type(kind: Any) -> str:
    if isinstance(kind, str):
        return "binary" if kind.startswith("fixed") else _TYPES.get(kind, kind.replace(" ", ""))
    match kind.get("type"):
        case "struct":
            fields = ",".join(f"{one['name']}:{glue_type(one['type'])}" for one in kind["fields"])
            return f"struct<{fields}>"
        case "list":
            return f"array<{glue_type(kind['element'])}>"
        case "map":
            return f"map<{glue_type(kind['key'])},{glue_type(kind['value'])}>"
        case other:
            return str(other)
