"""Danube's consumers by their ids: Subscribe and ReceiveMessages.

A client that loses its stream reopens it at once, with the same id and without a pause, whatever the reason. Therefore:

- An id stays valid over restarts of the broker, for the principal that subscribed (id_registry.py).
- A stream whose right ends, by a change of the policy or by the end of its credential, ends with that reason. The next
  one joins by the session of its own call, so a client with a new token continues.
- A stream that cannot begin fails only after a delay of a second. So does a stream that another client of the same name
  took over, so that the two do not chase each other, and a stream of messages that cannot be read, which the client
  would request again at once.
- A second stream of an id takes over from the first: messages that the first stream did not ack are redelivered.

Stalled subscriptions: stall_watch.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, TypeVar

from icestream import errors, limits
from icestream.broker.guarded_broker import GuardedBroker
from icestream.frontends.danube.danube_consumer import TAKEN_OVER, DanubeConsumer, DeliveryKey, no_such_consumer
from icestream.frontends.danube.extensions import START, parse_start
from icestream.frontends.danube.handlers import Call, OutStream, decode
from icestream.frontends.danube.id_registry import CONSUMERS, IdRegistry, RegisteredConsumer, owner_of
from icestream.frontends.danube.partition_names import resolve_partition
from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.model.subscription_options import SubscriptionStart, SubscriptionType
from icestream.runtime.clock import Clock

TYPES: Final = {
    pb.ConsumerRequest.Exclusive: SubscriptionType.EXCLUSIVE,
    pb.ConsumerRequest.Shared: SubscriptionType.SHARED,
    pb.ConsumerRequest.Failover: SubscriptionType.FAILOVER,
    pb.ConsumerRequest.KeyShared: SubscriptionType.KEY_SHARED,
}
ConsumerName = tuple[GuardedBroker, str, str]  # the session, topic and subscription as its messages name them


class ConsumerRegistry:
    """The consumers of Danube's clients that are part of a subscription on this node."""

    def __init__(self, ids: IdRegistry, clock: Clock, address: str, message_bytes_max: int) -> None:
        self._ids = ids
        self._clock = clock
        self._address = address
        self._message_bytes_max = message_bytes_max
        self._consumers: dict[int, DanubeConsumer] = {}
        self._by_delivery: dict[DeliveryKey, set[DanubeConsumer]] = {}
        self._by_name: dict[ConsumerName, set[DanubeConsumer]] = {}
        self._closing = asyncio.Event()

    def __len__(self) -> int:
        return len(self._consumers)

    # --- calls ---

    async def subscribe(self, raw: bytes, call: Call) -> bytes:
        """Handles Subscribe: joins the subscription, and registers the id for ReceiveMessages."""
        request = decode(pb.ConsumerRequest, raw)
        subscription_type = TYPES.get(request.subscription_type)
        if subscription_type is None:
            raise errors.InvalidInput(f"unknown subscription type {request.subscription_type}", hint="allowed: 0 to 3")
        registration = RegisteredConsumer(
            request.topic_name,
            request.subscription,
            request.consumer_name,
            subscription_type,
            tuple(request.key_filters),
            owner_of(call.client),
        )
        text = call.metadata.get(START)
        consumer = await self._join(registration, call, parse_start(text) if text is not None else None)
        # Before the reply: the client uses the id at once, perhaps after a restart of the broker.
        await self._ids.keep(CONSUMERS, consumer.id, registration)
        response = pb.ConsumerResponse(
            request_id=request.request_id, consumer_id=consumer.id, consumer_name=request.consumer_name
        )
        return response.SerializeToString()

    async def receive(self, raw: bytes, call: Call, stream: OutStream) -> None:
        """Handles ReceiveMessages until the consumer ends. Raises the reason, which clients see in the status."""
        request = decode(pb.ReceiveRequest, raw)
        try:
            consumer = await self._consumer_for_stream(request.consumer_id, call)
        except errors.IcestreamError:
            await self.delay_failure()
            raise
        # The consumer leaves with its stream, however it ends: a consumer without one would hold its unacked messages
        # until their deadline.
        try:
            consumer.begin(stream)
            if self._closing.is_set():  # a client that reconnected while the others were being closed
                _end_for_shutdown(consumer)
            reason = await consumer.ended
        finally:
            self._leave(consumer)
        if TAKEN_OVER in reason or consumer.is_stalled:
            await self.delay_failure()
        raise errors.Refused(f"the stream of consumer {request.consumer_id} ended: {reason}", hint="open it again")

    async def _consumer_for_stream(self, id_: int, call: Call) -> DanubeConsumer:
        """The consumer with this id, if it has no stream yet; else it joins its subscription anew.

        Raises UnknownSubscription for an id that is not registered, or is another principal's, or whose name has a new
        id by now.
        """
        consumer = self._consumers.get(id_)
        # A consumer that another session has joined is joined anew: the right is that of the call.
        if consumer is not None and consumer.client is call.client and consumer.is_waiting:
            return consumer
        registration = await self._ids.consumer(id_)
        if registration is None or registration.principal != owner_of(call.client):
            raise no_such_consumer(id_)
        # Without creating: the subscription was deleted on purpose, and a client that only reopens its stream must not
        # bring it back.
        rejoined = await self._join(registration, call, None, create=False)
        if rejoined.id != id_:  # the name expired and has a new id, which belongs to a later client
            rejoined.leave()
            raise no_such_consumer(id_)
        await self._ids.renew(CONSUMERS, id_)
        return rejoined

    async def _join(
        self, registration: RegisteredConsumer, call: Call, start: SubscriptionStart | None, *, create: bool = True
    ) -> DanubeConsumer:
        """Adds a consumer to its subscription, and registers it here until it ends. Raises the broker's refusal."""
        client = call.client
        partition = resolve_partition(client, registration.topic, registration.subscription)
        sink = DanubeConsumer(
            client,
            partition,
            registration.subscription,
            call.peer,
            self._address,
            self._message_bytes_max,
            self._ids.now_ms,
        )
        subscription, consumer = await client.subscribe(
            partition.topic.name,
            registration.subscription,
            registration.type,
            registration.name,
            sink,
            start,
            registration.key_patterns,
            shard=partition.part,
            create=create,
        )
        sink.joined(subscription, consumer)
        self._consumers[sink.id] = sink
        # Streams and health checks name a consumer by its id, acks only topic and subscription: by them the right of
        # the ack is found, and every consumer whose window it may be about.
        self._by_delivery.setdefault(sink.delivery_key, set()).add(sink)
        self._by_name.setdefault((client, sink.wire_name, sink.subscription), set()).add(sink)
        sink.ended.add_done_callback(lambda _: self._forget(sink))
        return sink

    def find(self, client: GuardedBroker, topic_name: str, subscription: str) -> DanubeConsumer | None:
        """A consumer that this session has joined to a subscription; None if it has none."""
        consumers = self._by_name.get((client, topic_name, subscription))
        return next((consumer for consumer in consumers if not consumer.ended.done()), None) if consumers else None

    async def delay_failure(self) -> None:
        """Waits DANUBE_HOLD_SECONDS, or until the broker shuts down, before a stream fails."""
        shutdown = asyncio.ensure_future(self._closing.wait())
        pause = asyncio.ensure_future(self._clock.sleep(limits.DANUBE_HOLD_SECONDS))
        try:
            await asyncio.wait({shutdown, pause}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            shutdown.cancel()
            pause.cancel()

    # --- registered consumers ---

    def _leave(self, consumer: DanubeConsumer) -> None:
        """Removes a consumer after the end of its stream; the topic may have been deleted meanwhile."""
        with contextlib.suppress(errors.IcestreamError):
            consumer.leave()

    def _forget(self, consumer: DanubeConsumer) -> None:
        """Removes an ended consumer from the indexes; another one may have its id by now."""
        _discard(self._by_delivery, consumer.delivery_key, consumer)
        _discard(self._by_name, (consumer.client, consumer.wire_name, consumer.subscription), consumer)
        if self._consumers.get(consumer.id) is consumer:
            del self._consumers[consumer.id]
            self._ids.forget(CONSUMERS, consumer.id)

    def acked(self, key: DeliveryKey, count: int) -> None:
        """Counts acked messages for the windows of the consumers: an ack does not name its consumer."""
        for consumer in self._by_delivery.get(key, ()):
            consumer.acked(count)

    async def is_known(self, id_: int, client: GuardedBroker) -> bool:
        """True if the id belongs to a consumer of this principal whose subscription exists; renews it. For health
        checks."""
        owner, consumer = owner_of(client), self._consumers.get(id_)
        if consumer is not None and owner_of(consumer.client) == owner:
            await self._ids.renew(CONSUMERS, id_)
            return True
        registration = await self._ids.consumer(id_)
        if registration is None or registration.principal != owner:
            return False
        try:
            topic = resolve_partition(client, registration.topic, registration.subscription).topic
        except errors.InvalidInput:
            return False
        return registration.subscription in topic.subscriptions

    def sweep(self) -> None:
        """Removes consumers that subscribed and did not open a stream within DANUBE_CONSUMER_IDLE_MS."""
        oldest = self._ids.now_ms() - limits.DANUBE_CONSUMER_IDLE_MS
        for consumer in list(self._consumers.values()):
            if not consumer.is_streaming and consumer.since_ms < oldest:
                consumer.leave()

    def close(self) -> None:
        """Ends every stream, also those whose failure is being delayed."""
        self._closing.set()  # first: a stream that begins from now on ends itself
        for consumer in list(self._consumers.values()):
            _end_for_shutdown(consumer)


Key = TypeVar("Key")


def _discard(index: dict[Key, set[DanubeConsumer]], key: Key, consumer: DanubeConsumer) -> None:
    consumers = index.get(key, set())
    consumers.discard(consumer)
    if not consumers:
        index.pop(key, None)


def _end_for_shutdown(consumer: DanubeConsumer) -> None:
    consumer.event("closed", {"reason": "the broker is shutting down"})
