"""Writes a round as one Spark job, and the groups of a compaction as another. Both block; each is called from one
thread at a time, and they may run at the same time in one session.

Spark starts with the first round: a node without messages needs no Spark. When Java or a job fails, it fails with
EngineFailed, the rest of the session is ended, and the next job starts a new one: a session keeps no state of a job.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from socketserver import BaseServer
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from icestream import errors, limits
from icestream.errors import MissingPart
from icestream.model.task_messages import TopicTaskResult
from icestream.observability.log import get_logger
from icestream.pipeline.round_plan import RoundPlan
from icestream.pipeline.spark import jvm_log, stages
from icestream.pipeline.spark.class_archive import PLAIN_OPTIONS, ClassArchive
from icestream.pipeline.spark.spark_options import SparkOptions, spark_conf
from icestream.pipeline.spark_setup import python_packages
from icestream.pipeline.spark_setup.spark_install import JAVA_HINT, SetupPaths, SparkInstall, examine, install_spark
from icestream.pipeline.task import task_jobs as jobs

if TYPE_CHECKING:
    from pyspark import SparkContext

_log = get_logger("pipeline")
DISCONNECTS: Final = (EOFError, ConnectionError)
SETUP_HINT = "`icestream pipeline setup` installs what is missing; then start the broker again"


class SparkRuntime(NamedTuple):
    """What a session runs on."""

    install: SparkInstall
    archive: ClassArchive | None = None


class SparkWriter:
    """Writes rounds with one Spark session at a time."""

    def __init__(self, options: SparkOptions, prepare: Callable[[], SparkRuntime]) -> None:
        """`prepare` is called once, before the first session: it may have to install parts of Spark."""
        self.master = options.master
        self.tasks_max = options.tasks_max
        self._options = options
        self._prepare = prepare
        self._runtime: SparkRuntime | None = None
        self._context: SparkContext | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Starts the session, if there is none. That takes seconds."""
        with self._lock:
            self._started_context()

    def write(self, plan: RoundPlan) -> list[TopicTaskResult]:
        with self._session() as context:
            results = run_round(context, plan)
        return [jobs.decode_written(result) for result in results]

    def rewrite(self, group_jobs: Sequence[bytes]) -> list[bytes]:
        """Runs the tasks of a compaction, and leaves a core to a round that begins meanwhile."""
        with self._session() as context:
            tasks = min(len(group_jobs), max(1, self.tasks_max - 1))
            results: list[bytes] = context.parallelize(group_jobs, tasks).mapPartitions(stages.rewrite).collect()
        return results

    def search(self, search_jobs: Sequence[bytes]) -> list[bytes]:
        """Runs the tasks of an erasure, and leaves a core to a round that begins meanwhile."""
        with self._session() as context:
            tasks = min(len(search_jobs), max(1, self.tasks_max - 1))
            results: list[bytes] = context.parallelize(search_jobs, tasks).mapPartitions(stages.search).collect()
        return results

    def run_tasks(
        self, function: Callable[[Iterable[bytes]], Iterator[bytes]], task_jobs: Sequence[bytes]
    ) -> list[bytes]:
        """Runs a function, which executors import by its name, over each of these jobs as a task of its own; returns
        the results in their order. A core is left to a round that begins meanwhile."""
        with self._session() as context:
            return run_jobs(context, function, task_jobs)

    def run_empty_job(self) -> None:
        """Runs the smallest possible job, through Java and a Python worker."""
        with warnings.catch_warnings():
            # PySpark leaves closing the socket of a result to the garbage collector.
            warnings.simplefilter("ignore", ResourceWarning)
            with self._session() as context:
                context.parallelize([0], 1).mapPartitions(list).collect()

    def close(self) -> None:
        with self._lock:
            if self._runtime is not None:
                self._end()

    @contextlib.contextmanager
    def _session(self) -> Iterator[SparkContext]:
        """A running session. An error ends it, for other jobs of it too, and is raised as EngineFailed."""
        with self._lock:
            context = self._started_context()
        try:
            yield context
        except Exception as error:  # noqa: BLE001  # of the job, of Java, or of the connection to it
            with self._lock:
                # Unless another job of the session has met its end before, and the next one has begun.
                if self._context is context:
                    self._end()
            raise _engine_failed(error) from None

    def _started_context(self) -> SparkContext:
        """Returns the running session, started if there is none. Raises EngineFailed."""
        if self._context is None:
            try:
                self._context = self._start()
            except errors.IcestreamError:
                raise
            except Exception as error:  # noqa: BLE001  # PySpark raises exceptions of any class when Java fails to start
                self._end()
                raise _engine_failed(error) from None
        return self._context

    def _start(self) -> SparkContext:
        """Starts Java and a session. The first start may install parts of Spark."""
        if self._runtime is None:
            _log.info("starting Spark", master=self.master)
            self._runtime = self._prepare()
        install, archive = self._runtime
        os.environ.update(
            JAVA_HOME=str(install.java_home),
            SPARK_HOME=str(install.spark_home),
            PYSPARK_PYTHON=sys.executable,
        )
        if self._options.is_local:
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        # py4j logs long tracebacks about a Java that has ended; EngineFailed says the same in a line.
        for logger in (logging.getLogger(), logging.getLogger("py4j")):
            logger.addFilter(_is_not_py4j)
        java_options = PLAIN_OPTIONS if archive is None else archive.java_options()
        conf = SparkConf(loadDefaults=False)
        for key, value in spark_conf(self._options, java_options).items():
            conf.set(key, value)
        with jvm_log.stderr_pipe() as stderr:
            gateway = launch_gateway(conf, {"stderr": stderr})  # on the command line of Java: the secrets come later
        for key, value in self._options.secrets.items():
            conf.set(key, value)
        context = SparkContext(conf=conf, gateway=gateway)
        ignore_java_disconnect(context._accumulatorServer)
        return context

    def _end(self) -> None:
        """Ends the session, also one whose Java has died. The next session gets a new Java process."""
        from pyspark import SparkContext

        context, self._context = self._context, None
        gateway: Any = SparkContext._gateway
        process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
        # Java ends its session by itself when its stdin closes; SparkContext.stop() would take half a second longer.
        accumulator_server = getattr(context, "_accumulatorServer", None)
        stdin = getattr(process, "stdin", None)
        for owner, method in ((gateway, "shutdown"), (stdin, "close"), (accumulator_server, "shutdown")):
            if owner is not None:
                with contextlib.suppress(Exception):
                    getattr(owner, method)()
        SparkContext._active_spark_context = None
        SparkContext._gateway = SparkContext._jvm = None
        has_ended = _wait_for_exit(process)
        if self._runtime is not None and self._runtime.archive is not None:
            self._runtime.archive.finish(is_complete=has_ended)


