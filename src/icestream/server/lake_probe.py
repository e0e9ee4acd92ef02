"""Whether the lake process answers at its port, and is the one of this broker: asked when readiness is asked for.

The process says by itself that it listens (children.py). This is the proof from outside: a process that hangs, a
listener that is full and a port that belongs to another broker look healthy from inside. There is no timer: a node that
is not asked for its readiness asks nothing.
"""

from __future__ import annotations

import asyncio

from icestream import errors, limits
from icestream.observability.health import Check
from icestream.runtime.clock import Clock
from icestream.runtime.http_probe import ProbeAnswer, probe
from icestream.runtime.instance import foreign_broker
from icestream.server.children import Child

Outcome = ProbeAnswer | errors.ConnectionLost | None


class LakeProbe:
    def __init__(self, child: Child, host: str, instance: str, clock: Clock) -> None:
        """`instance`: of this broker."""
        self._child = child
        self._host = host
        self._instance = instance
        self._clock = clock
        self._asking: asyncio.Task[None] | None = None
        self._asked_port = 0
        self._asked_ns = 0
        self._outcome: Outcome = None

    async def refresh(self) -> None:
        """Asks again, unless it was asked a moment ago; waits for the answer only shortly. The answer may come later,
        and counts then: an orchestrator that asks for readiness has little patience itself."""
        now_ns, port = self._clock.monotonic_ns(), self._child.port
        if port != self._asked_port:
            self._outcome = None
        is_recent = port == self._asked_port and now_ns - self._asked_ns < limits.PROBE_AGE_SECONDS * 1e9
        if not port or is_recent:
            return
        if self._asking is None or self._asking.done():
            self._asked_port, self._asked_ns = port, now_ns
            self._asking = asyncio.create_task(self._ask(port), name="lake-probe")
        await asyncio.wait({self._asking}, timeout=limits.PROBE_WAIT_SECONDS)

    async def _ask(self, port: int) -> None:
        try:
            self._outcome = await probe(self._host, port)
        except errors.ConnectionLost as error:
            self._outcome = error

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    def check(self) -> Check:
        outcome = self._outcome if self._asked_port == self._child.port else None
        return lake_check(self._child.check(), outcome, self._instance, f"{self._host}:{self._child.port}")


def lake_check(child: Check, outcome: Outcome, instance: str, where: str) -> Check:
    """What the child says of itself, and what its port answered. Needed only where another broker answers: then clients
    of this node's catalog and API would be told of other data. A lake process that is away is shown: messages are taken
    and delivered without it."""
    if not child.ok or outcome is None:
        return child
    if isinstance(outcome, errors.ConnectionLost):
        return child._replace(ok=False, reason=f"it does not serve: {outcome.message}")
    if outcome.instance is not None and outcome.instance != instance:
        foreign = foreign_broker(instance, outcome.instance, where)
        return child._replace(ok=False, reason=f"{foreign.message}: {foreign.hint}", is_needed=True)
    if outcome.status >= 400:
        return child._replace(ok=False, reason=f"it does not serve: {where} answers with status {outcome.status}")
    return child
