"""A lake process that somebody else runs (`lake.managed: false`), as far as the broker can tell.

connected      it came to the broker's local socket, and takes questions about tables (broker/scan_requests.py)
missed         it is not, and was in this life of the broker; or something here needs one: a pipeline that is a
               child of this broker, or messages that are in tables
not expected   nobody runs one, and nothing here needs it: there is nothing to say, and no port is asked
"""

from __future__ import annotations

from collections.abc import Callable

from icestream.broker.scan_requests import ScanRequests
from icestream.observability.health import Check


class UnmanagedLake:
    def __init__(self, scan_requests: ScanRequests, port: int, is_needed: Callable[[], bool]) -> None:
        """`port`: where it should listen; 0 where only the process knows. `is_needed`: something here needs one."""
        self._scan_requests = scan_requests
        self._port = port
        self._is_needed = is_needed

    @property
    def port(self) -> int:
        return self._port if self._scan_requests.has_worker else 0

    def check(self) -> Check | None:
        """Shown only: messages are taken and delivered without it, and other nodes have lake processes of their own,
        which do not serve this node's history either."""
        scan_requests = self._scan_requests
        if scan_requests.has_worker:
            reason = f"it is connected, and should listen on port {self._port}" if self._port else "it is connected"
            return Check("lake", True, reason, is_needed=False)
        if not scan_requests.had_worker and not self._is_needed():
            return None
        if scan_requests.had_worker:
            missed = "the lake process has disconnected"
        else:
            missed = "no lake process has connected to this broker"
        return Check(
            "lake",
            False,
            f"{missed}, which runs none by itself (lake.managed is false): catalog, API and history are not served; "
            "start `icestream lake serve`",
            is_needed=False,
        )
