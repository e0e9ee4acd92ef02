"""The namespaces and topics of this node: written in the metadata store, mirrored here, declared to the storage.

Topics of other nodes are not here (neighbours.py); namespaces are everybody's, and what others do to them is followed.

A name is looked up exactly. A topic that is created again has a new id, which is its incarnation: its offsets begin
anew and no cursor or producer of the old one applies to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.broker_options import BrokerOptions
from icestream.broker.storage import PersistentStorage
from icestream.broker.topic import Topic
from icestream.broker.topic_deletion import Deletion, TopicDeletion
from icestream.broker.topic_owners import TopicOwners
from icestream.broker.topic_takeover import Takeover, TopicTakeover
from icestream.metadata.command import Absent, AtRevision, Compare, Operation, Put
from icestream.metadata.store import MetadataStore
from icestream.metadata.watch import Resync
from icestream.model.subscription import DispatchMode
from icestream.model.topic_deletion_policy import DeletedRestPolicy, DeletedTablePolicy
from icestream.model.topic_name import TopicName, check_namespace
from icestream.observability.words import counted
from icestream.runtime.clock import Clock

BOOTSTRAP_NAMESPACES: Final = ("default", "system")


class TopicRegistry:
    def __init__(
        self,
        options: BrokerOptions,
        store: MetadataStore,
        storage: PersistentStorage,
        clock: Clock,
        neighbours: TopicOwners | None = None,
    ) -> None:
        self._options = options
        self._store = store
        self._storage = storage
        self._clock = clock
        self.namespaces: dict[str, records.NamespaceRecord] = {}
        self._topics: dict[TopicName, Topic] = {}
        self.neighbours = neighbours or TopicOwners()
        self._deletion = TopicDeletion(store, storage, self.neighbours)
        self._takeover = TopicTakeover(store, storage, self.neighbours)

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._topics.values()))

    def __len__(self) -> int:
        return len(self._topics)

    def find(self, name: TopicName) -> Topic | None:
        return self._topics.get(name)

    def get(self, name: TopicName) -> Topic:
        """Raises TopicElsewhere for one that another node serves, UnknownTopic for one that is not there."""
        topic = self._topics.get(name)
        if topic is None:
            record = self.neighbours.find(name)
            if record is not None and not self.neighbours.is_own(record.owner):
                raise self.neighbours.elsewhere(name, record)
            raise errors.UnknownTopic(f"there is no topic {name}", hint="create it, or publish to it once")
        return topic

    async def locate(self, name: TopicName) -> Topic:
        """The same, and what another node did until now is known."""
        if name not in self._topics and self.neighbours.there_may_be_some:
            await self._store.revision()
        return self.get(name)

    def table_policy(self, name: str, topic_id: int) -> dict[str, str]:
        """How the table of a topic is to be laid out. One that is gone says nothing, unless it was deleted and its rest
        is not committed yet; nor does its successor for it."""
        topic = self._topics.get(TopicName.parse(name))
        is_it = topic is not None and topic.record.id == topic_id
        return topic.policies.of_table if topic is not None and is_it else self._deletion.table_policy(topic_id)

    # --- start ---

    async def load(self) -> None:
        for name in BOOTSTRAP_NAMESPACES:
            key = records.namespace_key(name)
            await self._store.txn([Absent(key)], [Put(key, records.encode(records.NamespaceRecord()))])
        for key, entry in await self._store.list_all(records.NAMESPACES):
            name = key.removeprefix(records.NAMESPACES)
            self.namespaces[name] = records.decode(records.NamespaceRecord, key, entry.value)
        await self._deletion.finish_all()
        unclaimed: list[tuple[TopicName, int]] = []
        for key, entry in await self._store.list_all(records.TOPICS):
            record = records.decode(records.TopicRecord, key, entry.value)
            place = TopicName(*key.removeprefix(records.TOPICS).split("/"))
            if self.neighbours.is_own(record.owner):
                self._serve(place, record)
            if self.neighbours.is_unclaimed(record.owner):
                unclaimed.append((place, entry.mod_revision))
        await self._claim(unclaimed)

    async def _claim(self, found: list[tuple[TopicName, int]]) -> None:
        """Writes down that topics of before there were owners are this node's, before it ever has neighbours."""
        most = limits.METADATA_TXN_OPERATIONS_MAX // 4
        for begin in range(0, len(found), most):
            compare: list[Compare] = []
            operations: list[Operation] = []
            for name, revision in found[begin : begin + most]:
                topic = self._topics[name]
                topic.record = msgspec.structs.replace(topic.record, owner=self.neighbours.own)
                compare.append(AtRevision(records.topic_key(name), revision))
                operations.append(Put(records.topic_key(name), records.encode(topic.record)))
            await self._store.txn(compare, operations)

    async def follow_namespaces(self, after: int) -> None:
        """What other nodes do to them takes effect here, from a revision on; until it is cancelled."""
        async for changes in self._store.watch(records.NAMESPACES, after):
            if isinstance(changes, Resync):
                stored = await self._store.list_all(records.NAMESPACES)
                names = {*self.namespaces, *(key.removeprefix(records.NAMESPACES) for key, _ in stored)}
            else:
                names = {event.key.removeprefix(records.NAMESPACES) for event in changes.events}
            for name in sorted(names):
                self._look_at_namespace(name)

    def _look_at_namespace(self, name: str) -> None:
        """As the state has it now: an event may tell of something that this node has changed since."""
        record = self.neighbours.namespace(name)
        if record is None:
            self.namespaces.pop(name, None)
        elif self.namespaces.get(name) != record:
            self._use_namespace(name, record)

    def _use_namespace(self, name: str, record: records.NamespaceRecord) -> None:
        self.namespaces[name] = record
        for topic in self:
            if topic.name.namespace == name:
                topic.set_policies(topic.record, topic.record.policies.over(record.policies))
                self._retain(topic)

    def _serve(self, name: TopicName, record: records.TopicRecord) -> Topic:
        if name in self._topics:
            return self._topics[name]
        topic = Topic(name, record, record.policies.over(self._policies_of(name.namespace)))
        self._storage.declare_topic(topic.identity, record.shards)
        self._topics[name] = topic
        self._retain(topic)
        return topic

    def _policies_of(self, namespace: str) -> records.TopicPolicies:
        """None where the namespace is not known: another node may have deleted it in the same moment."""
        found = self.namespaces.get(namespace)
        return found.policies if found is not None else records.TopicPolicies()

    def _retain(self, topic: Topic) -> None:
        policies = topic.policies
        bytes_max, age_max_ms = policies.retention_bytes or 0, policies.retention_ms or 0
        self._storage.set_retention(topic.record.id, topic.record.shards, bytes_max, age_max_ms)

    # --- namespaces ---

    async def create_namespace(self, name: str, policies: records.TopicPolicies) -> None:
        key = records.namespace_key(check_namespace(name))
        record = records.NamespaceRecord(policies)
        if not (await self._store.txn([Absent(key)], [Put(key, records.encode(record))])).held:
            raise errors.AlreadyExists(f"namespace {name} exists already", hint="use it, or choose another name")
        self.namespaces[name] = record

    async def delete_namespace(self, name: str) -> None:
        if name not in self.namespaces:
            raise unknown_namespace(name)
        prefix = f"{records.TOPICS}{name}/"
        held = await self._store.list_all(prefix)
        if held:
            first = f"/{name}/{held[0][0].removeprefix(prefix)}"
            topics = counted(len(held), "topic")
            raise errors.NotEmpty(f"namespace {name} has {topics}", hint=f"delete them first: {first}, …")
        if name in BOOTSTRAP_NAMESPACES:
            raise errors.InvalidInput(f"namespace {name} is always there", hint="delete its topics instead")
        await self._store.delete(records.namespace_key(name))
        self.namespaces.pop(name, None)

    async def set_namespace_policies(self, name: str, policies: records.TopicPolicies) -> None:
        """In force at once for every topic of it, as far as the topic says nothing itself."""
        if name not in self.namespaces:
            raise unknown_namespace(name)
        record = records.NamespaceRecord(policies)
        await self._store.put(records.namespace_key(name), records.encode(record))
        self._use_namespace(name, record)

    # --- topics ---

    async def create(
        self,
        name: TopicName,
        shards: int,
        dispatch: DispatchMode,
        policies: records.TopicPolicies,
        *,
        is_partitioned: bool = False,
    ) -> Topic:
        if name in self._topics:
            raise errors.AlreadyExists(f"topic {name} exists already", hint="use it, or choose another name")
        if not 0 < shards <= limits.SHARDS_PER_TOPIC_MAX:
            raise errors.InvalidInput(f"{shards} shards", hint=f"1 to {limits.SHARDS_PER_TOPIC_MAX} are possible")
        namespace = await self._store.get(records.namespace_key(name.namespace))
        if namespace is None:
            raise unknown_namespace(name.namespace)
        key = records.topic_key(name)
        if self.neighbours.there_may_be_some and await self._store.get(key) is not None:
            await self._find_late(name)
            raise errors.AlreadyExists(f"topic {name} exists already", hint="use it, or choose another name")
        await self._deletion.finish(name)
        if self.neighbours.there_may_be_some:
            await self._deletion.check_finished(name)
        record = records.TopicRecord(
            id=await self._store.allocate_id("topic"),
            shards=shards,
            dispatch=dispatch,
            created_ms=self._clock.wall_us() // 1000,
            node=self._options.node,
            policies=policies,
            is_partitioned=is_partitioned,
            owner=self.neighbours.own,
        )
        done = await self._store.txn(
            [Absent(key), AtRevision(records.namespace_key(name.namespace), namespace.mod_revision)],
            [Put(key, records.encode(record))],
        )
        if not done.held:
            await self._find_late(name)
            raise errors.AlreadyExists(f"topic {name} was created, or its namespace changed, at the same moment")
        return self._serve(name, record)

    async def _find_late(self, name: TopicName) -> None:
        """A topic that an earlier life of this broker asked for, and that was made after this one had looked: without
        it nobody could use the name before the next start. Raises TopicElsewhere for one of another node."""
        key = records.topic_key(name)
        entry = await self._store.get(key)
        if entry is not None and name not in self._topics:
            record = records.decode(records.TopicRecord, key, entry.value)
            if not self.neighbours.is_own(record.owner):
                raise self.neighbours.elsewhere(name, record)
            self._serve(name, record)

    def declare(self, topic: Topic, shards: int) -> None:
        """Makes further shards of a topic known to the storage. They are the topic's when `grow` has returned."""
        self._storage.declare_topic(topic.identity, shards)

    async def grow(self, topic: Topic, shards: int) -> None:
        """The shards that were declared belong to the topic from now on."""
        record = msgspec.structs.replace(topic.record, shards=shards)
        await self._store.put(records.topic_key(topic.name), records.encode(record))
        topic.record = record
        self._retain(topic)

    async def delete(
        self, name: TopicName, table: DeletedTablePolicy | None = None, rest: DeletedRestPolicy | None = None
    ) -> Deletion:
        """From the decision on nobody sends to it or gets anything of it; then everything it left goes. `table` and
        `rest`: else what its policies say. Called again with `rest` discard, one whose rest waits is finished."""
        waiting = self._deletion.waiting_of(name)
        if name not in self._topics and waiting is not None and rest is DeletedRestPolicy.DISCARD:
            return await self._deletion.discard(waiting)
        orphan = None if name in self._topics else await self._orphan(name)
        if orphan is not None:
            return await self._delete_orphan(name, orphan, table)
        topic = self.get(name)
        policies = topic.policies
        end = table or DeletedTablePolicy(policies.deleted_table or self._options.deleted_table)
        if end is not DeletedTablePolicy.KEEP and not self._options.has_own_catalog:
            raise errors.InvalidInput(
                f"the table of {name} is in another catalog",
                hint="delete the topic with table `keep`, and drop it there",
            )
        decided_rest = rest or DeletedRestPolicy(policies.deleted_rest or self._options.deleted_rest)
        decided = await self._deletion.decide(name, topic.record, policies, end, decided_rest)
        del self._topics[name]
        topic.delete(f"topic {name} was deleted")
        await self._deletion.finish(name)
        return decided

    async def _orphan(self, name: TopicName) -> records.TopicRecord | None:
        """A topic whose node was removed from the cluster for good."""
        if not self.neighbours.there_may_be_some:
            return None
        await self._store.revision()
        record = self.neighbours.find(name)
        return record if record is not None and self.neighbours.is_orphaned(record.owner) else None

    async def _delete_orphan(
        self, name: TopicName, record: records.TopicRecord, table: DeletedTablePolicy | None
    ) -> Deletion:
        """What was in the log of its node alone is gone already, and is not waited for."""
        policies = record.policies.over(self._policies_of(name.namespace))
        end = table or DeletedTablePolicy(policies.deleted_table or self._options.deleted_table)
        own = msgspec.structs.replace(record, owner=self.neighbours.own)  # this node finishes it, also after a crash
        decided = await self._deletion.decide(name, own, policies, end, DeletedRestPolicy.DISCARD)
        await self._deletion.finish(name)
        return decided._replace(lost_with=record.node)

    async def take_over(self, name: TopicName) -> tuple[Topic, Takeover]:
        """A topic whose node was removed for good is this node's from now on, with what its table holds."""
        takeover = await self._takeover.take_over(name, self._options.node)
        return self._serve(name, takeover.record), takeover

    @property
    def has_waiting(self) -> bool:
        """Topics that are gone, and whose rest is on its way into their tables."""
        return self._deletion.is_waiting

    async def finish_drained(self) -> None:
        await self._deletion.finish_drained()

    async def set_policies(self, name: TopicName, policies: records.TopicPolicies) -> None:
        topic = self.get(name)
        record = msgspec.structs.replace(topic.record, policies=policies)
        await self._store.put(records.topic_key(name), records.encode(record))
        topic.set_policies(record, policies.over(self._policies_of(name.namespace)))
        self._retain(topic)


def unknown_namespace(name: str) -> errors.UnknownNamespace:
    return errors.UnknownNamespace(
        f"there is no namespace {name}", hint=f"create it: icestream namespace create {name}"
    )
