"""The parent of Spark's Python workers as Java starts it: what its workers say when Java leaves them."""

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
    """Its path is short: that of a socket may have 107 bytes."""
    with tempfile.TemporaryDirectory() as found:
        yield found


def test_a_worker_that_java_leaves_ends_without_a_word(folder: str) -> None:
    """Its last words would have been for Java. Spark asks that a worker end that cannot get rid of them."""
    told = {
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": folder,
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "SPARK_REUSE_WORKER": "1",
    }
    command = [sys.executable, "-m", "icestream.pipeline.spark.daemon"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=os.environ | told, stdin=pipe, stdout=pipe, stderr=pipe) as daemon:
        assert daemon.stdout is not None
        (size,) = struct.unpack("!i", daemon.stdout.read(4))
        place = daemon.stdout.read(size).decode()
        with socket.socket(socket.AF_UNIX) as java:
            java.connect(place)
            (worker,) = struct.unpack("!i", java.recv(4))
            assert is_running(worker)
        until(lambda: not is_running(worker))
        _, said = daemon.communicate(timeout=30)  # its input ends, and with it the daemon
    assert said.decode() == ""
