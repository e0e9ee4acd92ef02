"""Derives the options of the pipeline from the settings; apart from component_options.py, which the broker imports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icestream.pipeline.compaction.compaction_job import CompactionOptions
from icestream.pipeline.compaction.compaction_plan import CompactionRule
from icestream.pipeline.driver.driver_options import DriverOptions
from icestream.pipeline.round_plan import RoundBudget
from icestream.pipeline.spark.spark_options import SparkOptions, parse_conf
from icestream.pipeline.spark_setup.spark_install import SetupPaths, cache_of
from icestream.pipeline.task_keys import TaskKeys
from icestream.settings import Settings
from icestream.settings.keys import is_secret_name


def driver_options(settings: Settings, tasks_max: int, keys: TaskKeys) -> DriverOptions:
    """`tasks_max`: how many tasks of a round run at a time. `keys`: those of tasks."""
    iceberg = settings.storage.iceberg_config
    budget = RoundBudget(
        rows_due=iceberg.writer_batch_size,
        bytes_due=iceberg.writer_max_memory_bytes,
        age_due_ms=iceberg.writer_flush_interval_ms,
        tasks_max=tasks_max,
    )
    return DriverOptions(budget, keys=keys)


def compaction_options(
    settings: Settings, storage: Mapping[str, Any], keys: TaskKeys, *, is_clustered: bool
) -> CompactionOptions:
    """`storage`: the store options of the settings. `keys`: those of tasks. `is_clustered`: other nodes have drivers of
    their own."""
    section = settings.pipeline.compaction
    return CompactionOptions(
        section.enabled,
        CompactionRule(files_min=section.files_min),
        section.interval_ms,
        cpu_seconds_per_hour=section.cpu_seconds_per_hour,
        bytes_per_hour=section.bytes_per_hour,
        storage=storage,
        keys=keys,
        opens_tables=not is_clustered,
    )


def spark_options(settings: Settings) -> SparkOptions:
    """Raises ConfigurationError for entries of `pipeline.spark.conf` that are not settings of Spark."""
    spark = settings.pipeline.spark
    conf = parse_conf(spark.conf)
    secrets = {name: value for name, value in conf.items() if is_secret_name(name)}
    return SparkOptions(
        spark.master, {name: value for name, value in conf.items() if name not in secrets}, secrets=secrets
    )


def setup_paths(settings: Settings, environment: Mapping[str, str]) -> SetupPaths:
    pipeline = settings.pipeline
    return SetupPaths(pipeline.java_home, pipeline.jars, pipeline.cache_dir or cache_of(environment), environment)
