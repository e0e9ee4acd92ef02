"""One Spark for all tests that need one: started when the first asks, ended with the test run.

It is made for many small statements: one compiler of the JVM, no generated code, two tasks, no user interface. What it
runs on is what `icestream pipeline setup` finds, and nothing else.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from icestream.model.task_messages import TopicTaskResult
from icestream.pipeline.round_plan import RoundPlan
from icestream.pipeline.spark_setup import jar_files, pinned_versions
from icestream.pipeline.spark_setup.jar_choice import choose_copy, jar_locations
from icestream.pipeline.spark_setup.spark_install import SetupPaths, SparkInstall, install_spark
from icestream.pipeline.task.task_jobs import decode_written
from icestream.processes.pipeline_options import setup_paths
from icestream.settings import load
from tests.tidy.tree import ROOT

ANSWER_SECONDS = 90.0
CATALOG = "org.apache.iceberg.spark.SparkCatalog"
SMALL = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.python.daemon.module": "icestream.pipeline.spark.daemon",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}


class SparkRefusal(Exception):
    """The error that Spark answered instead of rows."""


class Spark:
    """A Spark in a process of its own. It starts at once and in the background: others can start meanwhile."""

    def __init__(self, folder: Path, warehouse: Path) -> None:
        """`warehouse`: where its own tables lie, those that are not Iceberg's."""
        settings = SMALL | {
            "spark.driver.extraClassPath": ":".join(
                str(jar) for jar in (engine().jars[pinned_versions.ICEBERG_SPARK], s3_bundle()) if jar is not None
            ),
            "spark.sql.warehouse.dir": str(warehouse),
            "spark.local.dir": str(folder / "spark-local"),
        }
        ours, theirs = socket.socketpair()
        with theirs, (folder / "said").open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.spark_process", str(theirs.fileno())]
                + [f"{key}={value}" for key, value in settings.items()],
                cwd=ROOT,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._output = folder / "said"
        self._connection = Connection(ours.detach())
        self._is_up = False

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._ask("sql", statement)
        return rows

    def scalar(self, statement: str) -> Any:
        """The only column of the only row."""
        ((value,),) = self.sql(statement)
        return value

    def column(self, statement: str) -> list[Any]:
        return [row[0] for row in self.sql(statement)]

    def read(self, location: str, *columns: str) -> list[tuple[Any, ...]]:
        """Rows of the table whose metadata file is there, without a catalog."""
        rows: list[tuple[Any, ...]] = self._ask("read", location, columns)
        return rows

    def attach(self, name: str, uri: str, kind: str = CATALOG, **properties: str) -> None:
        """A REST catalog under this name; what others commit is seen by the next statement."""
        own = {"": kind, ".type": "rest", ".uri": uri, ".cache-enabled": "false"}
        for key, value in (own | {f".{name}": value for name, value in properties.items()}).items():
            self.set(f"spark.sql.catalog.{name}{key}", value)

    def set(self, key: str, value: str) -> None:
        self._ask("set", key, value)

    @contextmanager
    def setting(self, key: str, value: str) -> Iterator[None]:
        self.set(key, value)
        try:
            yield
        finally:
            self._ask("unset", key)

    def round(self, plan: RoundPlan) -> list[TopicTaskResult]:
        """Runs a round in this session, as the pipeline does in its own."""
        return [decode_written(data) for data in self._ask("round", msgspec.msgpack.encode(plan))]

    def copy(self, jobs: Sequence[bytes]) -> list[bytes]:
        """Runs tasks of a backup in this session, as the pipeline does in its own."""
        results: list[bytes] = self._ask("copy", list(jobs))
        return results

    def _ask(self, *question: Any) -> Any:
        if not self._is_up:
            self._receive()
            self._is_up = True
        self._connection.send(question)
        is_done, answer = self._receive()
        if not is_done:
            raise SparkRefusal(answer)
        return answer

    def _receive(self) -> Any:
        if not self._connection.poll(ANSWER_SECONDS):
            raise AssertionError(f"no answer in {ANSWER_SECONDS} s: {self._output.read_text(errors='replace')}")
        try:
            return self._connection.recv()
        except EOFError:
            raise AssertionError(f"Spark has ended: {self._output.read_text(errors='replace')}") from None

    def __enter__(self) -> Spark:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        os.killpg(self._process.pid, signal.SIGKILL)  # nothing of it is to be kept
        self._process.wait()


@cache
def engine() -> SparkInstall:
    """The Spark that `make test` has set up; nothing is fetched that is already there."""
    return install_spark(_machine(), pinned_versions.ICEBERG_SPARK, say=print)


@cache
def s3_bundle() -> Path | None:
    """The jar for tables in S3, if `icestream pipeline setup --s3` has fetched it: 63 MB that few tests need."""
    machine, jar = _machine(), pinned_versions.ICEBERG_AWS
    choice = choose_copy(jar, jar_files.copies(jar, jar_locations(jar, machine.jars, machine.cache, machine.home)))
    return choice.copy.path if choice.copy is not None else None


def _machine() -> SetupPaths:
    environment = {
        name: value for name, value in os.environ.items() if name.startswith(("ICESTREAM_JARS", "ICESTREAM_PIPE"))
    }
    return setup_paths(load(None, environment, ()).settings, os.environ)


def environment() -> dict[str, str]:
    """For processes that start a Spark."""
    own = {
        "JAVA_HOME": str(engine().java_home),
        "SPARK_HOME": str(engine().spark_home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return os.environ | own
