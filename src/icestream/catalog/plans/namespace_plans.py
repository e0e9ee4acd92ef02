"""Plans changes of namespaces. Pure: entries that were read in, transactions out.

Whatever is created in a namespace also puts the namespace's own entry, with the same value, which raises its revision.
A drop compares the revision, so it fails if anything was created meanwhile; creations compare the value, so they do not
disturb each other. Every change of properties raises the generation, so that a value never comes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from icestream import errors
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import CatalogNamespaceRecord
from icestream.catalog.plans.planned_transaction import PLACES_CHANGED, PlannedTransaction
from icestream.iceberg.identifier import Namespace, join_levels
from icestream.iceberg.values import short_repr
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry

LOCATION: Final = "location"  # the property of a namespace below which its tables lie


class PropertyChanges(NamedTuple):
    """The answer to an update of properties."""

    updated: list[str]
    removed: list[str]
    missing: list[str]


def existing(namespace: Namespace, entry: Entry | None) -> CatalogNamespaceRecord:
    """Returns the record of a namespace. Raises UnknownNamespace."""
    if entry is None:
        raise errors.UnknownNamespace(f"Namespace does not exist: {join_levels(namespace)}")
    return catalog_records.decode(CatalogNamespaceRecord, catalog_keys.namespace_key(namespace), entry)


def touch(namespace: Namespace, entry: Entry | None) -> tuple[cmd.Compare, cmd.Operation]:
    """Returns the comparison and the put that go with everything that is created in a namespace. Raises
    UnknownNamespace."""
    existing(namespace, entry)
    assert entry is not None
    key = catalog_keys.namespace_key(namespace)
    # The same value is written again: that raises the revision of the namespace, so a drop that read it before fails.
    # The value is compared, not the revision, so that two creations do not conflict.
    return cmd.HasValue(key, entry.value), cmd.Put(key, entry.value)


def fence(namespace: Namespace, entry: Entry | None) -> cmd.Operation:
    """Returns an operation after which no transaction that compares the present value can be applied."""
    record = existing(namespace, entry)
    fenced = msgspec.structs.replace(record, generation=record.generation + 1)
    return cmd.Put(catalog_keys.namespace_key(namespace), catalog_records.encode(fenced))


def create(
    namespace: Namespace,
    properties: Mapping[str, str],
    new_id: str,
    entry: Entry | None,
    parent_entry: Entry | None,
) -> PlannedTransaction:
    """Plans a new namespace. Raises AlreadyExists, and UnknownNamespace for a missing parent."""
    if entry is not None:
        raise errors.AlreadyExists(f"Namespace already exists: {join_levels(namespace)}")
    key = catalog_keys.namespace_key(namespace)
    value = catalog_records.encode(CatalogNamespaceRecord(new_id, dict(properties)))
    transaction = PlannedTransaction(
        [cmd.Absent(key)],
        [cmd.Put(key, value), PLACES_CHANGED],
        key,
        0,
        lambda current: _has_id(key, current, new_id),
        cmd.Put(key, value),
    )
    # A namespace at the root has no other record that a fence could change: its fence is its own creation, whose
    # success is the same as that of the transaction.
    if len(namespace) == 1:
        return transaction.checked()
    parent = namespace[:-1]
    comparison, operation = touch(parent, parent_entry)
    transaction = transaction.with_more([comparison], [operation])
    return transaction._replace(fence=fence(parent, parent_entry)).checked()


def _has_id(key: str, entry: Entry | None, namespace_id: str) -> bool:
    return entry is not None and catalog_records.decode(CatalogNamespaceRecord, key, entry).id == namespace_id


def change_properties(
    namespace: Namespace, updates: Mapping[str, str], removals: Sequence[str], entry: Entry | None
) -> tuple[PlannedTransaction | None, PropertyChanges]:
    """Plans an update of properties; no transaction if it changes nothing. Raises Contradiction for a property that is
    both set and removed."""
    both = sorted(set(updates) & set(removals))
    if both:
        raise errors.Contradiction(
            f"Invalid namespace properties update: cannot simultaneously set and remove {short_repr(both)}"
        )
    record = existing(namespace, entry)
    assert entry is not None
    names = dict.fromkeys(removals)
    removed = [name for name in names if name in record.properties]
    changes = PropertyChanges([*updates], removed, [name for name in names if name not in record.properties])
    properties = {name: value for name, value in record.properties.items() if name not in names} | dict(updates)
    if properties == record.properties:
        return None, changes
    key = catalog_keys.namespace_key(namespace)
    new_record = msgspec.structs.replace(record, properties=properties, generation=record.generation + 1)
    value = catalog_records.encode(new_record)
    places = [PLACES_CHANGED] if properties.get(LOCATION) != record.properties.get(LOCATION) else []
    transaction = PlannedTransaction(
        [cmd.AtRevision(key, entry.mod_revision)],
        [cmd.Put(key, value), *places],
        key,
        entry.mod_revision,
        lambda current: current is not None and current.value == value,
        fence(namespace, entry),
    )
    return transaction.checked(), changes


def drop(namespace: Namespace, entry: Entry | None, is_empty: bool) -> PlannedTransaction:
    """Plans a drop. `is_empty`: as read after the entry. Raises NotEmpty and UnknownNamespace."""
    record = existing(namespace, entry)
    assert entry is not None
    if not is_empty:
        raise errors.NotEmpty(f"Namespace {join_levels(namespace)} is not empty")
    key = catalog_keys.namespace_key(namespace)
    return PlannedTransaction(
        [cmd.AtRevision(key, entry.mod_revision)],
        [cmd.Delete(key)],
        key,
        entry.mod_revision,
        lambda current: not _has_id(key, current, record.id),
        cmd.Put(key, entry.value),
    )
