"""Spark, started once at the set-up: whether it runs here at all, and the archive of its classes for later starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from icestream.pipeline.spark.class_archive import ClassArchive
from icestream.pipeline.spark.spark_options import SparkOptions
from icestream.pipeline.spark.writer import SparkWriter
from icestream.pipeline.spark_setup.spark_install import SparkInstall


def archive_classes(engine: SparkInstall, cache: Path, say: Callable[[str], None]) -> None:
    """Where there is one already, nothing is done and nothing is said. Raises EngineFailed when Spark does not run."""
    archive = ClassArchive(engine, cache, is_making=True)
    if not archive.is_missing:
        return
    say("setup: starting Spark once, so that each later start takes a quarter of the time")
    writer = SparkWriter(engine, SparkOptions("local[1]"), archive)
    try:
        writer.try_out()
    finally:
        writer.close()
