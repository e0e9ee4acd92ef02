"""A topic whose node was removed from the cluster for good is served by another node from now on, or deleted.

What the table of the topic holds is there. What was in the log of the removed node alone is lost with it, and nobody
knows how much that was: the offsets behind the table, up to TAKEOVER_OFFSETS behind everything that anybody has seen,
become a declared gap, and the new owner goes on behind it. No offset is given to a second message, also when the new
owner is removed before it has committed anything: the record of the topic says where it began.

    1  the gaps are written into the log of the new owner, synced
    2  the record of the topic names the new owner, if nobody changed it meanwhile
Cut off between the two, it is done again: gaps that the log has already are not written twice.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.storage import PersistentStorage
from icestream.broker.topic_owners import TopicOwners
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_keys import foreign_table_key
from icestream.catalog.catalog_records import TableRecord, decode_relation
from icestream.catalogs.mirror import decode_foreign_table
from icestream.iceberg.identifier import Identifier
from icestream.metadata.command import AtRevision, Put
from icestream.metadata.store import MetadataStore
from icestream.model.shard import Gap, GapState, ShardKey, TopicIdentity
from icestream.model.topic_name import TopicName, parse_shard
from icestream.observability.log import get_logger

_log = get_logger("broker.takeover")


class Takeover(NamedTuple):
    record: records.TopicRecord
    former: str  # the name of the node that was removed
    gaps: list[Gap]


def gap_of(key: ShardKey, committed: int, seen: int, former: str) -> Gap:
    """Offsets that the removed node may have given away, as far as its table does not have them. Pure."""
    end = max(committed, seen) + limits.TAKEOVER_OFFSETS
    return Gap(key, committed, end, 0, f"taken over from node {former}, which was removed", GapState.LOST)


class TopicTakeover:
    def __init__(self, store: MetadataStore, storage: PersistentStorage, neighbours: TopicOwners) -> None:
        self._store = store
        self._storage = storage
        self._neighbours = neighbours

    async def take_over(self, name: TopicName, node: str) -> Takeover:
        """`node`: the name of this one. Raises TopicElsewhere while the owner is a member, UnknownTopic."""
        key = records.topic_key(name)
        entry = await self._store.get(key)
        if entry is None:
            raise errors.UnknownTopic(f"there is no topic {name}", hint="`icestream topic list` shows those that are")
        record = records.decode(records.TopicRecord, key, entry.value)
        if self._neighbours.is_own(record.owner):
            raise errors.InvalidInput(f"topic {name} is served by this node already")
        if not self._neighbours.is_orphaned(record.owner):
            raise self._neighbours.elsewhere(name, record)
        committed, seen = await self._committed(record.id), await self._seen(record.id)
        gaps = [
            gap_of(
                ShardKey(record.id, shard),
                committed.get(shard, 0),
                max(seen.get(shard, 0), record.takeover_end),  # its last owner may have committed nothing
                record.node,
            )
            for shard in range(record.shards)
        ]
        await self._storage.declare_lost_offsets(TopicIdentity(record.id, str(name), record.id), gaps)
        end = max(gap.end for gap in gaps)
        taken = msgspec.structs.replace(record, owner=self._neighbours.own, node=node, takeover_end=end)
        done = await self._store.txn([AtRevision(key, entry.mod_revision)], [Put(key, records.encode(taken))])
        if not done.held:
            raise errors.NotReady(f"topic {name} was changed at the same moment", hint="look at it, and try again")
        _log.warning("a topic was taken over from a removed node", topic=str(name), former=record.node)
        return Takeover(taken, record.node, gaps)

    async def _committed(self, topic_id: int) -> dict[int, int]:
        """By shard, the end of what the table holds; nothing without a table. Raises MetadataDamaged."""
        mirror = await self._store.get(foreign_table_key(topic_id))
        if mirror is not None:
            return dict(decode_foreign_table(foreign_table_key(topic_id), mirror).committed)
        key = catalog_keys.topic_key(topic_id)
        entry = await self._store.get(key)
        if entry is None:
            return {}
        table = catalog_records.decode(catalog_records.TopicRecord, key, entry)
        relation_key = catalog_keys.relation_key(Identifier(tuple(table.namespace), table.name))
        relation = await self._store.get(relation_key)
        if relation is None:
            return {}
        decoded = decode_relation(relation_key, relation)
        return decoded.binding.committed() if isinstance(decoded, TableRecord) and decoded.binding is not None else {}

    async def _seen(self, topic_id: int) -> dict[int, int]:
        """By shard, the highest offset that a cursor knows."""
        ends: dict[int, int] = {}
        for key, entry in await self._store.list_all(records.CURSORS):
            cursor = records.decode(records.CursorRecord, key, entry.value)
            if cursor.topic_id == topic_id:
                shard = parse_shard("/" + "/".join(key.split("/")[-2:]))[1] or 0
                ends[shard] = max(ends.get(shard, 0), cursor.end)
        return ends
