"""Danube's producers by their ids.

A Danube producer has no connection and is never closed by its client: any client of its principal may send by the id.
So there is one producer for a name, shared by all clients that use the name; none of them fences another. A producer
that has been idle for a while no longer counts as connected, but it need not be created again to send.

It is a hold of the session that opened it. When that session ends, such as with an expired token, the next message of
the principal opens it again by the session of its own call, or is refused with the reason.

    CreateProducer                   registers the producer
    a message or a health check      renews it; after a restart of the broker the id tells topic and name
    idle for 60 s                    not connected; the id stays valid for a week

Messages with sequence numbers (`x-icestream-sequence`) go through a second producer of the broker, whose instance is
the incarnation that the client names. A new incarnation fences the one before it: messages of an older incarnation are
refused, as far back as DANUBE_INCARNATIONS_MAX (hazard 7). After a restart of the broker an incarnation continues under
a new epoch; messages that it stored before are recognised by their last sequence number in each shard.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

import msgspec

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.broker_topic import BrokerProducer
from icestream.broker.danube_partitions import PartitionRequest
from icestream.broker.guarded_broker import GuardedBroker
from icestream.broker.name_registry import put_name
from icestream.frontends.danube.handlers import Call, decode
from icestream.frontends.danube.id_registry import PRODUCERS, IdRegistry, RegisteredProducer, owner_of
from icestream.frontends.danube.messages import OWN_COLUMNS
from icestream.frontends.danube.partition_names import parse_partition
from icestream.frontends.danube.schema_handlers import check_reference
from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.metadata.store import MetadataStore
from icestream.model.subscription_options import DispatchMode
from icestream.model.topic_name import TopicName

DISPATCH: Final = {pb.NonReliable: DispatchMode.NON_RELIABLE, pb.Reliable: DispatchMode.RELIABLE}
INCARNATIONS: Final = "/danube/incarnations/"


class Incarnations(msgspec.Struct, frozen=True):
    """The incarnations of a producer, oldest first."""

    names: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class DanubeProducer:
    """A producer id that was used recently, with the broker's producers that store its messages."""

    id: int
    topic: TopicName
    name: str
    client: GuardedBroker  # whose session opened `plain`
    plain: BrokerProducer  # for messages without sequence numbers
    active_ms: int  # time of its last request
    numbered_client: GuardedBroker | None = None  # whose session opened `numbered`
    numbered: BrokerProducer | None = None  # for messages with sequence numbers, of `incarnation`
    incarnation: str = ""
    stored_before: dict[int, int] = field(default_factory=dict)  # last sequence of each shard under older epochs
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    def release(self) -> None:
        """Gives up both producers of the broker, with the rights that they hold."""
        self.client.close_producer(self.plain)
        if self.numbered is not None and self.numbered_client is not None:
            self.numbered_client.close_producer(self.numbered)


