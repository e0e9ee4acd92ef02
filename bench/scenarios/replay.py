"""Cold replay: a topic whose messages are in its table alone, by the Python client as Arrow, against PyArrow's scan.

The messages are published, committed, and gone from the log: no file stays warm, and the broker is restarted in each
round, so that neither memory nor the cache of row groups has any of them. PyArrow reads the same files, all columns,
with all cores. Both have them in the page cache.

And the same replay of two topics of one broker, with a file for each of 40 commits: of one as it is, of the other after
its compaction. The broker is restarted before each.
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
GOAL = (
    "cold replay from Iceberg through the Python client ≥ 0.5x of a plain PyArrow scan; not slower after a compaction"
)
TOPIC = "history"
COLD: dict[str, object] = {
    f"{broker.WAL}.warm_ms": "0ms",
    f"{broker.WAL}.warm_bytes": 0,
    f"{broker.WAL}.max_file_size": "16MiB",
    f"{broker.WAL}.checkpoint_every_bytes": "16MiB",
}
FILLERS_MAX = 10
COMMITS = 40
BEFORE, AFTER = "fragmented", "compacted"


def filled(path: Path, messages: int, settings: dict[str, object]) -> list[str]:
    """The data files of the table, which has them all; the log has none."""
    with node.running(path, settings=settings, stops=True) as found:
        broker.burst(found.target, messages, topic=TOPIC)
        found.commit_now()
        until_cold(found, TOPIC)
        return files_of(found, TOPIC)


def until_cold(found: Node, *topics: str) -> None:
    for _ in range(FILLERS_MAX):  # files of the log go when others have come behind them
        if all(is_cold(found, topic) for topic in topics):
            return
        broker.burst(found.target, 200_000, topic="filler")
        found.commit_now()
    raise RunFailed("the log keeps messages that are in their table")


def compacted(path: Path, messages: int, rounds: int) -> tuple[int, dict[str, list[Any]]]:
    """How many files compaction left, and the replays of both topics, in turns."""
    runs: dict[str, list[Any]] = {BEFORE: [], AFTER: []}
    settings = COLD | {"pipeline.compaction.enabled": "false"}
    with node.running(path, settings=settings, stops=True) as found:
        for _ in range(COMMITS):
            for topic in runs:
                broker.burst(found.target, messages // COMMITS, topic=topic)
            found.commit_now()
        done = found.icestream("lake", "maintain", f"default.{AFTER}", "--only", "compact")
        if not done["is_done"] or done["replaced_files"] < COMMITS:
            raise RunFailed(f"compaction: {done}")
        until_cold(found, *runs)
    for number in range(rounds + 1):
        for topic, samples in runs.items():
            with node.running(path, settings=settings, has_pipeline=False, stops=True) as found:
                words = (found.target.address, f"/default/{topic}", f"s{number}", messages)
                samples.append(Child("replay_client", "ours", *words).said())
    # The first ones bring the files into the page cache.
    return done["added_files"], {topic: samples[1:] for topic, samples in runs.items()}


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


def is_cold(found: Node, topic: str) -> bool:
    """Nothing of the topic can be read from the log: what is measured is the table."""
    (shard,) = found.icestream("topic", "describe", f"/default/{topic}")["shard_offsets"]
    return bool(shard["log_start"] >= shard["next"])


def rate(one: Any) -> float:
    return float(one["rows"] / one["seconds"])


def measure(bench: Bench) -> list[Row]:
    return [
        *bench.attempt(NAME, "cold replay", Goal(at_least=0.5), partial(_measured, bench)),
        *bench.attempt(NAME, "cold replay after a compaction", Goal(at_least=1.0), partial(_compacted, bench)),
    ]


def _compacted(bench: Bench) -> list[Row]:
    messages = int(bench.pick(1_000_000, 200_000))
    bench.tell("two topics of many files, one of which is compacted")
    with bench.place("replay") as path:
        files, runs = compacted(path, messages, bench.rounds(5))
    before, after = ([rate(sample) for sample in runs[topic]] for topic in (BEFORE, AFTER))
    return [
        Row(
            NAME,
            f"cold replay of {messages / 1e6:.3g} M messages of 100 B, {COMMITS} files compacted to {files}, against "
            "not compacted",
            ratios(after, before),
            Goal(at_least=1.0),
            ours=str(Figure(after, "/s")),
            peer=str(Figure(before, "/s")),
        )
    ]


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
