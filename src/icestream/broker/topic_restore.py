"""Creates topics of a backup (ADR 75): the part of a restore that the broker does.

allocate    a topic id for a topic of a backup, and the namespace if it is missing. The RestoreRecord makes a
            repeated restore continue with the same id
create      the log begins behind a declared gap; cursors; then one transaction: topic record, subscriptions, the
            restored table as a detached one
end         the table was adopted: the record goes
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.schema_registry_records import SubjectName, TopicSchema, id_key, topic_schema_key
from icestream.broker.storage import PersistentStorage
from icestream.broker.topic_owners import TopicOwners
from icestream.broker.topic_tombstones import chunks
from icestream.catalog import catalog_keys
from icestream.catalog.catalog_records import DetachedRecord
from icestream.catalog.topic_bindings import TopicBindings
from icestream.metadata.command import Absent, AtRevision, Operation, Put, PutWithTtl
from icestream.metadata.store import MetadataStore
from icestream.model.shard import DeclaredGap, GapState, ShardKey, TopicIdentity
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from icestream.runtime.clock import Clock

RESTORES: Final = "/restores/"
# Records of the catalog and of the pipeline about a topic, by its id: they get the new one.
RECORDS_OF_TOPICS: Final = (catalog_keys.RETAINED, catalog_keys.STRUCTURES, catalog_keys.RETENTION)


class RestoreRecord(msgspec.Struct, frozen=True):
    """A restore that is not completed."""

    topic_id: int
    is_created: bool = False
    metadata_file: str = ""  # of the table, once the topic is created; empty: it has none


class RestoredShard(NamedTuple):
    """Offsets below `end` are in the restored table; the next message gets `resume_at`."""

    shard: int
    end: int
    resume_at: int


class RestoredSubscription(NamedTuple):
    """A subscription of the backup, with the cursors of its shards."""

    name: str
    record: records.SubscriptionRecord
    cursors: list[tuple[int, records.CursorRecord]]


class BackedUpTopic(NamedTuple):
    """A topic to create from a backup."""

    backup_id: str
    name: TopicName
    record: records.TopicRecord  # of the backup
    shards: list[RestoredShard]
    subscriptions: list[RestoredSubscription]
    table: DetachedRecord | None
    schema: TopicSchema | None = None
    about: Mapping[str, bytes] = MappingProxyType({})  # by prefix, one of RECORDS_OF_TOPICS
    keeps_owners: bool = False  # accounts are restored too, so owners of subscriptions are those of the backup


class TopicRestore:
    """Creates topics of backups on this node."""

    def __init__(
        self, store: MetadataStore, storage: PersistentStorage, owners: TopicOwners, clock: Clock, node: str
    ) -> None:
        self._store = store
        self._storage = storage
        self._owners = owners
        self._clock = clock
        self._node = node

    async def allocate(self, backup_id: str, name: TopicName, policies: PolicyValues) -> RestoreRecord:
        """Returns the id for a restored topic, the same one until its restore is completed. `policies`: of its
        namespace, if that does not exist. Raises AlreadyExists for a name that another topic has."""
        namespace_key = records.namespace_key(name.namespace)
        namespace = records.encode(records.NamespaceRecord(policies))
        await self._store.txn([Absent(namespace_key)], [Put(namespace_key, namespace)])
        key = restore_key(backup_id, name)
        entry, topic = await self._store.get(key), await self._store.get(records.topic_key(name))
        record = None if entry is None else records.decode(RestoreRecord, key, entry.value)
        topic_id = None if topic is None else records.decode(records.TopicRecord, key, topic.value).id
        if record is not None and topic_id in (None, record.topic_id) and (topic_id is not None) == record.is_created:
            return record
        if topic_id is not None:
            raise errors.AlreadyExists(
                f"topic {name} exists", hint="restore beside it with --as, or delete it first and restore then"
            )
        record = RestoreRecord(await self._store.allocate_id("topic"))
        await self._store.txn([], [PutWithTtl(key, records.encode(record), limits.RESTORE_AGE_MS)])
        return record

    async def create(self, topic: BackedUpTopic) -> records.TopicRecord:
        """Creates the topic with the id that was allocated; returns its record. Repeating it changes nothing. Raises
        AlreadyExists, UnknownNamespace, InvalidInput for more subscriptions than a transaction holds."""
        name, key = topic.name, restore_key(topic.backup_id, topic.name)
        entry = await self._store.get(key)
        if entry is None:
            raise errors.LeaseLost(f"the restore of {name} was not begun, or it is over", hint="restore again")
        topic_id = records.decode(RestoreRecord, key, entry.value).topic_id
        record = msgspec.structs.replace(
            topic.record,
            id=topic_id,
            created_ms=self._clock.wall_us() // 1000,
            node=self._node,
            owner=self._owners.node_id,
            takeover_end=max(shard.resume_at for shard in topic.shards),
        )
        gaps = [
            DeclaredGap(
                ShardKey(topic_id, shard.shard),
                shard.end,
                shard.resume_at,
                0,
                f"restored from backup {topic.backup_id}",
                GapState.LOST,
            )
            for shard in topic.shards
            if shard.resume_at > 0
        ]
        await self._storage.declare_lost_offsets(TopicIdentity(topic_id, str(name), topic_id), gaps)
        for chunk in chunks(self._cursors(topic, record)):
            await self._store.txn([], chunk)
        await self._create(topic, record, key)
        return record

    def _cursors(self, topic: BackedUpTopic, record: records.TopicRecord) -> list[Operation]:
        ends = {shard.shard: shard.end for shard in topic.shards}
        operations: list[Operation] = []
        for subscription in topic.subscriptions:
            for shard, cursor in subscription.cursors:
                key = records.cursor_key(
                    topic.name, subscription.name, shard, record.shards, is_partitioned=record.is_partitioned
                )
                # They were cut when the backup was made; cut again, because a cursor beyond the data skips messages.
                is_beyond = cursor.offset > ends.get(shard, 0) or cursor.end > ends.get(shard, 0)
                restored = msgspec.structs.replace(
                    cursor,
                    topic_id=record.id,
                    epoch=0,
                    offset=min(cursor.offset, ends.get(shard, 0)),
                    acked=[] if is_beyond else cursor.acked,
                    attempts=[] if is_beyond else cursor.attempts,
                    snapshot_id=None,
                    file_path=None,
                    row_offset=None,
                )
                operations.append(Put(key, records.encode(restored)))
        return operations

    async def _create(self, topic: BackedUpTopic, record: records.TopicRecord, key: str) -> None:
        namespace_key, topic_key = records.namespace_key(topic.name.namespace), records.topic_key(topic.name)
        namespace, existing = await self._store.get(namespace_key), await self._store.get(topic_key)
        if existing is not None and records.decode(records.TopicRecord, topic_key, existing.value).id == record.id:
            return  # a repeat
        if len(topic.subscriptions) > limits.METADATA_TXN_OPERATIONS_MAX // 2:
            raise errors.InvalidInput(
                f"topic {topic.name} has {len(topic.subscriptions)} subscriptions: more than one transaction holds",
                hint="restore it without them: --no-subscriptions",
            )
        operations: list[Operation] = [Put(topic_key, records.encode(record))]
        for subscription in topic.subscriptions:
            # Ids of another cluster mean other subscriptions here; owners are accounts, which may not be restored.
            restored = msgspec.structs.replace(subscription.record, id=await self._store.allocate_id("subscription"))
            if not topic.keeps_owners:
                restored = msgspec.structs.replace(restored, principal="", dead_letters_by=None)
            operations.append(Put(records.subscription_key(topic.name, subscription.name), records.encode(restored)))
        if topic.table is not None:
            operations += TopicBindings.plan_return(record.id, topic.table)
        operations += await self._about(topic, record.id)
        metadata_file = "" if topic.table is None else topic.table.location
        created = RestoreRecord(record.id, is_created=True, metadata_file=metadata_file)
        operations.append(PutWithTtl(key, records.encode(created), limits.RESTORE_AGE_MS))
        reply = await self._store.txn(
            [Absent(topic_key), AtRevision(namespace_key, 0 if namespace is None else namespace.mod_revision)],
            operations,
        )
        if not reply.held:
            raise errors.AlreadyExists(
                f"topic {topic.name} was created, or its namespace changed, concurrently", hint="restore again"
            )

    async def _about(self, topic: BackedUpTopic, topic_id: int) -> list[Operation]:
        """What else is known of a topic: first kept offsets, learned structure, commit times, its schema."""
        operations: list[Operation] = [
            Put(f"{prefix}{topic_id}", topic.about[prefix]) for prefix in RECORDS_OF_TOPICS if prefix in topic.about
        ]
        if topic.schema is not None and await self._has_subject(topic.schema):
            operations.append(Put(topic_schema_key(topic.name), records.encode(topic.schema)))
        return operations

    async def _has_subject(self, schema: TopicSchema) -> bool:
        """Whether the id of a topic's schema means the same subject here."""
        key = id_key(schema.schema_id)
        entry = await self._store.get(key)
        return entry is not None and records.decode(SubjectName, key, entry.value).subject == schema.subject

    async def end(self, backup_id: str, name: TopicName) -> None:
        """Ends the restore of a topic: a further one makes another topic."""
        await self._store.delete(restore_key(backup_id, name))


def restore_key(backup_id: str, name: TopicName) -> str:
    return f"{RESTORES}{backup_id}{name}"
