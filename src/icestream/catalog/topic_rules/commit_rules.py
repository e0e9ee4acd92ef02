"""Decides the next version of a table for a commit: Iceberg's rules, and those of topics. Pure.

1. The claim of a round (claim.py) is checked against the binding (claim_check.py). A repeat ends here: nothing changes.
2. The requirements of the protocol must hold.
3. The updates are applied. Snapshot and properties of a round get what the server writes (topic_properties.py).
4. A round may only append to main. A foreign commit to a topic's table is checked by foreign_changes.py, and what it
   removes from main is recorded.

In a transaction each table is judged by itself: repeats change nothing; a conflict refuses all tables and names those
in conflict.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from icestream import errors
from icestream.catalog.topic_rules import foreign_changes, topic_properties
from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.claim import CLAIM_TYPE, RoundClaim, read_claim
from icestream.catalog.topic_rules.claim_check import Accepted, Repeated, check_claim, range_refused
from icestream.catalog.topic_rules.removal import Removals
from icestream.catalog.topic_rules.snapshot_progress import check_not_ahead, removals_after_commit
from icestream.iceberg import requirements as requirement
from icestream.iceberg import snapshots, table_commit, values
from icestream.iceberg import updates as update
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object

Name = TypeVar("Name", bound=Hashable)


class TableState(NamedTuple):
    """The table that a commit is judged against, with its record."""

    table: TableMetadata
    location: str  # of its metadata file
    binding: Binding | None = None
    removals: Removals = ()


class CommitRequest(NamedTuple):
    requirements: Sequence[Object]
    updates: Sequence[Object]
    is_forced: bool = False


class CommitDecision(NamedTuple):
    """The table after a commit. The same table object as before: there is no metadata file to write."""

    table: TableMetadata
    binding: Binding | None
    removals: Removals
    repeated: int | None = None  # the snapshot of the round that was committed before
    is_round: bool = False  # the pipeline synced its files


def judge_commit(state: TableState, request: CommitRequest, lease_epoch: int | None, now_ms: int) -> CommitDecision:
    """Decides about a commit to one table. `lease_epoch`: of the driver that has the lease now.

    Raises CommitConflict, RangeRefused, TopicTableConflict and InvalidInput.
    """
    table_commit.check_size(request.requirements, request.updates)
    claims = [entry for entry in request.requirements if requirement.kind(entry) == CLAIM_TYPE]
    others = [entry for entry in request.requirements if requirement.kind(entry) != CLAIM_TYPE]
    if len(claims) > 1:
        raise errors.InvalidInput(f"a commit has at most one {CLAIM_TYPE}, got {len(claims)}")
    if claims:
        return _judge_round(state, read_claim(claims[0]), others, request.updates, lease_epoch, now_ms)
    table_commit.check_requirements(state.table, others)
    is_bound = state.binding is not None
    topic_properties.check_untouched(request.updates, state.table.properties, is_bound)
    after = table_commit.apply_updates(state.table, state.location, request.updates, now_ms)
    return _judge_foreign(state, after, request, now_ms)


# --- rounds -----------------------------------------------------------------------------------------------------------


def _judge_round(
    state: TableState,
    claim: RoundClaim,
    others: Sequence[Object],
    updates: Sequence[Object],
    lease_epoch: int | None,
    now_ms: int,
) -> CommitDecision:
    if state.binding is None:
        raise range_refused(None, "not_bound", "the table does not belong to a topic")
    verdict = check_claim(state.binding, claim, lease_epoch)
    if isinstance(verdict, Repeated):
        return CommitDecision(state.table, state.binding, state.removals, verdict.snapshot_id, True)
    table_commit.check_requirements(state.table, others)
    topic_properties.check_untouched(updates, state.table.properties, is_bound=True)
    binding, written = _written_by_server(state, verdict, claim, updates)
    after = table_commit.apply_updates(state.table, state.location, written, now_ms)
    _check_appends(state.table, after, binding.rounds[-1].snapshot_id)
    if (objection := foreign_changes.objection(state.table, after, updates)) is not None:
        raise objection
    return CommitDecision(after, binding, state.removals, None, True)


def _written_by_server(
    state: TableState, verdict: Accepted, claim: RoundClaim, updates: Sequence[Object]
) -> tuple[Binding, list[Object]]:
    """The binding after the round, and the updates of the round with the summary and properties that the server
    adds."""
    assert state.binding is not None
    added = [table_update for table_update in updates if update.action(table_update) == "add-snapshot"]
    if len(added) != 1:
        raise errors.InvalidInput(f"a round must add exactly one snapshot, got {len(added)}")
    snapshot = values.as_object(values.required(added[0], "snapshot"), "snapshot")
    binding = verdict.binding(state.binding, claim, values.long(snapshot, "snapshot-id"))
    offsets = {table_update.shard: (table_update.start, table_update.end) for table_update in claim.ranges}
    summary = values.optional_text_map(snapshot, "summary") | topic_properties.summary(binding, offsets, state.removals)
    amended = {"action": "add-snapshot", "snapshot": {**snapshot, "summary": summary}}
    amended_updates = [amended if table_update is added[0] else table_update for table_update in updates]
    return binding, [*amended_updates, *topic_properties.set_written(state.table.properties, binding)]


def _check_appends(before: TableMetadata, after: TableMetadata, snapshot_id: int) -> None:
    """Raises InvalidInput unless the round's snapshot appends to main; CommitConflict if main has changed."""
    added = after.snapshots.find(snapshot_id)
    if after.current_snapshot_id != snapshot_id or added is None:
        raise errors.InvalidInput("a round must set main to the snapshot that it adds")
    if snapshots.operation(added) != "append":
        raise errors.InvalidInput(f"a round must append, got a snapshot with operation {snapshots.operation(added)}")
    if added.get("parent-snapshot-id") != before.current_snapshot_id:
        raise errors.CommitConflict(
            f"Requirement failed: branch main has changed: expected id {added.get('parent-snapshot-id')} "
            f"!= {before.current_snapshot_id}"
        )


