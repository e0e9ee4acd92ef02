"""A process with the pipeline's own Spark session: takes plans, sends what was written, ends what it is told to end.

It is a process of its own for the reasons of spark_process.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from icestream import errors
from icestream.model.task_messages import TopicTaskResult
from icestream.pipeline.round_plan import RoundPlan
from icestream.pipeline.spark.class_archive import ClassArchive
from icestream.pipeline.spark.spark_options import SparkOptions
from icestream.pipeline.spark.writer import SparkRuntime, SparkWriter
from icestream.pipeline.task.task_jobs import decode_written
from icestream.settings.keys import is_secret_name
from tests.support.spark import engine, environment
from tests.tidy.tree import ROOT

ANSWER_SECONDS = 100.0


class RoundProcess:
    def __init__(self, connection: Connection, output: Path) -> None:
        self._connection = connection
        self._output = output

    def write(self, plan: RoundPlan) -> list[TopicTaskResult]:
        """Raises EngineFailed as the writer does."""
        return [decode_written(data) for data in self._ask("write", msgspec.msgpack.encode(plan))]

    def java(self) -> int:
        """The process id of the JVM."""
        pid: int = self._ask("java")
        return pid

    def close(self) -> None:
        self._ask("close")

    def _ask(self, *question: Any) -> Any:
        self._connection.send(question)
        if not self._connection.poll(ANSWER_SECONDS):
            raise AssertionError(f"no answer: {self._output.read_text(errors='replace')}")
        is_done, answer = self._connection.recv()
        if not is_done:
            raise errors.EngineFailed(answer)
        return answer


@contextlib.contextmanager
def round_process(folder: Path, master: str, *conf: str) -> Iterator[RoundProcess]:
    ours, theirs = socket.socketpair()
    output_path = folder / "said"
    with theirs, output_path.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.round_process", str(theirs.fileno()), str(folder), master, *conf],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    connection = Connection(ours.detach())
    try:
        yield RoundProcess(connection, output_path)
    finally:
        connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main(number: int, folder: Path, master: str, conf: dict[str, str]) -> None:
    secrets = {name: value for name, value in conf.items() if is_secret_name(name)}
    plain = {name: value for name, value in conf.items() if name not in secrets}
    options = SparkOptions(master, plain, secrets, scratch=folder / "scratch")
    archive = ClassArchive(engine(), folder / "cache", is_archiving=True)
    writer = SparkWriter(options, lambda: SparkRuntime(engine(), archive))
    connection = Connection(number)
    while True:
        try:
            kind, *arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send((True, answer(writer, kind, arguments)))
        except errors.EngineFailed as error:
            connection.send((False, str(error)))


def answer(writer: SparkWriter, kind: str, arguments: list[Any]) -> Any:
    match kind:
        case "write":
            written = writer.write(msgspec.msgpack.decode(arguments[0], type=RoundPlan))
            return [msgspec.msgpack.encode(result) for result in written]
        case "java":
            from pyspark import SparkContext

            gateway: Any = SparkContext._gateway
            return gateway.proc.pid
        case "close":
            return writer.close()
    raise ValueError(kind)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], dict(setting.split("=", 1) for setting in sys.argv[4:]))
