"""TLS handshakes at a pace: `python -m bench.handshakes HOST PORT RATE SECONDS` opens and closes connections.

Prints how many were done. A process does some hundred in a second: several of them share a rate.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.generator import Target


def run(host: str, port: int, rate: float, seconds: float) -> int:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    start, done = time.monotonic(), 0
    while (elapsed := time.monotonic() - start) < seconds:
        if done > elapsed * rate:
            time.sleep(done / rate - elapsed)
            continue
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host, port), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            done += 1
    return done


class Handshakes:
    """Those that processes do beside a measurement."""

    def __init__(self) -> None:
        self.done = 0


@contextlib.contextmanager
def running(target: Target, port: int, rate: float, seconds: float, processes: int = 2) -> Iterator[Handshakes]:
    """Handshakes with a port of the server, for so long. Their number is known at the end."""
    host = target.address.rpartition(":")[0]
    words = [sys.executable, "-m", "bench.handshakes", host, str(port), str(rate / processes), str(seconds)]
    root = Path(__file__).resolve().parents[1]
    children = [subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    handshakes = Handshakes()
    try:
        yield handshakes
        handshakes.done = sum(int(child.communicate()[0]) for child in children)
    finally:
        for child in children:
            child.kill()
            child.wait()


def main(arguments: Sequence[str]) -> None:
    host, port, rate, seconds = arguments
    print(run(host, int(port), float(rate), float(seconds)))


if __name__ == "__main__":
    main(sys.argv[1:])
