"""The commit of an erasure: only rows that the record of erased offsets counts may go, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest

from icestream import errors, limits
from icestream.catalog.topic_rules.commit_rules import CommitDecision, CommitRequest, TableState, judge_commit
from icestream.catalog.topic_rules.erased_record import ErasedRecord
from icestream.catalog.topic_rules.rewritten_rows import FileChanges
from icestream.model.row_digest import RowDigest
from tests.support.tables import NOW_MS
from tests.support.topic_tables import (
    LEASE,
    bound,
    commit_round,
    data_file,
    new_name,
    replacing,
    rewrite_claim,
    settled,
)

OLD = [data_file("a", 0, 50), data_file("b", 50, 100, number=2)]
CHANGES = FileChanges(OLD, [data_file(new_name(1), 1, 100, rows=97, number=3)])
ERASED = RowDigest(3, 2, 2)


def table() -> TableState:
    """A table with the offsets [0, 100), in two files."""
    state = settled(commit_round(bound(), 1, (0, 0, 0, 50)))
    return settled(commit_round(state, 2, (0, 0, 50, 100)))


def claim(changes: FileChanges, **more: Any) -> dict[str, Any]:
    """Three rows go: replaced rows = added rows + erased rows."""
    added = RowDigest(sum(file.rows for file in changes.added), 5, 5)
    return {
        **rewrite_claim(7, changes),
        "kind": "erase",
        "added-rows": added.text,
        "erased-rows": ERASED.text,
        "offsets": "file:/t/metadata/erased-1.bin",
        "offsets-sha256": "00",
        "offsets-count": 3,
        "ranges": 2,
        "cut": {"0": 100},
        **more,
    }


def commit(
    state: TableState, changes: FileChanges = CHANGES, operation: str = "overwrite", **more: Any
) -> CommitDecision:
    updates = replacing(state, 2_007, operation)
    request = CommitRequest([claim(changes, **more)], updates, file_changes=changes)
    return judge_commit(state, request, LEASE, NOW_MS + 10_000)


def test_rows_go_together_with_their_record() -> None:
    state = table()
    decision = commit(state)
    assert decision.erased == ErasedRecord("file:/t/metadata/erased-1.bin", "00", 3, 2, {0: 100}, NOW_MS + 10_000, 3)
    assert decision.binding is not None
    assert state.binding is not None
    assert decision.binding.runs == state.binding.runs
    summary = decision.table.snapshots[-1]["summary"]
    assert (summary["operation"], summary["icestream.erased"]) == ("overwrite", "3")


def test_erased_offsets_only_become_more() -> None:
    before = ErasedRecord("file:/t/metadata/erased-0.bin", "11", 10, 4, {0: 60, 1: 5})
    state = table()._replace(erased=before)
    with pytest.raises(errors.RangeRefused, match="from 10"):
        commit(state)
    after = commit(state, **{"offsets-count": 13}).erased
    assert after is not None
    assert (after.count, after.cut) == (13, {0: 100, 1: 5})


@pytest.mark.parametrize(
    ("changes", "more", "says"),
    [
        (CHANGES, {"erased-rows": RowDigest(3, 2, 3).text}, "changes rows"),  # other rows than the record has
        (CHANGES, {"erased-rows": RowDigest(2, 2, 2).text, "offsets-count": 2}, "changes rows"),
        (
            FileChanges(OLD, [data_file(new_name(1), 1, 100, rows=96, number=3)]),
            {},
            "changes rows",
        ),  # drops one more
        (FileChanges(OLD, [data_file(new_name(1), 1, 101, rows=97, number=3)]), {}, "moves rows"),
        (FileChanges(OLD, [data_file("a2", 1, 100, rows=97, number=3)]), {}, "whose name says otherwise"),
        (CHANGES, {"cut": {"7": 1}}, "no shard 7"),
    ],
)
def test_a_commit_that_takes_other_rows_is_refused(changes: FileChanges, more: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.Contradiction, match=says):
        commit(table(), changes, **more)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"cut": {}}, "0 shards"),
        ({"cut": {"x": 1}}, "not a shard"),
        ({"cut": {"0": -1}}, "negative"),
        ({"offsets-count": -1}, "negative"),
        ({"ranges": limits.ERASED_RANGES_MAX + 1}, "ranges"),
        ({"erased-rows": "3"}, "digest"),
        ({"offsets": 3}, "offsets"),
    ],
)
def test_a_requirement_that_could_not_hold_is_invalid(more: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.InvalidInput, match=says):
        commit(table(), **more)


def test_a_cut_beyond_what_is_committed_is_planned_again() -> None:
    with pytest.raises(errors.RangeRefused, match="not up to 101"):
        commit(table(), cut={"0": 101})


def test_another_operation_is_refused() -> None:
    with pytest.raises(errors.InvalidInput, match="an erasure must overwrite"):
        commit(table(), operation="replace")


def test_a_repeat_changes_nothing() -> None:
    state = table()
    done = settled(commit(state))
    request = CommitRequest([claim(CHANGES)], replacing(state, 2_007, "overwrite"))
    again = judge_commit(done, request, LEASE, NOW_MS + 10_000)
    assert (again.repeated, again.erased) == (2_007, None)
