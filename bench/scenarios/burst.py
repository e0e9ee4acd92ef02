"""A burst of 1 GiB in records of 100 KiB, `always`, against pipelined Redis `appendfsync always`.

One record is one batch of 1,000 messages of 100 B, encoded before (a front end gets such batches from its clients); one
tick of the loop submits one, so one batch is one record. Submits go on within the bound of 64 MiB in flight.

    fresh       a new log: it writes into files that were never written, while spares are zeroed beside it
    recycled    the same log again after everything was committed: into files that it used before

Redis gets the same messages one by one, pipelined: on one connection with 1,000 in flight, as our one producer; and, in
a row of its own, on 64 connections with 100 in flight each, which is the most that it can do.
"""

from __future__ import annotations

from pathlib import Path

from bench.figures import Figure, Goal, Row, ratios
from bench.harness import Bench
from bench.peers import redis
from bench.workload import ROWS, block, on_loop, opened, options, pipeline, topic
from icestream import limits

NAME = "burst"
GOAL = "burst of 1 GiB in 100 KiB records `always` ≥ 40x Redis always in messages of 100 B"


def ours(path: Path, total: int) -> dict[str, float]:
    """Messages per second into fresh files, into recycled ones, and with many batches in one record."""

    async def work() -> dict[str, float]:
        async with opened(path, options()) as log:
            shard = topic(log, 1)
            batch = log.batch(shard, block(ROWS))
            count = total // (100 * limits.KIB)
            rates = {}
            for kind, per_tick in (("fresh", 1), ("recycled", 1), ("recycled, 32 batches per tick", 32)):
                rates[kind] = count * ROWS / await pipeline(log, batch, count, per_tick)
                await log.checkpoint()
                await log.advance_floor({shard.key: shard.synced})
                await log.checkpoint()
                await log.checkpoint()
            return rates

    return on_loop(work())


def peer(path: Path, connections: int, depth: int, seconds: float) -> dict[str, float]:
    with redis.running(path) as server:
        return redis.best(server, connections, depth, seconds)[2]


def measure(bench: Bench) -> list[Row]:
    version = redis.version()
    total, seconds = int(bench.pick(limits.GIB, 128 * limits.MIB)), bench.pick(3, 0.5)
    found = bench.interleave(
        bench.rounds(5),
        {
            "ours": lambda path: ours(path, total),
            "redis, 1 connection": lambda path: peer(path, 1, 1000, seconds),
            "redis, 64 connections": lambda path: peer(path, 64, 100, seconds),
        },
    )
    one = [max(rates.values()) for rates in found["redis, 1 connection"]]
    many = [max(rates.values()) for rates in found["redis, 64 connections"]]
    fresh = [rates["fresh"] for rates in found["ours"]]
    recycled = [rates["recycled"] for rates in found["ours"]]
    large = [rates["recycled, 32 batches per tick"] for rates in found["ours"]]
    best = sorted({max(rates, key=rates.__getitem__) for rates in found["redis, 1 connection"]})
    row = Row(
        NAME,
        "messages of 100 B per second, fresh files",
        ratios(fresh, one),
        Goal(at_least=40),
        ours=_text(fresh),
        peer=_text(one),
        peer_version=version,
        note=f"peer: 1 connection, 1,000 in flight; best of RPUSH and XADD: {'; '.join(best)}",
    )
    return [
        row,
        Row(
            NAME, "the same, recycled files", ratios(recycled, one), Goal(at_least=40), _text(recycled), _text(one),
            version, note="the same peer",
        ),
        Row(
            NAME, "the same, recycled files, 32 batches per tick", ratios(large, one), None, _text(large), _text(one),
            version, note="the same peer",
        ),
        Row(
            NAME, "fresh files, against Redis at its best", ratios(fresh, many), None, _text(fresh), _text(many),
            version, note="peer: 64 connections x 100 in flight",
        ),
    ]  # fmt: skip


def _text(rates: list[float]) -> str:
    return f"{Figure(rates, '/s')}"
