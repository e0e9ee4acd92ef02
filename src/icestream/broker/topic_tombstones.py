"""Tombstones of deleted topics: what `icestream topic undelete` brings a topic back from (ADR 74).

    decision    the TombstoneRecord, in the transaction that deletes the topic record
    names       subscriptions, cursors and producers are copied before they are deleted, or replaced
    return      cursors first, then one transaction: topic record, subscriptions, producers, schema, the former table as
                a detached one. The tombstone goes with it

All records have a time to live. The topic has its old id, so the log goes on where it was: nothing about offsets,
epochs and producers is stored here. A deletion with `purge` leaves no tombstone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.erased_topics import erased_since
from icestream.broker.name_registry import put_name
from icestream.broker.schema_registry_records import topic_schema_key
from icestream.broker.storage import PersistentStorage
from icestream.broker.topic_owners import TopicOwners
from icestream.catalog.catalog_records import DetachedRecord
from icestream.catalog.topic_bindings import TopicBindings
from icestream.metadata.command import Absent, AtRevision, Delete, DeletePrefix, Operation, Put, PutWithTtl
from icestream.metadata.entry import Entry
from icestream.metadata.store import MetadataStore
from icestream.model.shard import ShardKey
from icestream.model.topic_deletion_policy import DeletedTablePolicy
from icestream.model.topic_name import TopicName
from icestream.runtime.clock import Clock

Item = TypeVar("Item")
_CHUNK: Final = limits.METADATA_TXN_OPERATIONS_MAX // 4


class ReturnedTopic(NamedTuple):
    """A topic that came back. `table`: the one that it had, which it has to adopt."""

    record: records.TopicRecord
    subscriptions: int
    table: DetachedRecord | None


class TopicTombstones:
    """Writes and reads the tombstones of topics of this node."""

    def __init__(
        self, store: MetadataStore, storage: PersistentStorage, owners: TopicOwners, clock: Clock, grace_ms: int
    ) -> None:
        self._store = store
        self._storage = storage
        self._owners = owners
        self._clock = clock
        self._grace_ms = grace_ms
        self._bindings = TopicBindings(store)

    # --- deletion ---

    def grace_ms(self, end: DeletedTablePolicy) -> int:
        """How long a topic can come back that is deleted with this end of its table; 0: it cannot."""
        return 0 if end is DeletedTablePolicy.PURGE else self._grace_ms

    async def plan(self, name: TopicName, record: records.TopicRecord, end: DeletedTablePolicy) -> list[Operation]:
        """Returns the operations that the decision to delete a topic adds; writes its cursors, so that they are
        current."""
        if not self.grace_ms(end):
            return []
        await self._storage.flush_cursors()
        schema = await self._store.get(topic_schema_key(name))
        now_ms = self._clock.wall_us() // 1000
        tombstone = records.TombstoneRecord(
            record,
            name.namespace,
            name.name,
            now_ms,
            now_ms + self._grace_ms,
            "" if schema is None else schema.value.decode(),
        )
        return [
            # Of a replacement that did not take place.
            DeletePrefix(records.tombstone_names_prefix(record.id) + "/"),
            PutWithTtl(records.tombstone_key(record.id), records.encode(tombstone), self._grace_ms),
        ]

    async def plan_replacement(
        self, name: TopicName, record: records.TopicRecord, keys: Sequence[str]
    ) -> list[Operation]:
        """As `plan`, for a topic that another one replaces in one transaction. The names at `keys` are copied before,
        because they are replaced with it."""
        operations = await self.plan(name, record, DeletedTablePolicy.DROP)
        if not operations:
            return []
        await self._store.delete_prefix(records.tombstone_names_prefix(record.id) + "/")
        await self._copy(record.id, keys)
        return operations[1:]

    async def copy_names(self, topic_id: int, keys: Sequence[str]) -> None:
        """Copies what is at these keys, if the topic has a tombstone. May be repeated: what is gone was copied."""
        if await self._store.get(records.tombstone_key(topic_id)) is not None:
            await self._copy(topic_id, keys)

    async def _copy(self, topic_id: int, keys: Sequence[str]) -> None:
        prefix = records.tombstone_names_prefix(topic_id)
        for chunk in chunks(keys):
            entries = [(key, await self._store.get(key)) for key in chunk]
            copies: list[Operation] = [
                PutWithTtl(prefix + key, entry.value, self._grace_ms) for key, entry in entries if entry is not None
            ]
            if copies and self._grace_ms:
                await self._store.txn([], copies)

    # --- return ---

    async def all(self) -> list[records.TombstoneRecord]:
        """Returns the tombstones of all topics of the cluster, the oldest deletion first."""
        entries = await self._store.list_all(records.TOMBSTONES)
        tombstones = [records.decode(records.TombstoneRecord, key, entry.value) for key, entry in entries]
        return sorted(tombstones, key=lambda tombstone: (tombstone.deleted_ms, tombstone.topic.id))

    async def return_topic(
        self, name: TopicName, topic_id: int | None = None, *, brings_back_erased: bool = False
    ) -> ReturnedTopic:
        """Creates a deleted topic again, the last one of this name or the one with this id.

        Raises Refused if messages of it were erased since from a topic that was restored from it, UnknownTopic without
        a tombstone, TopicElsewhere, AlreadyExists, UnknownNamespace, NotReady while the deletion goes on, PositionGone
        if the log does not know the topic.
        """
        tombstone = await self._find(name, topic_id)
        record = tombstone.topic
        if not self._owners.is_local(record.owner):
            raise self._owners.redirect_error(name, record)
        namespace_key = records.namespace_key(name.namespace)
        namespace = await self._store.get(namespace_key)
        if namespace is None:
            raise errors.UnknownNamespace(
                f"there is no namespace {name.namespace}",
                hint="create it: `icestream namespace create`",
            )
        await self._check_deleted(name, record)
        if not brings_back_erased and (erased := await erased_since(self._store, record.id)):
            raise errors.Refused(
                f"messages of topic {name} (id {record.id}) were erased after it was replaced: {erased}",
                hint="--bring-back-erased brings them back; erase them again then (`icestream lake erase`)",
            )
        entries = await self._store.list_all(prefix := records.tombstone_names_prefix(record.id) + "/")
        copies = [(key.removeprefix(prefix[:-1]), entry) for key, entry in entries]
        for chunk in chunks([copy for copy in copies if copy[0].startswith(records.CURSORS)]):
            # They name the topic id: a topic of this name that is created meanwhile does not use them.
            await self._store.txn([], [Put(key, entry.value) for key, entry in chunk])
        former = await self._bindings.find_former(record.id)
        offset_records = await self._bindings.plan_return_of_offsets(record.id)
        names = [copy for copy in copies if not copy[0].startswith(records.CURSORS)]
        reply = await self._store.txn(
            [Absent(records.topic_key(name)), AtRevision(namespace_key, namespace.mod_revision)],
            [
                Put(records.topic_key(name), records.encode(record)),
                *([Put(topic_schema_key(name), tombstone.schema.encode())] if tombstone.schema else []),
                *_names(names),
                *offset_records,
                *([] if former is None else self._bindings.plan_return(record.id, former)),
                Delete(records.tombstone_key(record.id)),
                DeletePrefix(prefix),
            ],
        )
        if not reply.held:
            raise errors.AlreadyExists(
                f"topic {name} was created, or its namespace changed, concurrently",
                hint="delete that topic, or keep it: a name is of one topic",
            )
        subscriptions = sum(key.startswith(records.SUBSCRIPTIONS) for key, _ in names)
        return ReturnedTopic(record, subscriptions, former)

    async def _find(self, name: TopicName, topic_id: int | None) -> records.TombstoneRecord:
        for tombstone in reversed(await self.all()):
            is_named = (tombstone.namespace, tombstone.name) == (name.namespace, name.name)
            if is_named and topic_id in (None, tombstone.topic.id):
                return tombstone
        raise errors.UnknownTopic(
            f"no deleted topic {name}{'' if topic_id is None else f' with id {topic_id}'} can come back",
            hint="`icestream topic deleted` lists those that can; a purged topic, or one whose grace is over, cannot",
        )

    async def _check_deleted(self, name: TopicName, record: records.TopicRecord) -> None:
        """Raises unless the deletion is completed, the name is free, and the log knows the shards."""
        if await self._store.get(records.topic_key(name)) is not None:
            raise errors.AlreadyExists(
                f"topic {name} exists again, with other messages", hint="delete that topic first, or keep it"
            )
        is_deleting = await self._store.get(records.deleted_topic_key(record.id)) is not None
        if is_deleting or await self._bindings.is_released(record.id):
            raise errors.NotReady(
                f"topic {name} is still being deleted: its last messages are committed, then its table is released",
                hint="retry in a moment; both need the pipeline and the lake process",
            )
        missing = [shard for shard in range(record.shards) if not self._storage.has_shard(ShardKey(record.id, shard))]
        if missing:
            raise errors.PositionGone(
                f"the log of this node does not know shard {missing[0]} of topic {name}: its next offset is unknown",
                hint="the log was replaced; create a topic and adopt the table: icestream lake adopt --position",
            )


def _names(copies: Sequence[tuple[str, Entry]]) -> list[Operation]:
    """Names of producers get a time to live, as when their producer is connected. Raises InvalidInput for too many."""
    if len(copies) > limits.METADATA_TXN_OPERATIONS_MAX // 2:
        copies = [copy for copy in copies if copy[0].startswith(records.SUBSCRIPTIONS)]
    if len(copies) > limits.METADATA_TXN_OPERATIONS_MAX // 2:
        raise errors.InvalidInput(
            f"the topic has {len(copies)} subscriptions: more than one transaction holds",
            hint="create a topic, and adopt the table with `icestream lake adopt`",
        )
    return [
        put_name(key, entry.value) if key.startswith(records.PRODUCERS) else Put(key, entry.value)
        for key, entry in copies
    ]


def chunks(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Parts of a list that fit one transaction."""
    for start in range(0, len(items), _CHUNK):
        yield items[start : start + _CHUNK]
