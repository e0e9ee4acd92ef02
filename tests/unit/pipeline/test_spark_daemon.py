"""The parent of Spark's Python workers as Java starts it: the output of its workers when Java closes the connection."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from tests.support.lake_run import is_running, until


@pytest.fixture
def folder() -> Iterator[str]:
    """A folder with a short path: the path of a socket may have 107 bytes."""
    with tempfile.TemporaryDirectory() as path:
        yield path


def test_a_worker_left_by_java_ends_silently(folder: str) -> None:
    """The worker's last output was for Java. Spark requires a worker to end if it cannot send it."""
    variables = {
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": folder,
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "SPARK_REUSE_WORKER": "1",
    }
    command = [sys.executable, "-m", "icestream.pipeline.spark.daemon"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=os.environ | variables, stdin=pipe, stdout=pipe, stderr=pipe) as daemon:
        assert daemon.stdout is not None
        (size,) = struct.unpack("!i", daemon.stdout.read(4))
        place = daemon.stdout.read(size).decode()
        with socket.socket(socket.AF_UNIX) as java:
            java.connect(place)
            (worker,) = struct.unpack("!i", java.recv(4))
            assert is_running(worker)
        until(lambda: not is_running(worker))
        _, errors_output = daemon.communicate(timeout=30)  # its input ends, and with it the daemon
    assert errors_output.decode() == ""
