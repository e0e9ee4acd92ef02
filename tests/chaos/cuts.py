"""Links between nodes that can be cut, one way or both: every write to another node passes here.

    drop    what is written is lost, frame by frame: a network that loses
    hold    what is written waits, and comes when the cut is healed: a network that is late
A node is known by its port: that of the dialled end, or the one that a HELLO names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from icestream.cluster.listener import PeerConnection
from icestream.cluster.peer_link import PeerLink
from icestream.cluster.wire import split_address


class Cuts:
    """Of one process: where its own writes do not go."""

    def __init__(self) -> None:
        self.ports: set[int] = set()
        self.holds = False
        self.lost = 0
        self._delayed: list[tuple[Any, bytes]] = []

    def set(self, ports: set[int], *, holds: bool) -> None:
        self.ports, self.holds = ports, holds
        delayed, self._delayed = self._delayed, []
        for transport, data in delayed:
            if not transport.is_closing():
                transport.write(data)

    def write(self, transport: Any, port: int, data: bytes) -> None:
        if port not in self.ports:
            transport.write(data)
            return
        self.lost += 1
        if self.holds:
            self._delayed.append((transport, data))


class CutTransport:
    def __init__(self, transport: Any, cuts: Cuts, port: Callable[[], int]) -> None:
        self._transport = transport
        self._cuts = cuts
        self._port = port

    def write(self, data: bytes) -> None:
        self._cuts.write(self._transport, self._port(), data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def make_links_cuttable(cuts: Cuts) -> None:
    """In this process, for good."""
    dialled, listened = PeerLink.connection_made, PeerConnection.connection_made

    def dialled_made(self: PeerLink, transport: Any) -> None:
        port = transport.get_extra_info("peername")[1]
        dialled(self, CutTransport(transport, cuts, lambda: int(port)))

    def listened_made(self: PeerConnection, transport: Any) -> None:
        def port() -> int:
            address = self.hello.address if self.hello is not None else ""
            return split_address(address)[1] if address else 0

        listened(self, CutTransport(transport, cuts, port))

    PeerLink.connection_made = dialled_made
    PeerConnection.connection_made = listened_made
