"""Plans commits: the pointers of one or several tables, with everything that must still hold when they are swapped.
Pure.

A round compares the lease of its driver in the same transaction (hazard 10): by value, because a driver that renews its
lease writes the same value again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from icestream import errors, limits
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import (
    BoundRecord,
    DetachedRecord,
    LeaseRecord,
    RetainedRecord,
    RetiredFilesRecord,
    TableRecord,
    TopicTableRecord,
)
from icestream.catalog.plans import relation_plans
from icestream.catalog.plans.planned_transaction import PlannedTransaction
from icestream.catalog.plans.snapshot_mark_plans import MarkWrites
from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.commit_rules import CommitDecision
from icestream.catalog.topic_rules.erased_record import ErasedRecord
from icestream.catalog.topic_rules.rebinding import NO_FORMER_TABLE, FormerTable
from icestream.iceberg import metadata_file
from icestream.iceberg.identifier import Identifier, Namespace, join_levels
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry


class RetainedChange(NamedTuple):
    """The first kept offsets of a topic after a retention."""

    topic_id: int
    first: Mapping[int, int]
    before: Entry | None  # None: nothing was removed so far
    consumers: int | None = None  # the consumer generation that must be in force; None: acks did not matter


class ErasedRecordChange(NamedTuple):
    """The erased offsets of a topic after an erasure."""

    topic_id: int
    record: ErasedRecord
    before: Entry | None  # None: nothing was erased so far


class PlannedChange(NamedTuple):
    """One table of a commit, judged, with its new metadata file on disk."""

    identifier: Identifier
    before: Entry | None  # None: the table is created
    record: TableRecord  # the new one
    old_binding: Binding | None
    is_round: bool
    namespace: Entry | None = None  # of a table that is created
    retained: RetainedChange | None = None
    erased: ErasedRecordChange | None = None


def record_of(
    decision: CommitDecision,
    uuid: str,
    location: str,
    version: int,
    former: TableRecord | None = None,
    *,
    adds_foreign_files: bool = False,
) -> TableRecord:
    """The record of a table after a commit. `former`: before it; None: the table is created. `adds_foreign_files`:
    the commit adds a snapshot that another writer has made."""
    elsewhere = metadata_file.places_elsewhere(decision.table.location, decision.table.properties)
    is_registered, former_topic, is_pipeline_only = False, "", not adds_foreign_files
    if former is not None:
        is_registered = former.is_registered
        is_pipeline_only = former.is_pipeline_only and not adds_foreign_files
        former_topic = former.binding.topic if former.binding is not None else former.former_topic
    if decision.binding is not None:
        former_topic = ""
    return TableRecord(
        uuid,
        location,
        version,
        decision.binding,
        decision.removals,
        is_registered,
        elsewhere,
        is_pipeline_only,
        former_topic,
    )


class DriverLeaseEntry(NamedTuple):
    """The lease of the driver that commits a round, as read for this commit."""

    key: str
    entry: Entry


def lease_epoch(lease: DriverLeaseEntry | None) -> int | None:
    return None if lease is None else catalog_records.decode(LeaseRecord, *lease).epoch


def check_unbound(topic: str, topic_id: int, entry: Entry | None) -> None:
    """Raises AlreadyExists for a topic that has a table. `entry`: at the topic's key."""
    if entry is not None:
        record = catalog_records.decode(TopicTableRecord, catalog_keys.topic_key(topic_id), entry)
        raise errors.AlreadyExists(
            f"topic {topic} has a table: {join_levels((*record.namespace, record.name))}",
            hint="detach it first: `icestream lake detach`",
        )


def check_name(topic: str, identifier: Identifier, entry: Entry | None) -> None:
    """Raises AlreadyExists, with the ways out, if the name of a fresh table for a topic is taken."""
    relation = relation_plans.decode_relation_entry(identifier, entry)
    if relation is None:
        return
    other_name = f"`icestream lake recreate {topic} --table OTHER` gives it another name"
    if not isinstance(relation.record, TableRecord):
        raise errors.AlreadyExists(f"View with same name already exists: {identifier}", hint=other_name)
    binding = relation.record.binding
    if binding is None:
        hint = f"{other_name}; `icestream lake adopt {identifier} {topic}` adopts the existing one"
        raise errors.AlreadyExists(f"Table already exists: {identifier}", hint=hint)
    owner = f"a deleted topic {topic}" if binding.topic == topic else f"topic {binding.topic}"
    raise errors.AlreadyExists(
        f"Table already exists: {identifier}, and belongs to {owner} (id {binding.topic_id})",
        hint=f"{other_name}; `icestream lake detach {identifier}` detaches the existing one from its topic",
    )