# --- other engines ----------------------------------------------------------------------------------------------------


def _judge_foreign(state: TableState, after: TableMetadata, request: CommitRequest, now_ms: int) -> CommitDecision:
    if state.binding is None:
        return CommitDecision(after, None, state.removals)
    objection = foreign_changes.objection(state.table, after, request.updates)
    if objection is None:
        objection = check_not_ahead(state.table, after, state.binding)
    if objection is None:
        removals = removals_after_commit(state.removals, state.table, after, state.binding, now_ms)
        return CommitDecision(after, state.binding, removals)
    if not request.is_forced:
        raise objection
    detaching = [*request.updates, *topic_properties.set_written(after.properties, None)]
    return CommitDecision(table_commit.apply_updates(state.table, state.location, detaching, now_ms), None, ())


# --- transactions -----------------------------------------------------------------------------------------------------


def judge_transaction(
    commits: Mapping[Name, tuple[TableState, CommitRequest]], lease_epoch: int | None, now_ms: int
) -> dict[Name, CommitDecision]:
    """Decides about all tables of a transaction, by name. Raises a CommitConflict that names every table in
    conflict."""
    decisions: dict[Name, CommitDecision] = {}
    conflicts: dict[Name, errors.CommitConflict] = {}
    for name, (state, request) in commits.items():
        try:
            decisions[name] = judge_commit(state, request, lease_epoch, now_ms)
        except errors.CommitConflict as conflict:
            conflicts[name] = conflict
        except errors.InvalidInput as mistake:
            raise type(mistake)(f"{name}: {mistake.message}", hint=mistake.hint) from None
    if conflicts:
        raise conflict_of(conflicts)
    return decisions


def conflict_of(conflicts: Mapping[Name, errors.CommitConflict]) -> errors.CommitConflict:
    details = [
        {"table": str(name), "message": conflict.message, **conflict.details} for name, conflict in conflicts.items()
    ]
    first = next(iter(conflicts.values()))
    names = ", ".join(str(name) for name in conflicts)
    return errors.CommitConflict(
        f"{first.message} (tables in conflict: {names})",
        hint="leave these tables out and send the others again",
        details={"tables": details},
    )
