"""Planned changes of tables and views as a whole: create, register, rename, drop. Pure.

The record of a table is its pointer: it moves only together with what lies beside it, after the metadata file that it
names is on disk (hazard 11).
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
    TopicRecord,
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
    """A relation as it was read."""

    entry: Entry
    record: Relation


def decode_relation_entry(identifier: Identifier, entry: Entry | None) -> RelationEntry | None:
    return (
        None
        if entry is None
        else RelationEntry(entry, catalog_records.decode_relation(catalog_keys.relation_key(identifier), entry))
    )


def table_of(identifier: Identifier, entry: Entry | None) -> tuple[Entry, TableRecord]:
    """A view of that name is no table: whoever asks for a table is told that there is none."""
    relation = decode_relation_entry(identifier, entry)
    if relation is None or not isinstance(relation.record, TableRecord):
        raise errors.UnknownTable(f"Table does not exist: {identifier}")
    return relation.entry, relation.record


def view_of(identifier: Identifier, entry: Entry | None) -> tuple[Entry, ViewRecord]:
    relation = decode_relation_entry(identifier, entry)
    if relation is None or not isinstance(relation.record, ViewRecord):
        raise errors.UnknownView(f"View does not exist: {identifier}")
    return relation.entry, relation.record


def kind_of(record: Relation) -> str:
    return TABLE if isinstance(record, TableRecord) else VIEW


def check_free(identifier: Identifier, entry: Entry | None, kind: str) -> None:
    """Nothing has this name. The words differ for the same kind and the other one."""
    relation = decode_relation_entry(identifier, entry)
    if relation is None:
        return
    there = kind_of(relation.record)
    same = "" if there == kind else " with same name"
    raise errors.AlreadyExists(f"{there}{same} already exists: {identifier}")


def create(
    identifier: Identifier, record: Relation, namespace: Entry | None, entry: Entry | None
) -> PlannedTransaction:
    """`entry` is what was found under that name: nothing, or the plan is refused."""
    compare, then = namespace_plans.touch(identifier.namespace, namespace)
    check_free(identifier, entry, kind_of(record))
    key = catalog_keys.relation_key(identifier)
    return PlannedTransaction(
        [cmd.Absent(key), compare],
        [cmd.Put(key, catalog_records.encode(record)), then],
        key,
        0,
        lambda now: _is(key, now, record.uuid),
        namespace_plans.fence(identifier.namespace, namespace),
    ).checked()


def _is(key: str, now: Entry | None, uuid: str) -> bool:
    """The same table or view is there, whatever was committed to it since."""
    return now is not None and catalog_records.decode_relation(key, now).uuid == uuid


def _points_to(key: str, now: Entry | None, location: str) -> bool:
    return now is not None and catalog_records.decode_relation(key, now).location == location


def check_registrable(uuid: str | None, bound: Entry | None) -> None:
    """A topic's table has one name (hazard 21). `bound` is what the table's UUID is bound to."""
    if uuid is None:
        raise errors.InvalidInput(
            "Cannot register a table without a UUID", hint="commit to it once where it comes from"
        )
    if bound is not None:
        raise errors.TopicTableConflict(f"table {uuid} belongs to a topic and has a name already", hint=HINT)


def rescued(planned: PlannedTransaction, key: str, purge: Entry | None) -> PlannedTransaction:
    """A table that is registered again is purged no more. `purge`: its record under `key`, if there is one."""
    if purge is None:
        return planned.with_more([cmd.Absent(key)], []).checked()
    if catalog_records.decode(PurgeRecord, key, purge).is_begun:
        raise errors.InvalidInput(
            "Cannot register a table that is being purged: some of its files are gone", hint="restore it from a backup"
        )
    return planned.with_more([cmd.AtRevision(key, purge.mod_revision)], [cmd.Delete(key)]).checked()


def overwrite(identifier: Identifier, record: TableRecord, entry: Entry | None) -> PlannedTransaction:
    """A registration in place of a table that is there. A topic's table stays."""
    before, old = table_of(identifier, entry)
    if old.binding is not None:
        raise errors.TopicTableConflict(f"{identifier} is the table of topic {old.binding.topic}", hint=HINT)
    return moved(identifier, before, record).checked()


