"""mosquitto without persistence, as its users measure it: Debian's server on loopback, with its defaults.

It keeps no message and no session on disk, so it acks a publish when it has queued it in memory. Queues have no bound,
because a bound drops messages silently, and Nagle's algorithm is off, because each ack would wait for the next one.
"""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.generator import Target
from bench.harness import MissingPeer
from bench.process import HOST, free_port

INSTALL = "apt-get install mosquitto"


def _binary() -> str:
    """Debian's lies where only root looks."""
    found = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise MissingPeer(f"mosquitto is not installed: {INSTALL}")
    return found


def version() -> str:
    """As `mosquitto 2.0.11`; raises MissingPeer when there is none."""
    done = subprocess.run([_binary(), "-h"], capture_output=True, text=True, check=False)
    return f"mosquitto {done.stdout.split()[2]}"


@contextmanager
def running(path: Path, *, connections: int = 1_000) -> Iterator[Target]:
    """A server on loopback, on a port that was free."""
    name, port = version(), free_port()
    configuration = path / "mosquitto.conf"
    configuration.write_text(
        f"user {getpass.getuser()}\nlistener {port} {HOST}\nallow_anonymous true\npersistence false\n"
        f"max_queued_messages 0\nset_tcp_nodelay true\nmax_connections {max(connections, 1_000) * 2}\nlog_dest none\n"
    )
    process = subprocess.Popen([_binary(), "-c", str(configuration)], stdin=subprocess.DEVNULL)
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
            raise MissingPeer(f"mosquitto ended with {process.returncode} at its start")
        try:
            with socket.create_connection((HOST, port), timeout=10):
                return
        except OSError:
            time.sleep(0.02)
    raise MissingPeer("mosquitto did not answer within 10 s")
