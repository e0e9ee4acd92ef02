"""Hazard 14: a repeat taken for a success, or a success for a repeat. Each offset enters its table exactly once."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from icestream import errors, limits
from icestream.catalog.topic_rules.binding import with_takeover
from icestream.catalog.topic_rules.commit_rules import CommitRequest, TableState, judge_commit, judge_transaction
from icestream.catalog.topic_rules.offset_run import OffsetRun
from tests.support.tables import FILE, NOW_MS, append, point, snapshot, table
from tests.support.topic_tables import (
    LEASE,
    TOPIC,
    appending,
    bound,
    claim,
    commit_round,
    foreign,
    replacing,
    round_id,
    settled,
)


def refusal(state: TableState, requirement: dict[str, Any], lease: int | None = LEASE) -> dict[str, Any]:
    """The error details of a refused round."""
    with pytest.raises(errors.RangeRefused) as refused:
        judge_commit(state, CommitRequest([requirement], appending(state, 7_777)), lease, NOW_MS)
    return refused.value.details


def test_hazard_14_a_round_extends_the_runs_and_the_server_writes_the_offsets() -> None:
    done = commit_round(bound(), 1, (0, 0, 0, 100), (1, 0, 0, 7))
    assert done.binding is not None
    assert done.binding.committed() == {0: 100, 1: 7}
    assert (done.binding.pipeline_epoch, done.repeated, done.is_round) == (LEASE, None, True)
    assert {name: value for name, value in done.table.properties.items() if name.startswith("icestream.")} == {
        "icestream.topic": TOPIC,
        "icestream.topic-id": "12",
        "icestream.pipeline-epoch": "5",
        "icestream.round": round_id(1),
        "icestream.committed": '{"0":100,"1":7}',
    }
    summary = done.table.snapshots[-1]["summary"]
    assert (summary["icestream.committed"], summary["icestream.round"]) == ('{"0":100,"1":7}', round_id(1))
    assert summary["operation"] == "append"


def test_hazard_14_a_repeat_is_recognised_by_its_round_id_and_changes_nothing() -> None:
    state = settled(commit_round(bound(), 1, (0, 0, 0, 100)))
    again = commit_round(state, 1, (0, 0, 0, 100), snapshot_id=4_711)
    assert (again.repeated, again.table, again.binding) == (1_001, state.table, state.binding)
    older = judge_commit(state, CommitRequest([claim(1, (0, 0, 0, 100), lease=4)], []), 6, NOW_MS)
    assert older.repeated == 1_001, "the rows are in the table, whatever became of the lease"
    moved = settled(foreign(state, *replacing(state, 9, "replace")))
    assert commit_round(moved, 1, (0, 0, 0, 100)).repeated == 1_001, "a repeat is recognised after main has moved"


def test_hazard_14_b_the_same_range_under_another_round_is_not_a_repeat() -> None:
    state = settled(commit_round(bound(), 1, (0, 0, 0, 100)))
    details = refusal(state, claim(2, (0, 0, 0, 100)))
    assert details == {
        "reason": "not_next",
        "positions": {"0": {"epoch": 0, "next": 100}, "1": {"epoch": 0, "next": 0}},
        "pipeline-epoch": LEASE,
    }


def test_hazard_14_a_round_id_with_other_ranges_is_not_a_repeat() -> None:
    """A driver that lost the answer and planned more under the same id must not believe that all of it is there."""
    state = settled(commit_round(bound(), 1, (0, 0, 0, 100)))
    assert refusal(state, claim(1, (0, 0, 0, 150)))["reason"] == "round_reused"
    assert refusal(state, claim(1, (0, 0, 0, 100), (1, 0, 0, 1)))["reason"] == "round_reused"


def test_hazard_14_c_properties_alone_are_not_a_round() -> None:
    """A copy of the table, or of its properties, is a table like any other."""
    state = settled(commit_round(bound(), 1, (0, 0, 0, 100)))
    copied = TableState(state.table, FILE)
    done = foreign(copied, *replacing(copied, 9, "append"))
    assert (done.repeated, done.table.current_snapshot_id) == (None, 9)
    with pytest.raises(errors.RangeRefused) as refused:
        commit_round(copied, 1, (0, 0, 0, 100))
    assert refused.value.details == {"reason": "not_bound"}


@pytest.mark.parametrize(
    ("start", "end"),
    [(50, 150), (0, 150), (99, 100), (101, 150)],
)
def test_hazard_14_d_overlapping_ranges_and_holes_are_refused(start: int, end: int) -> None:
    state = settled(commit_round(bound(), 1, (0, 0, 0, 100)))
    assert refusal(state, claim(2, (0, 0, start, end)))["reason"] == "not_next"


@pytest.mark.parametrize(
    ("requirement", "lease", "reason"),
    [
        (claim(2, (0, 0, 100, 200), topic_id=13), LEASE, "other_topic"),
        (claim(2, (0, 0, 100, 200), lease=4), LEASE, "stale_pipeline"),
        (claim(2, (0, 0, 100, 200), lease=4), 4, "stale_pipeline"),  # a lease that went back
        (claim(2, (0, 0, 100, 200), lease=6), LEASE, "stale_pipeline"),
        (claim(2, (0, 0, 100, 200)), None, "stale_pipeline"),
        (claim(2, (9, 0, 100, 200)), LEASE, "unknown_shard"),
        (claim(2, (0, 1, 100, 200)), LEASE, "other_epoch"),
        (claim(2, (0, 0, 100, 200), (1, 0, 1, 2)), LEASE, "not_next"),
    ],
)
def test_hazard_14_any_other_claim_is_refused_with_the_positions(
    requirement: dict[str, Any], lease: int | None, reason: str
) -> None:
    state = settled(commit_round(bound(), 1, (0, 0, 0, 100)))
    details = refusal(state, requirement, lease)
    assert (details["reason"], details["positions"]["0"]) == (reason, {"epoch": 0, "next": 100})


def test_hazard_14_a_takeover_closes_the_run_of_the_old_owner() -> None:
    state = settled(commit_round(bound(), 1, (0, 0, 0, 100)))
    assert state.binding is not None
    binding, gap = with_takeover(state.binding, 0, 1, 4_096)
    assert gap == (100, 4_096)
    state = state._replace(binding=binding)
    assert refusal(state, claim(2, (0, 0, 100, 200)))["reason"] == "other_epoch", "the old owner's tail never enters"
    done = commit_round(state, 3, (0, 1, 4_096, 5_000))
    assert done.binding is not None
    assert done.binding.runs[0] == (OffsetRun(0, 0, 100, True), OffsetRun(1, 4_096, 5_000, False))


@pytest.mark.parametrize(("epoch", "start"), [(0, 4_096), (1, 99)])
def test_hazard_14_a_takeover_that_could_reuse_offsets_is_refused(epoch: int, start: int) -> None:
    state = settled(commit_round(bound(), 1, (0, 0, 0, 100)))
    assert state.binding is not None
    with pytest.raises(errors.InvalidInput):
        with_takeover(state.binding, 0, epoch, start)
    with pytest.raises(errors.InvalidInput):
        with_takeover(state.binding, 9, 1, 4_096)


def test_hazard_14_the_last_rounds_are_remembered() -> None:
    state = bound(1)
    for number in range(1, limits.CATALOG_ROUNDS_KEPT + 2):
        state = settled(commit_round(state, number, (0, 0, number - 1, number)))
    assert state.binding is not None
    assert len(state.binding.rounds) == limits.CATALOG_ROUNDS_KEPT
    assert commit_round(state, 2, (0, 0, 1, 2)).repeated == 1_002
    assert refusal(state, claim(1, (0, 0, 0, 1)))["reason"] == "not_next", "forgotten, and still not taken twice"


def test_hazard_14_the_number_of_runs_of_a_shard_stays_small() -> None:
    state = bound(1)
    assert state.binding is not None
    binding = state.binding
    for epoch in range(1, 3 * limits.CATALOG_RUNS_PER_SHARD_MAX):
        binding, _ = with_takeover(binding, 0, epoch, 10 * epoch)
    assert len(binding.runs[0]) == limits.CATALOG_RUNS_PER_SHARD_MAX


# --- what a round may bring -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state: appending(state, 9)[:1], "must set main to the snapshot"),
        (lambda state: [], "must add exactly one snapshot, got 0"),
        (lambda state: [*appending(state, 9), *appending(state, 10)], "must add exactly one snapshot, got 2"),
        (lambda state: replacing(state, 9, "overwrite"), "a round must append"),
        (lambda state: replacing(state, 9, "replace"), "a round must append"),
    ],
)
def test_hazard_14_a_round_appends_one_snapshot_to_main(change: Any, says: str) -> None:
    state = settled(commit_round(bound(), 1, (0, 0, 0, 100)))
    with pytest.raises(errors.InvalidInput, match=says):
        judge_commit(state, CommitRequest([claim(2, (0, 0, 100, 200))], change(state)), LEASE, NOW_MS + 10_000)


def test_hazard_14_a_round_on_an_older_main_is_a_conflict() -> None:
    state = settled(commit_round(bound(), 1, (0, 0, 0, 100)))
    updates = appending(state, 9)
    moved = settled(foreign(state, *replacing(state, 8, "replace")))
    updates[0]["snapshot"]["sequence-number"] = 99
    with pytest.raises(errors.CommitConflict, match="branch main has changed"):
        judge_commit(moved, CommitRequest([claim(2, (0, 0, 100, 200))], updates), LEASE, NOW_MS + 10_000)
    needs = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1_001}
    with pytest.raises(errors.CommitConflict, match="branch main has changed"):
        judge_commit(moved, CommitRequest([needs, claim(2, (0, 0, 100, 200))], updates), LEASE, NOW_MS + 10_000)


def test_hazard_14_a_round_may_expire_snapshots_in_the_same_commit() -> None:
    state = bound(1)
    for number in (1, 2, 3):
        state = settled(commit_round(state, number, (0, 0, number - 1, number)))
    updates = [*appending(state, 9), {"action": "remove-snapshots", "snapshot-ids": [1_001, 1_002]}]
    done = judge_commit(state, CommitRequest([claim(4, (0, 0, 3, 4))], updates), LEASE, NOW_MS + 10_000)
    assert [entry["snapshot-id"] for entry in done.table.snapshots] == [1_003, 9]
    assert done.removals == ()


@pytest.mark.parametrize(
    ("requirement", "says"),
    [
        ({"ranges": []}, "at least one"),
        ({"ranges": [{"shard": 0, "epoch": 0, "start": 5, "end": 5}]}, "not a range"),
        ({"ranges": [{"shard": 0, "epoch": 0, "start": 0, "end": 2**62 + 1}]}, "not a range"),
        ({"ranges": [{"shard": -1, "epoch": 0, "start": 0, "end": 1}]}, "must not be negative"),
        ({"ranges": [{"shard": 0, "epoch": 0, "start": 0, "end": 1}] * 2}, "exactly one range per shard"),
        ({"ranges": [{"shard": 0}]}, "missing field: epoch"),
        ({"ranges": 7}, "non-array"),
        ({"round-id": "seven"}, "round-id is not a UUID"),
        ({"round-id": None}, "missing field"),
        ({"pipeline-epoch": -1}, "must not be negative"),
        ({"topic-id": "12"}, "non-integer"),
    ],
)
def test_hazard_14_a_contradictory_claim_is_an_invalid_request(requirement: dict[str, Any], says: str) -> None:
    state = bound()
    broken = claim(1, (0, 0, 0, 1)) | requirement
    with pytest.raises(errors.InvalidInput, match=says):
        judge_commit(state, CommitRequest([broken], appending(state, 9)), LEASE, NOW_MS)
    with pytest.raises(errors.InvalidInput, match="at most one assert-icestream-range, got 2"):
        judge_commit(state, CommitRequest([claim(1, (0, 0, 0, 1))] * 2, []), LEASE, NOW_MS)


# --- properties -------------------------------------------------------------------------------------------------------


def test_hazard_14_only_the_pipeline_writes_reserved_properties() -> None:
    state = settled(commit_round(bound(), 1, (0, 0, 0, 100)))
    lies = {"icestream.committed": '{"0":0}'}
    for updates in (
        [{"action": "set-properties", "updates": lies}],
        [{"action": "set-properties", "updates": {"icestream.new": "x"}}],
        [{"action": "remove-properties", "removals": ["icestream.topic"]}],
        replacing(state, 9, "replace", **{"icestream.committed": "{}"}),
    ):
        with pytest.raises(errors.TopicTableConflict, match="is written by Icestream alone"):
            foreign(state, *updates)
    commit = [*appending(state, 9), {"action": "set-properties", "updates": lies}]
    with pytest.raises(errors.TopicTableConflict):
        judge_commit(state, CommitRequest([claim(2, (0, 0, 100, 200))], commit), LEASE, NOW_MS)
    with pytest.raises(errors.TopicTableConflict):
        foreign(TableState(table(), FILE), {"action": "set-properties", "updates": lies})


def test_hazard_14_unchanged_reserved_properties_and_other_properties_are_allowed() -> None:
    state = settled(commit_round(bound(), 1, (0, 0, 0, 100)))
    copied = {"action": "set-properties", "updates": dict(state.table.properties) | {"owner": "me"}}
    done = foreign(state, copied, {"action": "remove-properties", "removals": ["icestream.none", "none"]})
    assert done.table.properties == state.table.properties | {"owner": "me"}
    copy = TableState(state.table, FILE)
    bare = foreign(copy, {"action": "remove-properties", "removals": ["icestream.topic"]})
    assert "icestream.topic" not in bare.table.properties, "a copy that belongs to no topic may be maintained"


# --- transactions -----------------------------------------------------------------------------------------------------


def kinds() -> dict[str, tuple[TableState, CommitRequest]]:
    """One table of each kind: a round that is new, one that is there already, one that is in conflict."""
    fresh, committed = bound(1), settled(commit_round(bound(1), 1, (0, 0, 0, 100)))
    return {
        "new": (fresh, CommitRequest([claim(1, (0, 0, 0, 100))], appending(fresh, 1_001))),
        "repeat": (committed, CommitRequest([claim(1, (0, 0, 0, 100))], appending(committed, 1_001))),
        "conflict": (committed, CommitRequest([claim(2, (0, 0, 0, 100))], appending(committed, 1_002))),
        "foreign": (TableState(append(table(), 1), FILE), CommitRequest([], [point("tag", 1, "tag")])),
    }


@pytest.mark.parametrize("order", [*itertools.permutations(["new", "repeat", "foreign"])])
def test_hazard_14_a_repeat_beside_a_new_round_hides_nothing(order: tuple[str, ...]) -> None:
    commits = {name: kinds()[name] for name in order}
    outcomes = judge_transaction(commits, LEASE, NOW_MS + 10_000)
    assert list(outcomes) == list(order)
    assert outcomes["new"].table.current_snapshot_id == 1_001
    assert outcomes["new"].repeated is None
    assert (outcomes["repeat"].repeated, outcomes["repeat"].table) == (1_001, commits["repeat"][0].table)
    assert "tag" in outcomes["foreign"].table.references


@pytest.mark.parametrize("order", [*itertools.permutations(["new", "repeat", "conflict"])])
def test_hazard_14_a_conflict_refuses_all_and_names_the_tables(order: tuple[str, ...]) -> None:
    with pytest.raises(errors.CommitConflict) as refused:
        judge_transaction({name: kinds()[name] for name in order}, LEASE, NOW_MS + 10_000)
    conflicts = refused.value.details["tables"]
    assert [conflict["table"] for conflict in conflicts] == ["conflict"]
    assert conflicts[0]["positions"] == {"0": {"epoch": 0, "next": 100}}
    assert "tables in conflict: conflict" in refused.value.message


def test_hazard_14_a_mistake_in_a_transaction_names_its_table() -> None:
    broken = CommitRequest([], [{"action": "fly"}])
    with pytest.raises(errors.InvalidInput, match=r"^foreign: Unknown update"):
        judge_transaction({"foreign": (TableState(table(), FILE), broken)}, LEASE, NOW_MS)


def test_hazard_14_an_unbound_table_gets_no_round() -> None:
    state = TableState(append(table(), 1), FILE)
    with pytest.raises(errors.RangeRefused, match="does not belong to a topic"):
        commit_round(state, 1, (0, 0, 0, 100))
    assert snapshot(1)["snapshot-id"] == state.table.current_snapshot_id
