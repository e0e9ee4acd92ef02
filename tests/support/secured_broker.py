"""A broker in memory that listens on TCP, with the access control of a test."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from icestream import limits
from icestream.broker.broker_options import BrokerOptions
from icestream.broker.guarded_broker import BrokerDoor
from icestream.broker.memory_storage import MemoryStorage
from icestream.broker.service import Broker
from icestream.frontends.native.native_listener import NativeListener
from icestream.metadata.store import MemoryStore
from icestream.rpc import handshake
from icestream.runtime.clock import SystemClock
from icestream.security.access_control import AccessControl


class SecuredBroker:
    def __init__(self, access: AccessControl, connections_max: int = limits.CONNECTIONS_MAX) -> None:
        clock, store = SystemClock(), MemoryStore()
        self.access = access
        self.broker = Broker(BrokerOptions(), store, MemoryStorage(store, clock, 10_000), clock)
        self.door = BrokerDoor(self.broker, access)
        self.listener = NativeListener(
            self.door, handshake.HandshakeServer("test", clock.wall_us), connections_max=connections_max
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.port}"


@contextlib.asynccontextmanager
async def secured_broker(
    access: AccessControl, connections_max: int = limits.CONNECTIONS_MAX
) -> AsyncIterator[SecuredBroker]:
    served = SecuredBroker(access, connections_max)
    await served.broker.start()
    await served.listener.listen("127.0.0.1", 0)
    try:
        yield served
    finally:
        await served.listener.close()
        await served.broker.shutdown()
