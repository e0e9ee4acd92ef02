"""Cold replay: a topic whose messages are in its table alone, by the Python client as Arrow, against PyArrow's scan.

The messages are published, committed, and gone from the log: no file stays warm, and the broker is restarted in each
round, so that neither memory nor the cache of row groups has any of them. PyArrow reads the same files, all columns,
with all cores. Both have them in the page cache.
"""

from __future__ import annotations

import urllib.parse
from functools import partial
from pathlib import Path
from typing import Any

from bench import broker, node
from bench.figures import Figure, Goal, Row, ratios
from bench.harness import Bench, RunFailed
from bench.node import Child, Node

NAME = "replay"
GOAL = "cold replay from Iceberg through the Python client ≥ 0.5x of a plain PyArrow scan"
TOPIC = "history"
COLD: dict[str, object] = {
    f"{broker.WAL}.warm_ms": "0ms",
    f"{broker.WAL}.warm_bytes": 0,
    f"{broker.WAL}.max_file_size": "16MiB",
    f"{broker.WAL}.checkpoint_every_bytes": "16MiB",
}
FILLERS_MAX = 10


def filled(path: Path, messages: int, settings: dict[str, object]) -> list[str]:
    """The data files of the table, which has them all; the log has none."""
    with node.running(path, settings=settings, stops=True) as found:
        broker.burst(found.target, messages, topic=TOPIC)
        found.commit_now()
        for _ in range(FILLERS_MAX):  # files of the log go when others have come behind them
            if is_cold(found):
                return files_of(found, TOPIC)
            broker.burst(found.target, 200_000, topic="filler")
            found.commit_now()
    raise RunFailed("the log keeps messages that are in their table")


def files_of(found: Node, topic: str) -> list[str]:
    location = found.table(topic)["location"]
    folder = Path(urllib.parse.unquote(location.removeprefix("file:")))
    return sorted(map(str, (folder / "data").rglob("*.parquet")))


def replay(path: Path, messages: int, rounds: int) -> list[tuple[Any, Any]]:
    """Ours and PyArrow's, in turns. The files are read once before, so that both find them in the page cache."""
    files = filled(path, messages, COLD)
    runs = []
    Child("replay_client", "bare", *files).said()
    for number in range(rounds):
        with node.running(path, settings=COLD, has_pipeline=False, stops=True) as found:  # no cache has anything
            ours = Child("replay_client", "ours", found.target.address, f"/default/{TOPIC}", f"s{number}", messages)
            runs.append((ours.said(), Child("replay_client", "bare", *files).said()))
    for ours, bare in runs:
        if min(ours["rows"], bare["rows"]) < messages:
            raise RunFailed(f"{ours['rows']} and {bare['rows']} of {messages} messages came back")
    return runs


def is_cold(found: Node) -> bool:
    """Nothing of the topic can be read from the log: what is measured is the table."""
    (shard,) = found.icestream("topic", "describe", f"/default/{TOPIC}")["shard_offsets"]
    return bool(shard["earliest"] >= shard["next"])


def rate(one: Any) -> float:
    return float(one["rows"] / one["seconds"])


def measure(bench: Bench) -> list[Row]:
    return bench.attempt(NAME, "cold replay", Goal(at_least=0.5), partial(_measured, bench))


def _measured(bench: Bench) -> list[Row]:
    messages = int(bench.pick(3_000_000, 200_000))
    bench.tell("filling the table")
    with bench.place("replay") as path:
        runs = replay(path, messages, bench.rounds(5))
    ours, bare = [rate(one) for one, _ in runs], [rate(one) for _, one in runs]
    return [
        Row(
            NAME,
            f"cold replay of {messages / 1e6:.3g} M messages of 100 B as Arrow, rows per second",
            ratios(ours, bare),
            Goal(at_least=0.5),
            ours=str(Figure(ours, "/s")),
            peer=str(Figure(bare, "/s")),
            note=f"CPU of our client {Figure([one['cpu_seconds'] for one, _ in runs], ' s')}",
        )
    ]
