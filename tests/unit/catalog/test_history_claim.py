"""A rewrite of history: kept snapshots may lose erased rows, with the record that counts them, and nothing else."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from icestream import errors
from icestream.catalog.topic_rules.commit_rules import CommitDecision, CommitRequest, TableState, judge_commit
from icestream.catalog.topic_rules.erased_record import ErasedRecord
from icestream.catalog.topic_rules.rewritten_rows import DeleteFile, FileChanges
from icestream.model.row_digest import RowDigest
from tests.support.tables import NOW_MS
from tests.support.topic_tables import LEASE, TOPIC_ID, bound, commit_round, data_file, new_name, settled

OLD = data_file("a", 0, 50)
NEW = data_file(new_name(1), 1, 49, rows=47, number=OLD.sequence_number)
EXCHANGE = FileChanges([OLD], [NEW])
NOTHING = FileChanges([], [])


def table() -> TableState:
    """A table with the offsets [0, 100), in two snapshots."""
    state = settled(commit_round(bound(), 1, (0, 0, 0, 50)))
    return settled(commit_round(state, 2, (0, 0, 50, 100)))


def claim(state: TableState, **more: Any) -> dict[str, Any]:
    """The older snapshot has three rows less."""
    (older, _) = state.table.snapshots
    return {
        "type": "assert-icestream-job",
        "kind": "history",
        "topic-id": TOPIC_ID,
        "round-id": str(uuid.UUID(int=7)),
        "pipeline-epoch": LEASE,
        "snapshots": [older | {"manifest-list": "file:/t/metadata/snap-new.avro"}],
        "files": [
            {
                "replaced": OLD.location,
                "added": NEW.location,
                "replaced-rows": RowDigest(50, 7, 7).text,
                "erased-rows": RowDigest(3, 2, 2).text,
                "added-rows": RowDigest(47, 5, 5).text,
            }
        ],
        "offsets": "file:/t/metadata/erased-1.bin",
        "offsets-sha256": "00",
        "offsets-count": 3,
        "ranges": 2,
        "cut": {"0": 100},
        "swept-to": 2,
        **more,
    }


def commit(state: TableState, requirement: dict[str, Any], changes: FileChanges = EXCHANGE) -> CommitDecision:
    ids = [snapshot["snapshot-id"] for snapshot in requirement["snapshots"]]
    request = CommitRequest([requirement], [], history_changes=dict.fromkeys(ids, changes))
    return judge_commit(state, request, LEASE, NOW_MS + 10_000)


def test_a_snapshot_gets_another_list_and_the_rest_of_the_table_stays() -> None:
    state = table()
    decision = commit(state, claim(state))
    before, after = [*state.table.snapshots], [*decision.table.snapshots]
    assert after[0] == before[0] | {"manifest-list": "file:/t/metadata/snap-new.avro"}
    assert after[1] == before[1]
    assert decision.table.current_snapshot_id == state.table.current_snapshot_id
    assert decision.table.references == state.table.references
    assert [*decision.table.snapshot_log] == [*state.table.snapshot_log]
    expected = ErasedRecord("file:/t/metadata/erased-1.bin", "00", 3, 2, {0: 100}, NOW_MS + 10_000, 2)
    assert decision.erased == expected
    assert [*state.table.snapshots] == before, "the former version is not modified"


def test_rows_that_were_erased_before_do_not_count_again() -> None:
    state = table()
    state = state._replace(erased=ErasedRecord("file:/t/metadata/erased-0.bin", "11", 2, 1, {0: 60}, 0, 9))
    erased = commit(state, claim(state)).erased
    assert erased is not None
    assert (erased.count, erased.swept_to) == (3, 9)
    with pytest.raises(errors.RangeRefused, match="from 2"):
        commit(state, claim(state, **{"offsets-count": 1}))


def test_a_repeat_changes_nothing() -> None:
    state = table()
    requirement = claim(state)
    done = settled(commit(state, requirement))
    again = commit(done, requirement)
    assert (again.table is done.table, again.erased) == (True, None)


def exchange(**more: Any) -> list[dict[str, Any]]:
    return [claim(table())["files"][0] | more]


@pytest.mark.parametrize(
    ("more", "changes", "says"),
    [
        ({"files": exchange(**{"added-rows": RowDigest(47, 5, 6).text})}, EXCHANGE, "changes rows"),
        ({"files": exchange(added="file:/t/data/b.parquet")}, EXCHANGE, "whose name says otherwise"),
        ({"files": exchange(added="")}, EXCHANGE, "stay, in the file"),
        ({"files": []}, EXCHANGE, "does not name"),
        ({}, FileChanges([OLD], []), "has not"),
        ({}, FileChanges([OLD], [NEW._replace(rows=46)]), "other rows"),
        ({}, FileChanges([OLD], [NEW._replace(sequence_number=9)]), "another sequence number"),
        ({}, FileChanges([OLD], [data_file(new_name(1), 1, 60, rows=47)]), "beyond the bounds"),
        ({}, FileChanges([OLD], [NEW, data_file(new_name(2), 60, 70)]), "takes no place"),
        ({}, FileChanges([OLD._replace(rows=49)], [NEW]), "of another number"),
        ({}, FileChanges([OLD], [NEW], removed_deletes=[DeleteFile("d", 3, True)]), "delete files"),
        ({"cut": {"7": 1}}, EXCHANGE, "no shard 7"),
    ],
)
def test_what_changes_more_than_erased_rows_is_refused(more: dict[str, Any], changes: FileChanges, says: str) -> None:
    state = table()
    with pytest.raises(errors.Contradiction, match=says):
        commit(state, claim(state, **more), changes)


def test_main_keeps_its_rows_and_may_lose_entries_of_removed_files() -> None:
    state = table()
    main = state.table.snapshots[1] | {"manifest-list": "file:/t/metadata/snap-new.avro"}
    with pytest.raises(errors.Contradiction, match="head of a branch"):
        commit(state, claim(state, snapshots=[main]))
    decision = commit(state, claim(state, snapshots=[main], files=[], **{"offsets-count": 0}), NOTHING)
    assert decision.table.snapshots[1] == main


@pytest.mark.parametrize("changed", [{"timestamp-ms": 1}, {"summary": {"operation": "delete"}}, {"schema-id": 3}])
def test_nothing_else_of_a_snapshot_changes(changed: dict[str, Any]) -> None:
    state = table()
    snapshots = [claim(state)["snapshots"][0] | changed]
    with pytest.raises(errors.Contradiction, match="changes more"):
        commit(state, claim(state, snapshots=snapshots))


def test_a_snapshot_that_is_gone_has_it_planned_again() -> None:
    state = table()
    snapshots = [claim(state)["snapshots"][0] | {"snapshot-id": 99}]
    with pytest.raises(errors.RangeRefused, match="99 is not in the table"):
        commit(state, claim(state, snapshots=snapshots))


def test_another_driver_is_refused() -> None:
    state = table()
    with pytest.raises(errors.RangeRefused, match="lease"):
        commit(state, claim(state, **{"pipeline-epoch": LEASE + 1}))


@pytest.mark.parametrize(
    ("more", "says"),
    [({"snapshots": []}, "0 snapshots"), ({"swept-to": -1}, "negative"), ({"files": exchange() * 2}, "2 files")],
)
def test_a_requirement_that_could_not_hold_is_invalid(more: dict[str, Any], says: str) -> None:
    state = table()
    with pytest.raises(errors.InvalidInput, match=says):
        commit(state, claim(state, **more))
