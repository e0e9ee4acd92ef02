"""Everything a round does to the world, by name and in order (docs/adr/0025). Fault tests are made from this list: a
driver is stopped before and after each of them, and nothing may be lost or doubled.

`_ICESTREAM_PIPELINE_FAULT=before:commit:kill` ends the process by SIGKILL before its first commit is sent, `…:stop`
lets it stand still by SIGSTOP; `after:…` behind it; `before:commit:kill:3` at the third one. For tests alone.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Final, NamedTuple

from icestream import errors

VARIABLE: Final = "_ICESTREAM_PIPELINE_FAULT"


class Effect(StrEnum):
    ASK = "ask"  # the broker syncs its log and tells what is in no table
    TAKE_LEASE = "take_lease"  # /pipeline/lease
    MAKE_TABLE = "make_table"  # and bind it
    EVOLVE_TABLE = "evolve_table"  # columns and partitions
    HOLD_FILES = "hold_files"  # log files stay for the round
    WRITE = "write"  # Spark: data files, synced
    COMMIT = "commit"  # manifests written and synced, then the request; `after`: its answer is here
    NOTE = "note"  # the mirror of a table in another catalog
    ADVANCE = "advance"  # the broker's floors
    RELEASE_FILES = "release_files"
    CLEAN_UP = "clean_up"  # files of rounds that can no longer land


class Fault(NamedTuple):
    is_before: bool
    effect: Effect
    signal: int
    number: int  # which time, from 1


_FORM: Final = re.compile(r"(before|after):([a-z_]+):(kill|stop)(?::([1-9][0-9]*))?")


def read_fault(environment: Mapping[str, str]) -> Fault | None:
    text = environment.get(VARIABLE, "")
    if not text:
        return None
    found = _FORM.fullmatch(text)
    if found is None or found[2] not in list(Effect):
        raise errors.ConfigurationError(f"{VARIABLE}={text} is no fault", hint="such as before:commit:kill")
    number = signal.SIGKILL if found[3] == "kill" else signal.SIGSTOP
    return Fault(found[1] == "before", Effect(found[2]), number, int(found[4] or 1))


class Effects:
    def __init__(self, fault: Fault | None = None, strike: Callable[[int], None] | None = None) -> None:
        """`strike`: sends a signal to this process."""
        self._fault = fault
        self._strike = strike or (lambda number: os.kill(os.getpid(), number))
        self.counts: dict[Effect, int] = dict.fromkeys(Effect, 0)

    @contextmanager
    def happens(self, effect: Effect) -> Iterator[None]:
        self.counts[effect] += 1
        self._meet(effect, is_before=True)
        yield
        self._meet(effect, is_before=False)

    def _meet(self, effect: Effect, is_before: bool) -> None:
        fault = self._fault
        if fault is None or (fault.effect, fault.is_before, fault.number) != (effect, is_before, self.counts[effect]):
            return
        self._strike(fault.signal)
