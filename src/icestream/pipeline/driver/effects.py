"""The external effects of a round, by name and in order (docs/adr/0025). Fault tests are generated from this list: the
driver, or a process that it works with, is killed or stopped before and after each effect, and no message may be lost
or doubled.

`_ICESTREAM_PIPELINE_FAULT` names a file, for tests alone. When the file says `before:commit`, the first driver that
gets there removes the file and stops itself with SIGSTOP, so that a test can act at that very moment.
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
    """One external effect of a round."""

    ASK = "ask"  # the broker syncs its log and returns the backlog
    TAKE_LEASE = "take_lease"  # /pipeline/lease
    MAKE_TABLE = "make_table"  # create it and bind it to its topic
    EVOLVE_TABLE = "evolve_table"  # columns and partitions
    HOLD_FILES = "hold_files"  # log files stay for the round
    WRITE = "write"  # Spark: data files, synced
    COMMIT = "commit"  # manifests written and synced, then the request; `after`: its response has arrived
    LOOK_AGAIN = "look_again"  # verifies that the committed files exist; a commit without them is undone
    NOTE = "note"  # the ledger records the commit: the mirror of a table in another catalog
    ADVANCE = "advance"  # the broker's committed offsets
    LEARN = "learn"  # the next version of a learned structure is stored
    RELEASE_FILES = "release_files"
    CLEAN_UP = "clean_up"  # removes a few files that no table needs any more
    NOTE_TIMES = "note_times"  # retention: which offsets were committed when
    REWRITE = "rewrite"  # compaction: Spark writes files, synced
    COMMIT_CARE = "commit_care"  # compaction, retention and expiry: around the effects of the commit of a table
    SEARCH = "search"  # erasure, Spark: files are searched, or written again without the erased rows
    NOTE_OFFSETS = "note_offsets"  # erasure: the side file of erased offsets
    DROP_HISTORY = "drop_history"  # erasure: snapshots and tags that have the messages
    REWRITE_HISTORY = "rewrite_history"  # erasure: snapshots and tags get other manifest lists
    RETIRE_LOG = "retire_log"  # erasure: the broker gives up log files with rows below the cut


RETENTION_EFFECTS: Final = frozenset((Effect.NOTE_TIMES,))  # of topics with a retention alone
ERASURE_EFFECTS: Final = frozenset(
    (Effect.SEARCH, Effect.NOTE_OFFSETS, Effect.DROP_HISTORY, Effect.REWRITE_HISTORY, Effect.RETIRE_LOG)
)
CARE_EFFECTS: Final = RETENTION_EFFECTS | ERASURE_EFFECTS | {Effect.REWRITE, Effect.COMMIT_CARE}  # not of rounds


class Fault(NamedTuple):
    """The place at which a test stops the driver."""

    is_before: bool
    effect: Effect
    number: int = 1  # the occurrence of the effect, counted from 1


class Effects:
    """Counts effects, and stops the driver at the fault of a test. Without a fault it does nothing else."""

    def __init__(
        self, fault: Fault | None = None, strike: Callable[[], None] | None = None, fault_file: Path | None = None
    ) -> None:
        """`strike`: called at the fault; by default this process stops itself. `fault_file`: the file that names a
        fault."""
        self._fault = fault
        self._strike = strike or (lambda: os.kill(os.getpid(), signal.SIGSTOP))
        self._fault_file = fault_file
        self.counts: dict[Effect, int] = dict.fromkeys(Effect, 0)

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Effects:
        path = environment.get(VARIABLE)
        return cls(fault_file=Path(path) if path else None)

    @contextmanager
    def happens(self, effect: Effect) -> Iterator[None]:
        """Encloses the code that has this effect."""
        self.counts[effect] += 1
        self._strike_if_due(effect, is_before=True)
        yield
        self._strike_if_due(effect, is_before=False)

    def _strike_if_due(self, effect: Effect, is_before: bool) -> None:
        if self._fault == (is_before, effect, self.counts[effect]) or self._claim_fault_file(effect, is_before):
            self._strike()

    def _claim_fault_file(self, effect: Effect, is_before: bool) -> bool:
        """Returns whether the file names this place; it is removed, so that only one driver stops."""
        if self._fault_file is None:
            return False
        try:
            if self._fault_file.read_text(encoding="ascii") != place_of(effect, is_before):
                return False
            self._fault_file.unlink()
        except FileNotFoundError:  # another driver was here first
            return False
        return True


def place_of(effect: Effect, is_before: bool) -> str:
    return f"{'before' if is_before else 'after'}:{effect}"
