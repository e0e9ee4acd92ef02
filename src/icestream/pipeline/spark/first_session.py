"""Starts Spark once at set-up: to see that it runs on this machine, and to archive its classes for later starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from icestream.pipeline.spark.class_archive import ClassArchive
from icestream.pipeline.spark.spark_options import SparkOptions
from icestream.pipeline.spark.writer import SparkRuntime, SparkWriter
from icestream.pipeline.spark_setup.spark_install import SparkInstall


def archive_classes(install: SparkInstall, cache: Path, say: Callable[[str], None]) -> None:
    """Does nothing if there is an archive already. Raises EngineFailed if Spark does not run."""
    archive = ClassArchive(install, cache, is_archiving=True)
    if not archive.is_missing:
        return
    say("setup: starting Spark once, so that each later start takes a quarter of the time")
    writer = SparkWriter(SparkOptions("local[1]"), lambda: SparkRuntime(install, archive))
    try:
        writer.run_empty_job()
    finally:
        writer.close()
