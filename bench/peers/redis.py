"""Redis with `appendfsync always`: Debian's server in a directory of ours, and two clients that do not slow it down.

The server gets no snapshot (`save ""`) and no rewrite of its append-only file, so that it does nothing but what is
measured. The commands carry one message of 100 B each, as raw bytes of its protocol (RESP):

    RPUSH list PAYLOAD          a list: the cheapest way to keep every message
    XADD stream * p PAYLOAD     a stream: what Redis offers as a log

Clients of the scenarios of the log: `drive` below, one epoll loop over raw sockets that keeps `depth` commands in
flight on each connection; and `redis-benchmark`, Redis' own client in C. Of all combinations the best one is the peer's
figure. The scenarios of the broker drive it with the load generator (generator.py), as they drive the broker.
"""

from __future__ import annotations

import select
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.generator import Target
from bench.harness import MissingPeer
from bench.process import HOST, free_port
from bench.workload import PAYLOAD

INSTALL = "apt-get install redis-server"


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    words: tuple[bytes, ...]
    reply_lines: int

    @property
    def wire(self) -> bytes:
        parts = [b"*%d\r\n" % len(self.words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in self.words)]
        return b"".join(parts)


# redis-benchmark takes its words from the command line, so the payload there is text of the same size.
TEXT = b"x" * len(PAYLOAD)
RPUSH = Command("RPUSH", (b"RPUSH", b"list", PAYLOAD), 1)
XADD = Command("XADD", (b"XADD", b"stream", b"*", b"p", PAYLOAD), 2)
COMMANDS = (RPUSH, XADD)


@dataclass(frozen=True, slots=True)
class Server:
    port: int
    version: str
    pid: int

    @property
    def target(self) -> Target:
        """For the load generator."""
        return Target(f"{HOST}:{self.port}", self.pid, self.version)

    def forget(self) -> None:
        """Lets go of every message, so that a long run does not fill the memory."""
        _ask(self.port, b"FLUSHALL SYNC\r\n")


def version() -> str:
    """As `redis 7.0.15`; raises MissingPeer when there is none."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise MissingPeer(f"redis-server is not installed: {INSTALL}")
    words = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.split()
    return "redis " + next(word[2:] for word in words if word.startswith("v="))


@contextmanager
def running(path: Path) -> Iterator[Server]:
    """A server on loopback, on a port that was free, with its data in `path`."""
    name = version()
    port = free_port()
    command = [
        "redis-server", "--port", str(port), "--bind", HOST, "--dir", str(path), "--logfile", "redis.log",
        "--daemonize", "no", "--save", "", "--auto-aof-rewrite-percentage", "0",
        "--appendonly", "yes", "--appendfsync", "always",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        _wait_ready(process, port)
        yield Server(port, name, process.pid)
    finally:
        process.kill()
        process.wait()


def _wait_ready(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if process.poll() is not None:
            raise MissingPeer(f"redis-server ended with {process.returncode} at its start")
        try:
            _ask(port, b"PING\r\n")
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise MissingPeer("redis-server did not answer within 10 s")


def _ask(port: int, line: bytes) -> bytes:
    with socket.create_connection((HOST, port), timeout=60) as connection:
        connection.sendall(line)
        return connection.recv(1024)


def best(server: Server, connections: int, depth: int, seconds: float) -> tuple[float, str, dict[str, float]]:
    """Messages per second of the best combination of command and client, which one it was, and all of them."""
    rates: dict[str, float] = {}
    for command in COMMANDS:
        rates[f"{command.name}, own client"] = drive(server.port, command, connections, depth, seconds)
        server.forget()
        rates[f"{command.name}, redis-benchmark"] = redis_benchmark(server.port, command, connections, depth, seconds)
        server.forget()
    winner = max(rates, key=rates.__getitem__)
    return rates[winner], winner, rates


class _Connection:
    """One connection with a fixed number of commands in flight."""

    def __init__(self, port: int, command: Command, depth: int) -> None:
        self.socket = socket.create_connection((HOST, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._wire = memoryview(command.wire * depth)
        self._command_bytes = len(command.wire)
        self._reply_lines = command.reply_lines
        self._lines = 0
        self.unsent = memoryview(b"")
        self._owed = depth

    def receive(self) -> int:
        """Reads what is there; how many replies it completes."""
        data = self.socket.recv(262_144)
        if not data or data.startswith(b"-") or b"\n-" in data:
            raise ConnectionError(f"Redis answered {data[:200]!r}")
        self._lines += data.count(b"\n")
        replies, self._lines = divmod(self._lines, self._reply_lines)
        self._owed += replies
        return replies

    def send(self) -> None:
        """Replaces what was answered."""
        if not self.unsent:
            self.unsent = self._wire[: self._owed * self._command_bytes]
            self._owed = 0
        try:
            self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except BlockingIOError:
            return


def drive(port: int, command: Command, connections: int, depth: int, seconds: float) -> float:
    """Replies per second over raw sockets, `depth` commands in flight on each connection."""
    poll = select.epoll()
    found = {}
    for _ in range(connections):
        one = _Connection(port, command, depth)
        found[one.socket.fileno()] = one
        poll.register(one.socket.fileno(), select.EPOLLIN)
    try:
        for one in found.values():
            one.send()
        return _count(poll, found, seconds)
    finally:
        poll.close()
        for one in found.values():
            one.socket.close()


def _count(poll: select.epoll, connections: dict[int, _Connection], seconds: float) -> float:
    replies = 0
    started = time.perf_counter()
    until = started + seconds
    blocked: set[int] = set()
    while (now := time.perf_counter()) < until:
        for fd, event in poll.poll(1.0):
            one = connections[fd]
            if event & select.EPOLLIN:
                replies += one.receive()
            one.send()
            if bool(one.unsent) != (fd in blocked):
                blocked ^= {fd}
                poll.modify(fd, select.EPOLLIN | select.EPOLLOUT if one.unsent else select.EPOLLIN)
    return replies / (now - started)


def redis_benchmark(port: int, command: Command, connections: int, depth: int, seconds: float) -> float:
    """Requests per second as `redis-benchmark` reports them; 0 when it is not installed."""
    binary = shutil.which("redis-benchmark")
    if binary is None:
        return 0.0
    words = [TEXT if word == PAYLOAD else word for word in command.words]
    count = 200 * connections
    while True:
        line = [
            binary,
            "-h",
            HOST,
            "-p",
            str(port),
            "-c",
            str(connections),
            "-P",
            str(depth),
            "-n",
            str(count),
            "--csv",
        ]
        started = time.perf_counter()
        done = subprocess.run([*line, *words], capture_output=True, text=True, check=True)
        took = time.perf_counter() - started
        rate = float(done.stdout.strip().splitlines()[-1].split('","')[1])
        if took >= seconds / 2:
            return rate
        count = int(max(count * 2, rate * seconds))
