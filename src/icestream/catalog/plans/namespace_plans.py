"""Planned changes of namespaces. Pure: entries that were read in, transactions out.

Whatever is made in a namespace puts the namespace's own entry again, with the same value: that raises its revision. A
drop compares the revision, so it fails when anything was made in between; those who make something compare the value,
so they do not disturb each other. Every change of properties raises the generation, so that a value never comes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from icestream import errors
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import NamespaceRecord
from icestream.catalog.plans.planned_transaction import PlannedTransaction
from icestream.iceberg.identifier import Namespace, join_levels
from icestream.iceberg.values import short_repr
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry


class PropertyChanges(NamedTuple):
    """What an update of properties answers."""

    updated: list[str]
    removed: list[str]
    missing: list[str]


def existing(namespace: Namespace, entry: Entry | None) -> NamespaceRecord:
    if entry is None:
        raise errors.UnknownNamespace(f"Namespace does not exist: {join_levels(namespace)}")
    return catalog_records.decode(NamespaceRecord, catalog_keys.namespace_key(namespace), entry)


def touch(namespace: Namespace, entry: Entry | None) -> tuple[cmd.Compare, cmd.Operation]:
    """What goes with everything that is made in a namespace, which must exist."""
    existing(namespace, entry)
    assert entry is not None
    key = catalog_keys.namespace_key(namespace)
    return cmd.HasValue(key, entry.value), cmd.Put(key, entry.value)


def fence(namespace: Namespace, entry: Entry | None) -> cmd.Operation:
    """Nothing that compares the present value can happen after it."""
    record = existing(namespace, entry)
    raised = msgspec.structs.replace(record, generation=record.generation + 1)
    return cmd.Put(catalog_keys.namespace_key(namespace), catalog_records.encode(raised))


def create(
    namespace: Namespace, properties: Mapping[str, str], new_id: str, found: Entry | None, parent: Entry | None
) -> PlannedTransaction:
    if found is not None:
        raise errors.AlreadyExists(f"Namespace already exists: {join_levels(namespace)}")
    key = catalog_keys.namespace_key(namespace)
    value = catalog_records.encode(NamespaceRecord(new_id, dict(properties)))
    planned = PlannedTransaction(
        [cmd.Absent(key)], [cmd.Put(key, value)], key, 0, lambda now: _has_id(key, now, new_id), cmd.Put(key, value)
    )
    if len(namespace) == 1:
        return planned.checked()
    above = namespace[:-1]
    compare, then = touch(above, parent)
    return planned.with_more([compare], [then])._replace(fence=fence(above, parent)).checked()


def _has_id(key: str, now: Entry | None, wanted: str) -> bool:
    return now is not None and catalog_records.decode(NamespaceRecord, key, now).id == wanted


def change_properties(
    namespace: Namespace, updates: Mapping[str, str], removals: Sequence[str], found: Entry | None
) -> tuple[PlannedTransaction | None, PropertyChanges]:
    """None: there is nothing to change."""
    both = sorted(set(updates) & set(removals))
    if both:
        raise errors.Contradiction(
            f"Invalid namespace properties update: cannot simultaneously set and remove {short_repr(both)}"
        )
    record = existing(namespace, found)
    assert found is not None
    wanted = dict.fromkeys(removals)
    removed = [name for name in wanted if name in record.properties]
    answer = PropertyChanges([*updates], removed, [name for name in wanted if name not in record.properties])
    properties = {name: value for name, value in record.properties.items() if name not in wanted} | dict(updates)
    if properties == record.properties:
        return None, answer
    key = catalog_keys.namespace_key(namespace)
    changed = msgspec.structs.replace(record, properties=properties, generation=record.generation + 1)
    value = catalog_records.encode(changed)
    planned = PlannedTransaction(
        [cmd.AtRevision(key, found.mod_revision)],
        [cmd.Put(key, value)],
        key,
        found.mod_revision,
        lambda now: now is not None and now.value == value,
        fence(namespace, found),
    )
    return planned.checked(), answer


def drop(namespace: Namespace, found: Entry | None, is_empty: bool) -> PlannedTransaction:
    """`is_empty`: as it was seen after the entry was read."""
    record = existing(namespace, found)
    assert found is not None
    if not is_empty:
        raise errors.NotEmpty(f"Namespace {join_levels(namespace)} is not empty")
    key = catalog_keys.namespace_key(namespace)
    return PlannedTransaction(
        [cmd.AtRevision(key, found.mod_revision)],
        [cmd.Delete(key)],
        key,
        found.mod_revision,
        lambda now: not _has_id(key, now, record.id),
        cmd.Put(key, found.value),
    )
