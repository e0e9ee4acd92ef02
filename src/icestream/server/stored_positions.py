"""Which offsets of this node's shards somebody knows, by the metadata store: the log must reach as far (hazards 3, 5).

    cursors    what was acked
    tables     what is committed: beside the pointers of our own catalog, in the mirrors of tables that are elsewhere

A log that ends before one of them was damaged, or is older than what was made of it: it does not start, unless somebody
agreed to the loss. No catalog is asked, so a start needs none (hazard 4).

A record of a table that cannot be read is told and left out: it may be of no topic at all, and whatever mends it needs
a broker that runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Container, Mapping
from typing import TypeVar

from icestream import errors
from icestream.broker import records
from icestream.broker.neighbours import Neighbours
from icestream.catalog import keys
from icestream.catalog.records import TableRecord, decode_relation
from icestream.metadata.entry import Entry
from icestream.metadata.store import MetadataStore
from icestream.model.shard import ShardKey
from icestream.model.topic_name import parse_shard
from icestream.observability.log import get_logger
from icestream.warehouse.mirror import MIRRORS, decode_mirror

_log = get_logger("server")
Positions = dict[ShardKey, int]
Record = TypeVar("Record")


async def stored_positions(store: MetadataStore, neighbours: Neighbours) -> Positions:
    """The highest of each shard of the topics that this node serves."""
    found: Positions = {}
    own, others = await _topics(store, neighbours)
    for key, entry in await store.list_all(records.CURSORS):
        cursor = records.decode(records.CursorRecord, key, entry.value)
        if cursor.topic_id not in others:
            _, shard = parse_shard("/" + "/".join(key.split("/")[-2:]))
            _raise(found, cursor.topic_id, {shard or 0: cursor.end})
    async for topic_id, committed in _committed(store):
        if topic_id in own:  # of a deleted topic the log need not know anything any more
            _raise(found, topic_id, committed)
    return found


async def _committed(store: MetadataStore) -> AsyncIterator[tuple[int, Mapping[int, int]]]:
    for key, entry in await store.list_all(keys.RELATIONS):
        relation = _readable(decode_relation, key, entry)
        if isinstance(relation, TableRecord) and relation.binding is not None:
            yield relation.binding.topic_id, relation.binding.committed()
    for key, entry in await store.list_all(MIRRORS):
        mirror = _readable(decode_mirror, key, entry)
        if mirror is not None:
            yield int(key.removeprefix(MIRRORS)), mirror.committed


def _readable(decode: Callable[[str, Entry], Record], key: str, entry: Entry) -> Record | None:
    try:
        return decode(key, entry)
    except errors.MetadataDamaged as error:
        _log.error(
            "the record of a table cannot be read: this start does not compare the log with that table",
            key=key, reason=error.message, hint=error.hint,
        )  # fmt: skip
        return None


def _raise(found: Positions, topic_id: int, ends: Mapping[int, int]) -> None:
    for shard, end in ends.items():
        place = ShardKey(topic_id, shard)
        found[place] = max(found.get(place, 0), end)


async def _topics(store: MetadataStore, neighbours: Neighbours) -> tuple[Container[int], Container[int]]:
    """Ids of topics that this node serves; and of those that its log knows nothing of, deleted ones too."""
    topics = [
        records.decode(records.TopicRecord, key, entry.value) for key, entry in await store.list_all(records.TOPICS)
    ]
    deleted = [
        records.decode(records.DeletedTopic, key, entry.value)
        for key, entry in await store.list_all(records.DELETED_TOPICS)
    ]
    owners = [(one.id, one.owner) for one in topics] + [(one.id, one.owner) for one in deleted]
    own = {one.id for one in topics if neighbours.is_own(one.owner)}
    return own, {topic_id for topic_id, owner in owners if not neighbours.is_own(owner)}
