"""Hazard 21: what other engines do to the table of a topic. Refused, or allowed and told; never stuck silently."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from icestream import errors, limits
from icestream.catalog.topic_rules import bind, topic_schema
from icestream.catalog.topic_rules.commit_rules import CommitRequest, TableState, judge_commit
from icestream.catalog.topic_rules.removal import Removal
from tests.support.tables import FILE, NOW_MS, add, column, commit_to, point, schema, snapshot, table
from tests.support.topic_tables import (
    ENVELOPE,
    LEASE,
    TOPIC,
    TOPIC_ID,
    appending,
    bound,
    claim,
    commit_round,
    foreign,
    replacing,
    settled,
)


def three_rounds() -> TableState:
    """Offsets 0..29 of shard 0 and 0..2 of shard 1, in snapshots 1001 to 1003."""
    state = bound()
    for number in (1, 2, 3):
        ranges = ((0, 0, 10 * number - 10, 10 * number), (1, 0, number - 1, number))
        state = settled(commit_round(state, number, *ranges))
    return state


def with_schema(*fields: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"action": "add-schema", "schema": schema(*fields)}, {"action": "set-current-schema", "schema-id": -1}]


COLUMNS = three_rounds().table.current_schema["fields"]
OTHERS = COLUMNS[1:]


# --- refused ----------------------------------------------------------------------------------------------------------

REFUSED: dict[str, list[dict[str, Any]]] = {
    "drop an envelope column": with_schema(*OTHERS),
    "rename it": with_schema({**COLUMNS[0], "name": "part"}, *OTHERS),
    "widen it": with_schema({**COLUMNS[0], "type": "long"}, *OTHERS),
    "make it optional": with_schema({**COLUMNS[0], "required": False}, *OTHERS),
    "drop it and make another of its name": with_schema({**COLUMNS[0], "id": 200}, *OTHERS),
    "add a column that no message has": with_schema(*COLUMNS, column(300, "must", "long", required=True)),
    "replace the table": [
        {"action": "remove-snapshot-ref", "ref-name": "main"},
        add(snapshot(9, **{"sequence-number": 9})),
        point("main", 9),
    ],
    "leave it without a current snapshot": [{"action": "remove-snapshots", "snapshot-ids": [1_003]}],
    "upgrade beyond what is written": [{"action": "upgrade-format-version", "format-version": 3}],
}


@pytest.mark.parametrize("name", REFUSED)
def test_hazard_21_changes_that_would_stop_the_topic_are_refused(name: str) -> None:
    state = three_rounds()
    with pytest.raises(errors.TopicTableConflict) as refused:
        foreign(state, *REFUSED[name])
    assert "detach" in refused.value.hint


@pytest.mark.parametrize("name", REFUSED)
def test_hazard_21_forced_changes_detach_the_table(name: str) -> None:
    state = three_rounds()
    done = foreign(state, *REFUSED[name], is_forced=True)
    assert done.binding is None
    assert not any(key.startswith("icestream.") for key in done.table.properties)
    with pytest.raises(errors.RangeRefused, match="does not belong to a topic"):
        commit_round(settled(done), 4, (0, 0, 30, 40))


@pytest.mark.parametrize("name", REFUSED)
def test_hazard_21_tables_without_a_topic_accept_these_changes(name: str) -> None:
    state = three_rounds()
    free = settled(bind.detach(state, NOW_MS))
    assert foreign(free, *REFUSED[name]).table is not free.table


def test_hazard_21_a_column_is_missed_also_under_the_id_of_the_schema_that_had_it() -> None:
    """The last schema is removed, and what is added next gets its id."""
    state = settled(foreign(three_rounds(), *with_schema(*COLUMNS, column(300, "more", "string"))))
    last = state.table.fields["current-schema-id"]
    around = [
        {"action": "set-current-schema", "schema-id": 0},
        {"action": "remove-schemas", "schema-ids": [last]},
        *with_schema(*OTHERS),
    ]
    assert commit_to(state.table, *around).fields["current-schema-id"] == last
    with pytest.raises(errors.TopicTableConflict, match="column shard belongs to the envelope"):
        foreign(state, *around)


@pytest.mark.parametrize("before", [[], [column(300, "must", "long")]], ids=["new", "optional before"])
def test_hazard_21_adding_a_required_column_is_refused_with_an_alternative(before: list[dict[str, Any]]) -> None:
    state = three_rounds()
    if before:
        state = settled(foreign(state, *with_schema(*COLUMNS, *before)))
    with pytest.raises(
        errors.TopicTableConflict, match="column must is required, but messages do not have it"
    ) as refused:
        foreign(state, *with_schema(*COLUMNS, column(300, "must", "long", required=True)))
    assert refused.value.hint.startswith("make it optional")


def test_hazard_21_a_round_is_not_above_these_rules() -> None:
    state = three_rounds()
    updates = [*appending(state, 9), *with_schema(*OTHERS)]
    with pytest.raises(errors.TopicTableConflict):
        judge_commit(state, CommitRequest([claim(4, (0, 0, 30, 40))], updates), LEASE, NOW_MS + 10_000)


# --- allowed ----------------------------------------------------------------------------------------------------------

ALLOWED: dict[str, list[dict[str, Any]]] = {
    "add a column": with_schema(*COLUMNS, column(300, "more", "string")),
    "put columns in another order": with_schema(*reversed(COLUMNS)),
    "document one": with_schema({**COLUMNS[0], "doc": "which part"}, *OTHERS),
    "tag": [point("keep", 1_002, "tag")],
    "branch": [point("work", 1_002)],
    "set a property": [{"action": "set-properties", "updates": {"owner": "me"}}],
    "partition": [
        {"action": "add-spec", "spec": {"fields": [{"source-id": 3, "name": "day", "transform": "day"}]}},
        {"action": "set-default-spec", "spec-id": -1},
    ],
    "sort": [
        {
            "action": "add-sort-order",
            "sort-order": {
                "fields": [{"source-id": 2, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}]
            },
        },
    ],
    "expire": [{"action": "remove-snapshots", "snapshot-ids": [1_001, 1_002]}],
    "compact": replacing(three_rounds(), 9, "replace"),
    "append": replacing(three_rounds(), 9, "append"),
    "overwrite without removing": replacing(three_rounds(), 9, "overwrite", added_records="5", deleted_records="0"),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_hazard_21_all_other_changes_are_allowed_and_ingest_continues(name: str) -> None:
    state = settled(foreign(three_rounds(), *ALLOWED[name]))
    assert state.removals == ()
    done = commit_round(state, 4, (0, 0, 30, 40))
    assert done.binding is not None
    assert done.binding.committed() == {0: 40, 1: 3}


# --- rows that go -----------------------------------------------------------------------------------------------------


def test_hazard_21_a_rollback_is_recorded_with_the_removed_offsets() -> None:
    state = settled(foreign(three_rounds(), point("main", 1_001)))
    assert state.removals == (Removal("rollback", 1_001, NOW_MS + 10_000, {0: (10, 30), 1: (1, 3)}, True),)
    assert state.binding is not None
    assert state.binding.committed() == {0: 30, 1: 3}, "an offset is never given twice"
    done = settled(commit_round(state, 4, (0, 0, 30, 40)))
    assert done.removals == state.removals


def test_hazard_21_restored_rows_are_no_longer_missing() -> None:
    gone = settled(foreign(three_rounds(), point("main", 1_001)))
    assert settled(foreign(gone, point("main", 1_003))).removals == ()
    later = settled(commit_round(gone, 4, (0, 0, 30, 40)))
    swapped = settled(foreign(later, point("main", 1_003)))
    assert [(removal.operation, removal.ranges) for removal in swapped.removals] == [("set-current", {0: (30, 40)})]


@pytest.mark.parametrize("operation", ["delete", "overwrite"])
def test_hazard_21_a_delete_is_recorded_although_its_offsets_are_unknown(operation: str) -> None:
    state = three_rounds()
    state = settled(foreign(state, *replacing(state, 9, operation, deleted_records="5")))
    removal = Removal(operation, 9, NOW_MS + 10_000, {0: (0, 30), 1: (0, 3)}, False, 5)
    assert state.removals == (removal,)
    assert settled(commit_round(state, 4, (0, 0, 30, 40))).removals == (removal,)
    undone = settled(foreign(state, point("main", 1_003)))
    assert undone.removals == (), "the snapshot that deleted is not in main any more"


@pytest.mark.parametrize(
    ("summary", "takes"),
    [
        ({}, True),
        ({"added_records": "5"}, False),
        ({"deleted_records": "0", "added_records": "5"}, False),
        ({"added_position_deletes": "1"}, True),
        ({"added_equality_deletes": "1"}, True),
        ({"added_dvs": "1"}, True),
    ],
)
def test_hazard_21_an_engine_without_summaries_may_have_removed_any_row(summary: dict[str, str], takes: bool) -> None:
    state = three_rounds()
    done = foreign(state, *replacing(state, 9, "overwrite", **summary))
    assert bool(done.removals) is takes


@pytest.mark.parametrize(
    ("summary", "rows"),
    [
        ({"deleted_records": "9", "added_records": "4"}, 5),
        ({"deleted_records": "9", "added_records": "10", "added_position_deletes": "3"}, 2),
        ({"added_position_deletes": "2", "added_records": "2"}, 0),  # rows may have been swapped: it stays named
        ({"added_dvs": "1", "removed_dvs": "1", "added_position_deletes": "5", "removed_position_deletes": "3"}, 2),
        ({"added_position_deletes": "5", "removed_position_deletes": "3"}, 5),  # of files that went long ago, it may be
        ({"added_equality_deletes": "1"}, None),
        ({"added_dvs": "1"}, None),
        ({"deleted_records": "many"}, None),
        ({"deleted_records": "-3"}, None),
        ({}, None),
    ],
)
def test_hazard_38_a_removal_records_the_number_of_rows(summary: dict[str, str], rows: int | None) -> None:
    state = three_rounds()
    done = foreign(state, *replacing(state, 9, "overwrite", **summary))
    assert [removal.rows for removal in done.removals] == [rows]


def test_hazard_38_an_update_that_rewrites_files_removes_no_rows() -> None:
    state = three_rounds()
    done = foreign(state, *replacing(state, 9, "overwrite", deleted_records="10", added_records="10"))
    assert done.removals == ()


def test_hazard_38_merged_removals_add_up_their_row_counts() -> None:
    state = three_rounds()
    for number in range(3):
        state = settled(foreign(state, *replacing(state, 9 + number, "delete", deleted_records="2")))
    assert [removal.rows for removal in state.removals] == [6]
    assert [removal.rows for removal in settled(foreign(state, *replacing(state, 20, "delete"))).removals] == [None]


def test_hazard_38_removals_of_an_earlier_release_are_not_counted() -> None:
    removal = msgspec.json.decode(b'["delete",9,1,{"0":[0,30]},false]', type=Removal)
    assert removal == Removal("delete", 9, 1, {0: (0, 30)}, False, None)


def test_hazard_21_a_branch_that_missed_rounds_and_becomes_main() -> None:
    state = settled(foreign(three_rounds(), point("work", 1_002)))
    side = snapshot(9, 1_002, **{"sequence-number": 9, "summary": {"operation": "delete", "deleted-records": "1"}})
    state = settled(foreign(state, add(side), point("work", 9)))
    assert state.removals == (), "the check looks at main only"
    state = settled(foreign(state, point("main", 9)))
    assert [(removal.operation, removal.ranges, removal.is_exact) for removal in state.removals] == [
        ("set-current", {0: (20, 30), 1: (2, 3)}, True),
        ("delete", {0: (0, 30), 1: (0, 3)}, False),
    ]


def test_hazard_21_without_history_any_row_may_be_missing() -> None:
    state = three_rounds()
    state = settled(foreign(state, *replacing(state, 9, "replace")))
    state = settled(foreign(state, *replacing(state, 10, "replace")))
    state = settled(foreign(state, {"action": "remove-snapshots", "snapshot-ids": [1_001, 1_002, 1_003]}))
    state = settled(foreign(state, point("main", 9)))
    assert [(removal.ranges, removal.is_exact) for removal in state.removals] == [({0: (0, 30), 1: (0, 3)}, False)]


def test_hazard_21_a_table_older_than_its_topic_has_no_rows_of_it() -> None:
    old = commit_to(table(schema=ENVELOPE), add(snapshot(1)), point("main", 1))
    state = settled(bind.bind(TableState(old, FILE), TOPIC, TOPIC_ID, {0: (0, 100)}, NOW_MS + 5_000))
    state = settled(commit_round(state, 1, (0, 0, 100, 110)))
    state = settled(foreign(state, point("main", 1)))
    assert [(removal.ranges, removal.is_exact) for removal in state.removals] == [({0: (0, 110)}, True)]


def test_hazard_21_a_hole_stays_with_the_snapshots_that_have_it() -> None:
    """Rolled back, gone on, looked at the old one again, and back: the hole is there again."""
    state = settled(foreign(three_rounds(), point("main", 1_001)))
    state = settled(commit_round(state, 4, (0, 0, 30, 40)))
    assert "icestream.removed" in state.table.snapshots[-1]["summary"]
    state = settled(foreign(state, point("main", 1_003)))
    state = settled(foreign(state, point("main", 1_004)))
    assert [(removal.operation, removal.ranges) for removal in state.removals] == [
        ("rollback", {0: (10, 30), 1: (1, 3)})
    ]


def test_hazard_21_a_snapshot_with_false_progress_is_not_trusted() -> None:
    """The snapshot was made while the table was not bound."""
    lie = {"operation": "append", "icestream.topic-id": str(TOPIC_ID), "icestream.committed": "all"}
    old = commit_to(table(schema=ENVELOPE), add(snapshot(1, summary=lie)), point("main", 1))
    state = settled(bind.bind(TableState(old, FILE), TOPIC, TOPIC_ID, {0: (0, 0)}, NOW_MS + 5_000))
    state = settled(commit_round(state, 1, (0, 0, 0, 10)))
    assert settled(foreign(state, point("main", 1))).removals[0].ranges == {0: (0, 10)}


def test_hazard_21_recorded_removals_stay_bounded() -> None:
    state = three_rounds()
    for number in range(30):
        state = settled(foreign(state, *replacing(state, 2_000 + number, "delete")))
    assert [(removal.operation, removal.snapshot_id, removal.ranges) for removal in state.removals] == [
        ("delete", 2_029, {0: (0, 30), 1: (0, 3)})
    ]
    state = three_rounds()
    for number in range(limits.CATALOG_REMOVALS_KEPT + 5):
        at, back = 30 + 2 * number, state.table.current_snapshot_id
        state = settled(commit_round(state, 10 + 2 * number, (0, 0, at, at + 1)))
        state = settled(foreign(state, point("main", back or 0)))
        state = settled(commit_round(state, 11 + 2 * number, (0, 0, at + 1, at + 2)))
    assert len(state.removals) == limits.CATALOG_REMOVALS_KEPT + 1
    assert (state.removals[0].is_exact, state.removals[0].ranges) == (True, {0: (40, 41)})
    assert (state.removals[-1].is_exact, state.removals[-1].ranges) == (False, {0: (30, 39)})
    assert state.removals[-1].rows == 5, "the first removals were exact"


# --- binding ----------------------------------------------------------------------------------------------------------


def test_hazard_21_a_table_is_bound_once_and_only_if_it_fits() -> None:
    state = bound()
    with pytest.raises(errors.AlreadyExists, match="belongs to topic /default/orders"):
        bind.bind(state, "/default/other", 13, {0: (0, 0)}, NOW_MS)
    of_doubles = [
        column | {"type": "double"} if column["name"] == "offset" else column for column in ENVELOPE["fields"]
    ]
    for broken, says in (
        (table(), "no column shard"),
        (table(schema=schema(*of_doubles)), "column offset"),
        (table(3, schema=ENVELOPE), "cannot write format version 3"),
    ):
        with pytest.raises(errors.InvalidInput, match=says):
            bind.bind(TableState(broken, FILE), TOPIC, TOPIC_ID, {0: (0, 0)}, NOW_MS)
    for shards in ({}, {999: (0, 0)}):
        with pytest.raises(errors.InvalidInput, match="shards"):
            bind.bind(TableState(table(schema=ENVELOPE), FILE), TOPIC, TOPIC_ID, shards, NOW_MS)


def test_hazard_21_the_envelope_is_that_of_the_design() -> None:
    assert set(topic_schema.COLUMNS) == {
        "shard", "offset", "publish_time", "append_time", "key", "payload", "headers", "producer_name", "producer_id",
        "request_id", "sequence", "topic_name", "broker_addr", "subscription_name", "schema_id", "schema_version",
        "schema_error", "wire", "qos", "retain", "content_type",
    }  # fmt: skip


def test_hazard_21_a_table_that_was_parted_is_like_any_other() -> None:
    parted = settled(bind.detach(three_rounds(), NOW_MS))
    assert parted.binding is None
    again = settled(bind.bind(parted, "/default/other", 13, {0: (0, 7)}, NOW_MS))
    assert again.binding is not None
    assert again.binding.committed() == {0: 7}
    assert again.table.properties["icestream.topic"] == "/default/other"
    plain = TableState(table(), FILE)
    assert bind.detach(plain, NOW_MS).table is plain.table
