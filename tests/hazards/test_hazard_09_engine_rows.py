"""Hazard 9: what was acked is a row that other engines read, value for value, however far out its values are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from icestream.model import envelope
from icestream.model.block import encode_block
from icestream.model.envelope import COLUMNS, ColumnKind, EnvelopeColumn
from tests.hazards.test_hazard_09_column_values import EDGES
from tests.support.pipeline_round import LogInFolder, write_here

IN_TABLE = [(column, values) for column, values in EDGES if column.in_table]


def written(folder: Path, column: EnvelopeColumn, values: list[Any]) -> tuple[str, list[dict[str, Any]]]:
    """A data file of a round with these messages, and what it must say."""
    (folder / "wal").mkdir()
    log = LogInFolder(folder / "wal")
    payloads = [b"p%d" % row for row in range(len(values))]
    columns = {envelope.PAYLOAD: payloads, column: values}
    log.append((1, 0, encode_block(len(values), columns)), time_us=7)
    log.save()
    ((file,),) = (result.files for result in write_here(log.plan(folder / "tables")))
    return file.location.removeprefix("file:"), log.expected(1)


@pytest.mark.parametrize(("column", "values"), IN_TABLE, ids=lambda value: getattr(value, "name", "edges"))
def test_hazard_09_duckdb_reads_every_value(tmp_path: Path, column: EnvelopeColumn, values: list[Any]) -> None:
    path, expected = written(tmp_path, column, values)
    shown = f'epoch_us("{column.name}")' if column.kind is ColumnKind.TIMESTAMP_US else f'"{column.name}"'
    with duckdb.connect() as database:
        rows = database.sql(f"select \"offset\", {shown} from read_parquet('{path}') order by 1").fetchall()
    assert [value for _, value in rows] == [_as_shown(column, row.get(column.name)) for row in expected]


def _as_shown(column: EnvelopeColumn, value: object) -> object:
    """The last microsecond that there is means infinity to DuckDB, which has no number for it."""
    return None if column.kind is ColumnKind.TIMESTAMP_US and value == 2**63 - 1 else value


def test_hazard_09_every_column_of_the_table_is_checked() -> None:
    checked = {"payload", *(column.name for column, _ in IN_TABLE)}
    assert {column.name for column in COLUMNS if column.in_table} == checked
