"""Consumers with and without each cache: the memory for the newest messages, and the row groups that were read lately.

    bursts    20,000 messages a second in bursts of 1,000, followed live by one consumer of the Python client, message
              by message: p50 and p99 from publishing to the application, `always`
    replay    the same consumer's client reads a topic from its table, twice, as Arrow: messages a second

No goal: the tables that the seed asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench import broker, node
from bench.figures import Figure, Row, percentile
from bench.harness import Bench
from bench.node import Child, Node
from bench.scenarios.replay import COLD, TOPIC, filled, rate

NAME = "caches"
GOAL = "consumer throughput and end-to-end latency under bursts, with and without each cache: no goal"
RATE, BURST = 20_000, 1_000
CACHES: Mapping[str, dict[str, object]] = {
    "both caches": {},
    "no memory for the newest": {"broker.tail_enabled": "false"},
    "no cache of row groups": {"lake.cache_enabled": "false"},
    "neither": {"broker.tail_enabled": "false", "lake.cache_enabled": "false"},
}


class Seen(NamedTuple):
    waits: list[float]  # seconds of each message
    first: float  # messages a second
    second: float


def seen(path: Path, name: str, messages: int, seconds: float) -> Seen:
    """A broker of its own on the table that all share. `name`: nobody had it before."""
    settings, unused = {**COLD, **CACHES[name.partition("#")[0]]}, "".join(filter(str.isalnum, name))
    with node.running(path, settings=settings, has_pipeline=False, stops=True) as found:
        first, second = (rate(read(found, f"{unused}-{number}", messages)) for number in range(2))
        return Seen(bursts(found, unused, seconds), first, second)


def read(found: Node, subscription: str, messages: int) -> Any:
    return Child("replay_client", "ours", found.target.address, f"/default/{TOPIC}", subscription, messages).said()


def bursts(found: Node, topic: str, seconds: float) -> list[float]:
    broker.create_topic(found.target, topic)
    count = int(seconds * RATE / BURST) * BURST
    following = Child("burst_client", found.target.address, f"/default/{topic}", count)
    following.until_ready()
    Child("paced", found.target.address, f"/default/{topic}", RATE, BURST, seconds).said()
    waits: list[float] = following.said()["waits"]
    return waits


def measure(bench: Bench) -> list[Row]:
    return bench.attempt(NAME, "consumers with and without caches", None, partial(_measured, bench))


def _measured(bench: Bench) -> list[Row]:
    messages, seconds = int(bench.pick(1_000_000, 100_000)), bench.pick(8, 2)
    found: dict[str, list[Seen]] = {name: [] for name in CACHES}
    with bench.place("caches") as path:
        bench.tell("filling the table")
        filled(path, messages, COLD)
        for number in range(bench.rounds(1)):
            for name, runs in found.items():
                bench.tell(f"round {number + 1}: {name}")
                runs.append(seen(path, f"{name}#{number}", messages, seconds))
    return [row for name, runs in found.items() for row in _rows(name, runs)]


def _rows(name: str, runs: list[Seen]) -> list[Row]:
    p50, p99 = (Figure([1e3 * percentile(run.waits, share) for run in runs], " ms") for share in (0.5, 0.99))
    first, second = Figure([run.first for run in runs], "/s"), Figure([run.second for run in runs], "/s")
    return [
        Row(NAME, f"{name}: publish to consumer under bursts, p50", p50, ours=f"p99 {p99}", details={"p99": p99}),
        Row(NAME, f"{name}: replay from the table, the second time", second, ours=f"the first time {first}"),
    ]