def former_table(topic_id: int, entry: Entry | None) -> FormerTable:
    """Returns what the former table of a topic held. `entry`: at the topic's key of detached tables."""
    if entry is None:
        return NO_FORMER_TABLE
    record = catalog_records.decode(DetachedRecord, catalog_keys.detached_key(topic_id), entry)
    return FormerTable(record.committed, record.pipeline_epoch)


def commit(
    changes: Sequence[PlannedChange],
    lease: DriverLeaseEntry | None,
    marks: Iterable[MarkWrites] = (),
    retired_files: Sequence[str] = (),
    now_ms: int = 0,
) -> PlannedTransaction:
    """Plans a commit to all tables or none; the outcome for the first table is the outcome for all.

    `marks`: of snapshots that the commit removes. `retired_files`: metadata files that no table names after it; they
    are recorded in the same transaction, so that the clean-up of every process finds them. Raises InvalidInput.
    """
    if not 0 < len(changes) <= limits.CATALOG_TRANSACTION_TABLES_MAX:
        raise errors.InvalidInput(
            f"commit to {len(changes)} tables exceeds the limit of {limits.CATALOG_TRANSACTION_TABLES_MAX}"
        )
    # The first table's record stands for all: one transaction has one outcome.
    transaction, *others = (_plan_change(change) for change in changes)
    for other in others:
        transaction = transaction.with_more(other.comparisons, other.operations)
    for change in changes:
        if change.retained is not None:
            transaction = _with_retained(transaction, change.retained, now_ms)
        if change.erased is not None:
            transaction = _with_erased(transaction, change.erased)
    for writes in marks:
        transaction = transaction.with_more(writes.comparisons, writes.operations)
    if retired_files:
        transaction = transaction.with_more([], [_retire(changes[0].record, retired_files, now_ms)])
    if any(change.is_round for change in changes):
        assert lease is not None  # judged with it
        # Compared in the same transaction: a driver whose lease was taken over since cannot commit, however late its
        # request arrives (hazard 10).
        transaction = transaction.with_more([cmd.HasValue(lease.key, lease.entry.value)], [])
    return transaction.checked()


def first_kept(topic_id: int, entry: Entry | None) -> dict[int, int]:
    """Returns the first kept offsets of a topic. `entry`: at the topic's key; None: nothing was removed."""
    if entry is None:
        return {}
    return catalog_records.decode(RetainedRecord, catalog_keys.retained_key(topic_id), entry).first


def _with_retained(transaction: PlannedTransaction, change: RetainedChange, now_ms: int) -> PlannedTransaction:
    """Returns the transaction, which also raises the first kept offsets of a topic. In the same one: a reader never
    misses a row that it was not told of, and is never told of rows that are still there."""
    key = catalog_keys.retained_key(change.topic_id)
    unchanged = cmd.Absent(key) if change.before is None else cmd.AtRevision(key, change.before.mod_revision)
    record = RetainedRecord(dict(sorted(change.first.items())), now_ms)
    comparisons: list[cmd.Compare] = [unchanged]
    if change.consumers is not None:
        consumers_key = catalog_keys.consumers_key(change.topic_id)
        comparisons.append(
            cmd.AtRevision(consumers_key, change.consumers) if change.consumers else cmd.Absent(consumers_key)
        )
    return transaction.with_more(comparisons, [cmd.Put(key, catalog_records.encode(record))])


def erased_record(topic_id: int, entry: Entry | None) -> ErasedRecord | None:
    """Returns the record of the erased offsets of a topic. `entry`: at the topic's key; None: nothing was erased."""
    return None if entry is None else catalog_records.decode(ErasedRecord, catalog_keys.erased_key(topic_id), entry)


def _with_erased(transaction: PlannedTransaction, change: ErasedRecordChange) -> PlannedTransaction:
    """Returns the transaction, which also records the erased offsets of a topic. In the same one: rows are missing from
    the first moment on for a reason that every reader knows."""
    key = catalog_keys.erased_key(change.topic_id)
    unchanged = cmd.Absent(key) if change.before is None else cmd.AtRevision(key, change.before.mod_revision)
    return transaction.with_more([unchanged], [cmd.Put(key, catalog_records.encode(change.record))])


def _retire(record: TableRecord, files: Sequence[str], now_ms: int) -> cmd.Put:
    """Records retired files under the first table of the commit: one operation, however many tables it has."""
    budget, locations = limits.CATALOG_RETIRED_BYTES_MAX, []
    for location in files:
        budget -= len(location.encode())
        if budget < 0:  # the rest is found by the scan for orphans
            break
        locations.append(location)
    key = catalog_keys.retired_key(record.uuid, record.version)
    return cmd.Put(key, catalog_records.encode(RetiredFilesRecord(now_ms, locations)))


