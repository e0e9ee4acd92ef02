"""Which offsets of this node's shards somebody knows, by the metadata store: the log must reach as far (hazards 3, 5).

    cursors    what was acked
    tables     what is committed: beside the pointers of our own catalog, in the mirrors of tables that are elsewhere

A log that ends before one of them was damaged, or is older than what was made of it: it does not start, unless somebody
agreed to the loss. No catalog is asked, so a start needs none (hazard 4).

A record of a table that cannot be read is told and left out: it may be of no topic at all, and whatever mends it needs
a broker that runs. Where it is known to be of a topic, that one waits for it (deferred_table_checks.py).
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
    unread: dict[str, int]  # records that could not be read, of tables of these topics


async def stored_positions(store: MetadataStore, neighbours: TopicOwners) -> StoredPositions:
    """The highest of each shard of the topics that this node serves."""
    found, unread = Positions(), list[str]()
    own, others = await _topics(store, neighbours)
    for key, entry in await store.list_all(records.CURSORS):
        cursor = records.decode(records.CursorRecord, key, entry.value)
        if cursor.topic_id not in others:
            _, shard = parse_shard("/" + "/".join(key.split("/")[-2:]))
            _raise(found, cursor.topic_id, {shard or 0: cursor.end})
    for prefix in (catalog_keys.RELATIONS, FOREIGN_TABLES):
        for key, entry in await store.list_all(prefix):
            committed = _readable(key, entry)
            if committed is None:
                unread.append(key)
            elif committed.topic_id in own:  # of a deleted topic the log need not know anything any more
                _raise(found, committed.topic_id, committed.ends)
    owners = await _tables_of_topics(store) if unread else {}
    return StoredPositions(found, {key: owners[key] for key in unread if owners.get(key) in own})


async def own_shards(store: MetadataStore, neighbours: TopicOwners) -> list[ShardKey]:
    """Every shard of the topics that this node serves, whether any of its offsets is stored or not: a repaired log that
    lost its end must not give out the offsets of a shard anew that it does not know (wal/recovery.py)."""
    topics = [
        records.decode(records.TopicRecord, key, entry.value) for key, entry in await store.list_all(records.TOPICS)
    ]
    return [
        ShardKey(topic.id, shard) for topic in topics if neighbours.is_own(topic.owner) for shard in range(topic.shards)
    ]


class CommittedEnds(NamedTuple):
    topic_id: int  # 0: it is of none
    ends: Mapping[int, int]


def committed_ends(key: str, entry: Entry) -> CommittedEnds:
    """By the record of a table. Raises MetadataDamaged."""
    if key.startswith(FOREIGN_TABLES):
        return CommittedEnds(int(key.removeprefix(FOREIGN_TABLES)), decode_foreign_table(key, entry).committed)
    relation = decode_relation(key, entry)
    if isinstance(relation, TableRecord) and relation.binding is not None:
        return CommittedEnds(relation.binding.topic_id, relation.binding.committed())
    return CommittedEnds(0, {})


async def _tables_of_topics(store: MetadataStore) -> dict[str, int]:
    """Whose the records of tables are, without a look at them."""
    found = {key: int(key.removeprefix(FOREIGN_TABLES)) for key, _ in await store.list_all(FOREIGN_TABLES)}
    for key, entry in await store.list_all(catalog_keys.TOPICS):
        with contextlib.suppress(errors.MetadataDamaged):
            one = catalog_records.decode(catalog_records.TopicRecord, key, entry)
            found[catalog_keys.relation_key(Identifier(tuple(one.namespace), one.name))] = int(
                key.removeprefix(catalog_keys.TOPICS)
            )
    return found


def _readable(key: str, entry: Entry) -> CommittedEnds | None:
    try:
        return committed_ends(key, entry)
    except errors.MetadataDamaged as error:
        _log.error(
            "the record of a table cannot be read: the log is not compared with that table before it can be",
            key=key, reason=error.message, hint=error.hint,
        )  # fmt: skip
        return None


def _raise(found: Positions, topic_id: int, ends: Mapping[int, int]) -> None:
    for shard, end in ends.items():
        place = ShardKey(topic_id, shard)
        found[place] = max(found.get(place, 0), end)


async def _topics(store: MetadataStore, neighbours: TopicOwners) -> tuple[Container[int], Container[int]]:
    """Ids of topics that this node serves; and of those that its log knows nothing of, deleted ones too."""
    topics = [
        records.decode(records.TopicRecord, key, entry.value) for key, entry in await store.list_all(records.TOPICS)
    ]
    deleted = [
        records.decode(records.DeletedTopicRecord, key, entry.value)
        for key, entry in await store.list_all(records.DELETED_TOPICS)
    ]
    owners = [(one.id, one.owner) for one in topics] + [(one.id, one.owner) for one in deleted]
    own = {one.id for one in topics if neighbours.is_own(one.owner)}
    return own, {topic_id for topic_id, owner in owners if not neighbours.is_own(owner)}
