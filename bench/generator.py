"""The load generator (load/, in Rust): built here, called here, its one line of JSON read here."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from bench import process
from bench.harness import MissingPeer, RunFailed

SOURCE = Path(__file__).parent / "load"
PROGRAM = SOURCE / "target" / "release" / "icestream-load"
# From here on the generator may have been what was measured.
BUSY_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Target:
    """A server that listens."""

    address: str
    pid: int
    version: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """What one run saw. CPU: of the generator, and of the server and its children."""

    messages: int
    seconds: float
    cpu_seconds: float
    server_cpu_seconds: float
    p50_us: float
    p99_us: float
    max_us: float
    checked: int
    disordered: int = 0  # how often a delivered offset did not follow the one before it
    first_us: float = 0  # how long a consumer waited for its first message

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def server_us(self) -> float:
        """Server CPU for each message."""
        return 1e6 * self.server_cpu_seconds / self.messages


@cache
def program() -> str:
    if shutil.which("cargo") is None:
        raise MissingPeer("the load generator needs a Rust compiler: install Rust (for example with rustup)")
    build = ["cargo", "build", "--release", "--quiet", "--manifest-path", str(SOURCE / "Cargo.toml")]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailed(f"the load generator does not build:\n{done.stderr}")
    return str(PROGRAM)


def publish(protocol: str, target: Target, **options: float | str) -> Load:
    return _run("publish", protocol, target, process.family(target.pid), options)


def with_aftermath(load: Load, target: Target, seconds: float) -> Load:
    """The same load, and what the server uses in the time after it: work that was put off counts too."""
    pids = process.family(target.pid)
    before = process.cpu_seconds(pids)
    time.sleep(seconds)
    used = process.cpu_seconds(pids) - before
    return replace(load, server_cpu_seconds=load.server_cpu_seconds + used)


def consume(protocol: str, target: Target, **options: float | str) -> Load:
    return _run("consume", protocol, target, process.family(target.pid), options)


def fan_out(protocol: str, target: Target, **options: float | str) -> Load:
    return _run("fanout", protocol, target, process.family(target.pid), options)


def round_trip(protocol: str, target: Target, **options: float | str) -> Load:
    """Messages that are sent, delivered and acked; a latency is that of all three."""
    return _run("roundtrip", protocol, target, process.family(target.pid), options)


@contextmanager
def slow_consumer(target: Target, **options: float | str) -> Iterator[None]:
    """A native consumer that is subscribed when this begins, and killed when it ends."""
    words = _words("consume", "native", target, [], {"announce": "true", "messages": 2**40, **options})
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        if child.stdout.readline() != "ready\n":
            raise RunFailed(f"a consumer did not start: {child.communicate()[1]}")
        yield
    finally:
        child.kill()
        child.communicate()


def _words(what: str, protocol: str, target: Target, pids: Iterable[int], options: dict[str, float | str]) -> list[str]:
    given = {**options, "pids": ",".join(map(str, pids))} if pids else options
    return [program(), what, protocol, target.address, *(f"{key}={value}" for key, value in given.items())]


def _run(what: str, protocol: str, target: Target, pids: Sequence[int], options: dict[str, float | str]) -> Load:
    words = _words(what, protocol, target, pids, options)
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise RunFailed(f"{' '.join(words[1:])}: {done.stderr.strip()}")
    found = Load(**json.loads(done.stdout))
    if found.checked < found.messages:
        raise RunFailed(f"{' '.join(words[1:])}: {found.messages} messages, {found.checked} answers with a position")
    return found


def generator_note(loads: Iterable[Load]) -> str:
    """How much of a core the generator used, so that one that was the bound itself is seen."""
    shares = [load.cpu_seconds / load.seconds for load in loads]
    text = f"generator {100 * max(shares):.0f} % of a core"
    return f"{text}: it may be the bound" if max(shares) >= BUSY_SHARE else text
