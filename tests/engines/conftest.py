"""A namespace for each test: they share one catalog."""

from __future__ import annotations

import pytest

from tests.support.lakehouse import new_name
from tests.support.spark import Spark


@pytest.fixture
def ns(spark: Spark) -> str:
    name = new_name()
    spark.sql(f"CREATE NAMESPACE ice.{name}")
    return name


@pytest.fixture
def t(ns: str) -> str:
    """The full name of a table that is not there yet."""
    return f"ice.{ns}.t"
