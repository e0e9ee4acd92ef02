"""Plans changes of tables and views as a whole: create, register, rename, drop. Pure.

The record of a table is its pointer: it is swapped only together with the records beside it, after the metadata file
that it names is on disk (hazard 11).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from icestream import errors
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import (
    DetachedRecord,
    PurgeRecord,
    Relation,
    TableRecord,
    TopicTableRecord,
    ViewRecord,
)
from icestream.catalog.plans import namespace_plans
from icestream.catalog.plans.planned_transaction import PlannedTransaction
from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.foreign_changes import HINT
from icestream.iceberg.identifier import Identifier
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry

TABLE: Final = "Table"
VIEW: Final = "View"


class RelationEntry(NamedTuple):
    """A table or view as it was read."""

    entry: Entry
    record: Relation


def decode_relation_entry(identifier: Identifier, entry: Entry | None) -> RelationEntry | None:
    if entry is None:
        return None
    return RelationEntry(entry, catalog_records.decode_relation(catalog_keys.relation_key(identifier), entry))


def table_of(identifier: Identifier, entry: Entry | None) -> tuple[Entry, TableRecord]:
    """Returns the entry and record of a table. Raises UnknownTable, also for a view of that name."""
    relation = decode_relation_entry(identifier, entry)
    if relation is None or not isinstance(relation.record, TableRecord):
        raise errors.UnknownTable(f"Table does not exist: {identifier}")
    return relation.entry, relation.record


def view_of(identifier: Identifier, entry: Entry | None) -> tuple[Entry, ViewRecord]:
    """Returns the entry and record of a view. Raises UnknownView, also for a table of that name."""
    relation = decode_relation_entry(identifier, entry)
    if relation is None or not isinstance(relation.record, ViewRecord):
        raise errors.UnknownView(f"View does not exist: {identifier}")
    return relation.entry, relation.record


def kind_of(record: Relation) -> str:
    return TABLE if isinstance(record, TableRecord) else VIEW


def check_free(identifier: Identifier, entry: Entry | None, kind: str) -> None:
    """Raises AlreadyExists if a table or view has this name. Clients expect other words for the other kind."""
    relation = decode_relation_entry(identifier, entry)
    if relation is None:
        return
    existing_kind = kind_of(relation.record)
    same_name = "" if existing_kind == kind else " with same name"
    raise errors.AlreadyExists(f"{existing_kind}{same_name} already exists: {identifier}")


def create(
    identifier: Identifier, record: Relation, namespace: Entry | None, entry: Entry | None
) -> PlannedTransaction:
    """Plans a new table or view. `entry`: at that name. Raises AlreadyExists and UnknownNamespace."""
    comparison, operation = namespace_plans.touch(identifier.namespace, namespace)
    check_free(identifier, entry, kind_of(record))
    key = catalog_keys.relation_key(identifier)
    return PlannedTransaction(
        [cmd.Absent(key), comparison],
        [cmd.Put(key, catalog_records.encode(record)), operation],
        key,
        0,
        lambda current: _has_uuid(key, current, record.uuid),
        namespace_plans.fence(identifier.namespace, namespace),
    ).checked()


def _has_uuid(key: str, entry: Entry | None, uuid: str) -> bool:
    """Returns whether the entry is of the table or view with that UUID, whatever was committed to it since."""
    return entry is not None and catalog_records.decode_relation(key, entry).uuid == uuid


def _points_to(key: str, entry: Entry | None, location: str) -> bool:
    return entry is not None and catalog_records.decode_relation(key, entry).location == location


def check_registrable(uuid: str | None, bound: Entry | None) -> None:
    """Raises TopicTableConflict for a table that is bound to a topic under another name: a topic's table has one name
    (hazard 21). `bound`: the entry at the key of its UUID."""
    if uuid is None:
        raise errors.InvalidInput(
            "Cannot register a table without a UUID", hint="commit to it once in the catalog that it comes from"
        )
    if bound is not None:
        raise errors.TopicTableConflict(f"table {uuid} belongs to a topic and has a name already", hint=HINT)


def cancel_purge(transaction: PlannedTransaction, key: str, purge: Entry | None) -> PlannedTransaction:
    """Returns the registration of a table, which also cancels its purge. `purge`: the entry at `key`. Raises
    InvalidInput if the purge has begun to remove files."""
    if purge is None:
        return transaction.with_more([cmd.Absent(key)], []).checked()
    # The purge compares its record when it begins, and so does this registration: one of the two fails.
    if catalog_records.decode(PurgeRecord, key, purge).is_begun:
        raise errors.InvalidInput(
            "Cannot register a table that is being purged: some of its files are removed",
            hint="restore it from a backup",
        )
    return transaction.with_more([cmd.AtRevision(key, purge.mod_revision)], [cmd.Delete(key)]).checked()


def overwrite(identifier: Identifier, record: TableRecord, entry: Entry | None) -> PlannedTransaction:
    """Plans a registration in place of an existing table. Raises TopicTableConflict for the table of a topic."""
    before, old_record = table_of(identifier, entry)
    if old_record.binding is not None:
        raise errors.TopicTableConflict(f"{identifier} is the table of topic {old_record.binding.topic}", hint=HINT)
    return swap_pointer(identifier, before, record).checked()


def swap_pointer(identifier: Identifier, before: Entry, record: Relation) -> PlannedTransaction:
    """Plans to point an existing table or view to another metadata file. The caller checks the size of the whole."""
    key = catalog_keys.relation_key(identifier)
    return PlannedTransaction(
        [cmd.AtRevision(key, before.mod_revision)],
        [cmd.Put(key, catalog_records.encode(record))],
        key,
        before.mod_revision,
        lambda current: _points_to(key, current, record.location),
        # The fence: the same value again raises the revision that the transaction compares.
        cmd.Put(key, before.value),
    )


def drop_table(
    identifier: Identifier, entry: Entry | None, is_forced: bool, purge_time_ms: int | None
) -> tuple[PlannedTransaction, TableRecord]:
    """Plans a drop; returns it with the dropped record. With `purge_time_ms` it records a purge of the table's files,
    which the clean-up carries out. Raises TopicTableConflict for a topic's table, unless forced."""
    before, record = table_of(identifier, entry)
    transaction = _drop(identifier, before, record.uuid)
    if record.binding is not None:
        _check_forced(identifier, record, is_forced, "dropped")
        transaction = transaction.with_more([], detach_operations(identifier, record, record.binding))
    if purge_time_ms is not None:
        # In the transaction of the drop: a crash leaves either the table, or the order to remove its files.
        purge = PurgeRecord(record.location, purge_time_ms)
        put = cmd.Put(catalog_keys.purge_key(record.uuid), catalog_records.encode(purge))
        transaction = transaction.with_more([], [put])
    return transaction, record


