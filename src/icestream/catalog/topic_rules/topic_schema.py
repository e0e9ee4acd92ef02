"""The schema of a topic's table (design 7): the envelope columns that every message has, by name and Iceberg type.

model/envelope.py lists the columns of a message; shard, offset and append_time come from its place in the log. Typed
columns of a schema follow after these and are not checked here.

Tables of topics with MQTT messages have MQTT_COLUMNS too, which ingest derives from `key` and `wire`
(pipeline/rows/mqtt_columns.py). They are no part of a message: a table without them, or with a column of that name and
another type, is a topic's table all the same, and its readers read more than they would have to.
"""

from __future__ import annotations

from typing import Any, Final

from icestream import errors, limits
from icestream.iceberg import types
from icestream.iceberg.values import Object
from icestream.model import envelope
from icestream.model.envelope import ColumnKind

_TYPES: Final[dict[ColumnKind, str]] = {
    ColumnKind.INT32: "int",
    ColumnKind.INT64: "long",
    ColumnKind.TIMESTAMP_US: "timestamptz",
    ColumnKind.BOOLEAN: "boolean",
    ColumnKind.BINARY: "binary",
    ColumnKind.STRING: "string",
    ColumnKind.HEADERS: "map",
}
COLUMNS: Final[dict[str, str]] = {
    "shard": "int",
    "offset": "long",
    "append_time": "timestamptz",
    **{column.name: _TYPES[column.kind] for column in envelope.COLUMNS if column.in_table},
}

LEVELS: Final = tuple(f"level_{number}" for number in range(1, limits.MQTT_LEVEL_COLUMNS + 1))
EXPIRY: Final = "expiry_s"
STRUCTURE: Final = "structure"
STREAM: Final = "stream"
MQTT_COLUMNS: Final[dict[str, str]] = {
    **dict.fromkeys(LEVELS, "string"),
    EXPIRY: "long",
    STRUCTURE: "int",
    STREAM: "string",
}

HINT: Final = (
    "a topic's table needs all columns of the envelope (docs/lake.md); `icestream lake recreate TOPIC` creates one"
)
OPTIONAL_HINT: Final = "make it optional"
_FIRST: Final = ("shard", "offset", "publish_time", "append_time")
_HEADERS: Final = {
    "type": "map",
    "key-id": 1_001,  # renumbered when the table is created
    "key": "string",
    "value-id": 1_002,
    "value": "string",
    "value-required": False,
}


def new_schema() -> Object:
    """The schema of a new topic table: the envelope alone, in the order of design 7."""
    names = [*_FIRST, *(name for name in COLUMNS if name not in _FIRST)]
    fields = [
        {
            "id": number,
            "name": name,
            "type": _HEADERS if COLUMNS[name] == "map" else COLUMNS[name],
            "required": name in ("shard", "offset"),
        }
        for number, name in enumerate(names, 1)
    ]
    return {"type": "struct", "fields": fields}


def mqtt_fields() -> list[Object]:
    """The fields of MQTT_COLUMNS, with id 0: the caller numbers them when it adds them to a schema."""
    return [{"id": 0, "name": name, "type": kind, "required": False} for name, kind in MQTT_COLUMNS.items()]


def check_bindable(schema: Object) -> None:
    """Raises InvalidInput if the schema cannot hold the messages of a topic."""
    column_types = {field["name"]: field["type"] for field in schema["fields"]}
    for name, expected in COLUMNS.items():
        if name not in column_types:
            raise errors.InvalidInput(f"the table has no column {name}", hint=HINT)
        if types.family(column_types[name]) != expected:
            raise errors.InvalidInput(f"column {name} is not of type {expected}", hint=HINT)
    for name in sorted(required_beside(schema)):
        raise errors.InvalidInput(no_values(name), hint=f"{OPTIONAL_HINT}: ALTER COLUMN {name} DROP NOT NULL")


def required_beside(schema: Object) -> set[str]:
    """The required columns beside the envelope."""
    return {field["name"] for field in schema["fields"] if field["required"] and field["name"] not in COLUMNS}


def no_values(name: str) -> str:
    return f"column {name} is required, but messages do not have it"


def changed_column(before: Object, after: Object) -> str | None:
    """The name of an envelope column that was dropped, renamed or retyped; None if all are unchanged."""
    now = {field["id"]: _identity(field) for field in after["fields"]}
    for field in before["fields"]:
        if field["name"] in COLUMNS and now.get(field["id"]) != _identity(field):
            return str(field["name"])
    return None


def _identity(field: Object) -> tuple[str, bool, Any]:
    return field["name"], field["required"], field["type"]
