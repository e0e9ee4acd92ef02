"""Hazard 77: compaction that revives rows deleted meanwhile. Which deletes a rewrite must have applied, by manifests
and digests alone; tests/unit/pipeline/test_compaction_deletes.py does it in a driver."""

from __future__ import annotations

from typing import Any

import pytest

from icestream import errors
from icestream.catalog.topic_rules.commit_rules import CommitDecision, TableState
from icestream.catalog.topic_rules.rewritten_rows import DataFile, DeleteFile, FileChanges
from icestream.model.row_digest import RowDigest
from tests.support.topic_tables import bound, commit_rewrite, commit_round, data_file, new_name, rewrite_claim, settled

OLD = [data_file("a", 0, 50), data_file("b", 50, 100, number=2)]
PLANNED = 6  # the sequence number of the snapshot that the rewrite was planned on
BY_VALUE = DeleteFile("d", 5, True, None, 1, "d")
BY_POSITION = DeleteFile("p", 5, False, (b"a", b"a"), 3, "p")
REPLACED = RowDigest(100, 90, 80)


def two_rounds() -> TableState:
    state = settled(commit_round(bound(), 1, (0, 0, 0, 50)))
    return settled(commit_round(state, 2, (0, 0, 50, 100)))


def added(rows: int, start: int = 0, end: int = 100) -> list[DataFile]:
    return [data_file(new_name(1), start, end, rows=rows, number=PLANNED)]


def commit(changes: FileChanges, applied: list[str], deleted: RowDigest, **more: Any) -> CommitDecision:
    digests = {
        "replaced-rows": REPLACED.text,
        "deleted-rows": deleted.text,
        "added-rows": REPLACED.minus(deleted).text,
        "sequence-number": PLANNED,
        "deletes": applied,
    }
    return commit_rewrite(two_rounds(), 7, changes, requirement=rewrite_claim(7, changes, **(digests | more)))


def test_hazard_77_rows_that_deletes_delete_are_left_out() -> None:
    assert commit(FileChanges(OLD, added(97), [BY_POSITION]), ["p"], RowDigest(3, 1, 1)).is_round
    assert commit(FileChanges(OLD, added(40, 10, 60), [BY_VALUE]), ["d"], RowDigest(60, 1, 1)).is_round
    assert commit(FileChanges(OLD, [], [BY_VALUE]), ["d"], REPLACED).is_round


@pytest.mark.parametrize("delete", [BY_VALUE, BY_POSITION])
def test_hazard_77_a_rewrite_that_has_not_applied_a_delete_is_refused(delete: DeleteFile) -> None:
    with pytest.raises(errors.RangeRefused, match="may be deleted by"):
        commit(FileChanges(OLD, added(100), [delete]), [], RowDigest())


def test_hazard_77_a_younger_delete_by_value_still_applies() -> None:
    younger = BY_VALUE._replace(sequence_number=PLANNED + 1)
    assert commit(FileChanges(OLD, added(100), [younger]), [], RowDigest()).is_round


def test_hazard_77_a_younger_delete_by_position_refuses_the_rewrite() -> None:
    """It names a file that would not be there any more."""
    with pytest.raises(errors.RangeRefused, match="may be deleted by"):
        commit(FileChanges(OLD, added(100), [BY_POSITION._replace(sequence_number=PLANNED + 1)]), [], RowDigest())


def test_hazard_77_a_delete_that_is_not_live_any_more_refuses_the_rewrite() -> None:
    with pytest.raises(errors.RangeRefused, match="not a live delete file"):
        commit(FileChanges(OLD, added(97), []), ["p"], RowDigest(3, 1, 1))


def test_hazard_77_a_delete_file_stays_while_a_live_file_may_need_it() -> None:
    needed = data_file("c", 100, 110, number=3)
    commit(FileChanges(OLD, added(99), [BY_VALUE], [BY_VALUE], added(99)), ["d"], RowDigest(1, 1, 1))
    with pytest.raises(errors.RangeRefused, match="rows of c may be deleted"):
        commit(FileChanges(OLD, added(99), [BY_VALUE], [BY_VALUE], [*added(99), needed]), ["d"], RowDigest(1, 1, 1))


@pytest.mark.parametrize(
    ("changes", "deleted", "more", "says"),
    [
        (FileChanges(OLD, added(97), [BY_POSITION]), 2, {}, "has a digest of"),
        (FileChanges(OLD, added(96), [BY_POSITION]), 4, {}, "its deletes state 3"),
        (FileChanges(OLD, added(97), [BY_POSITION]), 3, {"added-rows": RowDigest(97, 5, 5).text}, "changes rows"),
        (FileChanges(OLD, added(97, 0, 101), [BY_POSITION]), 3, {}, "moves rows"),
        (FileChanges(OLD, added(101), [BY_POSITION]), -1, {}, "removes 100 rows and adds 101"),
        (FileChanges(OLD, added(97), [BY_POSITION]), 3, {"sequence-number": 7}, "data sequence number 6"),
        (
            FileChanges([OLD[0], OLD[1]._replace(sequence_number=8)], added(97), [BY_POSITION]),
            3,
            {},
            "newer than the snapshot",
        ),
    ],
)
def test_hazard_77_a_rewrite_with_other_rows_is_a_mistake(
    changes: FileChanges, deleted: int, more: dict[str, Any], says: str
) -> None:
    digest = RowDigest(max(deleted, 0), 1, 1)
    with pytest.raises(errors.Contradiction, match=says):
        commit(changes, ["p"], digest, **more)


def test_hazard_77_a_band_without_deletes_keeps_all_its_rows() -> None:
    """Rows of a file that no delete names must not go in the shadow of another one's deletes."""
    parts = [
        data_file(new_name(1), 0, 50, rows=48, number=PLANNED),
        data_file(new_name(2), 50, 100, rows=49, number=PLANNED),
    ]
    with pytest.raises(errors.Contradiction, match="removes 50 rows and adds 49"):
        commit(FileChanges(OLD, parts, [BY_POSITION]), ["p"], RowDigest(3, 1, 1))
