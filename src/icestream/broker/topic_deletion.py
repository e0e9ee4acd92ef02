"""Deletes a topic for good, in steps that a crash may end anywhere (hazard 49).

    1  the decision     the topic's record goes, a DeletedTopic comes, in one transaction. It says what becomes of the
                        messages that are in no table, and of the table (model/topic_deletion_policy.py)
    2  the names        cursors, then subscriptions, consumers and producers
    3  the rest         discard: what the log holds of it goes; how many messages, by shard, stands in the decision
                        commit: the log keeps it until the pipeline has brought all of it into the table
    4  the table        is let go of. What becomes of it is written down for the lake process, in the transaction in
                        which the DeletedTopic goes (catalog/topic_bindings.py)

Whoever finds a DeletedTopic begins again with 2. Nothing in 2 belongs to a topic of the same name that is created
later: that is why it is finished first, and noted. 3 and 4 go by the topic's id, which no other has.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from icestream import errors
from icestream.broker import records
from icestream.broker.schema_registry_records import topic_schema_key
from icestream.broker.storage import PersistentStorage
from icestream.broker.topic_owners import TopicOwners
from icestream.catalog.topic_bindings import TopicBindings
from icestream.metadata.command import Delete, Put
from icestream.metadata.store import MetadataStore
from icestream.model import shard as shards
from icestream.model.topic_deletion_policy import DeletedRestPolicy, DeletedTablePolicy
from icestream.model.topic_name import TopicName
from icestream.observability.log import get_logger
from icestream.observability.words import counted

_log = get_logger("broker.deletion")


class Deletion(NamedTuple):
    """What was decided."""

    table: list[str] | None  # its name, level by level; None: it has none here yet
    end: DeletedTablePolicy
    rest: DeletedRestPolicy
    messages: int  # in no table at the decision: discarded, or on their way into it
    lost_with: str = ""  # the removed node whose log had such messages: how many nobody knows


class TopicDeletion:
    def __init__(self, store: MetadataStore, storage: PersistentStorage, neighbours: TopicOwners) -> None:
        self._store = store
        self._bindings = TopicBindings(store)
        self._neighbours = neighbours
        self._storage = storage
        self._unfinished: dict[TopicName, records.DeletedTopicRecord] = {}  # their names are not gone yet
        self._waiting: dict[int, records.DeletedTopicRecord] = {}  # for the pipeline, by topic id

    # --- the decision ---

    async def decide(
        self,
        name: TopicName,
        record: records.TopicRecord,
        policies: records.TopicPolicies,
        end: DeletedTablePolicy,
        rest: DeletedRestPolicy,
    ) -> Deletion:
        """`policies`: those in force. Raises TopicTable where the rest cannot be committed: an operator took the table
        away."""
        uncommitted = self._storage.uncommitted(record.id, record.shards)
        messages = sum(count for _, count in uncommitted)
        if messages and rest is DeletedRestPolicy.COMMIT and await self._bindings.find_detached(record.id):
            raise errors.TopicTableConflict(
                f"topic {name} has no table any more, and {counted(messages, 'message')} in none",
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
            policies.of_table,
        )
        await self._store.txn(
            [],
            [
                Delete(records.topic_key(name)),
                Delete(topic_schema_key(name)),
                Put(records.deleted_topic_key(record.id), records.encode(deleted)),
            ],
        )
        self._unfinished[name] = deleted
        return Deletion(await self._table_name(record.id), end, rest, messages)

    def waiting_of(self, name: TopicName) -> records.DeletedTopicRecord | None:
        """A topic that is gone, and whose rest is on its way into its table."""
        found = (one for one in self._waiting.values() if (one.namespace, one.name) == (name.namespace, name.name))
        return next(found, None)

    async def discard(self, waiting: records.DeletedTopicRecord) -> Deletion:
        """Nobody commits the rest: it goes after all."""
        uncommitted = self._storage.uncommitted(waiting.id, waiting.shards)
        decided = msgspec.structs.replace(waiting, rest=DeletedRestPolicy.DISCARD, dropped=uncommitted)
        await self._store.put(records.deleted_topic_key(decided.id), records.encode(decided))
        table = await self._table_name(decided.id)
        await self._let_go(decided)
        return Deletion(table, decided.table, DeletedRestPolicy.DISCARD, sum(count for _, count in uncommitted))

    def table_policy(self, topic_id: int) -> dict[str, str]:
        """Of a topic whose rest is not committed yet: its table may not be there yet."""
        found = self._waiting.get(topic_id)
        return {} if found is None else found.of_table

    # --- what follows from it ---

    async def finish(self, name: TopicName) -> None:
        """Nothing to do where no deletion of that name was begun."""
        deleted = self._unfinished.get(name)
        if deleted is not None:
            await self._finish(name, deleted)
            del self._unfinished[name]

    async def check_finished(self, name: TopicName) -> None:
        """Raises NotReady while another node deletes a topic of that name: what it does would reach a new one."""
        for key, entry in await self._store.list_all(records.DELETED_TOPICS):
            deleted = records.decode(records.DeletedTopicRecord, key, entry.value)
            if (deleted.namespace, deleted.name) == (name.namespace, name.name) and not deleted.has_no_names:
                raise errors.NotReady(
                    f"topic {name} is still being deleted by the node that served it", hint="try again in a moment"
                )

    async def finish_all(self) -> None:
        """At a start: what was decided before."""
        for key, entry in await self._store.list_all(records.DELETED_TOPICS):
            deleted = records.decode(records.DeletedTopicRecord, key, entry.value)
            if self._neighbours.is_own(deleted.owner):
                await self._finish(TopicName(deleted.namespace, deleted.name), deleted)

    async def finish_drained(self) -> None:
        """The pipeline has told how far tables are: those that have everything are let go of."""
        for deleted in list(self._waiting.values()):
            if not self._storage.uncommitted(deleted.id, deleted.shards):
                await self._let_go(deleted)
                _log.info("the rest of a deleted topic is in its table", topic=f"/{deleted.namespace}/{deleted.name}")

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    async def _finish(self, name: TopicName, deleted: records.DeletedTopicRecord) -> None:
        if not deleted.has_no_names:
            await self._delete_names(name, deleted)
        await self._storage.wait_durable()
        if deleted.rest is DeletedRestPolicy.DISCARD or not self._storage.uncommitted(deleted.id, deleted.shards):
            await self._let_go(deleted)
            return
        waiting = msgspec.structs.replace(deleted, has_no_names=True)
        if not deleted.has_no_names:
            await self._store.put(records.deleted_topic_key(deleted.id), records.encode(waiting))
        self._storage.declare_topic(shards.TopicIdentity(deleted.id, str(name), deleted.id), deleted.shards)
        self._waiting[deleted.id] = waiting

    async def _delete_names(self, name: TopicName, deleted: records.DeletedTopicRecord) -> None:
        below = f"{name.namespace}/{name.name}/"
        prefix = records.SUBSCRIPTIONS + below
        await self._storage.delete_cursors(
            [
                records.cursor_key(
                    name, key.removeprefix(prefix), shard, deleted.shards, is_partitioned=deleted.is_partitioned
                )
                for key, _ in await self._store.list_all(prefix)
                for shard in range(deleted.shards)
            ]
        )
        for kind in (records.SUBSCRIPTIONS, records.PENDING_SUBSCRIPTIONS, records.CONSUMERS, records.PRODUCERS):
            await self._store.delete_prefix(kind + below)

    async def _let_go(self, deleted: records.DeletedTopicRecord) -> None:
        """Removes what is left in the log, then releases the table, also one that is created at this moment."""
        await self._storage.forget_topic(deleted.id, deleted.shards)
        end_of_deletion = Delete(records.deleted_topic_key(deleted.id))
        await self._bindings.release_table(deleted.id, deleted.table, [end_of_deletion])
        self._waiting.pop(deleted.id, None)

    async def _table_name(self, topic_id: int) -> list[str] | None:
        table = await self._bindings.find_table(topic_id)
        return None if table is None else [*table.namespace, table.name]
