"""Hazard 21: what an operator does after a destructive change by another engine: detach, adopt, rewind, recreate, bind.

Each goes on with positions that are true, or is refused with the name of the consequence and of the way out.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
import pytest

from icestream import errors
from icestream.catalog.topic_rules import adopt, bind, recreate, rewind
from icestream.catalog.topic_rules.commit_rules import TableState
from icestream.catalog.topic_rules.offset_run import OffsetRun
from icestream.catalog.topic_rules.operation_preview import Consent, ShardLog, ShardPreview, TopicLog
from icestream.catalog.topic_rules.rebinding import NO_FORMER_TABLE, FormerTable, Rebinding
from icestream.catalog.topic_rules.removal import Removal, bounded
from tests.support.tables import FILE, LOCATION, NOW_MS, UUID, add, commit_to, point, snapshot, table
from tests.support.topic_tables import (
    ENVELOPE,
    TOPIC,
    TOPIC_ID,
    bound,
    commit_round,
    foreign,
    replacing,
    settled,
)

NOW = NOW_MS + 20_000
BOTH = [*Consent]


def log(earliest: int = 0, end: int = 50, epoch: int = 0, **more: Any) -> TopicLog:
    return TopicLog(TOPIC, more.get("topic_id", TOPIC_ID), {0: ShardLog(epoch, earliest, end)})


def three_rounds() -> TableState:
    """Offsets 0..29 of the one shard, in snapshots 1001 to 1003."""
    state = bound(1)
    for number in (1, 2, 3):
        state = settled(commit_round(state, number, (0, 0, 10 * number - 10, 10 * number)))
    return state


def rolled_back() -> TableState:
    """Main holds 0..9; committed is 30."""
    return settled(foreign(three_rounds(), point("main", 1_001)))


def parted() -> TableState:
    return settled(bind.detach(three_rounds(), NOW))


def committed(done: Rebinding) -> dict[int, int]:
    assert done.decision.binding is not None
    return done.decision.binding.committed()


def removals(done: Rebinding) -> list[tuple[str, dict[int, tuple[int, int]], bool]]:
    return [(removal.operation, removal.ranges, removal.is_exact) for removal in done.decision.removals]


# --- rewind -----------------------------------------------------------------------------------------------------------


def test_hazard_21_rewind_writes_the_offsets_of_the_log_again() -> None:
    done = rewind.rewind(rolled_back(), log(), (), NOW)
    assert committed(done) == {0: 10}
    assert removals(done) == [], "nothing is missing any more"
    assert done.preview.shards == (ShardPreview(0, 10, 10, 30, 50),)
    assert "shard 0: offsets 10 to 29 are written again from the log" in done.preview.words()
    assert done.decision.table.properties["icestream.committed"] == '{"0":10}'
    again = settled(commit_round(settled(done.decision), 4, (0, 0, 10, 40)))
    assert again.binding is not None
    assert again.binding.committed() == {0: 40}


def test_hazard_21_rewind_declares_offsets_missing_in_the_log() -> None:
    with pytest.raises(
        errors.TopicTableConflict, match="offsets 10 to 24 of shard 0 are in neither table nor log"
    ) as refused:
        rewind.rewind(rolled_back(), log(25), (), NOW)
    assert "--accept-gap" in refused.value.hint
    with pytest.raises(errors.TopicTableConflict):
        rewind.rewind(rolled_back(), log(25), [Consent.DUPLICATES], NOW)
    done = rewind.rewind(rolled_back(), log(25), [Consent.GAP], NOW)
    assert committed(done) == {0: 25}
    assert removals(done) == [("rewind", {0: (10, 25)}, True)]
    later = settled(commit_round(settled(done.decision), 4, (0, 0, 25, 40)))
    assert later.removals == done.decision.removals
    back = settled(foreign(later, point("main", 1_001)))
    assert [removal.ranges for removal in back.removals] == [{0: (10, 40)}]


def test_hazard_21_rewind_forgets_rounds_that_main_lacks() -> None:
    """Answered as a repeat, their rows would be lost: the driver believes that they are in the table."""
    state = settled(rewind.rewind(rolled_back(), log(), (), NOW).decision)
    late = commit_round(state, 2, (0, 0, 10, 20), snapshot_id=2_000)
    assert late.repeated is None
    assert late.table.current_snapshot_id == 2_000
    with pytest.raises(errors.RangeRefused, match="continues at 10, not at 30"):
        commit_round(state, 4, (0, 0, 30, 40))


def test_hazard_21_rewind_to_another_snapshot_moves_main_with_it() -> None:
    state = settled(foreign(three_rounds(), point("main", 1_003, **{"max-ref-age-ms": 5})))
    done = rewind.rewind(state, log(), (), NOW, 1_002)
    assert done.decision.table.current_snapshot_id == 1_002
    assert done.decision.table.references["main"]["max-ref-age-ms"] == 5, "other fields of the branch stay"
    assert committed(done) == {0: 20}
    assert "main goes from snapshot 1003 to 1002" in done.preview.words()[0]


def test_hazard_21_main_cannot_be_moved_ahead_of_its_topic() -> None:
    """The pipeline would write the same offsets again."""
    state = settled(rewind.rewind(three_rounds(), log(), (), NOW, 1_001).decision)
    with pytest.raises(errors.TopicTableConflict, match="would be written again") as refused:
        foreign(state, point("main", 1_003))
    assert "rewind --snapshot" in refused.value.hint
    assert foreign(state, point("main", 1_003), is_forced=True).binding is None
    forward = rewind.rewind(state, log(), (), NOW, 1_003)
    assert committed(forward) == {0: 30}, "main and topic together may"
    assert removals(forward) == []


def test_hazard_21_rewind_to_a_snapshot_that_lacks_rows_is_a_loss() -> None:
    state = settled(commit_round(rolled_back(), 4, (0, 0, 30, 40)))
    state = settled(foreign(state, point("main", 1_003)))
    with pytest.raises(errors.TopicTableConflict, match="snapshot 1004 lacks rows: rollback of snapshot 1001"):
        rewind.rewind(state, log(), (), NOW, 1_004)
    done = rewind.rewind(state, log(), [Consent.GAP], NOW, 1_004)
    assert (committed(done), removals(done)) == ({0: 40}, [("rollback", {0: (10, 30)}, True)])


def test_hazard_21_rewind_marks_rows_deleted_by_others_as_suspect() -> None:
    state = settled(foreign(rolled_back(), *replacing(rolled_back(), 9, "delete", deleted_records="2")))
    done = rewind.rewind(state, log(), (), NOW)
    assert (committed(done), removals(done)) == ({0: 10}, [("delete", {0: (0, 10)}, False)])


def test_hazard_21_rewind_asks_for_consent_about_foreign_rows() -> None:
    state = settled(foreign(rolled_back(), *replacing(rolled_back(), 9, "append", added_records="2")))
    with pytest.raises(errors.TopicTableConflict, match="snapshot 9 added rows and is not a round") as refused:
        rewind.rewind(state, log(), (), NOW)
    assert "--accept-duplicates" in refused.value.hint
    assert committed(rewind.rewind(state, log(), [Consent.DUPLICATES], NOW)) == {0: 10}


def test_hazard_21_rewind_without_effect_changes_nothing() -> None:
    state = three_rounds()
    done = rewind.rewind(state, log(), (), NOW)
    assert (done.decision.table, done.decision.binding) == (state.table, state.binding)
    assert done.preview.words()[0] == "nothing to do: the table has every row that was committed"


def test_hazard_21_rewind_during_ingest_returns_to_before_the_hole() -> None:
    """Rounds went on behind a rollback: main holds 0..9 and 30..49, and the log still has the rest."""
    state = settled(commit_round(rolled_back(), 4, (0, 0, 30, 40)))
    state = settled(commit_round(state, 5, (0, 0, 40, 50)))
    done = rewind.rewind(state, log(), (), NOW)
    assert (committed(done), removals(done)) == ({0: 10}, [])
    assert done.decision.table.current_snapshot_id == 1_001
    assert done.preview.needed == frozenset()
    assert "shard 0: offsets 10 to 49 are written again from the log" in done.preview.words()
    partly = rewind.rewind(state, log(15), [Consent.GAP], NOW)
    assert (committed(partly), removals(partly)) == ({0: 15}, [("rewind", {0: (10, 15)}, True)])


def test_hazard_21_rewind_lists_offsets_the_log_cannot_restore() -> None:
    state = settled(commit_round(rolled_back(), 4, (0, 0, 30, 40)))
    done = rewind.rewind(state, log(30), (), NOW)
    assert (done.decision.table, done.decision.removals) == (state.table, state.removals)
    assert done.preview.words()[:2] == [
        "nothing to do: the log has none of the offsets that are known to be missing",
        "shard 0: offsets 10 to 29 stay missing (rollback, snapshot 1001): the log begins at 30",
    ]


def test_hazard_21_rewind_keeps_the_work_of_other_engines_by_default() -> None:
    state = settled(commit_round(rolled_back(), 4, (0, 0, 30, 40)))
    state = settled(foreign(state, *replacing(state, 8, "replace")))
    assert committed(rewind.rewind(state, log(), (), NOW)) == {0: 10}, "a compaction changes no rows"
    state = settled(foreign(state, *replacing(state, 9, "delete", deleted_records="2")))
    with pytest.raises(errors.TopicTableConflict, match="undoes delete 9 of another engine") as refused:
        rewind.rewind(state, log(), BOTH, NOW)
    assert "--snapshot 1001" in refused.value.hint
    assert committed(rewind.rewind(state, log(), (), NOW, 1_001)) == {0: 10}


def test_hazard_21_rewind_that_removes_added_rows_needs_consent() -> None:
    state = settled(foreign(three_rounds(), *replacing(three_rounds(), 9, "append", added_records="2")))
    with pytest.raises(errors.TopicTableConflict, match="rows that snapshot 9 added are undone") as refused:
        rewind.rewind(state, log(), (), NOW, 1_003)
    assert "--accept-gap" in refused.value.hint
    assert committed(rewind.rewind(state, log(), [Consent.GAP], NOW, 1_003)) == {0: 30}


def test_hazard_21_rewind_reports_that_the_snapshot_before_the_hole_has_expired() -> None:
    state = settled(commit_round(rolled_back(), 4, (0, 0, 30, 40)))
    state = settled(foreign(state, {"action": "remove-snapshots", "snapshot-ids": [1_001]}))
    with pytest.raises(errors.TopicTableConflict, match=r"from offset 10 on .* the snapshot before them has expired"):
        rewind.rewind(state, log(), BOTH, NOW)


def test_hazard_21_a_cherry_picked_round_is_no_longer_missing() -> None:
    """Main holds 0..9; the round of 20..29 is picked, and the offsets between are still missing."""
    picked = replacing(rolled_back(), 9, "append", added_records="10", source_snapshot_id="1003")
    state = settled(foreign(rolled_back(), *picked))
    assert [(removal.ranges, removal.is_exact) for removal in state.removals] == [({0: (10, 20)}, True)]
    back = rewind.rewind(state, log(), (), NOW)
    assert (committed(back), back.decision.table.current_snapshot_id) == ({0: 10}, 1_001), "picked rows come once"
    between = replacing(rolled_back(), 9, "append", added_records="10", source_snapshot_id="1002")
    assert [removal.ranges for removal in foreign(rolled_back(), *between).removals] == [{0: (20, 30)}]


def test_hazard_21_a_round_ahead_of_its_topic_cannot_be_cherry_picked() -> None:
    state = settled(rewind.rewind(rolled_back(), log(), (), NOW).decision)
    with pytest.raises(
        errors.TopicTableConflict, match="up to 20, but the topic is at 10: they would be written again"
    ):
        foreign(state, *replacing(state, 9, "append", added_records="10", source_snapshot_id="1002"))


def test_hazard_21_foreign_rows_make_a_removal_inexact() -> None:
    state = settled(foreign(rolled_back(), *replacing(rolled_back(), 9, "append", added_records="2")))
    assert [(removal.ranges, removal.is_exact, removal.rows) for removal in state.removals] == [
        ({0: (10, 30)}, False, 20)
    ]


def test_hazard_21_removals_put_together_name_their_operations() -> None:
    state = settled(foreign(three_rounds(), *replacing(three_rounds(), 8, "delete", deleted_records="2")))
    state = settled(foreign(state, *replacing(state, 9, "overwrite", deleted_records="3")))
    assert [removal.words for removal in state.removals] == ["delete and overwrite, one of the snapshots 8 to 9"]


def test_hazard_21_merged_deletes_are_not_attributed_to_the_last_one() -> None:
    state = three_rounds()
    for number in (7, 8, 9):
        state = settled(foreign(state, *replacing(state, number, "delete", deleted_records="2")))
        assert state.removals[-1].words == (
            "delete, snapshot 7" if number == 7 else f"delete, one of the snapshots 7 to {number}"
        )
    assert (state.removals[0].rows, state.removals[0].first_snapshot_id) == (6, 7)


def test_hazard_21_removals_that_earlier_releases_put_together_name_the_last_snapshot() -> None:
    before = msgspec.json.decode(b'["delete and overwrite", 8, 5, {"0": [0, 9]}, false, 2]', type=Removal)
    assert before.words == "delete and overwrite, the last of them snapshot 8"
    after = bounded((before, Removal("delete", 9, 6, {0: (0, 9)}, False, 1)))
    assert [removal.words for removal in after] == ["delete and overwrite, the last of them snapshot 9"]


def test_hazard_21_rewind_after_a_delete_reports_unknown_offsets_as_unknown() -> None:
    deleted = settled(foreign(three_rounds(), *replacing(three_rounds(), 9, "delete", deleted_records="2")))
    words = rewind.rewind(deleted, log(), (), NOW).preview.words()
    assert words[:2] == [
        "nothing to do: which offsets were deleted is not known, and so neither whether the log has them",
        "shard 0: up to 2 of offsets 0 to 29 stay missing (delete, snapshot 9): `icestream lake rewind --snapshot` "
        "goes back to before it",
    ]
    without_log = rewind.rewind(deleted, log(30), (), NOW).preview.words()
    assert without_log[0] == "nothing to do: the log has none of the offsets that may be missing"


def test_hazard_21_rewind_needs_a_history() -> None:
    state = settled(foreign(three_rounds(), *replacing(three_rounds(), 9, "replace")))
    state = settled(foreign(state, {"action": "remove-snapshots", "snapshot-ids": [1_001, 1_002, 1_003]}))
    with pytest.raises(errors.TopicTableConflict, match="history of snapshot 9 is cut off"):
        rewind.rewind(state, log(), BOTH, NOW)
    with pytest.raises(errors.InvalidInput, match="no snapshot 1001"):
        rewind.rewind(state, log(), BOTH, NOW, 1_001)
    with pytest.raises(errors.TopicTableConflict, match="does not belong to a topic"):
        rewind.rewind(parted(), log(), BOTH, NOW)
    with pytest.raises(errors.TopicTableConflict, match=r"belongs to a deleted topic /default/orders \(id \d+\)"):
        rewind.rewind(three_rounds(), log(topic_id=99), BOTH, NOW)


def test_hazard_21_rewind_over_a_change_of_owners() -> None:
    """Offsets that the former owner's run had committed stay known up to the new position."""
    state = rolled_back()
    done = rewind.rewind(state, log(4_096, 5_000, epoch=3), [Consent.GAP], NOW)
    assert done.decision.binding is not None
    assert done.decision.binding.runs[0] == (OffsetRun(0, 0, 30, True), OffsetRun(3, 4_096, 4_096))
    with pytest.raises(errors.InvalidInput, match="epoch 3 cannot resume under epoch 2"):
        rewind.rewind(settled(done.decision), log(0, 5_000, epoch=2), BOTH, NOW, 1_001)


