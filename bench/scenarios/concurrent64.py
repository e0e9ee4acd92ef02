"""64 producers, each awaiting its append of 100 B, against 64 clients of Redis `appendfsync always`, one in flight.

Ours counts from the payload to the ack, in one process: 64 tasks, each encoding, appending and waiting, one after the
other. The peer's clients speak over loopback (peers/redis.py); ours has no front end yet, so it pays for no socket.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bench.figures import Figure, Goal, Row, percentile, ratios
from bench.harness import Bench
from bench.peers import redis
from bench.workload import append_for, block, on_loop, options, topic, warm
from icestream.wal.appender import AppendBatch

NAME = "concurrent64"
GOAL = "64 concurrent appenders ≥ 1.2x Redis `appendfsync always`"
CLIENTS = 64


class Result(NamedTuple):
    """Appends per second; the nanoseconds of each of ours; how the peer was driven."""

    rate: float
    latencies: list[int]
    winner: str = ""


def ours(path: Path, seconds: float, *, encoded: bool) -> Result:
    async def work() -> Result:
        async with warm(path, options()) as log:
            shard = topic(log, 1)
            ready = log.batch(shard, block(1))

            def make() -> AppendBatch:
                return ready if encoded else log.batch(shard, block(1))

            latencies: list[int] = []
            await append_for(log, seconds / 5, CLIENTS, make)
            count, took = await append_for(log, seconds, CLIENTS, make, latencies)
            return Result(count / took, latencies)

    return on_loop(work())


def peer(path: Path, seconds: float) -> Result:
    with redis.running(path) as server:
        rate, winner, _ = redis.best(server, CLIENTS, 1, seconds)
        return Result(rate, [], winner)


def measure(bench: Bench) -> list[Row]:
    version = redis.version()
    seconds = bench.pick(3, 0.4)
    found = bench.interleave(
        bench.rounds(7),
        {
            "ours": lambda path: ours(path, seconds, encoded=False),
            "redis": lambda path: peer(path, seconds),
            "ours, encoded before": lambda path: ours(path, seconds, encoded=True),
        },
    )
    rates = {side: [run.rate for run in rounds] for side, rounds in found.items()}
    p50 = Figure([percentile(run.latencies, 0.5) / 1e3 for run in found["ours"]], " us")
    p99 = Figure([percentile(run.latencies, 0.99) / 1e3 for run in found["ours"]], " us")
    winners = sorted({run.winner for run in found["redis"]})
    redis_text = f"{Figure(rates['redis'], '/s')}"
    return [
        Row(
            NAME,
            "64 appenders of 100 B, `always`, messages per second",
            ratios(rates["ours"], rates["redis"]),
            Goal(at_least=1.2),
            ours=f"{Figure(rates['ours'], '/s')}; p50 {p50}, p99 {p99}",
            peer=redis_text,
            peer_version=version,
            note=f"from payload to ack; peer: 64 clients x 1 in flight, best of RPUSH and XADD: {'; '.join(winners)}",
        ),
        Row(
            NAME,
            "the same with blocks that were encoded before",
            ratios(rates["ours, encoded before"], rates["redis"]),
            ours=f"{Figure(rates['ours, encoded before'], '/s')}",
            peer=redis_text,
            peer_version=version,
        ),
    ]
