"""PySpark's real server for accumulators without a Java process: Java may disconnect, and errors are still reported."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.accumulators import _start_update_server
from pyspark.serializers import CPickleSerializer

from icestream.pipeline.spark.writer import ignore_java_disconnect

WAIT_SECONDS = 30.0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where the server listens."""
    server: Any = _start_update_server("", True, str(tmp_path / "updates"))
    ignore_java_disconnect(server)
    yield tmp_path / "updates"
    server.shutdown()


@contextlib.contextmanager
def java_at(place: Path) -> Iterator[socket.socket]:
    """Answered once: the server reads one connection at a time, so it has finished with the earlier ones."""
    with socket.socket(socket.AF_UNIX) as java:
        java.settimeout(WAIT_SECONDS)
        java.connect(str(place))
        java.sendall(struct.pack("!i", 0))
        assert java.recv(1) == b"\x01"
        yield java


def test_java_may_disconnect_between_and_within_updates(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for sent in (b"", struct.pack("!ii", 1, 100) + b"half of it"):
        with java_at(place) as java:
            java.sendall(sent)
    with java_at(place):
        assert capfd.readouterr().err == ""


def test_an_invalid_update_is_reported(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = CPickleSerializer().dumps((77, 1))  # there is no such accumulator
    with java_at(place) as java:
        java.sendall(struct.pack("!ii", 1, len(wrong)) + wrong)
    with java_at(place):
        assert "KeyError: 77" in capfd.readouterr().err