# --- adopt ------------------------------------------------------------------------------------------------------------


def test_hazard_21_adopt_continues_where_the_last_round_ended() -> None:
    done = adopt.adopt(parted(), log(20), FormerTable({0: 30}, 7), (), NOW)
    assert (committed(done), removals(done)) == ({0: 30}, [])
    assert done.decision.binding is not None
    assert done.decision.binding.pipeline_epoch == 7
    with pytest.raises(errors.RangeRefused, match="pipeline epoch 5"):
        commit_round(settled(done.decision), 4, (0, 0, 30, 40))
    assert settled(commit_round(settled(done.decision), 4, (0, 0, 30, 40), lease=8)).removals == ()


def test_hazard_21_adopt_works_after_a_rollback_of_a_detached_table() -> None:
    state = settled(foreign(parted(), point("main", 1_002)))
    done = adopt.adopt(state, log(20), FormerTable({0: 30}, 0), (), NOW)
    assert done.preview.shards == (ShardPreview(0, 20, 20, 30, 50),)
    with pytest.raises(errors.TopicTableConflict, match="offsets 20 to 24"):
        adopt.adopt(state, log(25), NO_FORMER_TABLE, (), NOW)
    assert removals(adopt.adopt(state, log(25), NO_FORMER_TABLE, [Consent.GAP], NOW)) == [
        ("adopt", {0: (20, 25)}, True)
    ]


