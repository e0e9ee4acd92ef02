"""Takes over a topic of a node that was removed from the cluster for good: this node serves it from now on.

The messages in the topic's table are kept. Those that only the log of the removed node had are lost, and their number
is unknown: the offsets after the table, up to TAKEOVER_OFFSETS after the highest offset seen anywhere, become a
declared gap, and the new owner continues after it. So no offset is assigned to a second message, also if the new owner
is removed before it has committed anything: the topic record says where it began.

    1  the gaps are written to the log of the new owner, and synced
    2  the topic record names the new owner, unless it was changed meanwhile
Both steps can be repeated after a crash: gaps that the log has already are not written twice.
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
from icestream.model.shard import DeclaredGap, GapState, ShardKey, TopicIdentity
from icestream.model.topic_name import TopicName, parse_shard
from icestream.observability.log import get_logger

_log = get_logger("broker.takeover")


class Takeover(NamedTuple):
    """The result of a takeover."""

    record: records.TopicRecord
    former_node: str  # the name of the removed node
    gaps: list[DeclaredGap]


def lost_gap(key: ShardKey, committed: int, highest_seen: int, former_node: str) -> DeclaredGap:
    """The offsets that the removed node may have assigned and that are not in the table. Pure."""
    # Beyond what was seen: the removed node may have acked messages to producers that no consumer has read.
    end = max(committed, highest_seen) + limits.TAKEOVER_OFFSETS
    return DeclaredGap(key, committed, end, 0, f"taken over from node {former_node}, which was removed", GapState.LOST)


class TopicTakeover:
    """Takes over topics of removed nodes."""

    def __init__(self, store: MetadataStore, storage: PersistentStorage, owners: TopicOwners) -> None:
        self._store = store
        self._storage = storage
        self._owners = owners

    async def take_over(self, name: TopicName, node: str) -> Takeover:
        """Makes this node, named `node`, the owner of the topic.

        Raises UnknownTopic, TopicElsewhere while the owner is a member, NotReady after a concurrent change.
        """
        key = records.topic_key(name)
        entry = await self._store.get(key)
        if entry is None:
            raise errors.UnknownTopic(f"there is no topic {name}", hint="`icestream topic list` shows the topics")
        record = records.decode(records.TopicRecord, key, entry.value)
        if self._owners.is_local(record.owner):
            raise errors.InvalidInput(
                f"topic {name} is already served by this node", hint=f"`icestream topic describe {name}` shows its node"
            )
        if not self._owners.is_orphaned(record.owner):
            raise self._owners.redirect_error(name, record)
        # A cursor can be above the table: consumers had messages that were not committed yet. Offsets that they have
        # seen must not be assigned to other messages.
        committed, highest_seen = await self._committed(record.id), await self._seen(record.id)
        gaps = [
            lost_gap(
                ShardKey(record.id, shard),
                committed.get(shard, 0),
                max(highest_seen.get(shard, 0), record.takeover_end),  # the last owner may have committed nothing
                record.node,
            )
            for shard in range(record.shards)
        ]
        await self._storage.declare_lost_offsets(TopicIdentity(record.id, str(name), record.id), gaps)
        end = max(gap.end for gap in gaps)
        new_record = msgspec.structs.replace(record, owner=self._owners.node_id, node=node, takeover_end=end)
        reply = await self._store.txn([AtRevision(key, entry.mod_revision)], [Put(key, records.encode(new_record))])
        if not reply.held:
            raise errors.NotReady(f"topic {name} was changed concurrently", hint="check the topic, and retry")
        _log.warning("took over a topic from a removed node", topic=str(name), former=record.node)
        return Takeover(new_record, record.node, gaps)

    async def _committed(self, topic_id: int) -> dict[int, int]:
        """The committed offset of each shard; empty without a table. Raises MetadataDamaged."""
        # A table in another catalog is known by its mirror alone: that catalog may be out of reach now.
        mirror = await self._store.get(foreign_table_key(topic_id))
        if mirror is not None:
            return dict(decode_foreign_table(foreign_table_key(topic_id), mirror).committed)
        key = catalog_keys.topic_key(topic_id)
        entry = await self._store.get(key)
        if entry is None:
            return {}
        table = catalog_records.decode(catalog_records.TopicTableRecord, key, entry)
        relation_key = catalog_keys.relation_key(Identifier(tuple(table.namespace), table.name))
        relation = await self._store.get(relation_key)
        if relation is None:
            return {}
        decoded = decode_relation(relation_key, relation)
        return decoded.binding.committed() if isinstance(decoded, TableRecord) and decoded.binding is not None else {}

    async def _seen(self, topic_id: int) -> dict[int, int]:
        """The highest offset of each shard that a cursor refers to."""
        ends: dict[int, int] = {}
        for key, entry in await self._store.list_all(records.CURSORS):
            cursor = records.decode(records.CursorRecord, key, entry.value)
            if cursor.topic_id == topic_id:
                shard = parse_shard("/" + "/".join(key.split("/")[-2:]))[1] or 0
                ends[shard] = max(ends.get(shard, 0), cursor.end)
        return ends
