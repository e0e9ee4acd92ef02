"""Spark behind the driver: looked for at the start, started with the first round, ended with the process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from icestream.errors import MissingPart
from icestream.model.task_messages import TopicTaskResult
from icestream.observability.log import get_logger
from icestream.pipeline.driver.driver import RoundWriter
from icestream.pipeline.round_plan import RoundPlan
from icestream.pipeline.spark.class_archive import ClassArchive
from icestream.pipeline.spark.spark_options import SparkOptions
from icestream.pipeline.spark.writer import SparkWriter
from icestream.pipeline.spark_setup import python_packages
from icestream.pipeline.spark_setup.spark_install import JAVA_HINT, SetupPaths, examine, install_spark
from icestream.settings import Settings

_log = get_logger("pipeline")
HINT = "`icestream pipeline setup` installs what is missing; then start the broker again"


class LateWriter:
    """Begins when it is needed first: a node on which nobody publishes needs no Spark."""

    def __init__(self, master: str, tasks_max: int, begin: Callable[[], RoundWriter]) -> None:
        self.master = master
        self.tasks_max = tasks_max
        self._begin = begin
        self._writer: RoundWriter | None = None

    def write(self, plan: RoundPlan) -> list[TopicTaskResult]:
        if self._writer is None:
            _log.info("Spark is being started", master=self.master)
            self._writer = self._begin()
        return self._writer.write(plan)


def check_machine(settings: Settings) -> None:
    """Raises MissingPart where Spark cannot run. Nothing is installed here."""
    found = examine(SetupPaths.of(settings, os.environ))
    if fault := python_packages.pyspark_fault(found.pyspark):
        raise MissingPart(fault, hint=HINT)
    if found.java.java is None:
        reasons = "; ".join(found.java.refused) or "no Java was found"
        raise MissingPart(reasons, hint=f"{HINT}, or {JAVA_HINT}")


@contextlib.contextmanager
def open_writer(settings: Settings) -> Iterator[RoundWriter]:
    check_machine(settings)
    options = SparkOptions.of(settings)
    begun: list[SparkWriter] = []

    def begin() -> RoundWriter:
        machine = SetupPaths.of(settings, os.environ)
        engine = install_spark(machine, say=_log.info)
        begun.append(SparkWriter(engine, options, ClassArchive(engine, machine.cache)))
        return begun[0]

    try:
        yield LateWriter(options.master, options.tasks_max, begin)
    finally:
        for writer in begun:
            writer.close()
