"""A lake process that the operator runs (`lake.managed: false`), as far as the broker can tell.

connected      it is connected to the local socket and serves scan requests (broker/scan_requests.py)
missing        it is not connected, and was connected before; or this node needs it: for a pipeline that is a child of
               this broker, or for messages that are in tables
not expected   it was never connected, and nothing here needs it: there is no check, and no port is probed
"""

from __future__ import annotations

from collections.abc import Callable

from icestream.broker.scan_requests import ScanRequests
from icestream.observability.health import Check


class UnmanagedLake:
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
