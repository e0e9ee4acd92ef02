"""Planned commits: the pointers of one or several tables, with everything that must still hold when they move. Pure.

A round compares the lease of its driver in the same transaction (hazard 10): by value, because a driver that renews its
lease writes the same value again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from icestream import errors, limits
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import BoundRecord, DetachedRecord, LeaseRecord, TableRecord, TopicRecord
from icestream.catalog.plans import relation_plans
from icestream.catalog.plans.planned_transaction import PlannedTransaction
from icestream.catalog.plans.snapshot_mark_plans import MarkWrites
from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.commit_rules import CommitDecision
from icestream.catalog.topic_rules.rebinding import NO_FORMER_TABLE, FormerTable
from icestream.iceberg.identifier import Identifier, Namespace, join_levels
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry


class PlannedChange(NamedTuple):
    """One table of a commit, judged, with its new metadata file on disk."""

    identifier: Identifier
    before: Entry | None  # None: the table is created
    record: TableRecord  # to be
    was_bound: Binding | None
    is_round: bool
    namespace: Entry | None = None  # of a table that is created


def record_of(
    outcome: CommitDecision, uuid: str, location: str, version: int, *, is_registered: bool = False
) -> TableRecord:
    return TableRecord(uuid, location, version, outcome.binding, outcome.removals, is_registered)


class DriverLeaseEntry(NamedTuple):
    """Of the driver that makes a round, as it is now."""

    key: str
    entry: Entry


def lease_epoch(lease: DriverLeaseEntry | None) -> int | None:
    return None if lease is None else catalog_records.decode(LeaseRecord, *lease).epoch


def check_unbound(topic: str, topic_id: int, entry: Entry | None) -> None:
    """A topic has one table. `entry`: where the topic's table is written down."""
    if entry is not None:
        there = catalog_records.decode(TopicRecord, catalog_keys.topic_key(topic_id), entry)
        raise errors.AlreadyExists(
            f"topic {topic} has its table: {join_levels((*there.namespace, there.name))}",
            hint="part them first: `icestream lake detach`",
        )


def check_name(topic: str, identifier: Identifier, entry: Entry | None) -> None:
    """The name of a fresh table for a topic without one is free. Raises AlreadyExists with the ways out."""
    found = relation_plans.decode_relation_entry(identifier, entry)
    if found is None:
        return
    other = f"`icestream lake recreate {topic} --table OTHER` gives it another name"
    if not isinstance(found.record, TableRecord):
        raise errors.AlreadyExists(f"View with same name already exists: {identifier}", hint=other)
    binding = found.record.binding
    if binding is None:
        hint = f"{other}; `icestream lake adopt {identifier} {topic}` takes over the one that is there"
        raise errors.AlreadyExists(f"Table already exists: {identifier}", hint=hint)
    owner = f"a deleted topic {topic}" if binding.topic == topic else f"topic {binding.topic}"
    raise errors.AlreadyExists(
        f"Table already exists: {identifier}, and belongs to {owner} (id {binding.topic_id})",
        hint=f"{other}; `icestream lake detach {identifier}` parts the one that is there from its topic",
    )


def former(topic_id: int, entry: Entry | None) -> FormerTable:
    """What a topic without a table had before. `entry`: where that is written down."""
    if entry is None:
        return NO_FORMER_TABLE
    record = catalog_records.decode(DetachedRecord, catalog_keys.parted_key(topic_id), entry)
    return FormerTable(record.committed, record.pipeline_epoch)


def commit(
    changes: Sequence[PlannedChange], lease: DriverLeaseEntry | None, marked: Iterable[MarkWrites] = ()
) -> PlannedTransaction:
    """All of them or none. What became of the first tells what became of all. `marked`: what snapshots held that go
    with it."""
    if not 0 < len(changes) <= limits.CATALOG_TRANSACTION_TABLES_MAX:
        raise errors.InvalidInput(
            f"a transaction of {len(changes)} tables, at most {limits.CATALOG_TRANSACTION_TABLES_MAX}"
        )
    first, *others = (_planned(change) for change in changes)
    for one in others:
        first = first.with_more(one.compare, one.then)
    for added in marked:
        first = first.with_more(added.compare, added.then)
    if any(change.is_round for change in changes):
        assert lease is not None  # judged with it
        first = first.with_more([cmd.HasValue(lease.key, lease.entry.value)], [])
    return first.checked()


