"""A broker in memory with its local socket, in this process, and clients that talk to it as another process would."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from icestream.broker.broker_options import BrokerOptions
from icestream.broker.guarded_broker import BrokerDoor, RoleVerifier
from icestream.broker.memory_storage import MemoryStorage
from icestream.broker.service import Broker
from icestream.frontends.native.native_connection import NativeConnection
from icestream.frontends.native.native_listener import NativeListener
from icestream.frontends.native.public_calls import CallTable
from icestream.internal_api.implementation import local_call_table
from icestream.internal_api.metadata_calls import MetadataCalls
from icestream.internal_api.session_calls import SessionCalls
from icestream.metadata.store import MetadataStore
from icestream.rpc import handshake
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import Clock, SystemClock
from icestream.security.access_control import AccessControl


class LocalBroker:
    """A broker that can go away and come back, as a process does; its store stays."""

    def __init__(
        self,
        path: Path,
        store: MetadataStore,
        clock: Clock | None,
        offered: CallTable | None,
        access_control: AccessControl | None = None,
        roles: RoleVerifier | None = None,
        more_calls: Sequence[Any] = (),
    ) -> None:
        """`more_calls`: groups of calls beside those of the metadata store and of sessions."""
        self.path = path
        self.store = store
        self._clock = clock or SystemClock()
        self.broker = Broker(BrokerOptions(), store, MemoryStorage(store, self._clock, 10_000), self._clock)
        self.door = BrokerDoor(self.broker, access_control or AccessControl(self._clock), roles)
        self._offered = offered or local_call_table(MetadataCalls(store), SessionCalls(self.door), *more_calls)
        self.listener: NativeListener | None = None

    async def listen(self) -> None:
        self.listener = NativeListener(
            self.door, handshake.HandshakeServer("test", self._clock.wall_us), self._offered, "local"
        )
        await self.listener.listen_locally(self.path)

    @property
    def connections(self) -> list[NativeConnection]:
        return list(self.listener._connections) if self.listener is not None else []

    async def go_away(self) -> None:
        if self.listener is not None:
            await self.listener.close()
        self.listener = None


@contextlib.asynccontextmanager
async def local_broker(
    path: Path,
    store: MetadataStore,
    clock: Clock | None = None,
    offered: CallTable | None = None,
    access_control: AccessControl | None = None,
    roles: RoleVerifier | None = None,
    more_calls: Sequence[Any] = (),
) -> AsyncIterator[LocalBroker]:
    broker = LocalBroker(path, store, clock, offered, access_control, roles, more_calls)
    await broker.listen()
    try:
        yield broker
    finally:
        await broker.go_away()
        await broker.broker.shutdown()


@contextlib.asynccontextmanager
async def kept_link(path: Path, credential: handshake.HelloCredential | None = None) -> AsyncIterator[LinkKeeper]:
    keeper = LinkKeeper(path, "test", SystemClock(), lambda: credential)
    running = asyncio.create_task(keeper.run())
    try:
        await keeper.wait_connected(10)
        yield keeper
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
