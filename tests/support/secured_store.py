"""A metadata store in memory with the security of one node over it: records, watch and access control."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from icestream import errors
from icestream.metadata.store import MetadataStore
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import SeededRandomness
from icestream.security import security_records as records
from icestream.security.access_control import AccessControl
from icestream.security.access_session import AccessSession
from icestream.security.action import Action
from icestream.security.policy_watch import PolicyWatch
from icestream.security.principal import CallerIdentity
from icestream.security.resource import Resource
from icestream.security.security_state import SecurityState
from icestream.security.security_store import SecurityStore

ADMIN_NAME = "root"


class SecuredStore(NamedTuple):
    """The security of one node. Several of them on one store are the nodes of a cluster."""

    store: MetadataStore
    control: AccessControl
    watch: PolicyWatch
    security: SecurityStore

    def session(self, identity: CallerIdentity) -> AccessSession:
        return self.control.new_session(identity, "127.0.0.1:1", "native")


@asynccontextmanager
async def secured_store(
    store: MetadataStore, clock: Clock, seed: int = 0, *, initialised: bool = True
) -> AsyncIterator[SecuredStore]:
    """The running security of a node; `initialised`: with the administrator `root`."""
    control = AccessControl(clock)
    watch = PolicyWatch(store, clock, control)
    node = SecuredStore(store, control, watch, SecurityStore(store, watch, clock, SeededRandomness(seed)))
    revision = await watch.load()
    tasks = [asyncio.create_task(watch.follow(revision)), asyncio.create_task(watch.tick())]
    try:
        if initialised:
            await node.security.init(ADMIN_NAME, "hash", b"ring")
        yield node
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(outcome is None or isinstance(outcome, asyncio.CancelledError) for outcome in outcomes), outcomes


async def stored_state(store: MetadataStore) -> SecurityState:
    """The state of what is in the store now."""
    entries = await store.list_all(records.SECURITY)
    return SecurityState.load((key, entry.value, entry.mod_revision) for key, entry in entries)


class ClosedHold:
    """A producer or consumer as a session holds it: records why it was closed."""

    def __init__(self, session: AccessSession, action: Action, resource: Resource) -> None:
        self.reasons: list[errors.IcestreamError] = []
        self.number = session.hold(action, resource, self.reasons.append)

    @property
    def reason(self) -> errors.IcestreamError:
        (reason,) = self.reasons
        return reason
