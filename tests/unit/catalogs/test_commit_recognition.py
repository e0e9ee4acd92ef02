"""What a table that was read back says about a commit of ours."""

from __future__ import annotations

import pytest

from icestream.catalogs.commit_recognition import CommitPresence, commit_presence, is_safe_to_resend
from icestream.catalogs.table_catalog import TableChange
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from tests.support import tables
from tests.support.tables import UUID, add, append, commit_to, point, snapshot, with_snapshots

BASE = with_snapshots(2)
OURS = 77


def appending(parent: int | None = 2, number: int = OURS) -> TableChange:
    return TableChange(
        [
            {"type": "assert-table-uuid", "uuid": UUID},
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent},
        ],
        [add(snapshot(number, parent)), point("main", number)],
    )


def setting(**properties: str) -> TableChange:
    return TableChange([], [{"action": "set-properties", "updates": properties}])


def seen(table: TableMetadata, change: TableChange) -> CommitPresence:
    return commit_presence(table.as_json(), change)


def test_a_snapshot_is_recognised_by_its_id_below_snapshots_of_others() -> None:
    landed = append(BASE, OURS)
    assert seen(landed, appending()) is CommitPresence.THERE
    assert seen(append(landed, 78), appending()) is CommitPresence.THERE


def test_a_missing_commit_may_still_arrive_until_the_branch_has_moved() -> None:
    assert seen(BASE, appending()) is CommitPresence.OPEN
    assert seen(append(BASE, 5), appending()) is CommitPresence.IMPOSSIBLE


def test_a_table_of_the_same_name_is_another_table() -> None:
    other = BASE.as_json() | {"table-uuid": "00000000-0000-4000-8000-000000000000"}
    assert commit_presence(other, appending()) is CommitPresence.ELSEWHERE
    named = TableChange([{"type": "assert-table-uuid", "uuid": (BASE.uuid or "").upper()}], setting(a="1").updates)
    assert seen(BASE, named) is CommitPresence.OPEN, "the same, in capitals"


def test_a_round_of_another_driver_is_not_recognised_as_ours() -> None:
    """The same offsets under the same round, other files: hazard 14."""
    ours = snapshot(OURS, 2, summary={"operation": "append", "icestream.round": "r"})
    landed = append(BASE, 5, summary={"operation": "append", "icestream.round": "r"})
    change = TableChange(appending().requirements, [add(ours), point("main", OURS)])
    assert seen(landed, change) is CommitPresence.IMPOSSIBLE


def test_a_change_without_a_snapshot_is_done_if_it_would_change_nothing() -> None:
    assert seen(BASE, setting(a="1")) is CommitPresence.OPEN
    landed = commit_to(BASE, {"action": "set-properties", "updates": {"a": "1"}})
    assert seen(landed, setting(a="1")) is CommitPresence.THERE
    assert seen(landed, setting(a="2")) is CommitPresence.OPEN


def test_our_schema_is_recognised_although_its_requirement_no_longer_holds() -> None:
    wider = tables.schema(*BASE.current_schema["fields"], tables.column(4, "more", "string"))
    updates: list[Object] = [
        {"action": "add-schema", "schema": wider, "last-column-id": 4},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    change = TableChange([{"type": "assert-current-schema-id", "current-schema-id": 0}], updates)
    assert seen(BASE, change) is CommitPresence.OPEN
    assert seen(commit_to(BASE, *updates), change) is CommitPresence.THERE


def test_an_undecidable_document_leaves_the_outcome_open() -> None:
    assert commit_presence({"format-version": 9}, appending()) is CommitPresence.OPEN
    assert commit_presence({"snapshots": [{"snapshot-id": OURS}]}, appending()) is CommitPresence.THERE


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (appending(), True),
        (setting(a="1"), True),
        (TableChange([], [add(snapshot(OURS, 2))]), False),
        (TableChange([], [add(snapshot(OURS, 2)), point("main", OURS)]), False),
        (TableChange(appending().requirements, [add(snapshot(OURS, 2)), point("side", OURS)]), False),
        (TableChange([], [{"action": "from-the-future"}]), False),
    ],
)
def test_a_second_copy_is_sent_only_where_it_cannot_count_twice(change: TableChange, expected: bool) -> None:
    assert is_safe_to_resend(change) is expected
