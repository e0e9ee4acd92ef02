"""A round as one Spark job. `write` blocks; it is called from one thread at a time.

The session begins with the first round. When Java or the job dies, the round fails with EngineFailed, what is left of
the session is ended, and the next round begins a new one: nothing of a round is kept in it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from icestream import errors, limits
from icestream.model.task_messages import TopicTaskResult
from icestream.pipeline.round_plan import RoundPlan
from icestream.pipeline.spark import jvm_log, stages
from icestream.pipeline.spark.class_archive import PLAIN_OPTIONS, ClassArchive
from icestream.pipeline.spark.spark_options import SparkOptions, spark_conf
from icestream.pipeline.spark.update_server import let_java_leave
from icestream.pipeline.spark_setup.spark_install import SparkInstall
from icestream.pipeline.task import job as jobs

if TYPE_CHECKING:
    from pyspark import SparkContext


class SparkWriter:
    def __init__(self, engine: SparkInstall, options: SparkOptions, archive: ClassArchive | None = None) -> None:
        self.master = options.master
        self.tasks_max = options.tasks_max
        self._engine = engine
        self._options = options
        self._archive = archive
        self._context: SparkContext | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begins the session, if there is none. It takes seconds."""
        with self._lock:
            self._started()

    def try_out(self) -> None:
        """The smallest job there is, through Java and Python."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # PySpark leaves the socket of a result to the collector
            self._run(lambda context: context.parallelize([0], 1).mapPartitions(list).collect())

    def write(self, plan: RoundPlan) -> list[TopicTaskResult]:
        return [jobs.decode_written(one) for one in self._run(lambda context: run_round(context, plan))]

    def _run(self, job: Callable[[SparkContext], list[Any]]) -> list[Any]:
        with self._lock:
            context = self._started()
            try:
                return job(context)
            except Exception as error:  # noqa: BLE001  # the job, Java, or the way to it: its words say which
                self._end()
                raise _failed(error) from None

    def close(self) -> None:
        with self._lock:
            self._end()

    def _started(self) -> SparkContext:
        if self._context is None:
            try:
                self._context = self._begin()
            except errors.IcestreamError:
                raise
            except Exception as error:  # noqa: BLE001  # whatever PySpark raises when Java does not come up
                self._end()
                raise _failed(error) from None
        return self._context

    def _begin(self) -> SparkContext:
        os.environ.update(
            JAVA_HOME=str(self._engine.java_home),
            SPARK_HOME=str(self._engine.spark_home),
            PYSPARK_PYTHON=sys.executable,
        )
        if self._options.is_local:
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        for logger in (logging.getLogger(), logging.getLogger("py4j")):  # pages about a Java that is gone
            logger.addFilter(_is_not_py4j)
        java_options = PLAIN_OPTIONS if self._archive is None else self._archive.java_options()
        conf = SparkConf(loadDefaults=False)
        for key, value in spark_conf(self._options, java_options).items():
            conf.set(key, value)
        with jvm_log.heard() as stderr:
            gateway = launch_gateway(conf, {"stderr": stderr})
        context = SparkContext(conf=conf, gateway=gateway)
        let_java_leave(context._accumulatorServer)
        return context

    def _end(self) -> None:
        """Also what died already. The next session gets a Java of its own."""
        from pyspark import SparkContext

        context, self._context = self._context, None
        gateway: Any = SparkContext._gateway
        process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
        # Java ends its session by itself when its input ends; PySpark's own part of it takes half a second meanwhile.
        of_python = getattr(context, "_accumulatorServer", None)
        for owner, end in ((gateway, "shutdown"), (getattr(process, "stdin", None), "close"), (of_python, "shutdown")):
            if owner is not None:
                _quietly(getattr(owner, end))
        SparkContext._active_spark_context = None
        SparkContext._gateway = SparkContext._jvm = None
        ended = _waited(process)
        if self._archive is not None:
            self._archive.keep(is_whole=ended)


def run_round(context: SparkContext, plan: RoundPlan) -> list[bytes]:
    """Bundles are partitions as they are: nothing is distributed anew."""
    reading = [jobs.encode(one) for one in jobs.read_jobs(plan)]
    if not reading:
        return []
    writing = [(number, jobs.encode(one)) for number, one in enumerate(jobs.write_jobs(plan))]
    given = [(job, writing[number :: len(reading)]) for number, job in enumerate(reading)]
    rows: Any = context.parallelize(given, len(given))
    if not writing:
        found: list[bytes] = rows.mapPartitions(stages.read_only).collect()
        return found
    sent = rows.mapPartitions(stages.read).partitionBy(len(writing), stages.place_of)
    found = sent.mapPartitions(stages.write).collect()
    return found


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


def _failed(error: Exception) -> errors.EngineFailed:
    java = getattr(error, "java_exception", None)
    try:
        said = str(error) if java is None else str(java.toString())
    except Exception:  # noqa: BLE001  # Java that is gone cannot say more
        said = type(error).__name__
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return errors.EngineFailed(
        f"Spark did not finish the round: {' / '.join(lines[:3])[:500] or type(error).__name__}",
        hint="the next round begins a new session; nothing was committed",
    )


def _quietly(end: Callable[[], object]) -> None:
    with contextlib.suppress(Exception):
        end()


def _waited(process: subprocess.Popen[bytes] | None) -> bool:
    """Whether Java has ended by itself. It does when its input ends; one that does not is killed."""
    if process is None:
        return False
    try:
        process.wait(limits.SPARK_END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return process.returncode == 0