def detach_operations(identifier: Identifier, record: TableRecord, binding: Binding) -> list[cmd.Operation]:
    """Returns the operations that go with every change that leaves a topic without its table."""
    detached = DetachedRecord(
        binding.topic,
        [*identifier.namespace],
        identifier.name,
        record.uuid,
        record.location,
        binding.committed(),
        binding.pipeline_epoch,
    )
    return [
        cmd.Delete(catalog_keys.topic_key(binding.topic_id)),
        cmd.Delete(catalog_keys.bound_key(record.uuid)),
        cmd.DeletePrefix(catalog_keys.marks_prefix(binding.topic_id)),
        cmd.Put(catalog_keys.detached_key(binding.topic_id), catalog_records.encode(detached)),
    ]


def drop_view(identifier: Identifier, entry: Entry | None) -> PlannedTransaction:
    before, record = view_of(identifier, entry)
    return _drop(identifier, before, record.uuid)


def _drop(identifier: Identifier, before: Entry, uuid: str) -> PlannedTransaction:
    """Plans the removal of a pointer."""
    key = catalog_keys.relation_key(identifier)
    return PlannedTransaction(
        [cmd.AtRevision(key, before.mod_revision)],
        [cmd.Delete(key)],
        key,
        before.mod_revision,
        lambda current: not _has_uuid(key, current, uuid),
        cmd.Put(key, before.value),
    )


def _check_forced(identifier: Identifier, record: TableRecord, is_forced: bool, verb: str) -> None:
    assert record.binding is not None
    if not is_forced:
        raise errors.TopicTableConflict(
            f"{identifier} is the table of topic {record.binding.topic} and is not {verb}", hint=HINT
        )


def rename(
    source: Identifier,
    target: Identifier,
    kind: str,
    entry: Entry | None,
    namespace: Entry | None,
    target_entry: Entry | None,
    is_forced: bool = False,
) -> PlannedTransaction:
    """Plans a rename; a topic follows its table. `entry`: at the source; `namespace`: of the target."""
    before, record = (table_of if kind == TABLE else view_of)(source, entry)
    comparison, operation = namespace_plans.touch(target.namespace, namespace)
    existing = decode_relation_entry(target, target_entry)
    if existing is not None:
        raise errors.AlreadyExists(f"Cannot rename {source} to {target}. {kind_of(existing.record)} already exists")
    old_key, new_key = catalog_keys.relation_key(source), catalog_keys.relation_key(target)
    transaction = PlannedTransaction(
        [cmd.AtRevision(old_key, before.mod_revision), cmd.Absent(new_key), comparison],
        [cmd.Delete(old_key), cmd.Put(new_key, before.value), operation],
        new_key,
        0,
        lambda current: _has_uuid(new_key, current, record.uuid),
        cmd.Put(old_key, before.value),
    )
    if isinstance(record, TableRecord) and record.binding is not None:
        _check_forced(source, record, is_forced, "renamed")
        topic_record = TopicTableRecord([*target.namespace], target.name, record.uuid)
        put = cmd.Put(catalog_keys.topic_key(record.binding.topic_id), catalog_records.encode(topic_record))
        transaction = transaction.with_more([], [put])
    return transaction.checked()