def test_hazard_21_adopt_refuses_a_table_without_positions() -> None:
    strange = TableState(commit_to(table(schema=ENVELOPE), add(snapshot(1)), point("main", 1)), FILE)
    with pytest.raises(errors.TopicTableConflict, match="no snapshot in the history") as refused:
        adopt.adopt(strange, log(), NO_FORMER_TABLE, BOTH, NOW)
    assert "--position SHARD=OFFSET" in refused.value.hint
    with pytest.raises(errors.TopicTableConflict, match="no snapshot in the history"):
        adopt.adopt(parted(), log(topic_id=99), NO_FORMER_TABLE, BOTH, NOW)


def test_hazard_21_positions_given_by_an_operator_leave_all_rows_suspect() -> None:
    strange = TableState(commit_to(table(schema=ENVELOPE), add(snapshot(1)), point("main", 1)), FILE)
    with pytest.raises(errors.TopicTableConflict, match="no snapshot confirms them"):
        adopt.adopt(strange, log(20), NO_FORMER_TABLE, [Consent.GAP], NOW, {0: 30})
    done = adopt.adopt(strange, log(20), NO_FORMER_TABLE, [Consent.DUPLICATES], NOW, {0: 30})
    assert (committed(done), removals(done)) == ({0: 30}, [("adopt", {0: (0, 30)}, False)])
    later = settled(commit_round(settled(done.decision), 4, (0, 0, 30, 40)))
    back = settled(foreign(later, point("main", 1)))
    assert [(removal.ranges, removal.is_exact) for removal in back.removals] == [
        ({0: (30, 40)}, True),
        ({0: (0, 30)}, False),
    ]


