"""Danube's services without a wire: their table of handlers, called as gRPC would, before a broker in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from google.protobuf.message import Message

from icestream.broker.broker_options import BrokerOptions
from icestream.broker.guarded_broker import BrokerDoor
from icestream.broker.memory_storage import MemoryStorage
from icestream.broker.service import Broker
from icestream.frontends.danube.danube_service import DanubeOptions, DanubeService
from icestream.frontends.danube.handlers import Call, status_of
from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.metadata.store import MemoryStore, MetadataStore
from icestream.runtime.clock import Clock, SystemClock
from icestream.security.access_control import AccessControl
from tests.support.secured_access import open_door
from tests.support.until import until

Answer = TypeVar("Answer", bound=Message)
URL = "http://127.0.0.1:6650"


class DanubeRefusal(Exception):
    """A call ended with this status."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class CollectedStream:
    """A stream to a client that takes everything, or nothing."""

    def __init__(self, *, is_stalled: bool = False) -> None:
        self.on_drained: Callable[[], None] = lambda: None
        self.messages: list[pb.StreamMessage] = []
        self.is_full = is_stalled

    def push(self, messages: Sequence[bytes]) -> None:
        self.messages += [pb.StreamMessage.FromString(raw) for raw in messages]

    async def until(self, count: int) -> list[pb.StreamMessage]:
        """All received messages, as soon as there are `count`."""
        await until(lambda: len(self.messages) >= count)
        return self.messages

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages]


class StreamTask:
    """A ReceiveMessages under way."""

    def __init__(self, stream: CollectedStream, task: asyncio.Task[None]) -> None:
        self.stream = stream
        self.task = task

    async def end(self) -> DanubeRefusal:
        """The error with which the broker ended the stream."""
        try:
            await self.task
        except Exception as error:  # noqa: BLE001 (that is what is asked for)
            return DanubeRefusal(*status_of(error))
        raise AssertionError("a stream ended without a status")

    async def cancel(self) -> None:
        """The client goes away."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class DanubeHandlers:
    def __init__(self, broker: Broker, service: DanubeService) -> None:
        self.broker = broker
        self.service = service
        self._table = service.table()

    async def call(self, method: str, request: Message | bytes, kind: type[Answer], **metadata: str) -> Answer:
        raw = request if isinstance(request, bytes) else request.SerializeToString()
        named = {f"x-icestream-{key}": value for key, value in metadata.items()}
        try:
            path = method if method.startswith("/") else f"/danube.{method}"
            answer = await self._table.unary[path](raw, Call("test", named))
        except Exception as error:  # noqa: BLE001 (that is what is asked for)
            raise DanubeRefusal(*status_of(error)) from None
        return kind.FromString(answer)

    async def producer(self, topic: str = "/default/t", name: str = "p", **fields: Any) -> int:
        fields = {"dispatch_strategy": pb.Reliable, **fields}
        request = pb.ProducerRequest(request_id=1, producer_name=name, topic_name=topic, **fields)
        return (await self.call("ProducerService/CreateProducer", request, pb.ProducerResponse)).producer_id

    async def send(self, producer: int, payload: bytes = b"m", topic: str = "/default/t", **fields: Any) -> int:
        where = pb.MsgID(producer_id=producer, topic_name=topic)
        message = pb.StreamMessage(**{"request_id": 7, "msg_id": where, "payload": payload, **fields})
        return (await self.call("ProducerService/SendMessage", message, pb.MessageResponse)).request_id

    async def subscribe(
        self, topic: str = "/default/t", name: str = "c", subscription: str = "s", start: str = "", **fields: Any
    ) -> int:
        fields = {"subscription_type": pb.ConsumerRequest.Shared, **fields}
        request = pb.ConsumerRequest(topic_name=topic, consumer_name=name, subscription=subscription, **fields)
        named = {"start": start} if start else {}
        return (await self.call("ConsumerService/Subscribe", request, pb.ConsumerResponse, **named)).consumer_id

    def receive(self, consumer: int, *, is_stalled: bool = False) -> StreamTask:
        stream = CollectedStream(is_stalled=is_stalled)
        raw = pb.ReceiveRequest(request_id=1, consumer_id=consumer).SerializeToString()
        handler = self._table.streams["/danube.ConsumerService/ReceiveMessages"]
        task = asyncio.ensure_future(handler(raw, Call("test"), stream))
        return StreamTask(stream, task)

    async def ack(self, message: pb.StreamMessage, subscription: str = "s") -> None:
        request = pb.AckRequest(request_id=5, msg_id=message.msg_id, subscription_name=subscription)
        assert (await self.call("ConsumerService/Ack", request, pb.AckResponse)).request_id == 5

    async def nack(self, message: pb.StreamMessage, subscription: str = "s", **fields: Any) -> None:
        request = pb.NackRequest(request_id=6, msg_id=message.msg_id, subscription_name=subscription, **fields)
        assert (await self.call("ConsumerService/Nack", request, pb.NackResponse)).request_id == 6

    async def partitions(self, topic: str) -> list[str]:
        request = pb.TopicLookupRequest(request_id=3, topic=topic)
        return list((await self.call("Discovery/TopicPartitions", request, pb.TopicPartitionsResponse)).partitions)

    async def is_known(self, kind: pb.HealthCheckRequest.ClientType, id_: int) -> bool:
        request = pb.HealthCheckRequest(client=kind, id=id_)
        answer = await self.call("HealthCheck/HealthCheck", request, pb.HealthCheckResponse)
        return answer.status == pb.HealthCheckResponse.OK


@asynccontextmanager
async def danube_handlers(
    store: MetadataStore | None = None,
    clock: Clock | None = None,
    message_bytes_max: int = 100_000,
    access: AccessControl | None = None,
) -> AsyncIterator[DanubeHandlers]:
    """`store`: that of a broker that was here before, whose messages are gone. `access`: None for security that is
    off."""
    clock = clock or SystemClock()
    store = store or MemoryStore()
    broker = Broker(BrokerOptions(), store, MemoryStorage(store, clock, 10_000), clock)
    await broker.start()
    door = open_door(broker) if access is None else BrokerDoor(broker, access)
    service = DanubeService(door, broker.store, clock, DanubeOptions(URL, message_bytes_max))
    try:
        yield DanubeHandlers(broker, service)
    finally:
        service.leave()
        await service.close()
        await broker.shutdown()
