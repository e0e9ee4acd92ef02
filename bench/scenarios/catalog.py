"""The embedded Iceberg catalog against Iceberg's own reference server, over HTTP, clients with tables of their own.

    commits    one client, then eight, each committing a property to its table as fast as it gets answers; and loads.
               Ours syncs metadata file, directory and the log of the metadata store; the reference syncs nothing
    history    server CPU of a commit to a table with 1,000 snapshots, against one with a single snapshot
    publish    p99 of one producer that awaits each ack, beside 8 clients that append to tables of their own as fast as
               they get answers: each writes two files without a sync, which the catalog makes durable on the same disk

A server is warm when it is measured: the JVM compiles for a while.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import broker, generator, process
from bench.figures import Figure, Goal, Row, ratios
from bench.generator import Load, Target
from bench.harness import Bench, RunFailed
from bench.peers import iceberg

NAME = "catalog"
GOAL = "commits/s ≥ 5x the reference with 1 client, ≥ 4x with 8; CPU at 1,000 snapshots ≤ 3x; publish p99 ≤ 1.5x"
CLIENTS = (1, 8)
GOALS = {1: Goal(at_least=5), 8: Goal(at_least=4)}
SNAPSHOTS = 1_000
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Seen:
    """What the clients of one run saw. CPU: of the clients, and of the server and its children."""

    requests: int
    seconds: float
    cpu_seconds: float
    p50_us: float
    p99_us: float
    server_cpu_seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.requests / self.seconds

    @property
    def server_ms(self) -> float:
        return 1e3 * self.server_cpu_seconds / max(self.requests, 1)


class Clients:
    """A process of clients, from the moment in which their tables are there."""

    def __init__(self, address: str, *words: object) -> None:
        command = [sys.executable, "-m", "bench.catalog_client", address, *map(str, words)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RunFailed(f"the clients of the catalog failed: {self._process.communicate()[1][-2000:]}")

    def seen(self) -> Seen:
        said, failed = self._process.communicate()
        if self._process.returncode:
            raise RunFailed(f"the clients of the catalog failed: {failed[-2000:]}")
        return Seen(**json.loads(said))

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def seen(target: Target, address: str, *words: object) -> Seen:
    clients = Clients(address, *words)
    pids = process.family(target.pid)
    before = process.cpu_seconds(pids)
    found = clients.seen()
    used = process.cpu_seconds(pids) - before
    return Seen(found.requests, found.seconds, found.cpu_seconds, found.p50_us, found.p99_us, used)


@contextmanager
def node(path: Path) -> Iterator[tuple[Target, str]]:
    """A broker with its lake process, and the address of the catalog."""
    settings = {"ports.lake": (port := process.free_port())}
    with broker.running(path, "always", settings=settings, has_lake=True) as target:
        address = f"{process.HOST}:{port}"
        until = time.monotonic() + broker.START_SECONDS
        while not _is_ready(address):
            if time.monotonic() > until:
                raise RunFailed("the catalog did not come")
            time.sleep(0.05)
        yield target, address


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


Measured = dict[tuple[str, int], Seen]


def commits(target: Target, address: str, seconds: float) -> Measured:
    """By kind of request and number of clients."""
    seen(target, address, "commit", 8, seconds)  # warm
    found = {("commit", count): seen(target, address, "commit", count, seconds) for count in CLIENTS}
    return {**found, ("load", 1): seen(target, address, "load", 1, seconds / 2)}


def ours(path: Path, seconds: float) -> Measured:
    with node(path) as (target, address):
        return commits(target, address, seconds)


def reference(path: Path, seconds: float) -> Measured:
    with iceberg.running(path) as target:
        return commits(target, target.address, seconds)


def history(path: Path, seconds: float) -> dict[int, Seen]:
    """By number of snapshots."""
    with node(path) as (target, address):
        seen(target, address, "commit", 1, seconds / 2)
        return {count: seen(target, address, "commit", 1, seconds, count) for count in (1, SNAPSHOTS)}


def publishing(path: Path, seconds: float) -> tuple[Load, Load, float]:
    """Alone, and beside committers; how many commits in a second those made."""
    with node(path) as (target, address):
        broker.warm(target, path)
        quiet = _awaiting(target, seconds, "quiet")
        clients = Clients(address, "append", 8, seconds * 1.5 + 1)
        busy = _awaiting(target, seconds, "busy")
        return quiet, busy, clients.seen().rate


def _awaiting(target: Target, seconds: float, topic: str) -> Load:
    return generator.publish("native", target, connections=1, seconds=seconds, warm_seconds=seconds / 5, topic=topic)


# --- rows -------------------------------------------------------------------------------------------------------------


def measure(bench: Bench) -> list[Row]:
    return [
        *bench.attempt(NAME, "commits against the reference server", GOALS[1], partial(_commits, bench)),
        *bench.attempt(NAME, "CPU of a commit by snapshots", Goal(at_most=3), partial(_history, bench)),
        *bench.attempt(NAME, "publish beside committers", Goal(at_most=1.5), partial(_publish, bench)),
    ]


def _commits(bench: Bench) -> list[Row]:
    seconds = bench.pick(4, 0.5)
    sides = {"ours": partial(ours, seconds=seconds), "reference": partial(reference, seconds=seconds)}
    found = bench.interleave(bench.rounds(5), sides)
    rows = [_rate(found, count) for count in CLIENTS]
    mine, theirs = ([run["load", 1] for run in found[side]] for side in ("ours", "reference"))
    latency = ratios([run.p50_us for run in mine], [run.p50_us for run in theirs])
    return [
        *rows,
        Row(NAME, "one client, load of a table, p50", latency, ours=_said(mine), peer=_said(theirs),
            peer_version=iceberg.VERSION),
    ]  # fmt: skip


def _rate(found: dict[str, list[Measured]], count: int) -> Row:
    mine, theirs = ([run["commit", count] for run in found[side]] for side in ("ours", "reference"))
    clients = max(run.cpu_seconds / run.seconds for run in (*mine, *theirs))
    return Row(
        NAME,
        f"{count} client{'s' if count > 1 else ''}, commits per second",
        ratios([run.rate for run in mine], [run.rate for run in theirs]),
        GOALS[count],
        ours=_said(mine),
        peer=_said(theirs),
        peer_version=iceberg.VERSION,
        note=f"ours synced to disk, the reference not; the clients used at most {100 * clients:.0f} % of a core",
    )


def _said(runs: list[Seen]) -> str:
    rate, server = Figure([run.rate for run in runs], "/s"), Figure([run.server_ms for run in runs], " ms")
    p50, p99 = Figure([run.p50_us for run in runs], " us"), Figure([run.p99_us for run in runs], " us")
    return f"{rate}; p50 {p50}, p99 {p99}; server CPU {server} each"


def _history(bench: Bench) -> list[Row]:
    seconds = bench.pick(4, 0.5)
    found = bench.interleave(bench.rounds(5), {"ours": partial(history, seconds=seconds)})["ours"]
    few, many = [run[1].server_ms for run in found], [run[SNAPSHOTS].server_ms for run in found]
    return [
        Row(
            NAME,
            f"server CPU of a commit, {SNAPSHOTS:,} snapshots against 1",
            ratios(many, few),
            Goal(at_most=3),
            ours=f"{Figure(many, ' ms')} against {Figure(few, ' ms')}",
            note="broker and lake process; the answer has the whole document",
        )
    ]


def _publish(bench: Bench) -> list[Row]:
    seconds = bench.pick(4, 0.5)
    found = bench.interleave(bench.rounds(5), {"ours": partial(publishing, seconds=seconds)})["ours"]
    quiet, busy = [one.p99_us for one, _, _ in found], [one.p99_us for _, one, _ in found]
    return [
        Row(
            NAME,
            "one producer awaiting each ack, `always`, p99, beside 8 committers",
            ratios(busy, quiet),
            Goal(at_most=1.5),
            ours=f"{Figure(busy, ' us')} against {Figure(quiet, ' us')}; p50 "
            f"{Figure([one.p50_us for _, one, _ in found], ' us')} against "
            f"{Figure([one.p50_us for one, _, _ in found], ' us')}",
            note=f"{Figure([rate for *_, rate in found], '/s')} appends, as fast as they are answered",
        )
    ]
