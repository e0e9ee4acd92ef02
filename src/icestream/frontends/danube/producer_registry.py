"""Danube's producers by their ids.

A producer has no connection and says no goodbye: whoever knows the id sends. So one of a name is one, however many
clients use the name, and all of them share it: none fences the others. One that was not heard of for a while does not
count as connected any more; it need not be made again to send.

    CreateProducer                   -> here
    a message or a health check      -> here, also after a restart of the broker: the id says which topic and name
    nothing for 60 s                 -> not connected; its id is known for a week

Messages with numbers of their own (`x-icestream-sequence`) go through a second producer of the broker, whose instance
is the incarnation that the client names. An incarnation that comes after another one fences it: what the older one
still sends is refused, as far back as DANUBE_INCARNATIONS_MAX of them (hazard 7). After a restart of the broker an
incarnation goes on under a new epoch: what it had stored before is known by its last number in each shard.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

import msgspec

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.danube_partitions import PartitionRequest
from icestream.broker.name_registry import put_name
from icestream.broker.service import Broker
from icestream.broker.topic import Producer
from icestream.frontends.danube.handlers import Call, decode
from icestream.frontends.danube.id_registry import PRODUCERS, IdRegistry, RegisteredProducer
from icestream.frontends.danube.messages import OWN_COLUMNS
from icestream.frontends.danube.partition_names import parse_partition
from icestream.frontends.danube.schema_handlers import check_reference
from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.model.subscription import Dispatch
from icestream.model.topic_name import TopicName

DISPATCH: Final = {pb.NonReliable: Dispatch.NON_RELIABLE, pb.Reliable: Dispatch.RELIABLE}
INCARNATIONS: Final = "/danube/incarnations/"


class Incarnations(msgspec.Struct, frozen=True):
    """Those that a producer had, the last one last."""

    names: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class DanubeProducer:
    id: int
    topic: TopicName
    name: str
    plain: Producer
    heard_ms: int
    numbered: Producer | None = None
    incarnation: str = ""
    last_before: dict[int, int] = field(default_factory=dict)  # by shard, of its incarnation under older epochs
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)


class ProducerRegistry:
    def __init__(self, broker: Broker, ids: IdRegistry) -> None:
        self._broker = broker
        self._ids = ids
        self._here: OrderedDict[int, DanubeProducer] = OrderedDict()  # the one not heard of for longest first
        self._recalls: dict[int, asyncio.Task[DanubeProducer | None]] = {}

    def __len__(self) -> int:
        return len(self._here)

    async def create(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.ProducerRequest, raw)
        name, part = parse_partition(request.topic_name)
        dispatch = DISPATCH.get(request.dispatch_strategy)
        if dispatch is None or request.producer_access_mode not in pb.ProducerAccessMode.values():
            raise errors.InvalidInput("an access mode or dispatch strategy that does not exist", hint="0 and 1 do")
        has_schema = request.HasField("schema_ref")
        if has_schema:
            await check_reference(self._broker, request.schema_ref)
            self._check_subject(name, request.schema_ref.subject)
        opened = await self._broker.open_producer(name, request.producer_name, part=PartitionRequest(part, dispatch))
        opened.peer = call.peer
        if has_schema:
            await self._broker.registry.bind(name, request.schema_ref.subject)
        found = self._keep(opened.id, opened)
        await self._ids.keep(PRODUCERS, found.id, RegisteredProducer(str(name), opened.name))
        answer = pb.ProducerResponse(
            request_id=request.request_id, producer_id=opened.id, producer_name=request.producer_name
        )
        return answer.SerializeToString()

    def _check_subject(self, topic: TopicName, subject: str) -> None:
        """Before anything is made: a producer that is refused leaves no topic behind."""
        known = self._broker.registry.of_topic(topic)
        if known is not None and known.subject != subject:
            raise errors.SchemaMismatch(
                f"topic {topic} has the subject {known.subject}, not {subject}", hint="use its subject"
            )

    def _keep(self, id_: int, opened: Producer) -> DanubeProducer:
        opened.columns = OWN_COLUMNS
        old = self._here.pop(id_, None)
        found = DanubeProducer(id_, opened.topic.name, opened.name, opened, self._ids.now_ms())
        if old is not None and old.plain.topic is opened.topic:
            found.numbered, found.incarnation, found.opening = old.numbered, old.incarnation, old.opening
            found.last_before = old.last_before
        self._here[id_] = found
        return found

    def find(self, id_: int) -> DanubeProducer | None:
        """The producer with that id, heard of just now; None when it is not here."""
        found = self._here.get(id_)
        if found is None or found.plain.closed is not None:
            return None
        found.heard_ms = self._ids.now_ms()
        self._here.move_to_end(id_)
        return found

    async def recall(self, id_: int) -> DanubeProducer:
        """The same, also one that the broker had before a restart. Raises UnknownProducer. Once for all who ask."""
        found = self.find(id_)
        if found is not None:
            return found
        task = self._recalls.get(id_)
        if task is None:
            task = self._recalls[id_] = asyncio.get_running_loop().create_task(self._recall(id_))
            task.add_done_callback(lambda _: self._recalls.pop(id_, None))
        again = await asyncio.shield(task)
        if again is None:
            raise errors.UnknownProducer(f"producer {id_} is not known here", hint="create the producer again")
        return again

    async def _recall(self, id_: int) -> DanubeProducer | None:
        place = await self._ids.producer(id_)
        if place is None:
            return None
        try:
            opened = await self._broker.open_producer(TopicName.parse(place.topic), place.name, create=False)
        except errors.UnknownTopic:
            return None
        return self._keep(id_, opened)

    async def is_known(self, id_: int) -> bool:
        """For a health check, which also tells that the client is there."""
        found = self.find(id_)
        if found is not None:
            await self._ids.renew(PRODUCERS, id_)
            if found.numbered is not None:
                await self._ids.renew(INCARNATIONS, id_)
                await self._ids.renew_key(records.producer_key(found.topic, found.numbered.name))
            return True
        place = await self._ids.producer(id_)
        return place is not None and self._broker.topics.find(TopicName.parse(place.topic)) is not None

    # --- numbers ---

    async def numbered(self, producer: DanubeProducer, incarnation: str) -> Producer:
        """The producer of the broker that stores the messages of this incarnation."""
        if producer.incarnation == incarnation and _is_open(producer.numbered):
            assert producer.numbered is not None
            return producer.numbered
        async with producer.opening:
            if producer.incarnation != incarnation or not _is_open(producer.numbered):
                resumes = await self._enter(producer, incarnation)
                opened = await self._broker.open_inner_producer(
                    producer.topic, f"danube/{producer.name}", incarnation, resumes=resumes
                )
                opened.columns = OWN_COLUMNS
                await (
                    self._broker.storage.wait_durable()
                )  # what was under way is stored or not: only then numbers count
                producer.numbered, producer.incarnation = opened, incarnation
                producer.last_before = self._stored(opened) if resumes else {}
            assert producer.numbered is not None
            return producer.numbered

    def _stored(self, opened: Producer) -> dict[int, int]:
        shards = range(opened.topic.record.shards)
        found = {shard: self._broker.last_sequence(opened, shard) for shard in shards}
        return {shard: last for shard, last in found.items() if last is not None}

    async def _enter(self, producer: DanubeProducer, incarnation: str) -> bool:
        """Whether this incarnation is the last one that there was. Raises ProducerFenced for an older one."""
        key = f"{INCARNATIONS}{producer.id}"
        entry = await self._broker.store.get(key)
        known = records.decode(Incarnations, key, entry.value).names if entry is not None else ()
        if incarnation in known[:-1]:
            raise errors.ProducerFenced(
                f"producer {producer.name} has begun incarnation {known[-1]}", hint=f"{incarnation} must stop sending"
            )
        if not known or known[-1] != incarnation:
            names = (*known, incarnation)[-limits.DANUBE_INCARNATIONS_MAX :]
            await self._broker.store.txn([], [put_name(key, records.encode(Incarnations(names)))])
            return False
        return True

    # --- time ---

    def sweep(self) -> None:
        """Those that were not heard of for long do not count as connected any more."""
        oldest = self._ids.now_ms() - limits.DANUBE_PRODUCER_IDLE_MS
        while self._here and next(iter(self._here.values())).heard_ms < oldest:
            id_, gone = self._here.popitem(last=False)
            self._broker.close_producer(gone.plain)
            self._ids.forget(PRODUCERS, id_)
            self._ids.forget(INCARNATIONS, id_)
            if gone.numbered is not None:
                self._ids.forget_key(records.producer_key(gone.topic, gone.numbered.name))

    def close(self) -> None:
        for task in self._recalls.values():
            task.cancel()


def _is_open(producer: Producer | None) -> bool:
    return producer is not None and producer.closed is None
