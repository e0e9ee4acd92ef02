"""The use cases of the broker for one session: each asks for its rights, then calls the broker.

    BrokerDoor       what front ends and the local socket get of the broker: it makes a GuardedBroker for a session
    GuardedBroker    the use cases of `Broker` (service.py), under the same names and with the same errors
    PublishPath      what an opened producer needs; nothing is asked there (hazard 124)

Rights, by the resource that a request names (`topic` covers its subscriptions, security/resource.py):

    produce         open_producer; `create` too if the topic is absent and is to be created
    consume         subscribe; a dead-letter topic: produce there, and create if it is absent (hazard 115)
    describe        everything that only shows; listings have what may be described and do not tell that there is more
    create          topics, namespaces
    alter           policies, seek, create/change/delete of subscriptions, disconnecting a producer or consumer
    delete          topics, namespaces; a table that is purged with its topic: table-write too
    admin           (cluster) taking over a topic of a removed node

A decision is made by name, before anything is looked up: the answer about a topic that one may not see is the same
whether it exists or not (hazard 123).

A producer and a consumer are *holds* of the session (security/access_session.py): opened once, and closed with the
reason when their right ends, a producer as if it were fenced, a consumer as if disconnected by an operator (113).

Dead letters that the broker created for a topic (TopicRecord.dead_letters_of) are covered by the rules of that topic.
The broker's own work, such as writing dead letters, uses `Broker`: it has no session.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.broker_consumer import BrokerConsumer, ConsumerSink
from icestream.broker.broker_options import BrokerOptions
from icestream.broker.broker_subscription import BrokerSubscription
from icestream.broker.broker_topic import BrokerProducer, BrokerTopic
from icestream.broker.cluster_restore import ClusterRestore
from icestream.broker.danube_partitions import PartitionRequest
from icestream.broker.erased_topics import ErasedTopic
from icestream.broker.guarded_mqtt import GuardedMqtt
from icestream.broker.guarded_schemas import GuardedSchemas
from icestream.broker.mqtt.client_link import ClientLink, ClientSession, ConnectRequest
from icestream.broker.name_owner import UNNAMED, NameUser
from icestream.broker.producer_window import ProducerWindow
from icestream.broker.publish_group import PublishGroupResult
from icestream.broker.publish_result import PublishResult
from icestream.broker.service import Broker, TopicPage
from icestream.broker.stalled_readers import StalledReader
from icestream.broker.storage import ShardStream
from icestream.broker.topic_deletion import Deletion
from icestream.broker.topic_registry import unknown_namespace
from icestream.broker.topic_restore import BackedUpTopic, RestorePage, RestoreRecord
from icestream.broker.topic_takeover import Takeover
from icestream.broker.topic_tombstones import ReturnedTopic
from icestream.cluster.members import NodeRecord
from icestream.durable.session_records import SessionOwner
from icestream.model.block import BlockHead
from icestream.model.block_group import BlockGroup
from icestream.model.shard import DeclaredGap, ShardKey
from icestream.model.subscription_options import DispatchMode, FailurePolicy, SubscriptionStart, SubscriptionType
from icestream.model.topic_deletion_policy import DeletedRestPolicy, DeletedTablePolicy
from icestream.model.topic_name import TopicName, check_name, check_namespace
from icestream.model.topic_policies import PolicyValues
from icestream.security.access_control import AccessControl
from icestream.security.access_policy import SYSTEM_NAMESPACE, Decision, decide
from icestream.security.access_session import AccessSession
from icestream.security.action import Action
from icestream.security.credential import Credential, ProcessCredential
from icestream.security.mqtt_rights import decide_mqtt
from icestream.security.principal import ANONYMOUS_IDENTITY, LOCAL, CallerIdentity, Principal, PrincipalKind
from icestream.security.resource import (
    CLUSTER,
    Resource,
    ResourceKind,
    mqtt_topic_resource,
    namespace_resource,
    subscription_resource,
    topic_resource,
)

# Use cases that ask for no right, and why (tests/tidy/test_frontends.py).
ASKS_NOTHING: Final = {
    "has_room": "the hot path: the producer was opened by its right",
    "wait_for_room": "the hot path",
    "publish": "the hot path",
    "publish_group": "the hot path",
    "row_bytes_max": "a limit of the node",
    "batch_bytes_max": "a limit of the node",
    "options": "limits of the node",
    "is_local": "about a record that the caller has",
    "close_producer": "of an opened producer",
    "reset_producer": "of an opened producer",
    "last_sequence": "of an opened producer",
    "last_sequence_of_name": "of an opened producer",
    "recent_batches": "of an opened producer",
    "connect_mqtt": "broker/mqtt asks for each topic and filter",
    "wait_durable": "shows nothing",
    "schemas": "guarded_schemas.py asks",
    "mqtt": "guarded_mqtt.py asks",
}


class PublishPath(Protocol):
    """Publishing by producers that a session has opened, and the room for their batches."""

    @property
    def row_bytes_max(self) -> int: ...

    @property
    def batch_bytes_max(self) -> int: ...

    @property
    def has_room(self) -> Callable[[int], bool]: ...

    @property
    def wait_for_room(self) -> Callable[[int], Coroutine[Any, Any, None]]: ...

    def publish(
        self, producer: BrokerProducer, shard: int, block: bytes, valid_head: BlockHead | None = None
    ) -> PublishResult: ...

    def publish_group(
        self,
        topics: Sequence[BrokerTopic],
        keys: Sequence[ShardKey],
        windows: Sequence[ProducerWindow],
        bodies: Sequence[bytes],
        group: BlockGroup,
        largest_block: int,
        on_done: Callable[[PublishGroupResult], object],
    ) -> bool: ...

    def reset_producer(self, producer: BrokerProducer, shard: int) -> None: ...


LOCAL_LISTENER: Final = "local"


class RoleVerifier(Protocol):
    """The secrets by which processes of the node prove their roles."""

    def is_valid(self, role: str, secret: str) -> bool: ...


class BrokerDoor:
    """How front ends and the local socket reach the broker."""

    def __init__(self, broker: Broker, access_control: AccessControl, roles: RoleVerifier | None = None) -> None:
        """`roles`: None if the node has no processes beside the broker."""
        self._broker = broker
        self._access_control = access_control
        self._roles = roles
        self.publishing: PublishPath = broker
        broker.check_dead_letters = self._check_dead_letters
        broker.mqtt.is_will_allowed = self._is_will_allowed

    def _check_dead_letters(self, name: TopicName, author: records.StoredIdentity | None) -> None:
        """Raises PermissionDenied if the principal that named a dead-letter topic lost the right to produce to it
        (hazard 115).

        Without an author it was named while security was off, when every client had all rights; topics of the node
        itself are refused all the same.
        """
        if author is None:
            identity = ANONYMOUS_IDENTITY
        else:
            principal = Principal.parse(author.principal)
            identity = CallerIdentity(principal, author.claims, tuple(author.roles))
        if not self.is_secured or (author is None and name.namespace != SYSTEM_NAMESPACE):
            return
        decision = decide(identity, Action.PRODUCE, topic_resource(name), self._access_control.policy)
        if not decision.is_allowed:
            raise errors.PermissionDenied(
                f"dead letters are not written to {name}: {decision.reason}",
                hint=f"grant {identity.principal} produce on {name}, or name another dead-letter topic",
            )

    def _is_will_allowed(self, owner: SessionOwner | None, client_id: str, topic: str, route: TopicName) -> bool:
        """Whether the client of an MQTT session may still publish its will (hazard 118). A session without an owner is
        from before there were accounts."""
        if not self.is_secured or owner is None:
            return not self.is_secured or route.namespace != SYSTEM_NAMESPACE
        identity = CallerIdentity(Principal.parse(owner.principal), owner.claims, owner.roles)
        routes, policy = [topic_resource(route)], self._access_control.policy
        return decide_mqtt(identity, Action.PRODUCE, mqtt_topic_resource(topic), routes, policy, client_id).is_allowed

    @property
    def is_ready(self) -> bool:
        """Whether the broker has loaded its topics."""
        return self._broker.is_ready

    @property
    def is_secured(self) -> bool:
        return self._access_control.is_enabled

    @property
    def policy_revision(self) -> int:
        return self._access_control.policy.revision

    def mqtt_home(self) -> NodeRecord | None:
        """The node to which clients of MQTT are passed on; None if this one serves them."""
        return self._broker.mqtt_home()

    def mqtt_homes(self) -> AsyncIterator[NodeRecord | None]:
        """The same now, and whenever it may have changed."""
        return self._broker.mqtt_homes()

    async def authenticate(self, credential: Credential | None, address: str, listener: str) -> GuardedBroker:
        """The use cases for a client. Raises Unauthenticated; Refused where too many logins wait."""
        if isinstance(credential, ProcessCredential):
            return self._admit_process(credential, address, listener)
        return self.guard(await self._access_control.authenticate(credential, address, listener))

    def _admit_process(self, credential: ProcessCredential, address: str, listener: str) -> GuardedBroker:
        """For a process of the node, on the local socket alone. Verified while security is off too, so that it stays
        connected when security is switched on."""
        if listener == LOCAL_LISTENER:
            if self._roles is not None and self._roles.is_valid(credential.role, credential.secret):
                principal = Principal(PrincipalKind.PROCESS, LOCAL, credential.role)
                return self.guard(self._access_control.new_session(CallerIdentity(principal), address, listener))
            if not self.is_secured:  # as a client that has no credential: it was started by hand
                return self.admit_anonymous(address, listener)
        raise errors.Unauthenticated(
            f"the process has not proved its role {credential.role[:100]!r}",
            hint="the broker hands its children their secrets; a process that you run needs "
            "`icestream security process-secret lake` (or pipeline) on the broker's machine",
        )

    def admit_anonymous(self, address: str, listener: str) -> GuardedBroker:
        """The use cases for a client without a credential."""
        return self.guard(self._access_control.new_session(ANONYMOUS_IDENTITY, address, listener))

    def guard(self, session: AccessSession) -> GuardedBroker:
        return GuardedBroker(self._broker, session)

    def leave(self, guarded: GuardedBroker) -> None:
        """Forgets a client that has disconnected. Its producers and consumers are closed by its front end."""
        self._access_control.close_session(guarded.session)


class GuardedBroker:
    """The use cases for one session. The docstrings are those of `Broker`; each may raise PermissionDenied too."""

    def __init__(self, broker: Broker, session: AccessSession) -> None:
        self._broker = broker
        self.session = session
        self._holds: dict[BrokerProducer | BrokerConsumer, int] = {}
        self.schemas = GuardedSchemas(broker.schemas, session)
        self.mqtt = GuardedMqtt(broker.mqtt, session)
        # Bound here, because front ends call them for every batch.
        self.has_room = broker.has_room
        self.wait_for_room = broker.wait_for_room
        self.publish = broker.publish
        self.publish_group = broker.publish_group

    # --- decisions ---

    def decide(self, action: Action, resource: Resource, *, is_recorded: bool = True) -> Decision:
        """The decision about any resource, recorded if `is_recorded`. Raises what ended the session."""
        return self.session.decide(action, self._covering(action, resource) or resource, is_recorded=is_recorded)

    def _covering(self, action: Action, resource: Resource) -> Resource | None:
        """For a topic with dead letters, the resource of the topic that they are of, if only that one is allowed."""
        if resource.kind not in (ResourceKind.TOPIC, ResourceKind.SUBSCRIPTION):
            return None
        if self.session.is_allowed(action, resource):
            return None
        record = self._broker.find_topic_record(TopicName(*resource.segments[:2]))
        if record is None or not record.dead_letters_of:
            return None
        covering = topic_resource(TopicName.parse(record.dead_letters_of))
        covering = Resource(resource.kind, (*covering.segments, *resource.segments[2:]))
        return covering if self.session.is_allowed(action, covering) else None

    def _require(self, action: Action, resource: Resource) -> Resource:
        """Returns the resource by which the action is allowed. Raises PermissionDenied, Unauthenticated."""
        allowed_by = self._covering(action, resource) or resource
        self.session.require(action, allowed_by)
        return allowed_by

    def _is_allowed(self, action: Action, resource: Resource) -> bool:
        return self.session.is_allowed(action, resource) or self._covering(action, resource) is not None

    def _user(self, resource: Resource) -> NameUser:
        """The user of a name of this resource; no principal while security is off."""
        if self.session.is_unrestricted:
            return UNNAMED
        identity = self.session.identity
        stored = records.StoredIdentity(str(identity.principal), list(identity.roles), dict(identity.claims))
        return NameUser(stored.principal, partial(self._require, Action.ALTER, resource), stored)

    # --- namespaces ---

    def namespaces(self) -> Mapping[str, records.NamespaceRecord]:
        return {
            name: record
            for name, record in self._broker.namespaces().items()
            if self._is_allowed(Action.DESCRIBE, namespace_resource(name))
        }

    def namespace(self, name: str) -> records.NamespaceRecord:
        self._require(Action.DESCRIBE, namespace_resource(check_namespace(name)))
        return self._broker.namespace(name)

    async def create_namespace(self, name: str, policies: PolicyValues | None = None) -> None:
        self._require(Action.CREATE, namespace_resource(check_namespace(name)))
        await self._broker.create_namespace(name, policies)

    async def delete_namespace(self, name: str) -> None:
        self._require(Action.DELETE, namespace_resource(check_namespace(name)))
        await self._broker.delete_namespace(name)

    async def set_namespace_policies(self, name: str, policies: PolicyValues) -> None:
        self._require(Action.ALTER, namespace_resource(check_namespace(name)))
        await self._broker.set_namespace_policies(name, policies)

    # --- topics ---

    def list_topics(self) -> list[BrokerTopic]:
        return [
            topic
            for topic in self._broker.list_topics()
            if self._is_allowed(Action.DESCRIBE, topic_resource(topic.name))
        ]

    def topic(self, name: TopicName) -> BrokerTopic:
        self._require(Action.DESCRIBE, topic_resource(name))
        return self._broker.topic(name)

    def erasable_topic(self, name: TopicName) -> BrokerTopic:
        """The topic, for a session that may erase messages of it. A dry run asks for the same: it tells whether a
        person is in the topic."""
        for action in (Action.DELETE, Action.MAINTAIN):
            self._require(action, topic_resource(name))
        return self._broker.topic(name)

    def find_topic(self, name: TopicName) -> BrokerTopic | None:
        """None also for a topic that may not be described."""
        return self._broker.find_topic(name) if self._is_allowed(Action.DESCRIBE, topic_resource(name)) else None

    async def locate_topic(self, name: TopicName) -> BrokerTopic:
        self._require(Action.DESCRIBE, topic_resource(name))
        return await self._broker.locate_topic(name)

    def find_topic_record(self, name: TopicName) -> records.TopicRecord | None:
        """None also for a topic that may not be described."""
        record = self._broker.find_topic_record(name)
        return record if self._is_allowed(Action.DESCRIBE, topic_resource(name)) else None

    def is_local(self, record: records.TopicRecord) -> bool:
        return self._broker.is_local(record)

    async def page_topics(self, namespace: str, after: str, limit: int) -> TopicPage:
        """The page of the topics that may be described, as if there were no others.

        Raises UnknownNamespace for an absent namespace, and for one that may not be described in which no topic may be
        either. Raises Refused if a page of visible topics is not found within LISTING_SCAN_MAX topics.
        """
        if not self.session.is_unrestricted:
            return await self._page_visible(namespace, after, limit)
        if namespace:
            self._broker.namespace(namespace)
        return await self._broker.page_topics(namespace, after, limit)

    async def _page_visible(self, namespace: str, after: str, limit: int) -> TopicPage:
        names: list[TopicName] = []
        position: str | None = after
        scanned = 0
        # One more than the page tells whether there is a next one; the name of a hidden topic is never a cursor.
        while position is not None and len(names) <= limit:
            page = await self._broker.page_topics(namespace, position, limits.TOPICS_PAGE_MAX)
            names += [name for name in page.names if self._is_allowed(Action.DESCRIBE, topic_resource(name))]
            position = page.next_after
            scanned += len(page.names)
            if scanned > limits.LISTING_SCAN_MAX and position is not None:
                raise errors.Refused(
                    "the listing has too many topics that this session does not see", hint="name a namespace"
                )
        if namespace and not names and not after:
            self._require_visible_namespace(namespace)
        return TopicPage(names[:limit], str(names[limit - 1]) if len(names) > limit else None)

    def _require_visible_namespace(self, namespace: str) -> None:
        """Raises UnknownNamespace for a namespace that is absent or may not be described, with the same text."""
        if self._is_allowed(Action.DESCRIBE, namespace_resource(check_namespace(namespace))):
            self._broker.namespace(namespace)
        else:
            raise unknown_namespace(namespace)

    def shard_streams(self, topic: BrokerTopic) -> list[ShardStream]:
        self._require(Action.DESCRIBE, topic_resource(topic.name))
        return self._broker.shard_streams(topic)

    def stalled_readers_of(self, topic: BrokerTopic) -> list[StalledReader]:
        """The reads of the topic's table that wait for the lake process."""
        self._require(Action.DESCRIBE, topic_resource(topic.name))
        return self._broker.stalled_readers.of_topic(topic.record.id)

    async def history_starts(self, topic: BrokerTopic) -> list[int | None]:
        self._require(Action.DESCRIBE, topic_resource(topic.name))
        return await self._broker.history_starts(topic)

    def gaps(self, topic: BrokerTopic, shard: int) -> Sequence[DeclaredGap]:
        self._require(Action.DESCRIBE, topic_resource(topic.name))
        return self._broker.gaps(topic, shard)

    async def create_topic(
        self,
        name: TopicName,
        shards: int = 1,
        dispatch: DispatchMode = DispatchMode.RELIABLE,
        policies: PolicyValues | None = None,
    ) -> BrokerTopic:
        self._require(Action.CREATE, topic_resource(name))
        return await self._broker.create_topic(name, shards, dispatch, policies)

    async def create_partitioned_topic(
        self, name: TopicName, partitions: int, dispatch: DispatchMode = DispatchMode.RELIABLE
    ) -> BrokerTopic:
        self._require(Action.CREATE, topic_resource(name))
        return await self._broker.create_partitioned_topic(name, partitions, dispatch)

    async def delete_topic(
        self, name: TopicName, table: DeletedTablePolicy | None = None, rest: DeletedRestPolicy | None = None
    ) -> Deletion:
        self._require(Action.DELETE, topic_resource(name))
        # Decided here and handed on, so that a change of the policies meanwhile cannot purge a table.
        table = table or self._broker.deleted_table_policy(name)
        if table is DeletedTablePolicy.PURGE:
            self._require(Action.TABLE_WRITE, topic_resource(name))
        return await self._broker.delete_topic(name, table, rest)

    async def undelete_topic(
        self, name: TopicName, topic_id: int | None = None, *, brings_back_erased: bool = False
    ) -> ReturnedTopic:
        # As one that creates a topic; its old subscriptions and messages are an administrator's to return.
        self._require(Action.ADMIN, CLUSTER)
        return await self._broker.undelete_topic(name, topic_id, brings_back_erased=brings_back_erased)

    async def live_topic(self, name: TopicName) -> BrokerTopic | None:
        self._require_restore(name)
        return await self._broker.live_topic(name)

    async def allocate_restore(
        self, backup_id: str, name: TopicName, policies: PolicyValues, *, is_in_place: bool = False, run: str = ""
    ) -> RestoreRecord:
        self._require_restore(name, is_in_place=is_in_place)
        return await self._broker.allocate_restore(backup_id, name, policies, is_in_place=is_in_place, run=run)

    async def erased_topics(self, log_id: str, topic_id: int) -> list[ErasedTopic]:
        self._require(Action.ADMIN, CLUSTER)
        return await self._broker.erased_topics(log_id, topic_id)

    async def restore_topic(self, topic: BackedUpTopic) -> BrokerTopic:
        self._require_restore(topic.name, is_in_place=topic.is_in_place)
        return await self._broker.restore_topic(topic)

    async def end_restore(self, backup_id: str, name: TopicName) -> None:
        self._require_restore(name)
        await self._broker.end_restore(backup_id, name)

    async def page_restores(self, after: str, limit: int) -> RestorePage:
        self._require(Action.RESTORE, CLUSTER)
        return await self._broker.page_restores(after, limit)

    def _require_restore(self, name: TopicName, *, is_in_place: bool = False) -> None:
        """The records of a restored topic are those of the backup, so an administrator restores; also an administrator
        makes no topic of the broker, whose events would be those of the backup (hazard 121)."""
        self._require(Action.ADMIN, CLUSTER)
        self._require(Action.RESTORE, topic_resource(name))
        if is_in_place:
            self._require(Action.DELETE, topic_resource(name))

    async def cluster_restore(self) -> ClusterRestore:
        """What a restore brings back beside topics, once the session may."""
        self._require(Action.ADMIN, CLUSTER)
        return self._broker.restores

    async def deleted_topics(self) -> list[records.TombstoneRecord]:
        self._require(Action.ADMIN, CLUSTER)
        return await self._broker.deleted_topics()

    async def take_over_topic(self, name: TopicName) -> Takeover:
        self._require(Action.ADMIN, CLUSTER)
        return await self._broker.take_over_topic(name)

    async def set_topic_policies(self, name: TopicName, policies: PolicyValues) -> None:
        self._require(Action.ALTER, topic_resource(name))
        await self._broker.set_topic_policies(name, policies)

    async def change_topic_policies(self, name: TopicName, changes: Mapping[str, object]) -> BrokerTopic:
        self._require(Action.ALTER, topic_resource(name))
        return await self._broker.change_topic_policies(name, changes)

    # --- producers ---

    async def open_producer(
        self,
        name: TopicName,
        producer: str,
        *,
        create: bool | None = None,
        shards: int = 1,
        instance: str = "",
        resumes: bool = False,
        partition: PartitionRequest | None = None,
    ) -> BrokerProducer:
        right = self._require(Action.PRODUCE, topic_resource(name))
        is_absent = self._broker.find_topic_record(name) is None
        if not self._is_allowed(Action.CREATE, topic_resource(name)):
            if create and is_absent:
                self._require(Action.CREATE, topic_resource(name))
            create = False
        elif is_absent and create is not False:
            self._require(Action.CREATE, topic_resource(name))  # for the audit
        opened = await self._broker.open_producer(
            name,
            producer,
            create=create,
            shards=shards,
            instance=instance,
            resumes=resumes,
            partition=partition,
            user=self._user(topic_resource(name)),
        )
        return self._hold_producer(opened, right)

    async def open_internal_producer(
        self, name: TopicName, producer: str, instance: str, *, resumes: bool = False
    ) -> BrokerProducer:
        right = self._require(Action.PRODUCE, topic_resource(name))
        opened = await self._broker.open_internal_producer(name, producer, instance, resumes=resumes)
        return self._hold_producer(opened, right)

    def _hold_producer(self, producer: BrokerProducer, right: Resource) -> BrokerProducer:
        """Keeps the right of an opened producer. Raises PermissionDenied if it ended meanwhile."""
        try:
            self._holds[producer] = self.session.hold(Action.PRODUCE, right, partial(self._end_producer, producer))
        except errors.IcestreamError:
            self._broker.close_producer(producer)
            raise
        return producer

    def _end_producer(self, producer: BrokerProducer, reason: errors.IcestreamError) -> None:
        """Closes a producer whose right has ended: its next batch is refused with the reason."""
        self._holds.pop(producer, None)
        producer.close(reason)
        self._broker.close_producer(producer)

    def check_produce(self, name: TopicName) -> None:
        """For a message by a producer that another session of the same principal has opened."""
        self._require(Action.PRODUCE, topic_resource(name))

    # --- MQTT ---

    async def connect_mqtt(self, request: ConnectRequest, link: ClientLink) -> ClientSession:
        """Connects an MQTT client. Each topic and filter that it names is decided by the session (hazard 118)."""
        return await self._broker.mqtt.connect(self.session, request, link)

    # --- numbered batches ---

    def last_sequence(self, producer: BrokerProducer, shard: int) -> int | None:
        return self._broker.last_sequence(producer, shard)

    def last_sequence_of_name(self, producer: BrokerProducer, shard: int) -> int | None:
        return self._broker.last_sequence_of_name(producer, shard)

    def recent_batches(self, producer: BrokerProducer, shard: int) -> list[tuple[int, int, int]]:
        return self._broker.recent_batches(producer, shard)

    def close_producer(self, producer: BrokerProducer) -> None:
        self._release(producer)
        self._broker.close_producer(producer)

    def disconnect_producer(self, name: TopicName, producer: str) -> None:
        self._require(Action.ALTER, topic_resource(name))
        self._broker.disconnect_producer(name, producer)

    @property
    def row_bytes_max(self) -> int:
        return self._broker.row_bytes_max

    @property
    def batch_bytes_max(self) -> int:
        return self._broker.batch_bytes_max

    @property
    def options(self) -> BrokerOptions:
        return self._broker.options

    def reset_producer(self, producer: BrokerProducer, shard: int) -> None:
        self._broker.reset_producer(producer, shard)

    async def wait_durable(self) -> None:
        await self._broker.wait_durable()

    # --- subscriptions ---

    async def subscribe(
        self,
        name: TopicName,
        subscription: str,
        kind: SubscriptionType,
        consumer: str,
        sink: ConsumerSink,
        start: SubscriptionStart | None = None,
        key_patterns: Sequence[str] = (),
        failure: FailurePolicy | None = None,
        shard: int | None = None,
        create: bool = True,
    ) -> tuple[BrokerSubscription, BrokerConsumer]:
        right = self._require(Action.CONSUME, _subscription(name, subscription))
        self._require_dead_letters(failure)
        target, joined = await self._broker.subscribe(
            name,
            subscription,
            kind,
            consumer,
            sink,
            start,
            key_patterns,
            failure,
            shard,
            create,
            self._user(_subscription(name, subscription)),
        )
        try:
            hold = self.session.hold(Action.CONSUME, right, partial(self._end_consumer, target, joined))
        except errors.IcestreamError:
            target.leave(joined)
            raise
        self._holds[joined] = hold
        joined.on_close = partial(self._release, joined)
        return target, joined

    def _end_consumer(
        self, subscription: BrokerSubscription, consumer: BrokerConsumer, reason: errors.IcestreamError
    ) -> None:
        """Closes a consumer whose right has ended, with the reason; its messages go to others."""
        self._holds.pop(consumer, None)
        subscription.expel(consumer, reason)

    def _release(self, holder: BrokerProducer | BrokerConsumer) -> None:
        if (hold := self._holds.pop(holder, None)) is not None:
            self.session.release(hold)

    def _require_dead_letters(self, failure: FailurePolicy | None) -> None:
        """Raises PermissionDenied unless the session may produce to the dead-letter topic that it names."""
        if failure is None or failure.dead_letter_topic is None:
            return
        name = TopicName.parse(failure.dead_letter_topic)
        self._require(Action.PRODUCE, topic_resource(name))
        if self._broker.find_topic_record(name) is None:
            self._require(Action.CREATE, topic_resource(name))

    async def create_subscription(
        self,
        name: TopicName,
        subscription: str,
        kind: SubscriptionType,
        start: SubscriptionStart | None = None,
        failure: FailurePolicy | None = None,
    ) -> BrokerSubscription:
        self._require(Action.ALTER, _subscription(name, subscription))
        self._require_dead_letters(failure)
        user = self._user(_subscription(name, subscription))
        return await self._broker.create_subscription(name, subscription, kind, start, failure, user)

    async def delete_subscription(self, name: TopicName, subscription: str) -> None:
        self._require(Action.ALTER, _subscription(name, subscription))
        await self._broker.delete_subscription(name, subscription)

    async def set_failure_policy(
        self, name: TopicName, subscription: str, policy: FailurePolicy, *, is_ahead: bool = False
    ) -> None:
        self._require(Action.ALTER, _subscription(name, subscription))
        self._require_dead_letters(policy)
        user = self._user(_subscription(name, subscription))
        await self._broker.set_failure_policy(name, subscription, policy, is_ahead=is_ahead, user=user)

    async def set_dispatch_rate(self, name: TopicName, subscription: str, messages_per_second: int | None) -> None:
        self._require(Action.ALTER, _subscription(name, subscription))
        await self._broker.set_dispatch_rate(name, subscription, messages_per_second)

    async def set_unacked_max(
        self, name: TopicName, subscription: str, messages: int | None, *, is_ahead: bool = False
    ) -> None:
        self._require(Action.ALTER, _subscription(name, subscription))
        await self._broker.set_unacked_max(name, subscription, messages, is_ahead=is_ahead)

    async def pending_subscription(self, name: TopicName, subscription: str) -> records.PendingSubscription | None:
        self._require(Action.DESCRIBE, _subscription(name, subscription))
        return await self._broker.pending_subscription(name, subscription)

    def disconnect_consumer(self, name: TopicName, subscription: str, consumer: str) -> None:
        self._require(Action.ALTER, _subscription(name, subscription))
        self._broker.disconnect_consumer(name, subscription, consumer)

    async def seek(
        self, name: TopicName, subscription: str, start: SubscriptionStart, shard: int | None = None
    ) -> None:
        self._require(Action.ALTER, _subscription(name, subscription))
        await self._broker.seek(name, subscription, start, shard)

    def subscription(self, name: TopicName, subscription: str) -> BrokerSubscription:
        self._require(Action.DESCRIBE, _subscription(name, subscription))
        return self._broker.subscription(name, subscription)

    def topic_of_subscription(self, action: Action, name: TopicName, subscription: str) -> BrokerTopic:
        """The topic of a subscription, for a session that may do this to the subscription: it need not be allowed to
        describe the topic, which shows other subscriptions too."""
        self._require(action, _subscription(name, subscription))
        return self._broker.topic(name)

    def consumed_subscription(self, name: TopicName, subscription: str) -> BrokerSubscription:
        """The subscription, for an ack without a consumer of this session. Raises PermissionDenied unless the session
        may consume it, and for a subscription of another principal (hazard 115)."""
        resource = _subscription(name, subscription)
        self._require(Action.CONSUME, resource)
        consumed = self._broker.subscription(name, subscription)
        self._user(resource).claim(consumed.record.principal)
        return consumed


def _subscription(name: TopicName, subscription: str) -> Resource:
    """Raises InvalidInput for a name that no subscription can have: it would be several segments of a resource."""
    check_name("subscription", subscription)
    return subscription_resource(name, subscription)
