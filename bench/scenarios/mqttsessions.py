"""MQTT: what sessions cost others that are away (R15, hazards 60, 61).

    greedy     1,000 messages/s of QoS 1 on 10,000 topics and a client that follows them, without and with a durable
               session on `#` whose client is away: p99 of deliveries, and resident memory
    many       100,000 durable sessions that are away and match nothing: memory for each, CPU while nothing happens,
               p99 of deliveries beside them, a start after kill -9, and how long a client waits that comes back

Latencies are those of deliveries, from the call of the publisher on, with syncs before the acks.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench import process
from bench.figures import Figure, Goal, Row, ratios
from bench.generator import Target
from bench.harness import Bench
from bench.node import Child
from bench.scenarios.mqtt import running

NAME = "mqttsessions"
GOAL = "a durable session on # that is away: p99 of others ≤ 1.2x; 100,000 sessions: idle without CPU, starts reported"
RATE, TOPICS = 1_000, 10_000
BACK = 100


class Steady(NamedTuple):
    """A load, and the resident memory of the broker at its end, in MiB."""

    p50_us: float
    p99_us: float
    mib: float


class Many(NamedTuple):
    """KiB are of one session; CPU in per cent of a core, while nothing happens."""

    kib: float
    cpu: float
    alone: Steady
    beside: Steady
    start_seconds: float
    back_ms: float
    back_ms_max: float


def clients(what: str, target: Target, *words: object) -> dict[str, Any]:
    host, _, port = target.address.rpartition(":")
    said: dict[str, Any] = Child("mqtt_clients", what, host, port, *words).said()
    return said


def steady(target: Target, seconds: float) -> Steady:
    said = clients("steady", target, RATE, TOPICS, seconds)
    return Steady(said["p50_us"], said["p99_us"], process.resident_mib(target.pid))


def greedy(path: Path, seconds: float) -> tuple[Steady, Steady]:
    with running(path, "always") as target:
        alone = steady(target, seconds)
        clients("away", target, 0, 1, "#")
        return alone, steady(target, seconds)


def many(path: Path, count: int, seconds: float) -> Many:
    settings = {"mqtt.sessions_max": count + 100}
    with running(path, "always", **settings) as target:
        alone = steady(target, seconds)
        pids = process.family(target.pid)
        mib = process.resident_mib(target.pid)
        clients("away", target, 0, count, "idle/{}/#")
        kib = 1024 * (process.resident_mib(target.pid) - mib) / count
        time.sleep(1)
        began, cpu = time.monotonic(), process.thread_seconds(pids)
        time.sleep(seconds)
        share = 100 * (process.thread_seconds(pids) - cpu) / (time.monotonic() - began)
        beside = steady(target, seconds)
    began = time.monotonic()  # the broker was killed
    with running(path, "always", **settings) as target:
        clients("back", target, 0, 1)
        start = time.monotonic() - began
        back = clients("back", target, 1, BACK)
    return Many(kib, share, alone, beside, start, 1e3 * back["seconds"] / BACK, 1e3 * back["longest"])


def measure(bench: Bench) -> list[Row]:
    return [
        *bench.attempt(NAME, "a greedy session", Goal(at_most=1.2), partial(_greedy, bench)),
        *bench.attempt(NAME, "many sessions", None, partial(_many, bench)),
    ]


def _shown(runs: list[Steady]) -> str:
    p50, p99 = Figure([run.p50_us for run in runs], " us"), Figure([run.p99_us for run in runs], " us")
    return f"p50 {p50}, p99 {p99}; {Figure([run.mib for run in runs], ' MiB')} resident"


def _latency_row(what: str, beside: list[Steady], alone: list[Steady]) -> Row:
    return Row(
        NAME,
        f"p99 of deliveries at {RATE:,}/s {what}, against that without",
        ratios([run.p99_us for run in beside], [run.p99_us for run in alone]),
        Goal(at_most=1.2),
        ours=_shown(beside),
        peer=_shown(alone),
    )


def _greedy(bench: Bench) -> list[Row]:
    seconds = bench.pick(15, 1)
    runs = bench.interleave(bench.rounds(3), {"greedy": lambda path: greedy(path, seconds)})["greedy"]
    return [
        _latency_row("beside a durable session on # that is away", [run[1] for run in runs], [run[0] for run in runs])
    ]


def _many(bench: Bench) -> list[Row]:
    count, seconds = int(bench.pick(100_000, 500)), bench.pick(12, 1)
    runs = bench.interleave(1, {"many": lambda path: many(path, count, seconds)})["many"]
    what = f"{count:,} durable sessions that are away"
    return [
        Row(NAME, f"{what}: resident memory for each", Figure([run.kib for run in runs], " KiB")),
        Row(
            NAME,
            f"{what}: share of a core while nothing happens",
            Figure([run.cpu for run in runs], " %"),
        ),
        _latency_row(f"beside {what}", [run.beside for run in runs], [run.alone for run in runs]),
        Row(
            NAME,
            f"{what}: kill -9 to the first client that is back",
            Figure([run.start_seconds for run in runs], " s"),
            note=f"a client that comes back waits {Figure([run.back_ms for run in runs], ' ms')}, "
            f"{Figure([run.back_ms_max for run in runs], ' ms')} at most",
        ),
    ]
