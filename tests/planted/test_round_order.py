"""Hazards 4 and 11 in rounds of the pipeline: what a power loss at any moment would leave. The order of the syncs of a
real process is recorded and judged (round_order.py), and a run with one thing changed is reported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from icestream.model.sync_mode import SyncMode
from tests.planted.order import number_in, order_violations
from tests.planted.round_order import round_violations
from tests.support.syscall_recorder import Call, Event, environment, read_trace, read_tree
from tests.tidy.tree import ROOT


class RecordedRounds(NamedTuple):
    root: Path
    events: Sequence[Event]  # of everything
    log: Sequence[Event]  # of the log alone


@pytest.fixture(scope="module")
def run(recorder: Path, tmp_path_factory: pytest.TempPathFactory) -> RecordedRounds:
    folder = tmp_path_factory.mktemp("rounds")
    root, trace = folder / "run", folder / "trace"
    root.mkdir()
    surroundings = {**os.environ, **environment(recorder, root, trace)}
    command = [sys.executable, "-m", "tests.planted.rounds", str(root)]
    done = subprocess.run(command, cwd=ROOT, env=surroundings, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    output = root / "said"
    return RecordedRounds(root / "world", read_tree(trace, output), read_trace(trace, root / "world" / "log", output))


def words_of(event: Event) -> list[str]:
    return event.data.decode().split() if event.call is Call.SAY else [""]


def test_hazard_11_files_of_a_round_are_synced_before_its_commit(run: RecordedRounds) -> None:
    assert round_violations(run.events, run.root) == []


def test_hazard_04_the_log_frees_files_only_after_its_checkpoints(run: RecordedRounds) -> None:
    assert order_violations(run.log, SyncMode.ALWAYS) == []


def test_the_recorded_rounds_cover_all_rules(run: RecordedRounds) -> None:
    words_said = [words_of(event)[0] for event in run.events]
    assert min(words_said.count(word) for word in ("pointer", "moved", "advance")) >= 6
    freed = [event for event in run.log if event.call in (Call.UNLINK, Call.RENAME) and number_in(event.name)]
    assert len(freed) >= 2
    assert sum(event.call is Call.CREATE and event.name.endswith(".parquet") for event in run.events) >= 6


def is_sync(event: Event, *ends: str) -> bool:
    return event.call is Call.SYNC and event.name.endswith(ends)


CHANGES: dict[str, tuple[Callable[[Event], Event | None], str]] = {
    "data files are not synced": (
        lambda event: None if is_sync(event, ".parquet") else event,
        r"\.parquet is named at .* and was not synced",
    ),
    "manifests are not synced": (
        lambda event: None if is_sync(event, ".avro") else event,
        r"\.avro is named at .* and was not synced",
    ),
    "metadata files are not synced": (
        lambda event: None if is_sync(event, ".json") else event,
        r"\.json is named at .* and was not synced",
    ),
    "the folder of data files is not synced": (
        lambda event: None if is_sync(event, "/data") else event,
        r"\.parquet is named at .*, but its folder was not synced",
    ),
    "the folder of the table is not synced": (
        lambda event: None if event.call is Call.SYNC and Path(event.name).name.startswith("t1-") else event,
        r"is named at .*, but .*/t1-[^/]+ was never synced",
    ),
    "syncs of data files return late": (
        lambda event: replace(event, end=2**62) if is_sync(event, ".parquet") else event,
        r"\.parquet is named at .* and was not synced",
    ),
    "floors move first": (
        lambda event: replace(event, begin=0, end=0) if words_of(event)[0] == "advance" else event,
        r"goes to \d+ at #0-#0, and no table says so before",
    ),
    "pointers move late": (
        lambda event: replace(event, begin=2**61, end=2**61) if words_of(event)[0] == "moved" else event,
        r"goes to \d+ at .*, and no table says so before",
    ),
    "committed positions are not reported": (
        lambda event: None if words_of(event)[0] == "advance" else event,
        r"was freed at .* with offsets up to \d+ .*, and 0 was committed",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_in_the_order_is_reported(run: RecordedRounds, name: str) -> None:
    change, words = CHANGES[name]
    changed = [new for event in run.events if (new := change(event)) is not None]
    violations = round_violations(changed, run.root)
    assert violations, "the change was not reported"
    assert any(re.search(words, violation) for violation in violations), violations[:3]
