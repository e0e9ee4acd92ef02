"""Everything a round does to the world, by name and in order (docs/adr/0025). Fault tests are made from this list: the
driver, or whoever it works with, is ended or stopped before and after each of them, and nothing may be lost or doubled.

`_ICESTREAM_PIPELINE_FAULT` names a file, for tests alone. When it says `before:commit`, the driver that comes there
first takes it away and stands still by SIGSTOP: the others can be dealt with at that very moment.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

VARIABLE: Final = "_ICESTREAM_PIPELINE_FAULT"


class Effect(StrEnum):
    ASK = "ask"  # the broker syncs its log and tells what is in no table
    TAKE_LEASE = "take_lease"  # /pipeline/lease
    MAKE_TABLE = "make_table"  # and bind it
    EVOLVE_TABLE = "evolve_table"  # columns and partitions
    HOLD_FILES = "hold_files"  # log files stay for the round
    WRITE = "write"  # Spark: data files, synced
    COMMIT = "commit"  # manifests written and synced, then the request; `after`: its answer is here
    LOOK_AGAIN = "look_again"  # whether the committed files are there; a commit without them is taken back
    NOTE = "note"  # the mirror of a table in another catalog
    ADVANCE = "advance"  # the broker's floors
    RELEASE_FILES = "release_files"
    CLEAN_UP = "clean_up"  # files that no table needs any more, a few


class Fault(NamedTuple):
    is_before: bool
    effect: Effect
    number: int = 1  # which time


class Effects:
    def __init__(
        self, fault: Fault | None = None, strike: Callable[[], None] | None = None, asked: Path | None = None
    ) -> None:
        """`strike`: what happens at the fault; else this process stands still. `asked`: the file that names a fault."""
        self._fault = fault
        self._strike = strike or (lambda: os.kill(os.getpid(), signal.SIGSTOP))
        self._asked = asked
        self.counts: dict[Effect, int] = dict.fromkeys(Effect, 0)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Effects:
        place = environment.get(VARIABLE)
        return cls(asked=Path(place) if place else None)

    @contextmanager
    def happens(self, effect: Effect) -> Iterator[None]:
        self.counts[effect] += 1
        self._meet(effect, is_before=True)
        yield
        self._meet(effect, is_before=False)

    def _meet(self, effect: Effect, is_before: bool) -> None:
        if self._fault == (is_before, effect, self.counts[effect]) or self._is_asked(effect, is_before):
            self._strike()

    def _is_asked(self, effect: Effect, is_before: bool) -> bool:
        if self._asked is None:
            return False
        try:
            if self._asked.read_text(encoding="ascii") != place_of(effect, is_before):
                return False
            self._asked.unlink()
        except FileNotFoundError:  # another driver was here first
            return False
        return True


def place_of(effect: Effect, is_before: bool) -> str:
    return f"{'before' if is_before else 'after'}:{effect}"