def test_hazard_21_adopt_refuses_other_messages_under_the_same_numbers() -> None:
    with pytest.raises(errors.InvalidInput, match="up to 30, but the log of the topic ends at 12"):
        adopt.adopt(parted(), log(0, 12), NO_FORMER_TABLE, BOTH, NOW)
    with pytest.raises(errors.InvalidInput, match="holds shard 3"):
        adopt.adopt(parted(), log(), NO_FORMER_TABLE, BOTH, NOW, {3: 1})


def test_hazard_21_adopt_and_bind_accept_free_and_compatible_tables() -> None:
    empty = TableState(table(schema=ENVELOPE), FILE)
    with pytest.raises(errors.TopicTableConflict, match="has no rows"):
        adopt.adopt(empty, log(), NO_FORMER_TABLE, BOTH, NOW)
    with pytest.raises(errors.TopicTableConflict, match="the table has rows"):
        bind.begin(parted(), log(), NO_FORMER_TABLE, BOTH, NOW)
    for take in (adopt.adopt, bind.begin):
        with pytest.raises(errors.AlreadyExists, match="belongs to topic"):
            take(three_rounds(), log(), NO_FORMER_TABLE, BOTH, NOW)
        with pytest.raises(errors.InvalidInput, match="no column shard"):
            take(TableState(table(), FILE), log(), NO_FORMER_TABLE, BOTH, NOW)


