"""A namespace for each test: they share one catalog. And a broker whose messages are read from tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.history_topic import FROM_TABLES
from tests.support.lakehouse import new_name
from tests.support.pipeline_process import PipelineRun
from tests.support.spark import Spark


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Moves MQTT to the end: from its first session on, the log of sessions holds log files until its next beat, up to
    ten seconds, and every later test on `history` waits for the log to let go of its messages."""
    items.sort(key=lambda item: "test_mqtt_fleet" in item.nodeid)


@pytest.fixture
def ns(spark: Spark) -> str:
    name = new_name()
    spark.sql(f"CREATE NAMESPACE ice.{name}")
    return name


@pytest.fixture
def t(ns: str) -> str:
    """The full name of a table that is not there yet."""
    return f"ice.{ns}.t"


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineRun]:
    """A broker with its own pipeline that lets go of everything that is in tables, with MQTT and a backup target."""
    folder = tmp_path_factory.mktemp("history")
    flags = (*FROM_TABLES, "mqtt.enable=true", f"backup.target={folder / 'backups'}")
    with PipelineRun(folder / "data", *(part for flag in flags for part in ("--set", flag))) as run:
        yield run
