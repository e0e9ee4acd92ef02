"""The offsets of this node's shards that the metadata store records; the log must reach as far (hazards 3, 5).

    cursors    acked offsets
    tables     committed offsets: in the table records of the embedded catalog, in the mirrors of tables elsewhere

A log that ends before a recorded offset was damaged, or is an older copy: it is refused, unless the operator accepted
the loss. No catalog is read, so a start does not depend on one (hazard 4).

A table record that cannot be read is logged and left out: it may not belong to a topic, and repairing it needs a
running broker. If it belongs to a topic, that topic stays closed until the record can be read
(deferred_table_checks.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Mapping
from typing import NamedTuple

from icestream import errors
from icestream.broker import records
from icestream.broker.topic_owners import TopicOwners
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_keys import FOREIGN_TABLES
from icestream.catalog.catalog_records import TableRecord, decode_relation
from icestream.catalogs.mirror import decode_foreign_table
from icestream.iceberg.identifier import Identifier
from icestream.metadata.entry import Entry
from icestream.metadata.store import MetadataStore
from icestream.model.shard import ShardKey
from icestream.model.topic_name import parse_shard
from icestream.observability.log import get_logger

_log = get_logger("server")
Positions = dict[ShardKey, int]


class StoredPositions(NamedTuple):
    positions: Positions
    unread: dict[str, int]  # topic ids of unreadable table records, by record key


async def stored_positions(store: MetadataStore, owners: TopicOwners) -> StoredPositions:
    """The highest recorded offset of each shard of this node's topics."""
    positions, unread = Positions(), list[str]()
    own, others = await _topics(store, owners)
    for key, entry in await store.list_all(records.CURSORS):
        cursor = records.decode(records.CursorRecord, key, entry.value)
        if cursor.topic_id not in others:
            _, shard = parse_shard("/" + "/".join(key.split("/")[-2:]))
            _raise_to(positions, cursor.topic_id, {shard or 0: cursor.end})
    for prefix in (catalog_keys.RELATIONS, FOREIGN_TABLES):
        for key, entry in await store.list_all(prefix):
            committed = _read_committed_ends(key, entry)
            if committed is None:
                unread.append(key)
            elif committed.topic_id in own:  # the log may have dropped deleted topics
                _raise_to(positions, committed.topic_id, committed.ends)
    topic_ids = await _tables_of_topics(store) if unread else {}
    return StoredPositions(positions, {key: topic_ids[key] for key in unread if topic_ids.get(key) in own})


async def own_shards(store: MetadataStore, owners: TopicOwners) -> list[ShardKey]:
    """Every shard of this node's topics, with or without recorded offsets.

    A repaired log that lost its end must not reassign the offsets of a shard that it does not know (wal/recovery.py).
    """
    topics = [
        records.decode(records.TopicRecord, key, entry.value) for key, entry in await store.list_all(records.TOPICS)
    ]
    return [
        ShardKey(topic.id, shard) for topic in topics if owners.is_local(topic.owner) for shard in range(topic.shards)
    ]


class CommittedEnds(NamedTuple):
    topic_id: int  # 0 for a table without a topic
    ends: Mapping[int, int]


def committed_ends(key: str, entry: Entry) -> CommittedEnds:
    """The committed end of each shard, from a table record. Raises MetadataDamaged."""
    if key.startswith(FOREIGN_TABLES):
        return CommittedEnds(int(key.removeprefix(FOREIGN_TABLES)), decode_foreign_table(key, entry).committed)
    relation = decode_relation(key, entry)
    if isinstance(relation, TableRecord) and relation.binding is not None:
        return CommittedEnds(relation.binding.topic_id, relation.binding.committed())
    return CommittedEnds(0, {})


async def _tables_of_topics(store: MetadataStore) -> dict[str, int]:
    """The topic id of each table record, without reading the record itself."""
    topic_ids = {key: int(key.removeprefix(FOREIGN_TABLES)) for key, _ in await store.list_all(FOREIGN_TABLES)}
    for key, entry in await store.list_all(catalog_keys.TOPICS):
        with contextlib.suppress(errors.MetadataDamaged):
            record = catalog_records.decode(catalog_records.TopicTableRecord, key, entry)
            topic_ids[catalog_keys.relation_key(Identifier(tuple(record.namespace), record.name))] = int(
                key.removeprefix(catalog_keys.TOPICS)
            )
    return topic_ids


def _read_committed_ends(key: str, entry: Entry) -> CommittedEnds | None:
    try:
        return committed_ends(key, entry)
    except errors.MetadataDamaged as error:
        _log.error(
            "unreadable table record: the log is compared with that table once the record is readable",
            key=key, reason=error.message, hint=error.hint,
        )  # fmt: skip
        return None


def _raise_to(positions: Positions, topic_id: int, ends: Mapping[int, int]) -> None:
    for shard, end in ends.items():
        key = ShardKey(topic_id, shard)
        positions[key] = max(positions.get(key, 0), end)


async def _topics(store: MetadataStore, owners: TopicOwners) -> tuple[Container[int], Container[int]]:
    """The ids of this node's topics, and the ids of other nodes' topics, deleted ones included."""
    topics = [
        records.decode(records.TopicRecord, key, entry.value) for key, entry in await store.list_all(records.TOPICS)
    ]
    deleted = [
        records.decode(records.DeletedTopicRecord, key, entry.value)
        for key, entry in await store.list_all(records.DELETED_TOPICS)
    ]
    owner_ids = [(topic.id, topic.owner) for topic in topics] + [(topic.id, topic.owner) for topic in deleted]
    own = {topic.id for topic in topics if owners.is_local(topic.owner)}
    return own, {topic_id for topic_id, owner in owner_ids if not owners.is_local(owner)}
