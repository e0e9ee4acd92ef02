"""Hazard 75: a rewrite that is not fenced. A commit that replaces files is judged like a round: by lease, epoch and id;
and its files by what manifests say about their rows (hazards 77, 83)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from icestream import errors, limits
from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.commit_rules import CommitRequest, TableState, judge_commit, reads_files
from icestream.catalog.topic_rules.rewritten_rows import DeleteFile, FileChanges
from icestream.catalog.topic_rules.snapshot_progress import snapshot_progress
from tests.support.tables import NOW_MS
from tests.support.topic_tables import (
    LEASE,
    TOPIC_ID,
    appending,
    bound,
    claim,
    commit_rewrite,
    commit_round,
    data_file,
    foreign,
    new_name,
    replacing,
    rewrite_claim,
    round_id,
    settled,
)

OLD = [data_file("a", 0, 50), data_file("b", 50, 100, number=2)]
MERGED = FileChanges(OLD, [data_file(new_name(1), 0, 100, number=3)])


def two_rounds() -> TableState:
    """A table with the offsets [0, 100), in two files."""
    state = settled(commit_round(bound(), 1, (0, 0, 0, 50)))
    return settled(commit_round(state, 2, (0, 0, 50, 100)))


def refusal(state: TableState, changes: FileChanges, **more: Any) -> dict[str, Any]:
    with pytest.raises(errors.RangeRefused) as refused:
        commit_rewrite(state, 7, changes, **more)
    return refused.value.details


def test_hazard_75_a_rewrite_keeps_every_offset_and_is_written_down() -> None:
    state = two_rounds()
    done = commit_rewrite(state, 7, MERGED)
    assert state.binding is not None
    assert done.binding is not None
    assert (done.binding.runs, done.binding.rounds) == (state.binding.runs, state.binding.rounds)
    assert (done.repeated, done.is_round, done.removals) == (None, True, ())
    assert [(rewrite.id, rewrite.snapshot_id) for rewrite in done.binding.rewrites] == [
        ((7).to_bytes(16, "big"), 2_007)
    ]
    summary = done.table.snapshots[-1]["summary"]
    assert summary["operation"] == "replace"
    assert (summary["icestream.committed"], summary["icestream.round"]) == ('{"0":100,"1":0}', round_id(7))
    assert "icestream.added" not in summary, "a rewrite adds no offsets"
    assert done.table.properties["icestream.round"] == round_id(2), "the last round"


def test_hazard_95_the_offsets_of_a_table_are_known_when_only_a_rewrite_is_left_of_its_history() -> None:
    state = settled(commit_rewrite(two_rounds(), 7, MERGED))
    expired = settled(foreign(state, {"action": "remove-snapshots", "snapshot-ids": [1_001, 1_002]}))
    progress = snapshot_progress(expired.table, 2_007, TOPIC_ID, None)
    assert (progress.is_known, progress.last_round.committed) == (True, {0: 100, 1: 0})


def test_hazard_75_a_round_continues_after_a_rewrite() -> None:
    state = settled(commit_rewrite(two_rounds(), 7, MERGED))
    done = commit_round(state, 3, (0, 0, 100, 130))
    assert done.binding is not None
    assert done.binding.committed() == {0: 130, 1: 0}
    assert len(done.binding.rewrites) == 1


@pytest.mark.parametrize(
    ("lease", "lease_epoch", "reason"),
    [
        (LEASE - 1, LEASE, "stale_pipeline"),  # late: another driver has the lease
        (LEASE - 1, LEASE - 1, "stale_pipeline"),  # a lease that went back
        (LEASE + 1, LEASE, "stale_pipeline"),
        (LEASE, None, "stale_pipeline"),
    ],
)
def test_hazard_75_a_rewrite_of_a_driver_without_the_lease_is_refused(
    lease: int, lease_epoch: int | None, reason: str
) -> None:
    changes = MERGED._replace(added=[data_file(new_name(1, lease), 0, 100, number=3)])
    details = refusal(two_rounds(), changes, lease=lease, lease_epoch=lease_epoch)
    assert (details["reason"], details["positions"]["0"]) == (reason, {"epoch": 0, "next": 100})


def test_hazard_75_a_rewrite_raises_the_epoch_of_its_table_like_a_round() -> None:
    """A file of a lower epoch can never be committed after the rewrite: the clean-up relies on that."""
    changes = MERGED._replace(added=[data_file(new_name(1, 9), 0, 100, number=3)])
    state = settled(commit_rewrite(two_rounds(), 7, changes, lease=9, lease_epoch=9))
    assert state.binding is not None
    assert state.binding.pipeline_epoch == 9
    late = claim(3, (0, 0, 100, 130), lease=LEASE)
    with pytest.raises(errors.RangeRefused, match="pipeline epoch 5"):
        judge_commit(state, CommitRequest([late], appending(state, 9)), LEASE, NOW_MS + 10_000)


def test_hazard_75_a_rewrite_is_not_for_the_table_of_another_topic() -> None:
    state = two_rounds()
    other = rewrite_claim(7, MERGED, topic_id=13)
    assert refusal(state, MERGED, requirement=other)["reason"] == "other_topic"
    assert refusal(state._replace(binding=None), MERGED) == {"reason": "not_bound"}


# --- repeats ----------------------------------------------------------------------------------------------------------


def test_hazard_75_a_repeated_rewrite_is_known_by_its_id_and_changes_nothing() -> None:
    state = settled(commit_rewrite(two_rounds(), 7, MERGED))
    again = commit_rewrite(state, 7, MERGED, snapshot_id=4_711)
    assert (again.repeated, again.table, again.binding) == (2_007, state.table, state.binding)
    late = commit_rewrite(state, 7, MERGED, lease_epoch=LEASE + 1)
    assert late.repeated == 2_007, "the rewrite is in the table, whichever driver has the lease"
    appended = settled(commit_round(state, 3, (0, 0, 100, 130)))
    assert commit_rewrite(appended, 7, MERGED).repeated == 2_007, "a repeat is recognised after main has moved"


def test_hazard_75_a_repeat_is_recognised_without_its_manifests() -> None:
    """The manifests may have been merged into others and removed since the first answer was lost."""
    state = two_rounds()
    updates = replacing(state, 2_007, "replace")
    request = CommitRequest([rewrite_claim(7, MERGED)], updates)
    assert reads_files(state, request, LEASE)
    done = settled(commit_rewrite(state, 7, MERGED))
    assert not reads_files(done, request, LEASE)
    assert not reads_files(state, request, LEASE + 1), "a late driver is refused whatever its files are"
    assert judge_commit(done, request, LEASE, NOW_MS + 10_000).repeated == 2_007


def test_hazard_75_many_rounds_do_not_push_a_rewrite_out_of_memory() -> None:
    state = settled(commit_rewrite(two_rounds(), 7, MERGED))
    for number in range(100, 101 + limits.CATALOG_ROUNDS_KEPT):
        state = settled(commit_round(state, number, (0, 0, number, number + 1)))
    assert commit_rewrite(state, 7, MERGED).repeated == 2_007


def test_hazard_75_the_last_rewrites_are_remembered() -> None:
    state = two_rounds()
    for number in range(1, limits.CATALOG_REWRITES_KEPT + 2):
        changes = FileChanges([data_file(f"old{number}", 0, 100)], [data_file(new_name(number), 0, 100)])
        state = settled(commit_rewrite(state, number + 10, changes))
    assert state.binding is not None
    assert len(state.binding.rewrites) == limits.CATALOG_REWRITES_KEPT
    assert state.binding.find_round((11).to_bytes(16, "big")) is None


def test_hazard_75_an_id_with_other_files_is_no_repeat() -> None:
    state = settled(commit_rewrite(two_rounds(), 7, MERGED))
    other_output = MERGED._replace(added=[data_file(new_name(2), 0, 100)])
    assert refusal(state, other_output)["reason"] == "round_reused"
    assert refusal(state, MERGED._replace(removed=OLD[:1]))["reason"] == "round_reused"
    of_a_round = rewrite_claim(2, MERGED)
    assert refusal(state, MERGED, requirement=of_a_round)["reason"] == "round_reused"
    as_round = claim(7, (0, 0, 100, 130))
    with pytest.raises(errors.RangeRefused, match="other ranges"):
        judge_commit(state, CommitRequest([as_round], appending(state, 9)), LEASE, NOW_MS + 10_000)


# --- files ------------------------------------------------------------------------------------------------------------


def test_hazard_75_a_rewrite_of_a_missing_file_is_refused() -> None:
    gone = MERGED._replace(removed=OLD[:1])
    details = refusal(two_rounds(), gone, requirement=rewrite_claim(7, MERGED))
    assert details["reason"] == "not_live"


@pytest.mark.parametrize(
    ("delete", "is_hit"),
    [
        (DeleteFile("d", 2, False, (b"b", b"b")), True),  # names b, whose sequence number is 2
        (DeleteFile("d", 1, False, (b"b", b"b")), False),  # is older than b
        (DeleteFile("d", 9, False, (b"c", b"z")), False),  # names other files
        (DeleteFile("d", 9, False), True),  # may name any file
        (DeleteFile("d", 2, True), True),  # by value: applies to a, which is older
        (DeleteFile("d", 1, True), False),  # by value: applies to files before it alone
    ],
)
def test_hazard_77_a_rewrite_of_a_file_with_deleted_rows_is_refused(delete: DeleteFile, is_hit: bool) -> None:
    """A delete that names the old file would miss the new one: its rows would be back."""
    changes = MERGED._replace(deletes=[delete])
    if is_hit:
        assert refusal(two_rounds(), changes)["reason"] == "deleted_rows"
    else:
        assert commit_rewrite(two_rounds(), 7, changes).is_round


@pytest.mark.parametrize(
    ("added", "says"),
    [
        ([data_file(new_name(1), 0, 99)], "removes 100 rows and adds 99"),  # dropped
        ([data_file(new_name(1), 0, 100, rows=101)], "removes 100 rows and adds 101"),  # doubled
        ([data_file(new_name(1), 0, 99, rows=100)], "moves rows from shard 0, offsets 0 to 99"),
        ([data_file(new_name(1), 1, 101)], "moves rows"),
        ([data_file(new_name(1), 0, 100, shard=1)], "removes 50 rows and adds 0 in shard 0, offsets 0 to 49"),
        ([data_file(new_name(1), 0, 100)._replace(offsets=None)], "has no bounds"),
        ([data_file(new_name(1), 0, 100)._replace(shards=None)], "has no bounds"),
        ([data_file(new_name(1, LEASE - 1), 0, 100)], "whose name says otherwise"),
        ([data_file("file:/t/data/part-0.parquet", 0, 100)], "whose name says otherwise"),
    ],
)
def test_hazard_83_a_rewrite_that_changes_rows_is_a_mistake(added: list[Any], says: str) -> None:
    changes = MERGED._replace(added=added)
    with pytest.raises(errors.Contradiction, match=says):
        commit_rewrite(two_rounds(), 7, changes)


@pytest.mark.parametrize(
    ("declared", "does", "says"),
    [
        (MERGED, MERGED._replace(removed=[*OLD, data_file("c", 0, 1)]), "removes c, which its requirement"),
        (MERGED, MERGED._replace(added=[data_file(new_name(2), 0, 100)]), "adds other files"),
    ],
)
def test_hazard_75_a_rewrite_that_differs_from_its_claim_is_refused(
    declared: FileChanges, does: FileChanges, says: str
) -> None:
    with pytest.raises(errors.Contradiction, match=says):
        commit_rewrite(two_rounds(), 7, does, requirement=rewrite_claim(7, declared))


@pytest.mark.parametrize(
    ("requirement", "says"),
    [
        ({"kind": "sort"}, "unknown kind of job"),
        ({"replaced": []}, "at least one"),
        ({"added": ["x", "x"]}, "each file in 'added' once"),
        ({"replaced": ["a", new_name(1)]}, "both replaces and adds"),
        ({"replaced": [str(number) for number in range(limits.CATALOG_REWRITE_FILES_MAX + 1)]}, "at most 10000"),
        ({"round-id": "seven"}, "round-id is not a UUID"),
        ({"pipeline-epoch": -1}, "must not be negative"),
        ({"lease": "x"}, "16 hex digits"),
    ],
)
def test_hazard_75_a_contradictory_requirement_is_invalid(requirement: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.InvalidInput, match=says):
        commit_rewrite(two_rounds(), 7, MERGED, requirement=rewrite_claim(7, MERGED) | requirement)


def test_hazard_75_a_rewrite_replaces_files_in_main_and_nothing_else() -> None:
    state = two_rounds()
    needs = [rewrite_claim(7, MERGED)]
    for updates, says in (
        (appending(state, 9), "a rewrite must replace"),
        (replacing(state, 9, "replace")[:1], "must set main"),
        ([], "exactly one snapshot"),
    ):
        with pytest.raises(errors.InvalidInput, match=says):
            judge_commit(state, CommitRequest(needs, updates, file_changes=MERGED), LEASE, NOW_MS + 10_000)
    both = [*needs, claim(8, (0, 0, 100, 130))]
    with pytest.raises(errors.InvalidInput, match="at most one assert-icestream-job or assert-icestream-range, got 2"):
        judge_commit(state, CommitRequest(both, []), LEASE, NOW_MS)


def test_hazard_75_a_rewrite_on_an_older_main_is_a_conflict_and_reads_no_manifest() -> None:
    state = two_rounds()
    updates = replacing(state, 9, "replace")
    moved = settled(commit_round(state, 3, (0, 0, 100, 130)))
    updates[0]["snapshot"]["sequence-number"] = 99
    request = CommitRequest([rewrite_claim(7, MERGED)], updates)
    assert not reads_files(moved, request, LEASE)
    with pytest.raises(errors.CommitConflict, match="branch main has changed"):
        judge_commit(moved, request, LEASE, NOW_MS + 10_000)


def test_hazard_75_a_rewrite_whose_files_were_not_read_is_not_believed() -> None:
    state = two_rounds()
    request = CommitRequest([rewrite_claim(7, MERGED)], replacing(state, 9, "replace"))
    with pytest.raises(errors.InvalidInput, match="manifest list"):
        judge_commit(state, request, LEASE, NOW_MS + 10_000)


def test_a_binding_without_rewrites_is_read_as_before() -> None:
    """Records of earlier releases have no such field."""
    state = two_rounds()
    assert state.binding is not None
    fields = msgspec.to_builtins(state.binding)
    del fields["rewrites"]
    assert msgspec.convert(fields, Binding, strict=False).rewrites == ()