def _plan_change(change: PlannedChange) -> PlannedTransaction:
    """Plans the pointer of one table, with the records of its topic if the commit binds or detaches it."""
    if change.before is None:
        return relation_plans.create(change.identifier, change.record, change.namespace, None)
    transaction = relation_plans.swap_pointer(change.identifier, change.before, change.record)
    new_binding, old_binding = change.record.binding, change.old_binding
    if old_binding is not None and new_binding is None:
        detach = relation_plans.detach_operations(change.identifier, change.record, old_binding)
        return transaction.with_more([], detach)
    if new_binding is not None and old_binding is None:
        return _with_binding(transaction, change.identifier, change.record.uuid, new_binding)
    return transaction


def recreate(
    identifier: Identifier, record: TableRecord, namespace: Entry | None, entry: Entry | None
) -> PlannedTransaction:
    """Plans a fresh table, bound to its topic, under a name that is free."""
    assert record.binding is not None
    transaction = relation_plans.create(identifier, record, namespace, entry)
    return _with_binding(transaction, identifier, record.uuid, record.binding)


class FirstTable(NamedTuple):
    """The first table of a topic, with its metadata file on disk."""

    identifier: Identifier
    record: TableRecord


def create_first(tables: Sequence[FirstTable], namespaces: Mapping[Namespace, Entry | None]) -> PlannedTransaction:
    """Plans the first tables of topics that never had one, bound to them: all or none; the outcome for the first table
    is the outcome for all. `namespaces`: the entry of each that is used.

    Raises InvalidInput if two tables have one name, or if they are too many for one transaction (hazard 10).
    """
    if len({table.identifier for table in tables}) < len(tables):
        raise errors.InvalidInput(
            "two topics with the same table name in one transaction", hint="create them one by one"
        )
    transaction, *others = (
        recreate(table.identifier, table.record, namespaces[table.identifier.namespace], None) for table in tables
    )
    for other in others:
        transaction = transaction.with_more(other.comparisons, other.operations)
    never_detached = [
        cmd.Absent(catalog_keys.detached_key(table.record.binding.topic_id)) for table in tables if table.record.binding
    ]
    # Tables of one namespace repeat its comparison and its put: one of each is enough. There is no record of a
    # detached table to delete, which the comparisons make sure of.
    comparisons: list[cmd.Compare] = list(dict.fromkeys([*transaction.comparisons, *never_detached]))
    operations: list[cmd.Operation] = [
        operation for operation in dict.fromkeys(transaction.operations) if not isinstance(operation, cmd.Delete)
    ]
    return transaction._replace(comparisons=comparisons, operations=operations).checked()


def replace_lost(
    identifier: Identifier, record: TableRecord, before: Entry, lost: TableRecord, topic_entry: Entry
) -> PlannedTransaction:
    """Plans a fresh table in place of the table of the same topic whose metadata file is lost."""
    assert record.binding is not None
    topic_record = TopicTableRecord([*identifier.namespace], identifier.name, record.uuid)
    bound_record = BoundRecord(record.binding.topic, record.binding.topic_id)
    key = catalog_keys.topic_key(record.binding.topic_id)
    transaction = relation_plans.swap_pointer(identifier, before, record).with_more(
        [cmd.HasValue(key, topic_entry.value)],
        [
            cmd.Delete(catalog_keys.bound_key(lost.uuid)),
            cmd.Put(key, catalog_records.encode(topic_record)),
            cmd.Put(catalog_keys.bound_key(record.uuid), catalog_records.encode(bound_record)),
        ],
    )
    return transaction.checked()


def _with_binding(
    transaction: PlannedTransaction, identifier: Identifier, uuid: str, binding: Binding
) -> PlannedTransaction:
    """Returns the transaction, which also binds the table to its topic. Neither may have another: a topic has one
    table, and a table one topic."""
    topic_key, bound_key = catalog_keys.topic_key(binding.topic_id), catalog_keys.bound_key(uuid)
    topic_record = TopicTableRecord([*identifier.namespace], identifier.name, uuid)
    return transaction.with_more(
        [cmd.Absent(topic_key), cmd.Absent(bound_key)],
        [
            cmd.Put(topic_key, catalog_records.encode(topic_record)),
            cmd.Put(bound_key, catalog_records.encode(BoundRecord(binding.topic, binding.topic_id))),
            cmd.Delete(catalog_keys.detached_key(binding.topic_id)),
        ],
    )
