"""Interleaved rounds, each measurement in an empty directory of its own on the disk under test."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from bench.figures import Goal, Row

Sample = TypeVar("Sample")


class MissingPeer(Exception):
    """A peer is not installed; the text says how to install it."""


class RunFailed(Exception):
    """Something that was started did not do what it should; the text says what. Nothing was measured."""


class Scenario(Protocol):
    """What each module in `scenarios` offers."""

    NAME: str
    GOAL: str

    def measure(self, bench: Bench) -> list[Row]: ...


@dataclass(slots=True)
class Bench:
    """What a scenario needs to know: where, how long, how often, and whom to tell."""

    directory: Path
    quick: bool = False
    rounds_wanted: int | None = None
    tell: Callable[[str], None] = field(default=lambda _: None)
    warn: Callable[[str], None] = field(default=lambda _: None)

    def rounds(self, usual: int) -> int:
        return self.rounds_wanted or (1 if self.quick else usual)

    def pick(self, usual: float, quick: float) -> float:
        """A size or a duration."""
        return quick if self.quick else usual

    def attempt(self, scenario: str, what: str, goal: Goal | None, measure: Callable[[], list[Row]]) -> list[Row]:
        """The rows; or, when a peer is missing or a run fails, one that says so. What else there is goes on."""
        try:
            return measure()
        except (MissingPeer, RunFailed, OSError) as reason:  # a server that closes connections, too: the rest is kept
            self.warn(f"{scenario}: {reason}")
            return [Row(scenario, what, goal=goal, missing=str(reason))]

    @contextmanager
    def place(self, name: str) -> Iterator[Path]:
        """An empty directory; it is gone afterwards, and nothing of it is left for the disk to write."""
        path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.directory))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            settle(self.directory)

    def interleave(self, count: int, sides: Mapping[str, Callable[[Path], Sample]]) -> dict[str, list[Sample]]:
        """Each side once per round, in turn. What a side does before its clock starts is not measured."""
        found: dict[str, list[Sample]] = {name: [] for name in sides}
        for number in range(count):
            for name, measure in sides.items():
                self.tell(f"round {number + 1} of {count}: {name}")
                with self.place("round") as path:
                    found[name].append(measure(path))
        return found


def settle(path: Path) -> None:
    """Waits until the file system has written what it holds, so that nobody pays for another one's bytes."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    os.sync()