def moved(identifier: Identifier, before: Entry, record: Relation) -> PlannedTransaction:
    """The pointer of a relation that is there, to another metadata file. Whoever asks for it checks the whole."""
    key = catalog_keys.relation_key(identifier)
    return PlannedTransaction(
        [cmd.AtRevision(key, before.mod_revision)],
        [cmd.Put(key, catalog_records.encode(record))],
        key,
        before.mod_revision,
        lambda now: _points_to(key, now, record.location),
        cmd.Put(key, before.value),
    )


def drop_table(
    identifier: Identifier, entry: Entry | None, is_forced: bool, purge_time_ms: int | None
) -> tuple[PlannedTransaction, TableRecord]:
    """`purge_time_ms`: its files are to go as well, which is written down and done later."""
    before, record = table_of(identifier, entry)
    planned = _dropped(identifier, before, record.uuid)
    if record.binding is not None:
        _check_forced(identifier, record, is_forced, "dropped")
        planned = planned.with_more([], parted(identifier, record, record.binding))
    if purge_time_ms is not None:
        purge = cmd.Put(
            catalog_keys.purge_key(record.uuid), catalog_records.encode(PurgeRecord(record.location, purge_time_ms))
        )
        planned = planned.with_more([], [purge])
    return planned, record


def parted(identifier: Identifier, record: TableRecord, binding: Binding) -> list[cmd.Operation]:
    """What goes with everything that leaves a topic without its table."""
    left = DetachedRecord(
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
        cmd.Put(catalog_keys.parted_key(binding.topic_id), catalog_records.encode(left)),
    ]


def drop_view(identifier: Identifier, entry: Entry | None) -> PlannedTransaction:
    before, record = view_of(identifier, entry)
    return _dropped(identifier, before, record.uuid)


def _dropped(identifier: Identifier, before: Entry, uuid: str) -> PlannedTransaction:
    key = catalog_keys.relation_key(identifier)
    return PlannedTransaction(
        [cmd.AtRevision(key, before.mod_revision)],
        [cmd.Delete(key)],
        key,
        before.mod_revision,
        lambda now: not _is(key, now, uuid),
        cmd.Put(key, before.value),
    )


def _check_forced(identifier: Identifier, record: TableRecord, is_forced: bool, what: str) -> None:
    assert record.binding is not None
    if not is_forced:
        raise errors.TopicTableConflict(
            f"{identifier} is the table of topic {record.binding.topic} and is not {what}", hint=HINT
        )


def rename(
    source: Identifier,
    target: Identifier,
    kind: str,
    entry: Entry | None,
    namespace: Entry | None,
    there: Entry | None,
    is_forced: bool = False,
) -> PlannedTransaction:
    """`entry` at the source, `namespace` of the target, `there` at the target. A topic goes with its table."""
    before, record = (table_of if kind == TABLE else view_of)(source, entry)
    compare, then = namespace_plans.touch(target.namespace, namespace)
    taken = decode_relation_entry(target, there)
    if taken is not None:
        raise errors.AlreadyExists(f"Cannot rename {source} to {target}. {kind_of(taken.record)} already exists")
    old, new = catalog_keys.relation_key(source), catalog_keys.relation_key(target)
    planned = PlannedTransaction(
        [cmd.AtRevision(old, before.mod_revision), cmd.Absent(new), compare],
        [cmd.Delete(old), cmd.Put(new, before.value), then],
        new,
        0,
        lambda now: _is(new, now, record.uuid),
        cmd.Put(old, before.value),
    )
    if isinstance(record, TableRecord) and record.binding is not None:
        _check_forced(source, record, is_forced, "renamed")
        named = TopicRecord([*target.namespace], target.name, record.uuid)
        planned = planned.with_more(
            [], [cmd.Put(catalog_keys.topic_key(record.binding.topic_id), catalog_records.encode(named))]
        )
    return planned.checked()
