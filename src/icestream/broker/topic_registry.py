"""The namespaces and topics of this node: stored in the metadata store, mirrored here, declared to the storage.

Topics of other nodes are not in the mirror (topic_owners.py). Namespaces are shared by all nodes; changes by other
nodes are watched.

Names are looked up exactly. A topic that is created again has a new id, which is its incarnation: its offsets start at
0 and no cursor or producer of the former topic applies to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

import msgspec

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.broker_options import BrokerOptions
from icestream.broker.broker_topic import BrokerTopic
from icestream.broker.storage import PersistentStorage
from icestream.broker.topic_deletion import Deletion, TopicDeletion
from icestream.broker.topic_owners import TopicOwners
from icestream.broker.topic_restore import BackedUpTopic, FormerTopic, TopicRestore
from icestream.broker.topic_takeover import Takeover, TopicTakeover
from icestream.broker.topic_tombstones import ReturnedTopic, TopicTombstones
from icestream.metadata.command import Absent, AtRevision, Compare, Operation, Put
from icestream.metadata.store import MetadataStore
from icestream.metadata.watch import Resync
from icestream.model.backlog_messages import RetainedTopic
from icestream.model.subscription_options import DispatchMode
from icestream.model.topic_deletion_policy import DeletedRestPolicy, DeletedTablePolicy
from icestream.model.topic_name import TopicName, check_namespace
from icestream.model.topic_policies import PolicyValues
from icestream.observability.words import counted
from icestream.runtime.clock import Clock

BOOTSTRAP_NAMESPACES: Final = ("default", "system")


class TopicRegistry:
    """The namespaces of the cluster and the topics of this node. Changes run as structural changes."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MetadataStore,
        storage: PersistentStorage,
        clock: Clock,
        owners: TopicOwners | None = None,
    ) -> None:
        self._options = options
        self._store = store
        self._storage = storage
        self._clock = clock
        self.namespaces: dict[str, records.NamespaceRecord] = {}
        self._topics: dict[TopicName, BrokerTopic] = {}
        self._retained: dict[int, RetainedTopic] = {}  # by topic id, in the order in which the pipeline gets them
        self.owners = owners or TopicOwners()
        self.tombstones = TopicTombstones(store, storage, self.owners, clock, options.undelete_grace_ms)
        self._route_policies: dict[TopicName, PolicyValues] = {}
        self.restores = TopicRestore(
            store, storage, self.owners, clock, options.node, has_own_catalog=options.has_own_catalog
        )
        self._deletion = TopicDeletion(store, storage, self.owners, self.tombstones)
        self._takeover = TopicTakeover(store, storage, self.owners)

    def __iter__(self) -> Iterator[BrokerTopic]:
        return iter(list(self._topics.values()))

    def __len__(self) -> int:
        return len(self._topics)

    def find(self, name: TopicName) -> BrokerTopic | None:
        """The topic, if this node serves it."""
        return self._topics.get(name)

    def get(self, name: TopicName) -> BrokerTopic:
        """The topic of this name. Raises TopicElsewhere if another node serves it, UnknownTopic if it is absent."""
        topic = self._topics.get(name)
        if topic is None:
            record = self.owners.find_topic(name)
            if record is not None and not self.owners.is_local(record.owner):
                raise self.owners.redirect_error(name, record)
            raise errors.UnknownTopic(f"there is no topic {name}", hint="create it, or publish to it once")
        return topic

    async def locate(self, name: TopicName) -> BrokerTopic:
        """As `get`, but sees topics that other nodes have created until now."""
        if name not in self._topics and self.owners.is_clustered:
            await self._store.revision()  # brings the local copy of the metadata up to date
        return self.get(name)

    def table_policy(self, name: str, topic_id: int) -> dict[str, str]:
        """The layout policies for the table of a topic; those of a deleted topic while its rest is being committed.

        Empty if a topic of another id has the name now: its policies do not apply to the former topic's table.
        """
        topic = self._topics.get(TopicName.parse(name))
        if topic is not None and topic.record.id == topic_id:
            return topic.policies.table_layout
        return self._deletion.table_policy(topic_id)

    # --- start ---

    async def load(self) -> None:
        """Loads namespaces and the topics of this node; completes deletions that a crash has interrupted."""
        for name in BOOTSTRAP_NAMESPACES:  # with `Absent`: their policies may have been changed since
            key = records.namespace_key(name)
            await self._store.txn([Absent(key)], [Put(key, records.encode(records.NamespaceRecord()))])
        for key, entry in await self._store.list_all(records.NAMESPACES):
            name = key.removeprefix(records.NAMESPACES)
            self.namespaces[name] = records.decode(records.NamespaceRecord, key, entry.value)
        # Before the topics: a deletion deletes names, which a topic that was created again would use.
        await self._deletion.finish_all()
        without_owner: list[tuple[TopicName, int]] = []
        for key, entry in await self._store.list_all(records.TOPICS):
            record = records.decode(records.TopicRecord, key, entry.value)
            topic_name = TopicName(*key.removeprefix(records.TOPICS).split("/"))
            if self.owners.is_local(record.owner):
                self._serve(topic_name, record)
            if self.owners.needs_owner_record(record.owner):
                without_owner.append((topic_name, entry.mod_revision))
        await self._write_owner(without_owner)

    async def _write_owner(self, topics: list[tuple[TopicName, int]]) -> None:
        """Records this node as the owner of topics from before clusters existed, before another node can join."""
        chunk_size = limits.METADATA_TXN_OPERATIONS_MAX // 4
        for start in range(0, len(topics), chunk_size):
            compare: list[Compare] = []
            operations: list[Operation] = []
            for name, revision in topics[start : start + chunk_size]:
                topic = self._topics[name]
                topic.record = msgspec.structs.replace(topic.record, owner=self.owners.node_id)
                compare.append(AtRevision(records.topic_key(name), revision))
                operations.append(Put(records.topic_key(name), records.encode(topic.record)))
            await self._store.txn(compare, operations)

    async def follow_namespaces(self, after: int) -> None:
        """Applies the changes that other nodes make to namespaces after this revision, until cancelled."""
        async for changes in self._store.watch(records.NAMESPACES, after):
            if isinstance(changes, Resync):
                stored = await self._store.list_all(records.NAMESPACES)
                names = {*self.namespaces, *(key.removeprefix(records.NAMESPACES) for key, _ in stored)}
            else:
                names = {event.key.removeprefix(records.NAMESPACES) for event in changes.events}
            for name in sorted(names):
                self._refresh_namespace(name)

    def _refresh_namespace(self, name: str) -> None:
        # Reads the present record instead of the event's: this node may have changed the namespace since.
        record = self.owners.find_namespace(name)
        if record is None:
            self.namespaces.pop(name, None)
        elif self.namespaces.get(name) != record:
            self._apply_namespace(name, record)

    def _apply_namespace(self, name: str, record: records.NamespaceRecord) -> None:
        """Mirrors a namespace and applies its policies to its topics."""
        self.namespaces[name] = record
        for topic in self:
            if topic.name.namespace == name:
                topic.set_policies(topic.record, self._effective(topic.name, topic.record.policies))
                self._apply_retention(topic)

    def _serve(self, name: TopicName, record: records.TopicRecord) -> BrokerTopic:
        """Mirrors a topic of this node and declares it to the storage; returns the present one if it is served."""
        if name in self._topics:
            return self._topics[name]
        topic = BrokerTopic(name, record, self._effective(name, record.policies))
        self._storage.declare_topic(topic.identity, record.shards)
        self._topics[name] = topic
        self._apply_retention(topic)
        return topic

    def set_route_policies(self, policies: Mapping[TopicName, PolicyValues]) -> None:
        """What topics of MQTT routes keep where neither they nor their namespaces say it; it applies at once."""
        self._route_policies = dict(policies)
        for topic in self:
            topic.set_policies(topic.record, self._effective(topic.name, topic.record.policies))
            self._apply_retention(topic)

    def _effective(self, name: TopicName, own: PolicyValues) -> PolicyValues:
        """The policies of a topic over those of its namespace, over those of MQTT routes to it."""
        policies = own.over(self._policies_of(name.namespace))
        of_routes = self._route_policies.get(name)
        return policies if of_routes is None else policies.over(of_routes)

    def _policies_of(self, namespace: str) -> PolicyValues:
        record = self.namespaces.get(namespace)
        # The namespace may be missing: another node may have deleted it in this moment.
        return record.policies if record is not None else PolicyValues()

    def _apply_retention(self, topic: BrokerTopic) -> None:
        policies, record = topic.policies, topic.record
        bytes_max, age_max_ms = policies.retention_bytes or 0, policies.retention_ms or 0
        messages_max = policies.retention_messages or 0
        kept = RetainedTopic(
            record.id,
            str(topic.name),
            bytes_max,
            messages_max,
            age_max_ms,
            policies.retention_until_consumed_bytes or 0,
            policies.retention_until_consumed_ms or 0,
        )
        if kept.is_until_consumed:
            # What is acked leaves the log with its commit; what is not stays up to its own bound alone.
            bytes_max, age_max_ms, messages_max = kept.unconsumed_bytes_max, kept.unconsumed_age_ms, 0
        self._storage.set_retention(record.id, record.shards, bytes_max, age_max_ms, messages_max)
        self._retained.pop(record.id, None)
        if bytes_max or age_max_ms or messages_max:
            self._retained[record.id] = kept

    def next_retained_topics(self) -> list[RetainedTopic]:
        """The next topics of this node with a retention, for its pipeline; each call returns those after the last."""
        topics = list(islice(self._retained.values(), limits.RETAINED_TOPICS_MAX))
        if len(topics) < len(self._retained):
            for topic in topics:  # to the end of the queue
                self._retained[topic.topic_id] = self._retained.pop(topic.topic_id)
        return topics

    # --- namespaces ---

    async def create_namespace(self, name: str, policies: PolicyValues) -> None:
        """Creates a namespace. Raises InvalidInput, AlreadyExists."""
        key = records.namespace_key(check_namespace(name))
        record = records.NamespaceRecord(policies)
        if not (await self._store.txn([Absent(key)], [Put(key, records.encode(record))])).held:
            raise errors.AlreadyExists(f"namespace {name} already exists", hint="use it, or choose another name")
        self.namespaces[name] = record

    async def delete_namespace(self, name: str) -> None:
        """Deletes an empty namespace. Raises UnknownNamespace, NotEmpty, InvalidInput for a bootstrap namespace."""
        if name not in self.namespaces:
            raise unknown_namespace(name)
        prefix = f"{records.TOPICS}{name}/"
        entries = await self._store.list_all(prefix)
        if entries:
            first = f"/{name}/{entries[0][0].removeprefix(prefix)}"
            topics = counted(len(entries), "topic")
            raise errors.NotEmpty(f"namespace {name} has {topics}", hint=f"delete them first: {first}, …")
        if name in BOOTSTRAP_NAMESPACES:
            raise errors.InvalidInput(f"namespace {name} cannot be deleted", hint="delete its topics instead")
        await self._store.delete(records.namespace_key(name))
        self.namespaces.pop(name, None)

    async def set_namespace_policies(self, name: str, policies: PolicyValues) -> None:
        """Applies at once to every topic of the namespace, except where the topic has a policy of its own."""
        if name not in self.namespaces:
            raise unknown_namespace(name)
        record = records.NamespaceRecord(policies)
        await self._store.put(records.namespace_key(name), records.encode(record))
        self._apply_namespace(name, record)

    # --- topics ---

    async def create(
        self,
        name: TopicName,
        shards: int,
        dispatch: DispatchMode,
        policies: PolicyValues,
        *,
        is_partitioned: bool = False,
        dead_letters_of: str = "",
    ) -> BrokerTopic:
        """Creates a topic that this node serves. Raises AlreadyExists, InvalidInput, UnknownNamespace, TopicElsewhere,
        NotReady."""
        if name in self._topics:
            raise errors.AlreadyExists(f"topic {name} already exists", hint="use it, or choose another name")
        if not 0 < shards <= limits.SHARDS_PER_TOPIC_MAX:
            raise errors.InvalidInput(
                f"a topic cannot have {shards} shards", hint=f"1 to {limits.SHARDS_PER_TOPIC_MAX} are possible"
            )
        namespace = await self._store.get(records.namespace_key(name.namespace))
        if namespace is None:
            raise unknown_namespace(name.namespace)
        key = records.topic_key(name)
        if self.owners.is_clustered and await self._store.get(key) is not None:
            await self._serve_if_stored(name)
            raise errors.AlreadyExists(f"topic {name} already exists", hint="use it, or choose another name")
        # A former topic of this name may be half deleted: the rest of its deletion must not hit the new topic's names.
        await self._deletion.finish(name)
        if self.owners.is_clustered:
            await self._deletion.check_finished(name)
        record = records.TopicRecord(
            id=await self._store.allocate_id("topic"),
            shards=shards,
            dispatch=dispatch,
            created_ms=self._clock.wall_us() // 1000,
            node=self._options.node,
            policies=policies,
            is_partitioned=is_partitioned,
            owner=self.owners.node_id,
            dead_letters_of=dead_letters_of,
        )
        # The namespace is compared too, so that a concurrent deletion of it cannot leave a topic without a namespace.
        reply = await self._store.txn(
            [Absent(key), AtRevision(records.namespace_key(name.namespace), namespace.mod_revision)],
            [Put(key, records.encode(record))],
        )
        if not reply.held:
            await self._serve_if_stored(name)
            raise errors.AlreadyExists(
                f"topic {name} was created, or its namespace changed, concurrently", hint="use it, or create it again"
            )
        return self._serve(name, record)

    async def _serve_if_stored(self, name: TopicName) -> None:
        """Serves a topic that is in the metadata store but not mirrored here. Raises TopicElsewhere if it is remote.

        An earlier process of this broker may have requested it, and the store applied that after this process had
        loaded the topics. Otherwise the name could not be used before the next start.
        """
        key = records.topic_key(name)
        entry = await self._store.get(key)
        if entry is not None and name not in self._topics:
            record = records.decode(records.TopicRecord, key, entry.value)
            if not self.owners.is_local(record.owner):
                raise self.owners.redirect_error(name, record)
            self._serve(name, record)

    def declare(self, topic: BrokerTopic, shards: int) -> None:
        """Declares further shards of a topic to the storage. They belong to the topic after `add_shards`."""
        self._storage.declare_topic(topic.identity, shards)

    async def add_shards(self, topic: BrokerTopic, shards: int) -> None:
        """Extends a topic to this number of shards. They must be declared."""
        record = msgspec.structs.replace(topic.record, shards=shards)
        await self._store.put(records.topic_key(topic.name), records.encode(record))
        topic.record = record
        self._apply_retention(topic)

    async def delete(
        self, name: TopicName, table: DeletedTablePolicy | None = None, rest: DeletedRestPolicy | None = None
    ) -> Deletion:
        """Deletes a topic; returns what was decided about its table and its uncommitted messages.

        `table`, `rest`: None for what the policies of the topic say. Called again with `rest` discard, it ends the
        deletion of a topic whose rest is still waiting to be committed.
        """
        draining = self._deletion.find_draining(name)
        if name not in self._topics and draining is not None and rest is DeletedRestPolicy.DISCARD:
            return await self._deletion.discard(draining)
        orphan = None if name in self._topics else await self._find_orphan(name)
        if orphan is not None:
            return await self._delete_orphan(name, orphan, table)
        topic = self.get(name)
        policies = topic.policies.over(self._options.policy_defaults)
        table_end = table or msgspec.convert(policies.deleted_table, DeletedTablePolicy)
        if table_end is not DeletedTablePolicy.KEEP and not self._options.has_own_catalog:
            raise errors.InvalidInput(
                f"the table of {name} is in another catalog",
                hint="delete the topic with table `keep`, and drop it there",
            )
        rest_end = rest or msgspec.convert(policies.deleted_rest, DeletedRestPolicy)
        # Clients are disconnected after the decision is durable: one that failed leaves the topic as it was.
        deletion = await self._deletion.decide(name, topic.record, policies, table_end, rest_end)
        del self._topics[name]
        self._retained.pop(topic.record.id, None)
        topic.delete(f"topic {name} was deleted")
        await self._deletion.finish(name)
        return deletion

    def deleted_table_policy(self, name: TopicName, record: records.TopicRecord) -> DeletedTablePolicy:
        """What happens to the table of this topic when it is deleted, as its policies say."""
        policies = record.policies.over(self._policies_of(name.namespace)).over(self._options.policy_defaults)
        return msgspec.convert(policies.deleted_table, DeletedTablePolicy)

    async def _find_orphan(self, name: TopicName) -> records.TopicRecord | None:
        """The record of a topic of a node that was removed for good; None for any other topic."""
        if not self.owners.is_clustered:
            return None
        await self._store.revision()  # brings the local copy of the metadata up to date
        record = self.owners.find_topic(name)
        return record if record is not None and self.owners.is_orphaned(record.owner) else None

    async def _delete_orphan(
        self, name: TopicName, record: records.TopicRecord, table: DeletedTablePolicy | None
    ) -> Deletion:
        """Deletes a topic of a node that was removed for good.

        Messages that were only in the log of that node are lost already, so there is no rest to commit.
        """
        policies = record.policies.over(self._policies_of(name.namespace)).over(self._options.policy_defaults)
        table_end = table or msgspec.convert(policies.deleted_table, DeletedTablePolicy)
        # As the owner this node completes the deletion, also after a crash.
        owned_record = msgspec.structs.replace(record, owner=self.owners.node_id)
        deletion = await self._deletion.decide(name, owned_record, policies, table_end, DeletedRestPolicy.DISCARD)
        await self._deletion.finish(name)
        return deletion._replace(lost_with=record.node)

    async def take_over(self, name: TopicName) -> tuple[BrokerTopic, Takeover]:
        """Makes this node the owner of a topic of a removed node, with what the topic's table holds."""
        takeover = await self._takeover.take_over(name, self._options.node)
        return self._serve(name, takeover.record), takeover

    async def restore(self, topic: BackedUpTopic) -> BrokerTopic:
        """Creates a topic of a backup, in the place of the live one if that is asked for. Raises as
        TopicRestore.create."""
        live = await self.find_live(topic.name) if topic.is_in_place else None
        if live is None:
            return self._serve(topic.name, await self.restores.create(topic))
        policies = live.policies.over(self._options.policy_defaults)
        deletion = await self._deletion.plan_replacement(topic.name, live.record, policies)

        def close() -> None:
            del self._topics[topic.name]
            self._retained.pop(live.record.id, None)
            live.delete(f"topic {topic.name} was replaced by a restore of backup {topic.backup_id}")

        record = await self.restores.create(topic, FormerTopic(live.record, deletion, close))
        if record.id == live.record.id:
            return live  # a repeat
        restored = self._serve(topic.name, record)
        await self._deletion.finish_replaced(topic.name, deletion.deleted)
        return restored

    async def find_live(self, name: TopicName) -> BrokerTopic | None:
        """The topic that has the name, None if it is free. Raises TopicElsewhere."""
        if await self._store.get(records.topic_key(name)) is None:
            return None
        await self._serve_if_stored(name)
        return self.get(name)

    async def undelete(
        self, name: TopicName, topic_id: int | None, *, brings_back_erased: bool
    ) -> tuple[BrokerTopic, ReturnedTopic]:
        """Creates a deleted topic again from its tombstone. Raises as TopicTombstones.return_topic."""
        await self._deletion.finish(name)
        returned = await self.tombstones.return_topic(name, topic_id, brings_back_erased=brings_back_erased)
        return self._serve(name, returned.record), returned

    @property
    def is_draining(self) -> bool:
        """True while the rest of a deleted topic is being committed to its table."""
        return self._deletion.is_draining

    async def finish_drained(self) -> None:
        """Completes the deletion of topics with a committed rest."""
        await self._deletion.finish_drained()

    async def set_policies(self, name: TopicName, policies: PolicyValues) -> None:
        """Replaces the policies of a topic; they apply at once. Raises UnknownTopic, TopicElsewhere."""
        topic = self.get(name)
        record = msgspec.structs.replace(topic.record, policies=policies)
        await self._store.put(records.topic_key(name), records.encode(record))
        topic.set_policies(record, self._effective(name, policies))
        self._apply_retention(topic)


def unknown_namespace(name: str) -> errors.UnknownNamespace:
    """The error for a namespace that does not exist."""
    return errors.UnknownNamespace(
        f"there is no namespace {name}", hint=f"create it: icestream namespace create {name}"
    )
