"""The commands of docs/engines.md work as they are printed, in their order; only the port differs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from icestream.pipeline.spark_setup import pinned_versions
from icestream.processes.node.presentation.read_commands import read_commands
from tests.support.lakehouse import Lakehouse
from tests.support.round_driver import RoundDriver
from tests.support.spark import SMALL, Spark
from tests.tidy.tree import read

PAGE = read("docs/engines.md")
USUAL = "http://127.0.0.1:8181"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def run_program(program: str, lakehouse: Lakehouse, folder: Path) -> str:
    """With a home of its own, where DuckDB keeps its extensions."""
    done = subprocess.run(
        [sys.executable, "-c", program.replace(USUAL, lakehouse.uri)],
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_is_promised(output: str) -> None:
    """Every line that a program prints is on the page, except the progress that DuckDB shows after some seconds."""
    lines = [line for line in output.splitlines() if line and "elapsed)" not in line]
    assert lines
    assert [line for line in lines if f"`{line}`" not in PAGE] == []


@pytest.fixture
def spark_of_the_page(spark: Spark, lakehouse: Lakehouse) -> Spark:
    """With the settings of the page, for whichever test comes first."""
    (lines,) = blocks("properties")
    settings = dict(line.split(maxsplit=1) for line in lines.splitlines())
    assert settings.pop("spark.jars.packages") == pinned_versions.ICEBERG_SPARK.coordinates
    assert settings.pop("spark.sql.extensions") == SMALL["spark.sql.extensions"]
    for key, value in settings.items():
        spark.set(key, value.replace(USUAL, lakehouse.uri))
    return spark


def test_the_page_from_top_to_bottom(spark_of_the_page: Spark, lakehouse: Lakehouse, tmp_path: Path) -> None:
    spark = spark_of_the_page
    first, second = blocks("sql")
    *_, counted = [spark.sql(statement) for statement in first.split(";\n") if statement.strip()]
    assert counted == [("/", 1), ("/home", 1)]
    results = [spark.sql(statement) for statement in second.split(";\n") if statement.strip()]
    assert [row[1] for row in results[1]] == ["append", "overwrite"]
    by_duckdb, by_pyiceberg, _ = blocks("python")
    check_is_promised(run_program(by_duckdb, lakehouse, tmp_path))
    check_is_promised(run_program(by_pyiceberg, lakehouse, tmp_path))
    assert spark.column("SELECT name FROM icestream.demo.people ORDER BY id") == ["Ada", "Grace"]


def test_readme_and_a_first_start_read_the_table_of_a_topic_with_spark(
    spark_of_the_page: Spark, lakehouse: Lakehouse
) -> None:
    """The statements of README.md and of `icestream serve --demo`, on tables that are laid out as topics' are."""
    spark = spark_of_the_page
    spark.sql("CREATE NAMESPACE IF NOT EXISTS ice.default")
    for name in ("hello", "demo"):
        assert RoundDriver(lakehouse, "default", name).commit(2)[0] == 200
    (of_readme,) = re.findall(r"```sql\n(.*?) +--.*\n```", read("README.md"))
    *_, of_demo, _ = read_commands(["default", "demo"], lakehouse.uri)
    for statement in (of_readme, shlex.split(of_demo)[-1]):
        assert spark.sql(statement) == [(0, "message"), (1, "message")], statement


def test_the_packages_of_the_page_match_the_tests() -> None:
    pinned = read("requirements/dev.txt").splitlines()
    (line,) = [line for line in blocks("sh")[0].splitlines() if "duckdb" in line]
    assert [package for package in line.split()[2:] if package not in pinned] == []
    assert f"pyiceberg=={re.findall(r'PyIceberg (0[.][0-9]+),', PAGE)[0]}.0" in pinned
