"""What docs/pipeline.md promises of tables is what is made, and its settings are settings."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from icestream.catalog.topic_rules.topic_schema import new_schema
from icestream.catalogs.topic_table_name import single_namespace_name
from icestream.model.topic_name import TopicName
from icestream.pipeline.spark.spark_options import SparkOptions
from icestream.settings import Settings
from tests.tidy.tree import ROOT, read

PAGE = read("docs/pipeline.md")


def test_the_columns_of_the_page_are_those_of_a_new_table_in_their_order() -> None:
    told: list[tuple[str, str]] = []
    for names, types in re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \| ([a-z<>, ]+) \|", PAGE, flags=re.MULTILINE):
        columns, kinds = re.findall(r"`([a-z_]+)`", names), types.removesuffix(", required")
        each = [kinds] * len(columns) if kinds.startswith("map") else kinds.split(", ")
        told += zip(columns, each if len(each) == len(columns) else each * len(columns), strict=True)
    made = [(one["name"], one["type"]) for one in new_schema()["fields"]]
    assert told[: len(made)] == [
        (name, "map<string, string>" if isinstance(kind, dict) else kind) for name, kind in made
    ]


def test_the_names_of_the_page_are_those_that_topics_get() -> None:
    for namespace, name in (("default", "orders"), ("shop", "orders"), ("shop", "My-Orders")):
        assert f"`{single_namespace_name(TopicName(namespace, name))}`" in PAGE


def test_the_settings_for_a_cluster_are_taken_as_they_stand_there() -> None:
    (given,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    found = SparkOptions.of(Settings.model_validate(yaml.safe_load(given)))
    assert (found.is_local, found.tasks_max, found.conf["spark.driver.host"]) == (False, 8, "10.0.0.4")


def test_every_proof_that_the_page_names_is_there() -> None:
    named = re.findall(r"`(tests/[^`]+)`", PAGE)
    assert len(named) > 4
    assert [one for one in named if not [*Path(ROOT).glob(one)]] == []