def _planned(change: PlannedChange) -> PlannedTransaction:
    if change.before is None:
        return relation_plans.create(change.identifier, change.record, change.namespace, None)
    planned = relation_plans.moved(change.identifier, change.before, change.record)
    bound, was_bound = change.record.binding, change.was_bound
    if was_bound is not None and bound is None:
        return planned.with_more([], relation_plans.parted(change.identifier, change.record, was_bound))
    if bound is not None and was_bound is None:
        return _bound(planned, change.identifier, change.record.uuid, bound)
    return planned


def recreate(
    identifier: Identifier, record: TableRecord, namespace: Entry | None, entry: Entry | None
) -> PlannedTransaction:
    """A fresh table with its topic, under a name that is free."""
    assert record.binding is not None
    return _bound(relation_plans.create(identifier, record, namespace, entry), identifier, record.uuid, record.binding)


class FirstTable(NamedTuple):
    """The first table of a topic, with its metadata file on disk."""

    identifier: Identifier
    record: TableRecord


def create_first(tables: Sequence[FirstTable], namespaces: Mapping[Namespace, Entry | None]) -> PlannedTransaction:
    """First tables of topics that never had one, bound to them: all of them or none. What became of the first tells
    what became of all. `namespaces`: the entry of each that is used. Raises InvalidInput where two have one name, or
    where it is too much for one transaction (hazard 10)."""
    if len({one.identifier for one in tables}) < len(tables):
        raise errors.InvalidInput("two topics with one table name in a transaction", hint="make them one by one")
    first, *others = (
        recreate(one.identifier, one.record, namespaces[one.identifier.namespace], None) for one in tables
    )
    for one in others:
        first = first.with_more(one.compare, one.then)
    never_had = [
        cmd.Absent(catalog_keys.parted_key(one.record.binding.topic_id)) for one in tables if one.record.binding
    ]
    # each namespace is compared and touched once; no table was parted from these topics
    compare: list[cmd.Compare] = list(dict.fromkeys([*first.compare, *never_had]))
    then: list[cmd.Operation] = [one for one in dict.fromkeys(first.then) if not isinstance(one, cmd.Delete)]
    return first._replace(compare=compare, then=then).checked()


def replace_lost(
    identifier: Identifier, record: TableRecord, before: Entry, lost: TableRecord, topic: Entry
) -> PlannedTransaction:
    """The same in place of a table whose metadata file is gone; its topic is the same one. `topic`: its entry."""
    assert record.binding is not None
    named = TopicRecord([*identifier.namespace], identifier.name, record.uuid)
    bound = BoundRecord(record.binding.topic, record.binding.topic_id)
    key = catalog_keys.topic_key(record.binding.topic_id)
    planned = relation_plans.moved(identifier, before, record).with_more(
        [cmd.HasValue(key, topic.value)],
        [
            cmd.Delete(catalog_keys.bound_key(lost.uuid)),
            cmd.Put(key, catalog_records.encode(named)),
            cmd.Put(catalog_keys.bound_key(record.uuid), catalog_records.encode(bound)),
        ],
    )
    return planned.checked()


def _bound(planned: PlannedTransaction, identifier: Identifier, uuid: str, binding: Binding) -> PlannedTransaction:
    """A topic has one table, a table one topic."""
    topic, bound = catalog_keys.topic_key(binding.topic_id), catalog_keys.bound_key(uuid)
    named = TopicRecord([*identifier.namespace], identifier.name, uuid)
    return planned.with_more(
        [cmd.Absent(topic), cmd.Absent(bound)],
        [
            cmd.Put(topic, catalog_records.encode(named)),
            cmd.Put(bound, catalog_records.encode(BoundRecord(binding.topic, binding.topic_id))),
            cmd.Delete(catalog_keys.parted_key(binding.topic_id)),
        ],
    )