class ProducerRegistry:
    """The producers of Danube's clients on this node."""

    def __init__(self, store: MetadataStore, ids: IdRegistry) -> None:
        """`store`: for the incarnations of producers, which are records of this front end."""
        self._store = store
        self._ids = ids
        self._connected: OrderedDict[int, DanubeProducer] = OrderedDict()  # longest idle first
        self._recalls: dict[tuple[int, str], asyncio.Task[DanubeProducer | None]] = {}  # by id and principal

    def __len__(self) -> int:
        return len(self._connected)

    async def create(self, raw: bytes, call: Call) -> bytes:
        """Handles CreateProducer. Raises SchemaMismatch and the broker's refusals."""
        request = decode(pb.ProducerRequest, raw)
        name, part = parse_partition(request.topic_name)
        dispatch = DISPATCH.get(request.dispatch_strategy)
        if dispatch is None or request.producer_access_mode not in pb.ProducerAccessMode.values():
            raise errors.InvalidInput(
                f"unknown access mode {request.producer_access_mode} or dispatch strategy {request.dispatch_strategy}",
                hint="allowed: 0 and 1",
            )
        client, has_schema = call.client, request.HasField("schema_ref")
        if has_schema:
            await check_reference(client, request.schema_ref)
            _check_subject(client, name, request.schema_ref.subject)
        broker_producer = await client.open_producer(
            name, request.producer_name, partition=PartitionRequest(part, dispatch)
        )
        broker_producer.peer = call.peer
        if has_schema:  # after the topic exists; a concurrent producer with another subject is refused here
            await client.schemas.bind(name, request.schema_ref.subject)
        producer = self._connect(client, broker_producer)
        registration = RegisteredProducer(str(name), broker_producer.name, owner_of(client))
        await self._ids.keep(PRODUCERS, producer.id, registration)
        response = pb.ProducerResponse(
            request_id=request.request_id, producer_id=broker_producer.id, producer_name=request.producer_name
        )
        return response.SerializeToString()

    def _connect(self, client: GuardedBroker, broker_producer: BrokerProducer) -> DanubeProducer:
        """Makes this the connected producer of its id. Keeps the numbered producer of the former one: a second client
        of the name, or a repeated CreateProducer, must not fence it."""
        broker_producer.columns = OWN_COLUMNS
        id_, topic = broker_producer.id, broker_producer.topic
        old = self._connected.pop(id_, None)
        producer = DanubeProducer(id_, topic.name, broker_producer.name, client, broker_producer, self._ids.now_ms())
        if old is not None and old.plain.topic is topic and _is_principal(old.client, client):
            producer.numbered, producer.incarnation, producer.opening = old.numbered, old.incarnation, old.opening
            producer.numbered_client, producer.stored_before = old.numbered_client, old.stored_before
            old.numbered = None
        if old is not None:
            old.release()
        self._connected[id_] = producer
        return producer

    def find(self, id_: int, client: GuardedBroker) -> DanubeProducer | None:
        """The connected producer with this id, whose idle time begins anew; None if it is not connected, or another
        principal's. Raises PermissionDenied if another session opened it and this one may not produce."""
        producer = self._connected.get(id_)
        if producer is None or producer.plain.closed is not None:
            return None
        if producer.client is not client:
            if not _is_principal(producer.client, client):
                return None
            # Two credentials of a principal may have different rights, such as by the claims of their tokens.
            client.check_produce(producer.topic)
        producer.active_ms = self._ids.now_ms()
        self._connected.move_to_end(id_)
        return producer

    async def recall(self, id_: int, client: GuardedBroker) -> DanubeProducer:
        """Like `find`, and reopens a producer that was registered before a restart of the broker, or whose session has
        ended.

        Concurrent calls for one id share one lookup. Raises UnknownProducer for an id that is not registered, or
        another principal's.
        """
        producer = self.find(id_, client)
        if producer is not None:
            return producer
        # After a restart every message of a busy producer comes here at once: opening it for each of them would fence
        # the one before.
        key = id_, owner_of(client)
        task = self._recalls.get(key)
        if task is None:
            task = self._recalls[key] = asyncio.get_running_loop().create_task(self._recall(id_, client))
            task.add_done_callback(lambda _: self._recalls.pop(key, None))
        recalled_producer = await asyncio.shield(task)
        if recalled_producer is None:
            raise errors.UnknownProducer(f"unknown producer id {id_}", hint="create the producer again")
        return recalled_producer

    async def _recall(self, id_: int, client: GuardedBroker) -> DanubeProducer | None:
        """Opens a registered producer again; None if it is not registered by this principal, or its topic was
        deleted."""
        registration = await self._ids.producer(id_)
        if registration is None or registration.principal != owner_of(client):
            return None
        try:
            broker_producer = await client.open_producer(
                TopicName.parse(registration.topic), registration.name, create=False
            )
        except errors.UnknownTopic:
            return None
        if broker_producer.id != id_:  # the name expired and has a new id, which belongs to a later client
            client.close_producer(broker_producer)
            return None
        return self._connect(client, broker_producer)

    async def is_known(self, id_: int, client: GuardedBroker) -> bool:
        """True if the id belongs to a producer of this principal whose topic exists; renews it. For health checks."""
        producer = self.find(id_, client)
        if producer is not None:
            await self._ids.renew(PRODUCERS, id_)
            if producer.numbered is not None:
                await self._ids.renew(INCARNATIONS, id_)
                await self._ids.renew_key(records.producer_key(producer.topic, producer.numbered.name))
            return True
        registration = await self._ids.producer(id_)
        if registration is None or registration.principal != owner_of(client):
            return False
        return client.find_topic(TopicName.parse(registration.topic)) is not None

    # --- sequence numbers ---

    async def numbered(self, producer: DanubeProducer, incarnation: str, client: GuardedBroker) -> BrokerProducer:
        """The broker's producer that stores the numbered messages of this incarnation."""
        if producer.incarnation == incarnation and _is_open(producer.numbered):
            assert producer.numbered is not None
            return producer.numbered
        async with producer.opening:  # compared again inside: another message may have opened it while this one waited
            if producer.incarnation != incarnation or not _is_open(producer.numbered):
                resumes = await self._register_incarnation(producer, incarnation)
                if producer.numbered is not None and producer.numbered_client is not None:
                    producer.numbered_client.close_producer(producer.numbered)
                broker_producer = await client.open_internal_producer(
                    producer.topic, f"danube/{producer.name}", incarnation, resumes=resumes
                )
                broker_producer.columns = OWN_COLUMNS
                # Batches of the former epoch are stored or rolled back then: only now its sequence numbers are final.
                await client.wait_durable()
                producer.numbered, producer.incarnation = broker_producer, incarnation
                producer.numbered_client = client
                producer.stored_before = _last_sequences(client, broker_producer) if resumes else {}
            assert producer.numbered is not None
            return producer.numbered

    async def _register_incarnation(self, producer: DanubeProducer, incarnation: str) -> bool:
        """Registers a new incarnation. True if this one was the latest before: it continues.

        Raises ProducerFenced for an older incarnation.
        """
        key = f"{INCARNATIONS}{producer.id}"
        entry = await self._store.get(key)
        incarnations = records.decode(Incarnations, key, entry.value).names if entry is not None else ()
        if incarnation in incarnations[:-1]:
            raise errors.ProducerFenced(
                f"producer {producer.name} is fenced by incarnation {incarnations[-1]}",
                hint=f"{incarnation} must stop sending",
            )
        # The older ones are remembered by name, because incarnations have no order: a delayed message of a former run
        # would otherwise look like a new one and fence the present.
        if not incarnations or incarnations[-1] != incarnation:
            names = (*incarnations, incarnation)[-limits.DANUBE_INCARNATIONS_MAX :]
            await self._store.txn([], [put_name(key, records.encode(Incarnations(names)))])
            return False
        return True

    # --- idle producers ---

    def sweep(self) -> None:
        """Closes producers that have been idle for DANUBE_PRODUCER_IDLE_MS; their ids stay registered."""
        oldest = self._ids.now_ms() - limits.DANUBE_PRODUCER_IDLE_MS
        while self._connected and next(iter(self._connected.values())).active_ms < oldest:  # in order of last use
            id_, idle = self._connected.popitem(last=False)
            idle.release()
            self._ids.forget(PRODUCERS, id_)
            self._ids.forget(INCARNATIONS, id_)
            if idle.numbered is not None:
                self._ids.forget_key(records.producer_key(idle.topic, idle.numbered.name))

    def close(self) -> None:
        """Cancels the lookups in flight."""
        for task in self._recalls.values():
            task.cancel()


def _is_principal(owner: GuardedBroker, client: GuardedBroker) -> bool:
    """True if both sessions are of one principal."""
    return owner.session.identity.principal == client.session.identity.principal


def _check_subject(client: GuardedBroker, topic: TopicName, subject: str) -> None:
    """Raises SchemaMismatch for a topic with another subject.

    Called before the topic is created: a producer that is refused leaves no topic behind.
    """
    schema = client.schemas.of_topic(topic)
    if schema is not None and schema.subject != subject:
        raise errors.SchemaMismatch(
            f"topic {topic} has the subject {schema.subject}, not {subject}", hint="use its subject"
        )


def _last_sequences(client: GuardedBroker, broker_producer: BrokerProducer) -> dict[int, int]:
    """The last stored sequence number of each shard that has one, by all epochs of this incarnation."""
    shards = range(broker_producer.topic.record.shards)
    sequences = {shard: client.last_sequence(broker_producer, shard) for shard in shards}
    return {shard: last for shard, last in sequences.items() if last is not None}


def _is_open(producer: BrokerProducer | None) -> bool:
    return producer is not None and producer.closed is None
