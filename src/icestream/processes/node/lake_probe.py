"""Probes the HTTP port of the lake process: does it answer, and is it the lake process of this broker?

The probe runs when readiness is requested; there is no timer. A lake process reports by itself that it listens
(child_processes.py), or connects to the broker's local socket if the operator runs it (`UnmanagedLake`). The probe is
the view from outside: a process that hangs, a listener that is full, and a port that belongs to another broker all look
healthy from inside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from icestream import errors, limits
from icestream.broker.scan_requests import ScanRequests
from icestream.observability.health import Check
from icestream.runtime.clock import Clock
from icestream.runtime.http_probe import ProbeAnswer, probe
from icestream.runtime.instance import foreign_broker
from icestream.runtime.listener_tls import ListenerTls

Outcome = ProbeAnswer | errors.ConnectionLost | None


class ProbedProcess(Protocol):
    """A lake process, as far as the broker knows it without probing it."""

    @property
    def port(self) -> int:
        """The port to probe; 0 if it is unknown."""

    def check(self) -> Check | None:
        """None if no lake process is expected."""


class UnmanagedLake:
    """A lake process that the operator runs (`lake.managed: false`), as far as the broker can tell.

    connected      it is connected to the local socket and serves scan requests (broker/scan_requests.py)
    missing        it is not connected, and was connected before; or this node needs it: for a pipeline that is a child
                   of this broker, or for messages that are in tables
    not expected   it was never connected, and nothing here needs it: there is no check, and no port is probed
    """

    def __init__(self, scan_requests: ScanRequests, port: int, is_needed: Callable[[], bool]) -> None:
        """`port`: where it should listen; 0 if only the process knows. `is_needed`: whether this node needs it."""
        self._scan_requests = scan_requests
        self._port = port
        self._is_needed = is_needed

    @property
    def port(self) -> int:
        return self._port if self._scan_requests.has_worker else 0

    def check(self) -> Check | None:
        """Informational: messages are accepted and delivered without it, and the lake processes of other nodes do not
        serve this node's history either."""
        scan_requests = self._scan_requests
        if scan_requests.has_worker:
            reason = f"connected, expected on port {self._port}" if self._port else "connected"
            return Check("lake", True, reason, is_needed=False)
        if not scan_requests.had_worker and not self._is_needed():
            return None
        if scan_requests.had_worker:
            problem = "the lake process has disconnected"
        else:
            problem = "no lake process has connected to this broker"
        return Check(
            "lake",
            False,
            f"{problem}, and the broker does not start one (lake.managed is false): catalog, API and history are "
            "not served; start `icestream lake serve`",
            is_needed=False,
        )


class LakeProbe:
    def __init__(
        self,
        process: ProbedProcess,
        host: str,
        instance: str,
        clock: Clock,
        *,
        is_managed: bool = True,
        tls: ListenerTls | None = None,
    ) -> None:
        """`instance` is that of this broker. `is_managed`: this broker started the process. `tls`: of its listener."""
        self._process = process
        self._is_managed = is_managed
        self._tls = tls
        self._host = host
        self._instance = instance
        self._clock = clock
        self._probe_task: asyncio.Task[None] | None = None
        self._probed_port = 0
        self._probed_ns = 0
        self._outcome: Outcome = None

    async def refresh(self) -> None:
        """Probes again, unless it did a moment ago, and waits PROBE_WAIT_SECONDS at most.

        A later result counts for the next check: orchestrators have short timeouts for readiness requests.
        """
        now_ns, port = self._clock.monotonic_ns(), self._process.port
        if port != self._probed_port:
            self._outcome = None
        is_recent = port == self._probed_port and now_ns - self._probed_ns < limits.PROBE_AGE_SECONDS * 1e9
        if not port or is_recent:
            return
        if self._probe_task is None or self._probe_task.done():
            self._probed_port, self._probed_ns = port, now_ns
            self._probe_task = asyncio.create_task(self._probe(port), name="lake-probe")
        await asyncio.wait({self._probe_task}, timeout=limits.PROBE_WAIT_SECONDS)

    async def _probe(self, port: int) -> None:
        try:
            self._outcome = await probe(self._host, port, tls=self._tls)
        except errors.ConnectionLost as error:
            self._outcome = error

    async def close(self) -> None:
        if self._probe_task is not None:
            self._probe_task.cancel()
            await asyncio.gather(self._probe_task, return_exceptions=True)

    def check(self) -> Check | None:
        check, port = self._process.check(), self._process.port
        if check is None:
            return None
        outcome = self._outcome if self._probed_port == port else None
        return lake_check(check, outcome, self._instance, f"{self._host}:{port}", is_managed=self._is_managed)


def lake_check(process: Check, outcome: Outcome, instance: str, address: str, *, is_managed: bool = True) -> Check:
    """Combines the state of the process with the result of the probe.

    Required only if another broker answers at the port of a child: clients of this node's catalog and API would get
    other data. For an unmanaged process the port may legitimately belong to another broker. A lake process that is down
    is informational: messages are accepted and delivered without it.
    """
    if not process.ok or outcome is None:
        return process
    if isinstance(outcome, errors.ConnectionLost):
        return process._replace(ok=False, reason=f"not serving: {outcome.message}")
    if outcome.instance is not None and outcome.instance != instance:
        foreign = foreign_broker(instance, outcome.instance, address)
        return process._replace(ok=False, reason=f"{foreign.message}: {foreign.hint}", is_needed=is_managed)
    if outcome.status >= 400:
        return process._replace(ok=False, reason=f"not serving: {address} answers with status {outcome.status}")
    return process
