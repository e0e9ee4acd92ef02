"""The options of the Spark session of the pipeline; reasons are beside the values."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from icestream import errors
from icestream.pipeline.spark.jvm_log import LOG_OPTION

_LOCAL = re.compile(r"local(?:\[(\*|\d{1,4})(?:,\s*\d{1,4})?\])?")


@dataclass(frozen=True)
class SparkOptions:
    """The settings of the session."""

    master: str = "local[*]"
    conf: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)  # more of it, never on a command line
    scratch: Path | None = None  # for shuffles; None: Spark's own choice

    @property
    def is_local(self) -> bool:
        return _LOCAL.fullmatch(self.master) is not None

    @property
    def tasks_max(self) -> int:
        """How many tasks run at a time; in a cluster `spark.default.parallelism`, by default two."""
        match = _LOCAL.fullmatch(self.master)
        if match is None:
            return int(self.conf.get("spark.default.parallelism", "2"))
        return (os.cpu_count() or 1) if match[1] == "*" else int(match[1] or 1)


def parse_conf(entries: tuple[str, ...]) -> dict[str, str]:
    """Parses `key=value` entries. Raises ConfigurationError."""
    conf: dict[str, str] = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals or not key.startswith("spark."):
            raise errors.ConfigurationError(
                f"pipeline.spark.conf: {entry!r} is not a setting of Spark", hint="such as spark.executor.memory=2g"
            )
        conf[key] = value
    return conf


def spark_conf(options: SparkOptions, java_options: str) -> dict[str, str]:
    """Returns the configuration of the session, without its secrets. The user's entries override ours, except for those
    that a round relies on."""
    conf = {
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
        # Authenticated by a secret that Spark makes for itself: the driver's ports can be reached by other accounts.
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.authenticate": "true",
        }
    if options.scratch is not None:
        conf["spark.local.dir"] = str(options.scratch)
    conf |= options.conf
    user_java_options = options.conf.get("spark.driver.extraJavaOptions", "")
    return conf | {
        "spark.master": options.master,
        "spark.driver.extraJavaOptions": f"{java_options} {LOG_OPTION} {user_java_options}".strip(),
        "spark.python.daemon.module": "icestream.pipeline.spark.daemon",
        "spark.python.worker.reuse": "true",
        "spark.speculation": "false",  # hazard 1: a task must not run twice at the same time
    }
