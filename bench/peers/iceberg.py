"""Iceberg's own REST catalog server, from the fixtures of its compatibility kit: Jetty, a JDBC catalog on SQLite in
memory, metadata files in a directory of ours. It syncs nothing to disk.

SQLite in memory has one connection; with a file and several connections it is slower, and fails under eight clients."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.generator import Target
from bench.harness import MissingPeer
from bench.process import HOST, free_port
from conformance import kit

START_SECONDS = 60.0
VERSION = "Iceberg RESTCatalogServer 1.11.0"


@contextmanager
def running(path: Path) -> Iterator[Target]:
    port = free_port()
    try:
        command = [kit.java(), "-cp", kit.class_path(), "org.apache.iceberg.rest.RESTCatalogServer"]
    except kit.Missing as missing:
        raise MissingPeer(str(missing)) from None
    settings = {"REST_PORT": str(port), "WAREHOUSE": f"file:{path / 'reference'}", "CLIENTS": "1"}
    environment = {**os.environ, **{f"CATALOG_{name}": value for name, value in settings.items()}}
    with (path / "reference.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=path, env=environment, stdout=log, stderr=log)
    try:
        _wait_ready(process, port)
        yield Target(f"{HOST}:{port}", process.pid, VERSION)
    finally:
        process.kill()
        process.wait()


def _wait_ready(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise MissingPeer(f"the reference server ended with {process.returncode} at its start")
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/v1/config", timeout=10):
                return
        except OSError:
            time.sleep(0.1)
    raise MissingPeer(f"the reference server did not answer within {START_SECONDS:g} s")
