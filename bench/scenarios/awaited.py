"""Producers that await each ack before they send the next message of 100 B, against Redis `appendfsync always`.

    alone     one producer
    64, 500   as many producers on connections of their own, each with one message in flight; with 64 also the CPU that
              the server spends on a message
    table     one producer in each sync mode, with frames of 1 to 1,000 messages. No peer, no goal.

The log is in the state that it has after its first minute: it writes into a zeroed file. Redis runs RPUSH and XADD; the
better one in a round is its figure.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench import broker, generator
from bench.figures import Figure, Goal, Row, ratios
from bench.generator import Load, Target, generator_note
from bench.harness import Bench
from bench.peers import redis

NAME = "awaited"
GOAL = (
    "one producer awaiting each ack, `always`: p50 ≤ 1.3x Redis always; 64 x 1 in flight ≥ 1.2x, at most 5 us of "
    "server CPU; 500 x 1 in flight ≥ 1.0x"
)
PRODUCERS = {64: 1.2, 500: 1.0}  # with the goal of each
CPU_PRODUCERS, CPU_US_MAX = 64, 5.0
MODES = ("always", "periodic", "none")
BATCHES = (1, 10, 100, 1000)


def ours(path: Path, seconds: float) -> dict[tuple[str, int], Load]:
    """By protocol and number of producers."""
    with broker.running(path, "always") as target:
        broker.warm(target, path)
        return {("native", count): _awaiting("native", target, count, seconds) for count in (1, *PRODUCERS)}


def with_redis(path: Path, seconds: float) -> dict[tuple[str, int], Load]:
    with redis.running(path) as server:
        return {
            (protocol, count): _awaiting(protocol, server.target, count, seconds)
            for protocol in ("redis-rpush", "redis-xadd")
            for count in (1, *PRODUCERS)
        }


def _awaiting(protocol: str, target: Target, count: int, seconds: float) -> Load:
    warm = seconds / 5
    return generator.publish(
        protocol, target, connections=count, seconds=seconds, warm_seconds=warm, topic=f"{protocol}-{count}"
    )


def table(path: Path, mode: str, seconds: float) -> dict[int, Load]:
    """For each size of a frame."""
    with broker.running(path, mode) as target:
        broker.warm(target, path)
        return {
            batch: generator.publish("native", target, batch=batch, seconds=seconds, warm_seconds=seconds / 5)
            for batch in BATCHES
        }


def measure(bench: Bench) -> list[Row]:
    return [
        *bench.attempt(NAME, "`always` against Redis", Goal(at_most=1.3), partial(_against_redis, bench)),
        *bench.attempt(NAME, "ack of one producer", None, partial(_table, bench)),
    ]


def _against_redis(bench: Bench) -> list[Row]:
    version, seconds = redis.version(), bench.pick(2.5, 0.3)
    found = bench.interleave(
        bench.rounds(7), {"ours": lambda path: ours(path, seconds), "redis": lambda path: with_redis(path, seconds)}
    )
    many = [_many(found["ours"], found["redis"], version, count) for count in PRODUCERS]
    return [_alone(found["ours"], found["redis"], version), *many, _cpu(found["ours"], found["redis"], version)]


Rounds = list[dict[tuple[str, int], Load]]


def _of(found: dict[tuple[str, int], Load], count: int) -> list[Load]:
    return [load for (_, producers), load in found.items() if producers == count]


def _alone(ours: Rounds, peers: Rounds, version: str) -> Row:
    mine = [load for run in ours for load in _of(run, 1)]
    theirs = [min(_of(peer, 1), key=lambda load: load.p50_us) for peer in peers]
    return Row(
        NAME,
        "one producer awaiting each ack, `always`, p50",
        ratios([load.p50_us for load in mine], [load.p50_us for load in theirs]),
        Goal(at_most=1.3),
        ours=_latency(mine),
        peer=_latency(theirs),
        peer_version=version,
        note=f"the better of RPUSH and XADD; {generator_note([*mine, *theirs])}",
    )


def _many(ours: Rounds, peers: Rounds, version: str, producers: int) -> Row:
    mine = [load for run in ours for load in _of(run, producers)]
    theirs = [max(_of(peer, producers), key=lambda load: load.rate) for peer in peers]
    return Row(
        NAME,
        f"{producers} producers x 1 in flight, `always`, messages per second",
        ratios([load.rate for load in mine], [load.rate for load in theirs]),
        Goal(at_least=PRODUCERS[producers]),
        ours=f"{Figure([load.rate for load in mine], '/s')}; {_latency(mine)}",
        peer=f"{Figure([load.rate for load in theirs], '/s')}; {_latency(theirs)}",
        peer_version=version,
        note=f"the better of RPUSH and XADD; {generator_note([*mine, *theirs])}",
    )


def _cpu(ours: Rounds, peers: Rounds, version: str) -> Row:
    mine = [load for run in ours for load in _of(run, CPU_PRODUCERS)]
    theirs = [min(_of(peer, CPU_PRODUCERS), key=lambda load: load.server_us) for peer in peers]
    return Row(
        NAME,
        f"server CPU of a message, {CPU_PRODUCERS} producers x 1 in flight, `always`",
        Figure([load.server_us for load in mine], " us"),
        Goal(at_most=CPU_US_MAX, unit=" us"),
        peer=str(Figure([load.server_us for load in theirs], " us")),
        peer_version=version,
    )


def _table(bench: Bench) -> list[Row]:
    seconds = bench.pick(1.5, 0.2)
    sides = {mode: partial(table, mode=mode, seconds=seconds) for mode in MODES}
    found = bench.interleave(bench.rounds(5), sides)
    return [_cell(mode, batch, [run[batch] for run in found[mode]]) for mode in MODES for batch in BATCHES]


def _cell(mode: str, batch: int, loads: list[Load]) -> Row:
    p99 = Figure([load.p99_us for load in loads], " us")
    return Row(
        NAME,
        f"ack of one producer, p50, `{mode}`, frames of {batch:,} x 100 B",
        Figure([load.p50_us for load in loads], " us"),
        ours=f"p99 {p99}, {Figure([load.rate for load in loads], '/s')}",
        details={"p99": p99},
    )


def _latency(loads: list[Load]) -> str:
    p50, p99 = Figure([load.p50_us for load in loads], " us"), Figure([load.p99_us for load in loads], " us")
    return f"p50 {p50}, p99 {p99}"
