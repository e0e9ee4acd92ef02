"""Danube's services on a wire before a broker in memory, with the access control of a test: both ports in one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TypeVar

from google.protobuf.message import Message
from grpc import aio

from icestream import limits
from icestream.broker.broker_options import BrokerOptions
from icestream.broker.guarded_broker import BrokerDoor
from icestream.broker.memory_storage import MemoryStorage
from icestream.broker.service import Broker
from icestream.frontends.danube import native_grpc_server
from icestream.frontends.danube.danube_service import DanubeOptions, DanubeService
from icestream.frontends.danube.native_grpc_server import NativeGrpcListener
from icestream.frontends.danube.python_grpc_server import PythonGrpcListener
from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.metadata.store import MemoryStore
from icestream.runtime.clock import SystemClock
from icestream.security.access_control import AccessControl

Answer = TypeVar("Answer", bound=Message)
TOPIC = "/default/t"


class Refusal(Exception):
    def __init__(self, status: str, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text


class DanubeCaller:
    """Calls with this metadata, on a connection that others may share."""

    def __init__(self, channel: aio.Channel, *metadata: tuple[str, str]) -> None:
        self._channel = channel
        self._metadata = metadata

    async def call(self, method: str, request: Message, kind: type[Answer]) -> Answer:
        path = method if method.startswith("/") else f"/danube.{method}"
        try:
            raw = await self._channel.unary_unary(path)(request.SerializeToString(), metadata=self._metadata)
        except aio.AioRpcError as error:
            raise Refusal(error.code().name, error.details() or "") from None
        return kind.FromString(raw)

    async def producer(self, name: str = "p") -> int:
        request = pb.ProducerRequest(
            request_id=1, producer_name=name, topic_name=TOPIC, dispatch_strategy=pb.DispatchStrategy.Reliable
        )
        return (await self.call("ProducerService/CreateProducer", request, pb.ProducerResponse)).producer_id

    async def send(self, producer: int, payload: bytes = b"m") -> None:
        where = pb.MsgID(producer_id=producer, topic_name=TOPIC)
        message = pb.StreamMessage(request_id=7, msg_id=where, payload=payload)
        await self.call("ProducerService/SendMessage", message, pb.MessageResponse)

    async def subscribe(self, subscription: str = "s", name: str = "c") -> int:
        request = pb.ConsumerRequest(
            topic_name=TOPIC,
            consumer_name=name,
            subscription=subscription,
            subscription_type=pb.ConsumerRequest.SubscriptionType.Shared,
        )
        return (await self.call("ConsumerService/Subscribe", request, pb.ConsumerResponse)).consumer_id

    def receive(self, consumer: int) -> ReceivedStream:
        request = pb.ReceiveRequest(request_id=1, consumer_id=consumer).SerializeToString()
        method = self._channel.unary_stream("/danube.ConsumerService/ReceiveMessages")
        return ReceivedStream(method(request, metadata=self._metadata))

    async def ack(self, message: pb.StreamMessage, subscription: str = "s") -> None:
        request = pb.AckRequest(request_id=5, msg_id=message.msg_id, subscription_name=subscription)
        await self.call("ConsumerService/Ack", request, pb.AckResponse)

    async def is_known(self, kind: pb.HealthCheckRequest.ClientType, id_: int) -> bool:
        request = pb.HealthCheckRequest(client=kind, id=id_)
        answer = await self.call("HealthCheck/HealthCheck", request, pb.HealthCheckResponse)
        return answer.status == pb.HealthCheckResponse.ClientStatus.OK


class ReceivedStream:
    def __init__(self, call: aio.UnaryStreamCall) -> None:
        self._call = call

    async def next(self) -> pb.StreamMessage:
        """The next message. Raises Refusal with the status of a stream that has ended."""
        try:
            raw = await self._call.read()
        except aio.AioRpcError as error:
            raise Refusal(error.code().name, error.details() or "") from None
        assert raw is not aio.EOF
        return pb.StreamMessage.FromString(raw)

    def cancel(self) -> None:
        self._call.cancel()


class SecuredDanube:
    def __init__(
        self,
        broker: Broker,
        service: DanubeService,
        channel: aio.Channel,
        listener: NativeGrpcListener | PythonGrpcListener,
    ) -> None:
        self.broker = broker
        self.listener = listener
        self.service = service
        self.channel = channel

    def as_(self, name: str) -> DanubeCaller:
        """On the one connection of the test."""
        return DanubeCaller(self.channel, ("authorization", f"Bearer token-of-{name}"))

    def with_metadata(self, *metadata: tuple[str, str]) -> DanubeCaller:
        return DanubeCaller(self.channel, *metadata)


@contextlib.asynccontextmanager
async def secured_danube(
    access: AccessControl, store: MemoryStore | None = None, connections_max: int = limits.DANUBE_CONNECTIONS_MAX
) -> AsyncIterator[SecuredDanube]:
    """`store`: that of a broker that was here before, whose messages are gone."""
    clock, store = SystemClock(), store or MemoryStore()
    broker = Broker(BrokerOptions(), store, MemoryStorage(store, clock, 10_000), clock)
    await broker.start()
    listener: NativeGrpcListener | PythonGrpcListener
    if native_grpc_server.has_native_wire():
        listener = NativeGrpcListener("ports.danube", connections_max, lambda: access.is_enabled)
    else:
        listener = PythonGrpcListener("ports.danube", connections_max)
    port = await listener.bind("127.0.0.1", 0)
    service = DanubeService(BrokerDoor(broker, access), store, clock, DanubeOptions(f"http://127.0.0.1:{port}"))
    await listener.serve(service.table())
    channel = aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)])
    try:
        yield SecuredDanube(broker, service, channel, listener)
    finally:
        service.leave()
        await channel.close()
        await listener.close()
        await service.close()
        await broker.shutdown()
