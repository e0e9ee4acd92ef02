"""The order checker itself: a healthy run with one thing changed is reported, by name and place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from icestream.model.sync_mode import SyncMode
from tests.planted import checkers
from tests.planted.expectation import ACKED_AND_GONE, ACKED_BEFORE_SYNC, FREED_TOO_EARLY, check_caught
from tests.planted.order import SEAL_POSITION, acks_in, order_violations
from tests.planted.power_loss import loss_violations, spread
from tests.planted.stores import SimulatedStore
from tests.support.syscall_recorder import UNFINISHED, Call, Event

Run = Sequence[Event]
Change = Callable[[Run], Run]


@pytest.fixture(scope="module")
def always() -> Run:
    return recorded(SyncMode.ALWAYS)


@pytest.fixture(scope="module")
def none() -> Run:
    return recorded(SyncMode.NONE)


def recorded(mode: SyncMode) -> Run:
    store = SimulatedStore(1)
    assert checkers.traffic(store, mode) == []
    assert order_violations(store.recorded.events, mode) == []
    return store.recorded.events


def without(condition: Callable[[Event], bool]) -> Change:
    return lambda run: [event for event in run if not condition(event)]


def is_seal(event: Event) -> bool:
    return event.call is Call.WRITE and event.position == SEAL_POSITION and event.name.startswith("log-")


def is_sync_of_log_file(event: Event) -> bool:
    return event.call is Call.SYNC and event.name.startswith("log-")


def changed(condition: Callable[[Event], bool], change: Callable[[Event], Event]) -> Change:
    return lambda run: [change(event) if condition(event) else event for event in run]


def without_syncs_of_seals(run: Run) -> Run:
    """The sync that follows a seal is left out."""
    remaining: list[Event] = []
    sealed = -1
    for event in run:
        if is_seal(event):
            sealed = event.inode
        elif event.call is Call.SYNC and event.inode == sealed:
            sealed = -1
            continue
        remaining.append(event)
    return remaining


def without_syncs_before_seals(run: Run) -> Run:
    """Every sync of a log file is left out until its seal is written."""
    seals = [event for event in run if is_seal(event)]
    return [
        event
        for event in run
        if not is_sync_of_log_file(event)
        or any(seal.inode == event.inode and seal.name == event.name and seal.end < event.begin for seal in seals)
    ]


def begun_too_early(run: Run) -> Run:
    """Each sync of a log file began before the write in front of it had returned."""
    written: dict[int, Event] = {}
    moved = []
    for event in run:
        if event.call is Call.WRITE:
            written[event.inode] = event
        last = written.get(event.inode)
        moved.append(replace(event, begin=last.begin) if is_sync_of_log_file(event) and last else event)
    return moved


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(without(is_sync_of_log_file), ACKED_BEFORE_SYNC, id="no sync"),
        pytest.param(begun_too_early, ACKED_BEFORE_SYNC, id="the sync began before the write returned"),
        pytest.param(
            changed(is_sync_of_log_file, lambda event: replace(event, end=UNFINISHED)),
            ACKED_BEFORE_SYNC,
            id="the sync returned after the ack",
        ),
        pytest.param(
            changed(is_sync_of_log_file, lambda event: replace(event, result=-5)),
            r"^log-\d+\.wal position \d+: record \d+ .* without a sync in between \(syncs of the file: .*failed",
            id="the sync failed",
        ),
        pytest.param(
            changed(lambda event: event.call is Call.SAY, lambda event: replace(event, begin=0)),
            r"^record 1 was acked at #0, but it was not written before that",
            id="ack before write",
        ),
        pytest.param(
            without(lambda event: event.call is Call.SYNC_DIRECTORY),
            r"^log-\d+\.wal position 4096: record \d+ was written at .*, but the file's name, given at #\d+-#\d+, was",
            id="name not synced",
        ),
        pytest.param(
            without(lambda event: event.call is Call.RENAME and event.target.startswith("log-")),
            r"^log-\d+\.wal position 4096: record \d+ was written at .*, but no recorded call gave the file its name",
            id="no name",
        ),
        pytest.param(
            without(lambda event: event.call is Call.SYNC and event.name.startswith(("prepare-", "spare-"))),
            r"^log-\d+\.wal got its name at #\d+-#\d+, but its header was not synced before that",
            id="header not synced",
        ),
        pytest.param(
            without(is_seal),
            r"^log-\d+\.wal position 4096: record \d+ was written at .*, but log-\d+\.wal before it was not sealed",
            id="no seal",
        ),
        pytest.param(
            without_syncs_of_seals,
            r"^log-\d+\.wal position 4096: record \d+ .*, but the seal of log-\d+\.wal, written at #\d+-#\d+, was not",
            id="seal not synced",
        ),
        pytest.param(
            without_syncs_before_seals,
            r"^log-\d+\.wal position \d+: record \d+ was written at #\d+-#\d+ and not synced before the seal",
            id="records not synced before the seal",
        ),
        pytest.param(
            without(lambda event: event.call is Call.RENAME and event.target.startswith("checkpoint-")),
            FREED_TOO_EARLY,
            id="no checkpoint",
        ),
        pytest.param(
            without(lambda event: event.call is Call.SYNC and event.name.startswith("checkpoint-")),
            FREED_TOO_EARLY,
            id="checkpoint not synced",
        ),
        pytest.param(
            without(lambda event: event.call is Call.SYNC and event.name.startswith("copy-")),
            r"^log-\d+\.wal with records up to \d+ was given up at #\d+-#\d+, and no copy replaces it",
            id="copy not synced",
        ),
        pytest.param(
            without(lambda event: event.call is Call.SYNC_DIRECTORY),
            r"^log-\d+\.wal lost its name at #\d+-#\d+ and got a new header at #\d+-#\d+, but the directory was",
            id="reused while its old name could come back",
        ),
    ],
)
def test_a_change_in_the_order_is_reported(always: Run, change: Change, words: str) -> None:
    check_caught(order_violations(change(always), SyncMode.ALWAYS), words)


def test_without_syncs_the_order_rules_fail(none: Run) -> None:
    violations = order_violations(without(is_sync_of_log_file)(none), SyncMode.NONE)
    check_caught(
        violations, r"^log-\d+\.wal position \d+: record \d+ was acked .*, but no synced promise covers offset \d+"
    )


def test_a_power_loss_without_syncs_loses_acked_messages(always: Run) -> None:
    chosen = spread(always, 6)
    assert loss_violations(always, SyncMode.ALWAYS, chosen, seeds=2) == []
    unsynced = without(is_sync_of_log_file)(always)
    check_caught(loss_violations(unsynced, SyncMode.ALWAYS, chosen, seeds=2), ACKED_AND_GONE)


def test_the_recorded_run_covers_rotation_reuse_and_recovery(always: Run) -> None:
    """Rotation, reuse and recovery happen in it; otherwise the rules would be green for nothing."""
    renames = [event for event in always if event.call is Call.RENAME]
    assert len(acks_in(always)) == 364
    assert len([event for event in always if is_seal(event)]) >= 5
    assert [event for event in renames if event.name.startswith("spare-") and event.target.startswith("log-")]
    assert [event for event in renames if event.name.startswith("copy-") and event.target.startswith("log-")]
