"""Deletes topics, in steps that can be resumed after a crash (hazard 49).

    1  decision   one transaction replaces the topic's record by a DeletedTopicRecord. It says what is done with the
                  uncommitted messages, the rest, and with the table (model/topic_deletion_policy.py). The grants for
                  exactly this topic are parked in it: a topic of the same name inherits none of them (hazard 117)
    2  names      cursors, then subscriptions, consumers and producers are deleted; a tombstone has copies of them, so
                  that the topic can come back (topic_tombstones.py)
    3  rest       discard: the log drops it; the decision records how many messages of each shard
                  commit: the log keeps it until the pipeline has committed all of it to the table
    4  table      is detached. What is to be done with it is recorded for the lake process, in the transaction that
                  deletes the DeletedTopicRecord (catalog/cleanup/deleted_topic_tables.py)

A topic that a restore replaces is deleted in the transaction that creates the other one: step 2 is part of it, so
neither the name nor a subscription is ever without a topic (topic_restore.py).

A start resumes each DeletedTopicRecord with step 2. Step 2 is completed, and recorded as such, before a topic of the
same name can be created: it would delete that topic's names otherwise. Steps 3 and 4 use the topic's id, which is never
reused.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.schema_registry_records import topic_schema_key
from icestream.broker.storage import PersistentStorage
from icestream.broker.topic_owners import TopicOwners
from icestream.broker.topic_tombstones import TopicTombstones
from icestream.catalog.topic_bindings import TopicBindings
from icestream.metadata.command import Delete, DeletePrefix, Operation, Put
from icestream.metadata.store import MetadataStore
from icestream.model import shard as shards
from icestream.model.topic_deletion_policy import DeletedRestPolicy, DeletedTablePolicy
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from icestream.observability.log import get_logger
from icestream.observability.words import counted
from icestream.security.security_store import plan_parking

_log = get_logger("broker.deletion")
_NAMES: Final = (records.SUBSCRIPTIONS, records.PENDING_SUBSCRIPTIONS, records.CONSUMERS, records.PRODUCERS)


class Deletion(NamedTuple):
    """The decision about a deleted topic."""

    table: list[str] | None  # the levels of its name; None: the topic has no table in our catalog
    end: DeletedTablePolicy
    rest: DeletedRestPolicy
    messages: int  # uncommitted at the decision: discarded, or to be committed
    lost_with: str = ""  # the removed node whose log had an unknown number of uncommitted messages


class PlannedReplacement(NamedTuple):
    """The deletion of a topic in the transaction that creates another one of its name."""

    deleted: records.DeletedTopicRecord
    operations: list[Operation]
    cursors: list[str]  # the keys of its cursors


class TopicDeletion:
    """The deletions of this node's topics that are in progress."""

    def __init__(
        self, store: MetadataStore, storage: PersistentStorage, owners: TopicOwners, tombstones: TopicTombstones
    ) -> None:
        self._store = store
        self._bindings = TopicBindings(store)
        self._owners = owners
        self._storage = storage
        self._tombstones = tombstones
        self._unfinished: dict[TopicName, records.DeletedTopicRecord] = {}  # step 2 is not completed
        self._draining: dict[int, records.DeletedTopicRecord] = {}  # by topic id: the rest waits for the pipeline

    # --- the decision ---

    async def decide(
        self,
        name: TopicName,
        record: records.TopicRecord,
        policies: PolicyValues,
        end: DeletedTablePolicy,
        rest: DeletedRestPolicy,
    ) -> Deletion:
        """Records the decision to delete a topic; `policies`: the effective ones.

        Raises TopicTableConflict if the rest cannot be committed, because an operator has detached the table.
        """
        # Before anything is written: a deletion that cannot keep its promise is refused, and the topic stays.
        uncommitted = self._storage.uncommitted(record.id, record.shards)
        messages = sum(count for _, count in uncommitted)
        if messages and rest is DeletedRestPolicy.COMMIT and await self._bindings.find_detached(record.id):
            raise errors.TopicTableConflict(
                f"topic {name} has no table any more, and {counted(messages, 'message')} that would be committed to it",
                hint="delete it with rest `discard`, or give it a table first (docs/lake.md)",
            )
        deleted = records.DeletedTopicRecord(
            record.id,
            name.namespace,
            name.name,
            record.shards,
            record.is_partitioned,
            uncommitted if rest is DeletedRestPolicy.DISCARD else [],
            record.owner,
            end,
            rest,
            policies.table_layout,
        )
        # In one transaction: either the topic exists, or its deletion goes on after any crash.
        decision: list[Operation] = [
            Delete(records.topic_key(name)),
            Delete(topic_schema_key(name)),
            Put(records.deleted_topic_key(record.id), records.encode(deleted)),
            *await self._tombstones.plan(name, record, end),
        ]
        for _ in range(limits.SECURITY_ATTEMPTS_MAX):
            is_unchanged, parking = await plan_parking(self._store, name)
            if (await self._store.txn(is_unchanged, [*decision, *parking])).held:
                break
        else:
            raise errors.NotReady(f"topic {name} was not deleted: grants change all the time", hint="try again")
        self._unfinished[name] = deleted
        return Deletion(await self._table_name(record.id), end, rest, messages)

    async def plan_replacement(
        self, name: TopicName, record: records.TopicRecord, policies: PolicyValues
    ) -> PlannedReplacement:
        """Plans the deletion of a topic that a restore replaces: it can come back within its grace (ADR 74).

        Its table is dropped, because the new one gets its name; uncommitted messages are discarded, because a damaged
        table may never take them. Grants for exactly this topic stay: they are for the name, which goes on.
        """
        below = f"{name.namespace}/{name.name}/"
        subscriptions, cursors, producers = await self._names(name, record.shards, is_partitioned=record.is_partitioned)
        deleted = records.DeletedTopicRecord(
            record.id, name.namespace, name.name, record.shards, record.is_partitioned,
            self._storage.uncommitted(record.id, record.shards), record.owner, DeletedTablePolicy.DROP,
            DeletedRestPolicy.DISCARD, policies.table_layout, has_no_names=True,
        )  # fmt: skip
        operations: list[Operation] = [
            Put(records.deleted_topic_key(record.id), records.encode(deleted)),
            *await self._tombstones.plan_replacement(name, record, [*subscriptions, *cursors, *producers]),
            Delete(topic_schema_key(name)),
            *(DeletePrefix(kind + below) for kind in _NAMES),
            *map(Delete, cursors),
        ]
        return PlannedReplacement(deleted, operations, cursors)

    async def finish_replaced(self, name: TopicName, deleted: records.DeletedTopicRecord) -> None:
        """Completes the deletion of a topic that was replaced; a start, and `finish`, continue it."""
        self._unfinished[name] = deleted
        await self.finish(name)

    def find_draining(self, name: TopicName) -> records.DeletedTopicRecord | None:
        """The deleted topic of this name, while its rest is being committed; None if there is none."""
        for deleted in self._draining.values():
            if (deleted.namespace, deleted.name) == (name.namespace, name.name):
                return deleted
        return None

    async def discard(self, draining: records.DeletedTopicRecord) -> Deletion:
        """Discards the rest of a topic that was to be committed."""
        uncommitted = self._storage.uncommitted(draining.id, draining.shards)
        deleted = msgspec.structs.replace(draining, rest=DeletedRestPolicy.DISCARD, dropped=uncommitted)
        # Recorded before anything is dropped: after a crash a start discards the rest instead of waiting for a commit.
        await self._store.put(records.deleted_topic_key(deleted.id), records.encode(deleted))
        table = await self._table_name(deleted.id)
        await self._detach_table(deleted)
        return Deletion(table, deleted.table, DeletedRestPolicy.DISCARD, sum(count for _, count in uncommitted))

    def table_policy(self, topic_id: int) -> dict[str, str]:
        """The layout policies of a draining topic, whose table may not exist yet; empty for any other topic."""
        deleted = self._draining.get(topic_id)
        return {} if deleted is None else deleted.of_table

    # --- the steps after it ---

    async def finish(self, name: TopicName) -> None:
        """Completes step 2 and, if possible, the others; does nothing if no deletion of that name was begun."""
        deleted = self._unfinished.get(name)
        if deleted is not None:
            await self._finish(name, deleted)
            del self._unfinished[name]

    async def check_finished(self, name: TopicName) -> None:
        """Raises NotReady while another node deletes the names of a former topic: that would affect a new one too."""
        for key, entry in await self._store.list_all(records.DELETED_TOPICS):
            deleted = records.decode(records.DeletedTopicRecord, key, entry.value)
            if (deleted.namespace, deleted.name) == (name.namespace, name.name) and not deleted.has_no_names:
                raise errors.NotReady(
                    f"topic {name} is still being deleted by the node that served it", hint="retry in a moment"
                )

    async def finish_all(self) -> None:
        """Resumes the deletions that were decided before a start."""
        for key, entry in await self._store.list_all(records.DELETED_TOPICS):
            deleted = records.decode(records.DeletedTopicRecord, key, entry.value)
            if self._owners.is_local(deleted.owner):
                await self._finish(TopicName(deleted.namespace, deleted.name), deleted)

    async def finish_drained(self) -> None:
        """Detaches the tables of topics after all of their rest has been committed."""
        for deleted in list(self._draining.values()):
            if not self._storage.uncommitted(deleted.id, deleted.shards):
                await self._detach_table(deleted)
                _log.info(
                    "committed the rest of a deleted topic to its table", topic=f"/{deleted.namespace}/{deleted.name}"
                )

    @property
    def is_draining(self) -> bool:
        """True while the rest of a topic waits for the pipeline."""
        return bool(self._draining)

    async def _finish(self, name: TopicName, deleted: records.DeletedTopicRecord) -> None:
        """Runs the steps after the decision, as far as they can be run now. May be repeated."""
        if not deleted.has_no_names:
            await self._delete_names(name, deleted)
        await self._storage.wait_durable()  # batches that were in flight at the decision count as uncommitted too
        if deleted.rest is DeletedRestPolicy.DISCARD or not self._storage.uncommitted(deleted.id, deleted.shards):
            await self._detach_table(deleted)
            return
        # The rest waits for the pipeline. Recorded, so that a start does not delete the names of a later topic of that
        # name; declared to the storage, because at a start no topic record does it any more.
        draining = msgspec.structs.replace(deleted, has_no_names=True)
        if not deleted.has_no_names:
            await self._store.put(records.deleted_topic_key(deleted.id), records.encode(draining))
        self._storage.declare_topic(shards.TopicIdentity(deleted.id, str(name), deleted.id), deleted.shards)
        self._draining[deleted.id] = draining

    async def _delete_names(self, name: TopicName, deleted: records.DeletedTopicRecord) -> None:
        """Step 2. The cursors first: their keys are found by the subscriptions, which must still be there."""
        subscriptions, cursors, producers = await self._names(
            name, deleted.shards, is_partitioned=deleted.is_partitioned
        )
        await self._tombstones.copy_names(deleted.id, [*subscriptions, *cursors, *producers])
        await self._storage.delete_cursors(cursors)
        for kind in _NAMES:
            await self._store.delete_prefix(f"{kind}{name.namespace}/{name.name}/")

    async def _names(
        self, name: TopicName, shards: int, *, is_partitioned: bool
    ) -> tuple[list[str], list[str], list[str]]:
        """The keys of the subscriptions, cursors and producers of a topic."""
        below = f"{name.namespace}/{name.name}/"
        prefix = records.SUBSCRIPTIONS + below
        subscriptions = [key for key, _ in await self._store.list_all(prefix)]
        producers = [key for key, _ in await self._store.list_all(records.PRODUCERS + below)]
        cursors = [
            records.cursor_key(name, key.removeprefix(prefix), shard, shards, is_partitioned=is_partitioned)
            for key in subscriptions
            for shard in range(shards)
        ]
        return subscriptions, cursors, producers

    async def _detach_table(self, deleted: records.DeletedTopicRecord) -> None:
        """Drops what the log still holds, then releases the table, also one that is being created concurrently."""
        # The record goes last: until then a start repeats these steps, which may be repeated.
        await self._storage.forget_topic(deleted.id, deleted.shards)
        end_of_deletion = Delete(records.deleted_topic_key(deleted.id))
        grace_ms = self._tombstones.grace_ms(deleted.table)
        await self._bindings.release_table(deleted.id, deleted.table, [end_of_deletion], grace_ms)
        self._draining.pop(deleted.id, None)

    async def _table_name(self, topic_id: int) -> list[str] | None:
        """The levels of the name of the topic's table; None without a table in our catalog."""
        table = await self._bindings.find_table(topic_id)
        return None if table is None else [*table.namespace, table.name]
