"""One log and its processes, one after the other, each ended in its own way, with the history of all of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.child_process import ChildProcess, Line
from tests.support.history import LogHistory, check
from tests.support.writer_plan import WriterPlan, WriterProducer

MODES = ("always", "periodic", "none")
# So small that rotation, checkpoints and recycling never stop. Each process draws its own.
OPTIONS: dict[str, tuple[int, ...]] = {
    "file_bytes": (64 * 1024, 128 * 1024, 128 * 1024, 256 * 1024),
    "checkpoint_every_bytes": (1, 256 * 1024, 1024 * 1024),
    "sync_interval_ms": (1, 20, 1000),
    "spare_files": (0, 1, 2),
    "align_bytes": (8, 8, 512),
    "inline_sync_below_us": (0, 1000),
}
KILL_WITHIN_SECONDS = 0.004  # after the last ack that is waited for: a few records


class ProcessRun:
    def __init__(self, directory: Path, seed: int, start: Callable[[WriterPlan], ChildProcess]) -> None:
        self.chance = random.Random(seed)
        self.history = LogHistory(seed)
        self.ends: Counter[str] = Counter()
        self.kills = 0
        self.oldest_file = self.newest_file = 0
        self.choices = OPTIONS
        self._start = start
        self._recovery_seconds = 0.0
        self._stopped_in_order = False
        self.plan = WriterPlan(str(directory), seed=seed, start=0)
        self.plan.producers = [WriterProducer(1, 1, 0), WriterProducer(2, 1, 1), WriterProducer(3, 2, 0)]

    # --- one process ---

    def process(self, mode: str, way: str, *, native: bool = True) -> None:
        """One more process, from its start to its end: by SIGKILL during "recovery", right after the "start" or under
        "load", or told to "stop"."""
        child = self.start(mode, native=native)
        if way == "recovery":
            self._kill_in_recovery(child)
        else:
            self.open(child)
            if way != "start":
                self.wait_for_acks(child, self.chance.randrange(10, 150))
            if way == "stop":
                self.stop(child)
            else:
                self.kill(child, self.chance.uniform(0, KILL_WITHIN_SECONDS))
        self.ends[way] += 1

    def start(self, mode: str, *, native: bool = True) -> ChildProcess:
        plan = self.plan
        plan.start += 1
        plan.mode = mode
        plan.native = native
        plan.options = {name: self.chance.choice(values) for name, values in self.choices.items()}
        plan.tell_positions = self.chance.random() < 0.5
        plan.floors = {f"{key[0]}/{key[1]}": shard.floor for key, shard in self.history.shards.items()}
        for producer in plan.producers:
            producer.next_batch = self.history.acked.get(producer.name, 0)
            # one whose coming back was not answered has to come back again: it does not know what is stored
            producer.new_epoch = producer.new_epoch or self.chance.random() < 0.3
            producer.epoch += producer.new_epoch
        return self._start(plan)

    def hear(self, line: Line) -> None:
        if line[0] == "failed":
            raise AssertionError(line[1])
        if line[0] == "known":
            next(producer for producer in self.plan.producers if producer.name == line[1]).new_epoch = False
        self.history.hear(line)

    def open(self, child: ChildProcess) -> None:
        """Reads the report of the child's start to its end."""
        opened = child.wait_for("opened", self.hear)
        self._recovery_seconds = opened[2]
        self.oldest_file = min(opened[1]["files"], default=0)
        self.newest_file = max(opened[1]["files"], default=0)
        before = self._ends_and_gaps()
        child.wait_for("ready", self.hear)
        if self._stopped_in_order:
            check(opened[1]["clean"], "a stop in order left something to recover", opened)
            check(before == self._ends_and_gaps(), "H7 the stop was in order", before, self._ends_and_gaps())
        self._stopped_in_order = False

    def _ends_and_gaps(self) -> dict[Any, Any]:
        return {key: (shard.next, shard.gaps) for key, shard in self.history.shards.items()}

    def wait_for_acks(self, child: ChildProcess, count: int) -> None:
        enough = self.history.acks + count
        while self.history.acks < enough:
            child.wait_for("ack", self.hear)

    def stop(self, child: ChildProcess) -> None:
        child.stop(self.hear)
        self._stopped_in_order = True

    def kill(self, child: ChildProcess, seconds: float) -> list[str]:
        """The moment is chance; the acks that are told until then count."""
        words = []
        for line in child.lines(seconds):
            self.hear(line)
            words.append(line[0])
        for line in child.kill():
            self.hear(line)
            words.append(line[0])
        self.kills += 1
        return words

    def _kill_in_recovery(self, child: ChildProcess) -> None:
        """Somewhere between the first and the last step of recovery, judged by how long the last one took."""
        child.wait_for("opening", self.hear)
        words = self.kill(child, self.chance.uniform(0, self._recovery_seconds))
        self.ends["in recovery"] += "opened" not in words
        if "opened" in words:
            self._stopped_in_order = False

    # --- the end ---

    def finish(self, mode: str, *, native: bool = True) -> None:
        """A last run: all producers get their answers, the process stops cleanly, and everything is checked."""
        child = self.start(mode, native=native)
        self.open(child)
        stored = {producer.name: self.history.stored(producer.name) for producer in self.plan.producers}
        while any(self.history.acked.get(name, 0) < count for name, count in stored.items()):
            child.wait_for("ack", self.hear)
        self.stop(child)
        for producer in self.plan.producers:
            self.history.check_whole(producer.name)
        self.plan.work = "look"
        child = self.start(mode, native=native)
        self.open(child)
        child.wait_for("closed", self.hear)
        self.history.check_order()
