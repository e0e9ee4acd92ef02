"""Danube's consumers by their ids: Subscribe and ReceiveMessages.

A client that loses its stream reopens it at once, with the same id and without a pause, whatever the reason. Therefore:

- An id stays valid over restarts of the broker (id_registry.py).
- A stream that cannot begin fails only after a delay of a second. So does a stream that another client of the same name
  took over, so that the two do not chase each other, and a stream of messages that cannot be read, which the client
  would request again at once.
- A second stream of an id takes over from the first: messages that the first stream did not ack are redelivered.

Stalled subscriptions: stall_watch.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from icestream import errors, limits
from icestream.broker.service import Broker
from icestream.frontends.danube.danube_consumer import TAKEN_OVER, DanubeConsumer, no_such_consumer
from icestream.frontends.danube.extensions import START, parse_start
from icestream.frontends.danube.handlers import Call, OutStream, decode
from icestream.frontends.danube.id_registry import CONSUMERS, IdRegistry, RegisteredConsumer
from icestream.frontends.danube.partition_names import resolve_partition
from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.model.subscription import Start, SubscriptionType
from icestream.runtime.clock import Clock

TYPES: Final = {
    pb.ConsumerRequest.Exclusive: SubscriptionType.EXCLUSIVE,
    pb.ConsumerRequest.Shared: SubscriptionType.SHARED,
    pb.ConsumerRequest.Failover: SubscriptionType.FAILOVER,
    pb.ConsumerRequest.KeyShared: SubscriptionType.KEY_SHARED,
}
DeliveryKey = tuple[int, int, str]  # topic id, shard, subscription


class ConsumerRegistry:
    def __init__(self, broker: Broker, ids: IdRegistry, clock: Clock, address: str, message_bytes_max: int) -> None:
        self._broker = broker
        self._ids = ids
        self._clock = clock
        self._address = address
        self._message_bytes_max = message_bytes_max
        self._here: dict[int, DanubeConsumer] = {}
        self._by_place: dict[DeliveryKey, set[DanubeConsumer]] = {}
        self._closing = asyncio.Event()

    def __len__(self) -> int:
        return len(self._here)

    # --- calls ---

    async def subscribe(self, raw: bytes, call: Call) -> bytes:
        request = decode(pb.ConsumerRequest, raw)
        kind = TYPES.get(request.subscription_type)
        if kind is None:
            raise errors.InvalidInput(f"there is no subscription type {request.subscription_type}", hint="0 to 3 exist")
        place = RegisteredConsumer(
            request.topic_name, request.subscription, request.consumer_name, kind, tuple(request.key_filters)
        )
        text = call.metadata.get(START)
        found = await self._join(place, call.peer, parse_start(text) if text is not None else None)
        await self._ids.keep(CONSUMERS, found.id, place)
        answer = pb.ConsumerResponse(
            request_id=request.request_id, consumer_id=found.id, consumer_name=request.consumer_name
        )
        return answer.SerializeToString()

    async def receive(self, raw: bytes, call: Call, stream: OutStream) -> None:
        request = decode(pb.ReceiveRequest, raw)
        try:
            found = await self._for_stream(request.consumer_id, call)
        except errors.IcestreamError:
            await self._hold()
            raise
        try:
            found.begin(stream)
            reason = await found.ended
        finally:
            self._leave(found)
        if TAKEN_OVER in reason or found.is_stalled:
            await self._hold()
        raise errors.Refused(f"the stream of consumer {request.consumer_id} ended: {reason}", hint="open it again")

    async def _for_stream(self, id_: int, call: Call) -> DanubeConsumer:
        """The consumer that subscribed just now, or one that was here before."""
        found = self._here.get(id_)
        if found is not None and not found.is_streaming and not found.ended.done():
            return found
        place = await self._ids.consumer(id_)
        if place is None:
            raise no_such_consumer(id_)
        again = await self._join(place, call.peer, None, create=False)
        if again.id != id_:
            again.leave()
            raise no_such_consumer(id_)
        await self._ids.renew(CONSUMERS, id_)
        return again

    async def _join(
        self, wanted: RegisteredConsumer, peer: str, start: Start | None, *, create: bool = True
    ) -> DanubeConsumer:
        place = resolve_partition(self._broker.topics, wanted.topic)
        found = DanubeConsumer(
            place, wanted.subscription, peer, self._address, self._message_bytes_max, self._ids.now_ms
        )
        subscription, consumer = await self._broker.subscribe(
            place.topic.name,
            wanted.subscription,
            wanted.type,
            wanted.name,
            found,
            start,
            wanted.key_patterns,
            shard=place.part,
            create=create,
        )
        found.joined(subscription, consumer)
        self._here[found.id] = found
        where = (place.topic.record.id, place.shard, wanted.subscription)
        self._by_place.setdefault(where, set()).add(found)
        found.ended.add_done_callback(lambda _: self._forget(where, found))
        return found

    async def _hold(self) -> None:
        """A while, or until the broker shuts down."""
        waiting = asyncio.ensure_future(self._closing.wait())
        pause = asyncio.ensure_future(self._clock.sleep(limits.DANUBE_HOLD_SECONDS))
        try:
            await asyncio.wait({waiting, pause}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            pause.cancel()

    # --- who is here ---

    def _leave(self, found: DanubeConsumer) -> None:
        with contextlib.suppress(errors.IcestreamError):
            found.leave()

    def _forget(self, where: DeliveryKey, found: DanubeConsumer) -> None:
        here = self._by_place.get(where)
        if here is not None:
            here.discard(found)
            if not here:
                del self._by_place[where]
        if self._here.get(found.id) is found:
            del self._here[found.id]
            self._ids.forget(CONSUMERS, found.id)

    def acked(self, where: DeliveryKey, count: int) -> None:
        """Messages of that place were acked, by one of those who are there."""
        for found in self._by_place.get(where, ()):
            found.acked(count)

    async def is_known(self, id_: int) -> bool:
        """For a health check. An id whose subscription is gone is not."""
        if id_ in self._here:
            await self._ids.renew(CONSUMERS, id_)
            return True
        place = await self._ids.consumer(id_)
        if place is None:
            return False
        try:
            topic = resolve_partition(self._broker.topics, place.topic).topic
        except errors.InvalidInput:
            return False
        return place.subscription in topic.subscriptions

    def sweep(self) -> None:
        """One that subscribed and never opened its stream loses its place."""
        oldest = self._ids.now_ms() - limits.DANUBE_CONSUMER_IDLE_MS
        for found in list(self._here.values()):
            if not found.is_streaming and found.since_ms < oldest:
                found.leave()

    def close(self) -> None:
        """Every stream ends, also those that are held."""
        self._closing.set()
        for found in list(self._here.values()):
            found.event("closed", {"reason": "the broker is shutting down"})
