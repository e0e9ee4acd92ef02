"""A master and a worker of Spark on this machine: processes of their own, talked to over the loopback network alone."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support.free_ports import free_ports
from tests.support.spark import engine, environment

START_SECONDS = 60


@contextlib.contextmanager
def spark_cluster(folder: Path, conf: Mapping[str, str]) -> Iterator[str]:
    """Runs a cluster with these settings of Spark; yields its master for `pipeline.spark.master`."""
    port, shown, also_shown = free_ports(3)
    properties = folder / "spark.properties"
    properties.touch(0o600)
    properties.write_text("".join(f"{name} {value}\n" for name, value in conf.items()))
    given = ["--properties-file", str(properties)]
    master = f"spark://127.0.0.1:{port}"
    with contextlib.ExitStack() as running:
        begin = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]
        _start(
            running,
            folder / "master",
            [*begin, *given, "--webui-port", str(shown)],
            f"Starting Spark master at {master}",
        )
        begin = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g"]
        work = [*given, "--work-dir", str(folder / "work"), "--webui-port", str(also_shown), master]
        _start(running, folder / "worker", [*begin, *work], "Successfully registered with master")
        yield master


def _start(running: contextlib.ExitStack, output_path: Path, command: list[str], ready: str) -> None:
    own = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    with output_path.open("wb") as output:
        process = subprocess.Popen(
            [str(engine().spark_home / "bin" / "spark-class"), *command],
            env=environment() | own,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    running.callback(process.wait)
    running.callback(process.kill)
    end = time.monotonic() + START_SECONDS
    while ready not in output_path.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > end:
            raise AssertionError(output_path.read_text(errors="replace"))
        time.sleep(0.05)
