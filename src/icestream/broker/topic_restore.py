"""Creates topics of a backup (ADR 75): the part of a restore that the broker does.

allocate    a topic id for a topic of a backup, and the namespace if it is missing. The RestoreRecord makes a
            repeated restore continue with the same id
create      the log begins behind a declared gap; cursors; then one transaction: topic record, subscriptions, the
            restored table as a detached one
replace     instead of create, for a restore in place (ADR 116): the live topic stays as it is until one transaction
            deletes it and creates the other one with its name, subscriptions, cursors and producers
end         the table was adopted: the record goes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.name_registry import put_name
from icestream.broker.schema_registry_records import SubjectName, TopicSchema, id_key, topic_schema_key
from icestream.broker.storage import PersistentStorage
from icestream.broker.topic_deletion import PlannedReplacement
from icestream.broker.topic_owners import TopicOwners
from icestream.broker.topic_tombstones import chunks
from icestream.catalog import catalog_keys
from icestream.catalog.catalog_keys import foreign_table_key
from icestream.catalog.catalog_records import DetachedRecord
from icestream.catalog.topic_bindings import TopicBindings
from icestream.catalogs.mirror import ForeignTableRecord, decode_foreign_table
from icestream.metadata.command import Absent, AtRevision, DeletePrefix, Operation, Put, PutWithTtl
from icestream.metadata.store import MetadataStore
from icestream.model.shard import DeclaredGap, GapState, ShardKey, TopicIdentity
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from icestream.runtime.clock import Clock

RESTORES: Final = "/restores/"
STAGED_NAMES: Final = "/restored_names/"
# Records of the catalog and of the pipeline about a topic, by its id: they get the new one.
RECORDS_OF_TOPICS: Final = (
    catalog_keys.RETAINED,
    catalog_keys.STRUCTURES,
    catalog_keys.RETENTION,
    catalog_keys.ERASED,
)


class RestoreRecord(msgspec.Struct, frozen=True):
    """A restore that is not completed."""

    topic_id: int
    is_created: bool = False
    metadata_file: str = ""  # of the table, once the topic is created; empty: it has none
    replaces: int = 0  # the id of the live topic that a restore in place replaces; 0: the name was free
    live_ends: list[int] = []  # of its shards, when the restore began
    run: str = ""  # the newest run of it, which alone creates the topic: others have their own tails and metadata


class OpenRestore(NamedTuple):
    """A restore that is not completed: of a topic, or of everything, without a topic and its record."""

    backup_id: str
    topic: str | None
    record: RestoreRecord | None


class RestorePage(NamedTuple):
    restores: list[OpenRestore]
    next_after: str | None


class RestoredShard(NamedTuple):
    """Offsets below `end` are in the restored table, but for those in `gaps`; the next message gets `resume_at`."""

    shard: int
    end: int
    resume_at: int
    gaps: Sequence[tuple[int, int]] = ()  # that the source had declared; none passes `end`


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
    is_in_place: bool = False
    run: str = ""  # that restored it


class FormerTopic(NamedTuple):
    """A live topic that a restore replaces."""

    record: records.TopicRecord
    deletion: PlannedReplacement
    close: Callable[[], None]  # ends its clients


class TopicRestore:
    """Creates topics of backups on this node."""

    def __init__(
        self,
        store: MetadataStore,
        storage: PersistentStorage,
        owners: TopicOwners,
        clock: Clock,
        node: str,
        *,
        has_own_catalog: bool = True,
    ) -> None:
        self._store = store
        self._storage = storage
        self._owners = owners
        self._clock = clock
        self._node = node
        self._has_own_catalog = has_own_catalog

    async def allocate(
        self, backup_id: str, name: TopicName, policies: PolicyValues, *, is_in_place: bool = False, run: str = ""
    ) -> RestoreRecord:
        """Returns the id for a restored topic, the same one until its restore is completed. `policies`: of its
        namespace, if that does not exist. `run`: takes the restore over from every other one. Raises AlreadyExists for
        a name that another topic has, unless that is to be replaced."""
        namespace_key = records.namespace_key(name.namespace)
        namespace = records.encode(records.NamespaceRecord(policies))
        await self._store.txn([Absent(namespace_key)], [Put(namespace_key, namespace)])
        key = restore_key(backup_id, name)
        entry, topic = await self._store.get(key), await self._store.get(records.topic_key(name))
        record = None if entry is None else records.decode(RestoreRecord, key, entry.value)
        live = None if topic is None else records.decode(records.TopicRecord, key, topic.value)
        live_id = 0 if live is None else live.id
        if record is not None and live_id == (record.topic_id if record.is_created else record.replaces):
            if not record.is_created and record.run != run:
                record = msgspec.structs.replace(record, run=run)
                put = PutWithTtl(key, records.encode(record), limits.RESTORE_AGE_MS)
                at_restore = AtRevision(key, 0 if entry is None else entry.mod_revision)
                if not (await self._store.txn([at_restore], [put])).held:
                    raise errors.LeaseLost(f"another restore of {name} ended meanwhile", hint="restore again")
            return record
        if live_id and not is_in_place:
            raise errors.AlreadyExists(
                f"topic {name} exists", hint="restore beside it with --as, or replace it with --in-place"
            )
        live_ends = [] if live is None else self._live_ends(live.id, live.shards)
        record = RestoreRecord(await self._store.allocate_id("topic"), replaces=live_id, live_ends=live_ends, run=run)
        await self._store.txn([], [PutWithTtl(key, records.encode(record), limits.RESTORE_AGE_MS)])
        return record

    async def page(self, after: str, limit: int) -> RestorePage:
        """Restores that are not completed. `after`: of the page before."""
        entries = await self._store.list(RESTORES, f"{RESTORES}{after}" if after else "", limit)
        restores = []
        for key, entry in entries:
            backup_id, _, topic = key.removeprefix(RESTORES).partition("/")
            is_topic = "/" in topic  # else the record of a restore of everything (cluster_restore.py)
            record = records.decode(RestoreRecord, key, entry.value) if is_topic else None
            restores.append(OpenRestore(backup_id, f"/{topic}" if is_topic else None, record))
        last = entries[-1][0].removeprefix(RESTORES) if len(entries) == limit else None
        return RestorePage(restores, last)

    async def create(self, topic: BackedUpTopic, former: FormerTopic | None = None) -> records.TopicRecord:
        """Creates the topic with the id that was allocated, in the place of `former`; returns its record. Repeating it
        changes nothing. Raises LeaseLost if another run has taken the restore over, AlreadyExists, UnknownNamespace,
        InvalidInput for more subscriptions than a transaction holds."""
        name, key = topic.name, restore_key(topic.backup_id, topic.name)
        entry = await self._store.get(key)
        if entry is None:
            raise errors.LeaseLost(f"the restore of {name} was not begun, or it is over", hint="restore again")
        restore = records.decode(RestoreRecord, key, entry.value)
        if restore.run != topic.run:
            raise errors.LeaseLost(
                f"another restore of {name} from backup {topic.backup_id} began meanwhile", hint="let that one end"
            )
        topic_id = restore.topic_id
        if former is not None:
            if former.record.id == topic_id:
                return former.record  # a repeat
            if former.record.id != restore.replaces:
                raise errors.AlreadyExists(
                    f"topic {name} was replaced while it was restored", hint="restore again: look at what would be lost"
                )
        # Recorded when the restore began, so that a repeat declares the same gap. The distance is for what the live
        # topic gives out until it is closed (hazard 78).
        ends = dict(enumerate(restore.live_ends))
        shards = [
            shard._replace(resume_at=max(shard.resume_at, ends[shard.shard] + limits.TAKEOVER_OFFSETS))
            if shard.shard in ends
            else shard
            for shard in topic.shards
        ]
        topic = topic._replace(shards=shards)
        record = msgspec.structs.replace(
            topic.record,
            id=topic_id,
            created_ms=self._clock.wall_us() // 1000,
            node=self._node,
            owner=self._owners.node_id,
            takeover_end=max(shard.resume_at for shard in topic.shards),
        )
        gaps = [
            DeclaredGap(ShardKey(topic_id, shard.shard), start, end, 0, reason, GapState.LOST)
            for shard in topic.shards
            if shard.resume_at > 0
            # In the order of offsets: what is written tells a repeat how far it was.
            for start, end, reason in (
                *((start, end, f"a gap of the source, in backup {topic.backup_id}") for start, end in shard.gaps),
                (shard.end, shard.resume_at, f"restored from backup {topic.backup_id}"),
            )
        ]
        await self._storage.declare_lost_offsets(TopicIdentity(topic_id, str(name), topic_id), gaps)
        cursors = self._cursors(topic, record)
        if former is None:
            for chunk in chunks(cursors):
                await self._store.txn([], chunk)
            cursors = []
        await self._create(topic, record, AtRevision(key, entry.mod_revision), cursors, former)
        return record

    def _live_ends(self, topic_id: int, shards: int) -> list[int]:
        """What each shard of the live topic has given out until now."""
        keys = [ShardKey(topic_id, shard) for shard in range(shards)]
        return [self._storage.shard_stream(key).visible if self._storage.has_shard(key) else 0 for key in keys]

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

    async def _create(
        self,
        topic: BackedUpTopic,
        record: records.TopicRecord,
        at_restore: AtRevision,
        cursors: Sequence[Operation],
        former: FormerTopic | None,
    ) -> None:
        namespace_key, topic_key = records.namespace_key(topic.name.namespace), records.topic_key(topic.name)
        namespace, existing = await self._store.get(namespace_key), await self._store.get(topic_key)
        if existing is not None and records.decode(records.TopicRecord, topic_key, existing.value).id == record.id:
            return  # a repeat
        operations: list[Operation] = [] if former is None else [*former.deletion.operations]
        operations.append(Put(topic_key, records.encode(record)))
        for subscription in topic.subscriptions:
            # Ids of another cluster mean other subscriptions here; owners are accounts, which may not be restored.
            restored = msgspec.structs.replace(subscription.record, id=await self._store.allocate_id("subscription"))
            if not topic.keeps_owners:
                restored = msgspec.structs.replace(restored, principal="", dead_letters_by=None)
            operations.append(Put(records.subscription_key(topic.name, subscription.name), records.encode(restored)))
        operations += cursors
        if topic.table is not None:
            operations += await self._plan_table(topic, topic.table, record.id, former)
        operations += await self._about(topic, record.id)
        metadata_file = "" if topic.table is None else topic.table.location
        created = RestoreRecord(record.id, is_created=True, metadata_file=metadata_file, run=topic.run)
        operations.append(PutWithTtl(at_restore.key, records.encode(created), limits.RESTORE_AGE_MS))
        producers = await self._staged_producers(topic)
        if len(operations) + len(producers) > limits.METADATA_TXN_OPERATIONS_MAX // 2:
            producers = []  # they open again, with empty windows
        if len(operations) > limits.METADATA_TXN_OPERATIONS_MAX // 2:
            raise errors.InvalidInput(
                f"topic {topic.name} has {len(topic.subscriptions)} subscriptions: more than one transaction holds",
                hint="restore it without them: --no-subscriptions",
            )
        operations += [*producers, DeletePrefix(staged_names_prefix(topic.backup_id, topic.name))]
        at_namespace = AtRevision(namespace_key, 0 if namespace is None else namespace.mod_revision)
        if former is None or existing is None:
            is_held = (await self._store.txn([Absent(topic_key), at_namespace, at_restore], operations)).held
        else:
            at_topic = AtRevision(topic_key, existing.mod_revision)
            is_held = await self._storage.replace_cursors(
                former.deletion.cursors, [at_topic, at_namespace, at_restore], operations, former.close
            )
        if not is_held:
            raise errors.AlreadyExists(
                f"topic {topic.name} was created, or its namespace or restore changed, concurrently",
                hint="restore again",
            )

    async def _plan_table(
        self, topic: BackedUpTopic, table: DetachedRecord, topic_id: int, former: FormerTopic | None
    ) -> list[Operation]:
        """The restored table as one that the topic was detached from: it is bound when it is registered (ADR 75)."""
        if self._has_own_catalog:
            return TopicBindings.plan_return(topic_id, table)
        replaced = None
        if former is not None:
            former_key = foreign_table_key(former.record.id)
            entry = await self._store.get(former_key)
            replaced = None if entry is None else decode_foreign_table(former_key, entry)
        mirror = ForeignTableRecord(
            table.namespace, table.name, table.uuid, table.committed, topic=str(topic.name), is_detached=True,
            replaced_uuid="" if replaced is None or replaced.is_detached else replaced.uuid,
        )  # fmt: skip
        return [Put(foreign_table_key(topic_id), msgspec.json.encode(mirror))]

    async def _staged_producers(self, topic: BackedUpTopic) -> list[Operation]:
        """Names of producers that wait for the topic to be replaced (cluster_restore.py)."""
        prefix = staged_names_prefix(topic.backup_id, topic.name)
        return [put_name(key.removeprefix(prefix), entry.value) for key, entry in await self._store.list_all(prefix)]

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


def staged_names_prefix(backup_id: str, name: TopicName) -> str:
    """Names of producers for a restore in place: until the topic is replaced, its name has those of the live one. The
    keys below it end with the key that each will have."""
    return f"{STAGED_NAMES}{backup_id}{name}"