def run_jobs(
    context: SparkContext, function: Callable[[Iterable[bytes]], Iterator[bytes]], task_jobs: Sequence[bytes]
) -> list[bytes]:
    """Runs a function over each of these jobs as a task of its own; returns the results in their order."""
    results: list[bytes] = context.parallelize(task_jobs, len(task_jobs)).mapPartitions(function).collect()
    return results


def run_round(context: SparkContext, plan: RoundPlan) -> list[bytes]:
    """Runs the tasks of a round and returns their encoded results. Each bundle is one partition: Spark must not
    distribute them differently."""
    read_jobs = [jobs.encode(job) for job in jobs.read_jobs(plan)]
    if not read_jobs:
        return []
    write_jobs = [(number, jobs.encode(job)) for number, job in enumerate(jobs.write_jobs(plan))]
    # Write jobs travel with the inputs of the first stage, spread over its partitions; the shuffle brings each to its
    # writer together with the rows.
    inputs = [(job, write_jobs[number :: len(read_jobs)]) for number, job in enumerate(read_jobs)]
    rows: Any = context.parallelize(inputs, len(inputs))
    results: list[bytes]
    if not write_jobs:
        results = rows.mapPartitions(stages.read_only).collect()
        return results
    shuffled = rows.mapPartitions(stages.read).partitionBy(len(write_jobs), stages.partition_of)
    results = shuffled.mapPartitions(stages.write).collect()
    return results


# --- composition ------------------------------------------------------------------------------------------------------


def check_spark_installed(paths: SetupPaths) -> None:
    """Raises MissingPart if Spark cannot run on this machine. Installs nothing."""
    parts = examine(paths)
    if fault := python_packages.pyspark_fault(parts.pyspark):
        raise MissingPart(fault, hint=SETUP_HINT)
    if parts.java.java is None:
        reasons = "; ".join(parts.java.refused) or "no Java was found"
        raise MissingPart(reasons, hint=f"{SETUP_HINT}, or {JAVA_HINT}")


@contextlib.contextmanager
def open_writer(options: SparkOptions, paths: SetupPaths) -> Iterator[SparkWriter]:
    """The writer of the pipeline process. Raises MissingPart at once if Spark cannot run here."""
    check_spark_installed(paths)

    def prepare() -> SparkRuntime:
        install = install_spark(paths, say=_log.info)
        return SparkRuntime(install, ClassArchive(install, paths.cache))

    writer = SparkWriter(options, prepare)
    try:
        yield writer
    finally:
        writer.close()


def archive_classes(install: SparkInstall, cache: Path, say: Callable[[str], None]) -> None:
    """Starts Spark once at set-up: proves that it runs here, and archives its classes for later starts.

    Does nothing if there is an archive already. Raises EngineFailed if Spark does not run.
    """
    archive = ClassArchive(install, cache, is_archiving=True)
    if not archive.is_missing:
        return
    say("setup: starting Spark once, so that each later start takes a quarter of the time")
    writer = SparkWriter(SparkOptions("local[1]"), lambda: SparkRuntime(install, archive))
    try:
        writer.run_empty_job()
    finally:
        writer.close()


# --- errors and the end of Java ---------------------------------------------------------------------------------------


def ignore_java_disconnect(server: BaseServer) -> None:
    """Makes PySpark's server for accumulator updates ignore that Java disconnects.

    Java disconnects at each end of a session, orderly or not, and PySpark prints a traceback about it. It carries no
    information: a round that was cut off fails by itself. All other errors of the server are reported as before.
    """
    report_error = server.handle_error

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), DISCONNECTS):
            report_error(request, client_address)

    server.handle_error = handle_error  # type: ignore[method-assign]


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


def _engine_failed(error: Exception) -> errors.EngineFailed:
    """Returns the error for a failure of Spark, with the first lines of its message."""
    java_error = getattr(error, "java_exception", None)
    try:
        text = str(error) if java_error is None else str(java_error.toString())
    except Exception:  # noqa: BLE001  # the call goes to Java, which may have ended
        text = type(error).__name__
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return errors.EngineFailed(
        f"Spark did not finish its job: {' / '.join(lines[:3])[:500] or type(error).__name__}",
        hint="the next job starts a new session; nothing was committed",
    )


def _wait_for_exit(process: subprocess.Popen[bytes] | None) -> bool:
    """Returns True if Java ended by itself, as it does when its stdin closes. Otherwise it is killed."""
    if process is None:
        return False
    try:
        process.wait(limits.SPARK_END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return process.returncode == 0
