"""Tables as Glue keeps them."""

from __future__ import annotations

from typing import Any

import pytest

from icestream import errors
from icestream.catalogs import glue_table
from icestream.iceberg.identifier import Identifier
from tests.support.tables import column, commit_to, schema, table

NAME = Identifier(("db",), "t")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("long", "bigint"),
        ("fixed[16]", "binary"),
        ("decimal(9, 2)", "decimal(9,2)"),
        ("timestamptz", "timestamp"),
        ({"type": "list", "element-id": 1, "element": "int", "element-required": True}, "array<int>"),
        ({"type": "map", "key-id": 1, "key": "string", "value-id": 2, "value": "uuid"}, "map<string,string>"),
        (
            schema(column(1, "a", "int"), column(2, "b", schema(column(3, "c", "time")))),
            "struct<a:int,b:struct<c:string>>",
        ),
        ("variant", "variant"),
    ],
)
def test_types(kind: Any, expected: str) -> None:
    assert glue_table.glue_type(kind) == expected


def test_columns_of_older_schemas_follow_the_current_ones() -> None:
    base = table()
    fewer = schema(*base.current_schema["fields"][:1], column(4, "new", "string", doc="why"))
    metadata = commit_to(
        base, {"action": "add-schema", "schema": fewer}, {"action": "set-current-schema", "schema-id": -1}
    )
    columns = glue_table.table_input(NAME, "file:/m", metadata, None)["StorageDescriptor"]["Columns"]
    assert [(column["Name"], column["Parameters"]["iceberg.field.current"]) for column in columns] == [
        ("id", "true"),
        ("new", "true"),
        ("data", "false"),
        ("at", "false"),
    ]
    assert columns[1]["Comment"] == "why"


def test_the_previous_location_and_foreign_parameters_are_kept() -> None:
    before = {"Parameters": {"metadata_location": "file:/old", "classification": "x"}}
    parameters = glue_table.table_input(NAME, "file:/new", table(), before)["Parameters"]
    assert parameters["metadata_location"] == "file:/new"
    assert parameters["previous_metadata_location"] == "file:/old"
    assert parameters["classification"] == "x"
    assert parameters["table_type"] == "ICEBERG"


def test_a_hive_table_is_not_an_iceberg_table() -> None:
    with pytest.raises(errors.UnknownTable, match="not an Iceberg table"):
        glue_table.pointer_of(NAME, {"Parameters": {"table_type": "HIVE", "metadata_location": "x"}})
    assert not glue_table.is_iceberg({})
    with pytest.raises(errors.InvalidInput, match="one level"):
        glue_table.database_of(("a", "b"))
