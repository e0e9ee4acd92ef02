"""What docs/pipeline.md promises of tables is what is made, and its settings are settings."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from icestream.catalog.topic_rules.topic_schema import new_schema
from icestream.catalogs.topic_table_name import single_namespace_name
from icestream.model.topic_name import TopicName
from icestream.processes.pipeline_options import spark_options
from icestream.settings import Settings
from tests.tidy.tree import ROOT, read

PAGE = read("docs/pipeline.md")


def test_the_columns_of_the_page_match_a_new_table() -> None:
    documented: list[tuple[str, str]] = []
    for names, types in re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \| ([a-z<>, ]+) \|", PAGE, flags=re.MULTILINE):
        columns, kinds = re.findall(r"`([a-z_]+)`", names), types.removesuffix(", required")
        each = [kinds] * len(columns) if kinds.startswith("map") else kinds.split(", ")
        documented += zip(columns, each if len(each) == len(columns) else each * len(columns), strict=True)
    actual = [(field["name"], field["type"]) for field in new_schema()["fields"]]
    assert documented[: len(actual)] == [
        (name, "map<string, string>" if isinstance(kind, dict) else kind) for name, kind in actual
    ]


def test_the_names_of_the_page_match_table_names_of_topics() -> None:
    for namespace, name in (("default", "orders"), ("shop", "orders"), ("shop", "My-Orders")):
        assert f"`{single_namespace_name(TopicName(namespace, name))}`" in PAGE


def test_the_cluster_settings_of_the_page_load() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    options = spark_options(Settings.model_validate(yaml.safe_load(example)))
    assert (options.is_local, options.tasks_max, options.conf["spark.driver.host"]) == (False, 8, "10.0.0.4")


def test_every_test_named_on_the_page_exists() -> None:
    named = re.findall(r"`(tests/[^`]+)`", PAGE)
    assert len(named) > 4
    assert [pattern for pattern in named if not [*Path(ROOT).glob(pattern)]] == []
