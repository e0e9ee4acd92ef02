"""Decides the next version of a table for a commit: Iceberg's rules, and those of topics. Pure.

1. The claim of a round (claim.py) or rewrite (rewrite.py) is checked against the binding (claim_check.py). A repeat
   ends here: nothing changes.
2. The requirements of the protocol must hold.
3. The updates are applied. Snapshot and properties of a round or rewrite get what the server writes
   (topic_properties.py).
4. A round may only append to main. A rewrite may only replace files by others with the same rows (rewrite_check.py). A
   retention may only remove files below the first kept offsets, which rise with it (retention_claim.py). An erasure may
   only leave out rows that the record of erased offsets counts with it (erase_claim.py); a rewrite of history does the
   same to snapshots that are there, and adds none (history_claim.py). A foreign commit to a topic's table is checked by
   foreign_changes.py, and what it removes from main is recorded.

In a transaction each table is judged by itself: repeats change nothing; a conflict refuses all tables and names those
in conflict.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from icestream import errors
from icestream.catalog.topic_rules import foreign_changes, topic_properties
from icestream.catalog.topic_rules.binding import Binding, CommittedRound, with_rewrite
from icestream.catalog.topic_rules.claim import CLAIM_TYPE, RoundClaim, read_claim
from icestream.catalog.topic_rules.claim_check import Repeated, check_claim, check_driver, range_refused
from icestream.catalog.topic_rules.erase_claim import EraseClaim, check_erase
from icestream.catalog.topic_rules.erased_record import ErasedRecord
from icestream.catalog.topic_rules.history_claim import HistoryClaim, check_history
from icestream.catalog.topic_rules.job_claim import JobClaim, read_job
from icestream.catalog.topic_rules.removal import Removals
from icestream.catalog.topic_rules.retention_claim import RetentionClaim, check_retention
from icestream.catalog.topic_rules.rewrite import JOB_TYPE, RewriteClaim
from icestream.catalog.topic_rules.rewrite_check import check_files
from icestream.catalog.topic_rules.rewritten_rows import FileChanges
from icestream.catalog.topic_rules.snapshot_progress import check_not_ahead, removals_after_commit
from icestream.iceberg import requirements as requirement
from icestream.iceberg import snapshots, table_commit, values
from icestream.iceberg import updates as update
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object

Name = TypeVar("Name", bound=Hashable)
_PIPELINE_TYPES: Final = frozenset((CLAIM_TYPE, JOB_TYPE))
_OPERATIONS: Final = {RewriteClaim: "replace", RetentionClaim: "delete", EraseClaim: "overwrite"}
# By the operation of their snapshots.
_SUBJECTS: Final = {"append": "a round", "replace": "a rewrite", "delete": "a retention", "overwrite": "an erasure"}


class TableState(NamedTuple):
    """The table that a commit is judged against, with its record."""

    table: TableMetadata
    location: str  # of its metadata file
    binding: Binding | None = None
    removals: Removals = ()
    first: Mapping[int, int] = MappingProxyType({})  # the first kept offsets of the topic; read for a retention alone
    consumers: int = 0  # the consumer generation of the topic; read for a retention alone
    erased: ErasedRecord | None = None  # the erased offsets of the topic; read for an erasure alone


class CommitRequest(NamedTuple):
    """A commit to one table. `is_forced`: the client accepts that the table is detached from its topic."""

    requirements: Sequence[Object]
    updates: Sequence[Object]
    is_forced: bool = False
    # Of a job: read by the catalog, never sent by a client.
    file_changes: FileChanges | None = None
    history_changes: Mapping[int, FileChanges] | None = None  # of a rewrite of history, by snapshot


class CommitDecision(NamedTuple):
    """The table after a commit. The same table object as before: there is no metadata file to write."""

    table: TableMetadata
    binding: Binding | None
    removals: Removals
    repeated: int | None = None  # the snapshot of the round or rewrite that was committed before
    is_round: bool = False  # a commit of the pipeline: it synced its files, and its lease is compared
    first: Mapping[int, int] | None = None  # of a retention: the first kept offsets after it
    consumers: int | None = None  # of a retention for which acks matter: the consumer generation that must be in force
    erased: ErasedRecord | None = None  # of an erasure: the erased offsets of the topic after it


def pipeline_claims(requirements: Iterable[Object]) -> list[Object]:
    """The requirements by which the pipeline commits: at most one of a commit that is accepted."""
    return [entry for entry in requirements if requirement.kind(entry) in _PIPELINE_TYPES]


def judge_commit(state: TableState, request: CommitRequest, lease_epoch: int | None, now_ms: int) -> CommitDecision:
    """Decides about a commit to one table. `lease_epoch`: of the driver that has the lease now.

    Raises CommitConflict, RangeRefused, TopicTableConflict and InvalidInput.
    """
    table_commit.check_size(request.requirements, request.updates)
    claims = pipeline_claims(request.requirements)
    if len(claims) > 1:
        kinds = " or ".join(sorted({requirement.kind(entry) for entry in claims}))
        raise errors.InvalidInput(
            f"a commit has at most one {kinds}, got {len(claims)}", hint="it either adds offsets or replaces files"
        )
    if not claims:
        table_commit.check_requirements(state.table, request.requirements)
        is_bound = state.binding is not None
        topic_properties.check_untouched(request.updates, state.table.properties, is_bound)
        after = table_commit.apply_updates(state.table, state.location, request.updates, now_ms)
        return _judge_foreign(state, after, request, now_ms)
    others = [entry for entry in request.requirements if entry is not claims[0]]
    if requirement.kind(claims[0]) == JOB_TYPE:
        return _judge_job(state, read_job(claims[0]), others, request, lease_epoch, now_ms)
    return _judge_round(state, read_claim(claims[0]), others, request.updates, lease_epoch, now_ms)


# --- commits of the pipeline ------------------------------------------------------------------------------------------


def _judge_round(
    state: TableState,
    claim: RoundClaim,
    others: Sequence[Object],
    updates: Sequence[Object],
    lease_epoch: int | None,
    now_ms: int,
) -> CommitDecision:
    """Decides about the commit of a round. Raises RangeRefused, CommitConflict, TopicTableConflict, InvalidInput."""
    if state.binding is None:
        raise _not_bound()
    # The claim comes first: a repeat of a committed round is answered as done, although its other requirements no
    # longer hold, since main has moved on with the first copy.
    verdict = check_claim(state.binding, claim, lease_epoch)
    if isinstance(verdict, Repeated):
        return CommitDecision(state.table, state.binding, state.removals, verdict.snapshot_id, True)
    table_commit.check_requirements(state.table, others)
    topic_properties.check_untouched(updates, state.table.properties, is_bound=True)
    binding = verdict.binding(state.binding, claim, _added_snapshot_id(updates))
    offsets = {claimed.shard: (claimed.start, claimed.end) for claimed in claim.ranges}
    summary = topic_properties.summary(binding, offsets, state.removals)
    return _apply(state, binding, summary, "append", updates, now_ms)


def reads_files(state: TableState, request: CommitRequest, lease_epoch: int | None) -> bool:
    """True if the decision about a commit depends on what it changes in files: for a job that is built on main,
    unless it is a repeat or is refused for its driver. The manifests of such a job may be gone: merged into others
    since it landed, or removed by the driver that took over."""
    claims = [entry for entry in request.requirements if requirement.kind(entry) == JOB_TYPE]
    if len(claims) != 1 or state.binding is None:
        return False
    claim = read_job(claims[0])
    try:
        is_repeat = check_driver(state.binding, claim, lease_epoch) is not None
    except errors.RangeRefused:
        return False  # `judge_commit` raises it
    if isinstance(claim, HistoryClaim):
        return not is_repeat
    parent_id = added_snapshot(request.updates).get("parent-snapshot-id")
    return not is_repeat and parent_id is not None and parent_id == state.table.current_snapshot_id


def retained_topic(requirements: Iterable[Object]) -> int | None:
    """The id of the topic whose first kept offsets decide about a commit; None if it is no retention."""
    return next((job.topic_id for job in _jobs(requirements) if isinstance(job, RetentionClaim)), None)


def erased_topic(requirements: Iterable[Object]) -> int | None:
    """The id of the topic whose erased offsets decide about a commit; None if it is no erasure."""
    return next((job.topic_id for job in _jobs(requirements) if isinstance(job, EraseClaim | HistoryClaim)), None)


def rewritten_snapshots(requirements: Iterable[Object]) -> Sequence[Object] | None:
    """The snapshots of a rewrite of history, as they are after it; None for any other commit."""
    return next((job.snapshots for job in _jobs(requirements) if isinstance(job, HistoryClaim)), None)


def _jobs(requirements: Iterable[Object]) -> list[JobClaim]:
    return [read_job(entry) for entry in requirements if requirement.kind(entry) == JOB_TYPE]


def _judge_job(
    state: TableState,
    claim: JobClaim,
    others: Sequence[Object],
    request: CommitRequest,
    lease_epoch: int | None,
    now_ms: int,
) -> CommitDecision:
    """Decides about a rewrite, a retention or an erasure. The committed offsets and the removals stay as they are."""
    if state.binding is None:
        raise _not_bound()
    if (repeated := check_driver(state.binding, claim, lease_epoch)) is not None:
        return CommitDecision(state.table, state.binding, state.removals, repeated.snapshot_id, True)
    table_commit.check_requirements(state.table, others)
    topic_properties.check_untouched(request.updates, state.table.properties, is_bound=True)
    if isinstance(claim, HistoryClaim):
        return _judge_history(state, claim, request, now_ms)
    snapshot_id = _added_snapshot_id(request.updates)
    binding = with_rewrite(state.binding, claim.pipeline_epoch, CommittedRound(claim.round_id, snapshot_id, claim.sum))
    summary = topic_properties.job_summary(binding, state.removals, claim)
    decision = _apply(state, binding, summary, _OPERATIONS[type(claim)], request.updates, now_ms)
    # Last: `_apply` has made sure that the snapshot is built on main, and the changes are those from main to it.
    if request.file_changes is None:
        raise errors.InvalidInput("the commit of a job needs a manifest list in its snapshot and in the one before it")
    if isinstance(claim, RetentionClaim):
        first = check_retention(claim, request.file_changes, state.binding, state.first, state.consumers)
        return decision._replace(first=first, consumers=claim.consumers)
    if isinstance(claim, EraseClaim):
        erased = check_erase(claim, request.file_changes, state.binding, state.erased, now_ms)
        return decision._replace(erased=erased.swept(decision.table.fields["last-sequence-number"]))
    check_files(claim, request.file_changes, state.binding)
    return decision


def _judge_history(state: TableState, claim: HistoryClaim, request: CommitRequest, now_ms: int) -> CommitDecision:
    """Decides about a rewrite of history, whose driver may commit."""
    assert state.binding is not None
    if request.updates:
        raise errors.InvalidInput("a rewrite of history has no updates")
    if request.history_changes is None:
        raise errors.InvalidInput("a rewrite of history needs manifest lists")
    erased = check_history(claim, state.table, request.history_changes, state.binding, state.erased, now_ms)
    committed = CommittedRound(claim.round_id, state.table.current_snapshot_id or 0, claim.sum)
    binding = with_rewrite(state.binding, claim.pipeline_epoch, committed)
    updates = topic_properties.set_written(state.table.properties, binding)
    after = table_commit.replace_snapshots(state.table, state.location, claim.snapshots, updates, now_ms)
    return CommitDecision(after, binding, state.removals, None, True, erased=erased)


def _not_bound() -> errors.RangeRefused:
    return range_refused(None, "not_bound", "the table does not belong to a topic")


def added_snapshot(updates: Sequence[Object]) -> Object:
    """The snapshot that a commit of the pipeline adds. Raises InvalidInput unless it adds exactly one."""
    added = [table_update for table_update in updates if update.action(table_update) == "add-snapshot"]
    if len(added) != 1:
        raise errors.InvalidInput(f"a round or rewrite must add exactly one snapshot, got {len(added)}")
    return values.as_object(values.required(added[0], "snapshot"), "snapshot")


def _added_snapshot_id(updates: Sequence[Object]) -> int:
    return values.long(added_snapshot(updates), "snapshot-id")


def _apply(
    state: TableState,
    binding: Binding,
    reserved_summary: Mapping[str, str],
    operation: str,
    updates: Sequence[Object],
    now_ms: int,
) -> CommitDecision:
    """The decision to apply a commit of the pipeline, with the summary and the properties that the server adds. Raises
    InvalidInput unless its snapshot has this operation and becomes main; CommitConflict if main has changed."""
    snapshot = added_snapshot(updates)
    summary = values.optional_text_map(snapshot, "summary") | dict(reserved_summary)
    amended = {"action": "add-snapshot", "snapshot": {**snapshot, "summary": summary}}
    written = [
        *(amended if update.action(table_update) == "add-snapshot" else table_update for table_update in updates),
        *topic_properties.set_written(state.table.properties, binding),
    ]
    after = table_commit.apply_updates(state.table, state.location, written, now_ms)
    _check_extends_main(state.table, after, _added_snapshot_id(updates), operation)
    if (objection := foreign_changes.objection(state.table, after, updates)) is not None:
        raise objection
    return CommitDecision(after, binding, state.removals, None, True)


def _check_extends_main(before: TableMetadata, after: TableMetadata, snapshot_id: int, operation: str) -> None:
    """Raises InvalidInput unless the snapshot has this operation and is main; CommitConflict unless its parent was main
    before. The protocol lets a commit leave out the requirement about main; a round or rewrite may not."""
    added = after.snapshots.find(snapshot_id)
    if after.current_snapshot_id != snapshot_id or added is None:
        raise errors.InvalidInput("a round or rewrite must set main to the snapshot that it adds")
    if snapshots.operation(added) != operation:
        raise errors.InvalidInput(
            f"{_SUBJECTS[operation]} must {operation}, got a snapshot with operation {snapshots.operation(added)}"
        )
    # A snapshot built on another one would drop the rows that were committed in between.
    if added.get("parent-snapshot-id") != before.current_snapshot_id:
        raise errors.CommitConflict(
            f"Requirement failed: branch main has changed: expected id {added.get('parent-snapshot-id')} "
            f"!= {before.current_snapshot_id}"
        )


# --- other engines ----------------------------------------------------------------------------------------------------


def _judge_foreign(state: TableState, after: TableMetadata, request: CommitRequest, now_ms: int) -> CommitDecision:
    """Decides about the commit of another engine. A forced one that the topic cannot live with detaches the table."""
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
    # A forced commit is the operator's will, but the offsets can no longer be vouched for: the table leaves its topic.
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
    """Returns one conflict that names every table in conflict, so that the client can send the others again."""
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
