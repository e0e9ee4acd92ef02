"""Producers beside cold readers: p99 of an ack in `always`, awaited one by one, while others read a topic's table.

    quiet      nobody reads
    readers    so many clients read a table again and again, as Arrow, as fast as they can; the lake process decodes

On the same broker, one after the other. Clients, lake process and broker share the cores of this machine: with fewer
cores than processes at work, some of the ratio is the wait for one (hazard 18 is about waiting inside of the broker).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench import broker, generator, node
from bench.figures import Goal, Row, ratios
from bench.generator import Load
from bench.harness import Bench
from bench.node import Child
from bench.scenarios.producers import latency
from bench.scenarios.replay import COLD, TOPIC, filled

NAME = "coldreaders"
GOAL = "p99 of an ack while 4 cold readers replay ≤ 1.5x of quiet, median of pairs"
READERS = 4


def beside(path: Path, seconds: float, messages: int) -> dict[str, Load]:
    with node.running(path, settings=COLD, has_pipeline=False, stops=True) as found:
        broker.warm(found.target, path)
        loads = {"quiet": generator.publish("native", found.target, seconds=seconds, warm_seconds=1, topic="quiet")}
        topic = f"/default/{TOPIC}"
        readers = [Child("replay_client", "again", found.target.address, topic, messages) for _ in range(READERS)]
        try:
            for one in readers:
                one.until_ready()
            loads["readers"] = generator.publish(
                "native", found.target, seconds=seconds, warm_seconds=1, topic="readers"
            )
        finally:
            for one in readers:
                one.end()
    return loads


def measure(bench: Bench) -> list[Row]:
    return bench.attempt(NAME, "producers beside cold readers", Goal(at_most=1.5), partial(_measured, bench))


def _measured(bench: Bench) -> list[Row]:
    messages, seconds = int(bench.pick(1_000_000, 100_000)), bench.pick(8, 2)
    with bench.place("coldreaders") as path:
        bench.tell("filling the table")
        filled(path, messages, COLD)
        runs = []
        for number in range(bench.rounds(4)):
            bench.tell(f"round {number + 1}")
            runs.append(beside(path, seconds, messages))
    quiet, readers = [run["quiet"] for run in runs], [run["readers"] for run in runs]
    return [
        Row(
            NAME,
            f"p99 of an ack while {READERS} cold readers replay, against none",
            ratios([reader.p99_us for reader in readers], [run.p99_us for run in quiet]),
            Goal(at_most=1.5),
            ours=latency(readers),
            peer=latency(quiet),
        )
    ]
