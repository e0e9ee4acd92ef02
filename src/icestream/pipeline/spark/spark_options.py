"""What the session of the ingest is given. Pure; the reasons stand beside the values."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from icestream import errors
from icestream.pipeline.spark.jvm_log import LOG_OPTION
from icestream.settings import Settings

_LOCAL = re.compile(r"local(?:\[(\*|\d{1,4})(?:,\s*\d{1,4})?\])?")


@dataclass(frozen=True)
class SparkOptions:
    master: str = "local[*]"
    conf: dict[str, str] = field(default_factory=dict)
    scratch: Path | None = None  # for shuffles; None: Spark's own choice
    archive: Path | None = None  # of loaded classes (class_archive.py)

    @classmethod
    def of(cls, settings: Settings) -> SparkOptions:
        own = settings.pipeline.spark
        return cls(own.master, parsed(own.conf))

    @property
    def is_local(self) -> bool:
        return _LOCAL.fullmatch(self.master) is not None

    @property
    def tasks_max(self) -> int:
        """Tasks at a time; of a cluster as many as it is told (`spark.default.parallelism`), else two."""
        found = _LOCAL.fullmatch(self.master)
        if found is None:
            return int(self.conf.get("spark.default.parallelism", "2"))
        return (os.cpu_count() or 1) if found[1] == "*" else int(found[1] or 1)


def parsed(given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key.startswith("spark."):
            raise errors.ConfigurationError(
                f"pipeline.spark.conf: {one!r} is no setting of Spark", hint="such as spark.executor.memory=2g"
            )
        found[key] = value
    return found


def spark_conf(options: SparkOptions, java_options: str) -> dict[str, str]:
    """The user's own come last and win, except for what a round cannot do without."""
    found = {
        "spark.app.name": "icestream-pipeline",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "512m",
        "spark.python.unix.domain.socket.enabled": "true",  # a warm round takes 40 ms instead of 100 (measured)
        "spark.locality.wait": "0s",
        "spark.broadcast.compress": "false",
        "spark.shuffle.compress": "false",  # it stays on this machine, or on a fast network
        "spark.cleaner.periodicGC.interval": "24h",
    }
    if options.is_local:
        found |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if options.scratch is not None:
        found["spark.local.dir"] = str(options.scratch)
    found |= options.conf
    own = options.conf.get("spark.driver.extraJavaOptions", "")
    return found | {
        "spark.master": options.master,
        "spark.driver.extraJavaOptions": f"{java_options} {LOG_OPTION} {own}".strip(),
        "spark.python.daemon.module": "icestream.pipeline.spark.daemon",
        "spark.python.worker.reuse": "true",
        "spark.speculation": "false",  # hazard 1: nobody writes a round twice at the same time
    }
