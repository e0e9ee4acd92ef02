"""Probes the HTTP port of the lake process: does it answer, and is it the lake process of this broker?

The probe runs when readiness is requested; there is no timer. A lake process reports by itself that it listens
(child_processes.py), or connects to the broker's local socket if the operator runs it (unmanaged_lake.py). The probe is
the view from outside: a process that hangs, a listener that is full, and a port that belongs to another broker all look
healthy from inside.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from icestream import errors, limits
from icestream.observability.health import Check
from icestream.runtime.clock import Clock
from icestream.runtime.http_probe import ProbeAnswer, probe
from icestream.runtime.instance import foreign_broker

Outcome = ProbeAnswer | errors.ConnectionLost | None


class ProbedProcess(Protocol):
    """A lake process as the broker knows it without asking it."""

    @property
    def port(self) -> int:
        """Where it is asked; 0: nowhere."""

    def check(self) -> Check | None:
        """None: nobody runs one, and nobody misses it."""


class LakeProbe:
    def __init__(
        self, process: ProbedProcess, host: str, instance: str, clock: Clock, *, is_managed: bool = True
    ) -> None:
        """`instance`: of this broker. `is_managed`: this broker started the process."""
        self._process = process
        self._is_managed = is_managed
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
        now_ns, port = self._clock.monotonic_ns(), self._process.port
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

    def check(self) -> Check | None:
        check, port = self._process.check(), self._process.port
        if check is None:
            return None
        outcome = self._outcome if self._asked_port == port else None
        return lake_check(check, outcome, self._instance, f"{self._host}:{port}", is_managed=self._is_managed)


def lake_check(process: Check, outcome: Outcome, instance: str, where: str, *, is_managed: bool = True) -> Check:
    """What is known of the process, and what its port answered. Needed only where another broker answers at the port of
    a child: then clients of this node's catalog and API would be told of other data. Whether the port is this broker's
    at all is not known where somebody else runs the process. A lake process that is away is shown: messages are taken
    and delivered without it."""
    if not process.ok or outcome is None:
        return process
    if isinstance(outcome, errors.ConnectionLost):
        return process._replace(ok=False, reason=f"it does not serve: {outcome.message}")
    if outcome.instance is not None and outcome.instance != instance:
        foreign = foreign_broker(instance, outcome.instance, where)
        return process._replace(ok=False, reason=f"{foreign.message}: {foreign.hint}", is_needed=is_managed)
    if outcome.status >= 400:
        return process._replace(ok=False, reason=f"it does not serve: {where} answers with status {outcome.status}")
    return process