# --- bind, recreate ---------------------------------------------------------------------------------------------------


def begun(topic_log: TopicLog, consents: Collection[Consent]) -> Rebinding:
    return bind.begin(TableState(table(schema=ENVELOPE), FILE), topic_log, FormerTable({0: 30}, 0), consents, NOW)


def recreated(topic_log: TopicLog, consents: Collection[Consent]) -> Rebinding:
    return recreate.recreate(topic_log, FormerTable({0: 30}, 0), consents, LOCATION, UUID, NOW)


@pytest.mark.parametrize("make", [begun, recreated])
def test_hazard_21_a_fresh_table_gets_the_offsets_of_the_log_and_declares_the_rest(make: Any) -> None:
    done = make(log(0), ())
    assert (committed(done), removals(done)) == ({0: 0}, [])
    with pytest.raises(errors.TopicTableConflict, match="offsets 0 to 19 of shard 0"):
        make(log(20), ())
    done = make(log(20), [Consent.GAP])
    assert (committed(done), [removal[1:] for removal in removals(done)]) == ({0: 20}, [({0: (0, 20)}, True)])
    later = settled(commit_round(settled(done.decision), 4, (0, 0, 20, 40)))
    assert '"0":[0,20]' in later.table.snapshots[-1]["summary"]["icestream.removed"]


def test_hazard_21_a_fresh_table_has_the_envelope_in_its_order() -> None:
    fields = recreated(log(), ()).decision.table.current_schema["fields"]
    assert [field["name"] for field in fields[:6]] == [
        "shard",
        "offset",
        "publish_time",
        "append_time",
        "key",
        "payload",
    ]
    assert [field["name"] for field in fields if field["required"]] == ["shard", "offset"]
    (headers,) = (field["type"] for field in fields if field["name"] == "headers")
    ids = [field["id"] for field in fields] + [headers["key-id"], headers["value-id"]]
    assert sorted(ids) == [*range(1, len(ids) + 1)]


@pytest.mark.parametrize(
    "shard_log", [ShardLog(-1, 0, 1), ShardLog(0, 5, 4), ShardLog(0, -1, 4), ShardLog(0, 0, 2**63)]
)
def test_an_impossible_log_is_refused(shard_log: ShardLog) -> None:
    with pytest.raises(errors.InvalidInput, match="invalid shard log"):
        recreated(TopicLog(TOPIC, TOPIC_ID, {0: shard_log}), BOTH)
