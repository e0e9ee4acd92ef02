"""NATS JetStream with its file store: the server of `requirements/bench.txt` in a directory of ours, one replica.

It acks a message after its write to the page cache, as our mode `none` does, and syncs by itself after minutes.
Publishers have a window of messages without an ack.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.generator import Target
from bench.harness import MissingPeer
from bench.process import HOST, free_port

INSTALL = "make bench installs it; or apt-get install nats-server"


def _binary() -> str:
    """That of this environment first; Debian's lies where only root looks."""
    own = str(Path(sys.executable).parent)
    found = (
        shutil.which("nats-server", path=own)
        or shutil.which("nats-server")
        or shutil.which("nats-server", path="/usr/sbin:/usr/local/sbin")
    )
    if found is None:
        raise MissingPeer(f"nats-server is not installed: {INSTALL}")
    return found


def version() -> str:
    """As `nats-server 2.9.10`; raises MissingPeer when there is none."""
    words = subprocess.run([_binary(), "--version"], capture_output=True, text=True, check=True).stdout.split()
    return f"nats-server {words[-1].lstrip('v')}"


@contextmanager
def running(path: Path) -> Iterator[Target]:
    """A server on loopback, on a port that was free, with its data in `path`."""
    name, port = version(), free_port()
    words = [_binary(), "-js", "-sd", str(path / "nats"), "-a", HOST, "-p", str(port), "-l", str(path / "nats.log")]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        _wait_ready(process, port)
        yield Target(f"{HOST}:{port}", process.pid, name)
    finally:
        process.kill()
        process.wait()


def _wait_ready(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if process.poll() is not None:
            raise MissingPeer(f"nats-server ended with {process.returncode} at its start")
        try:
            with socket.create_connection((HOST, port), timeout=10) as connection:
                connection.sendall(b"CONNECT {}\r\nPING\r\n")
                answer = b""
                while b"PONG" not in answer:
                    answer += connection.recv(4096)
                return
        except OSError:
            time.sleep(0.02)
    raise MissingPeer("nats-server did not answer within 10 s")
