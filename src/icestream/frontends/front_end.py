"""The interface of a front end: a way for clients to reach the broker, with listeners, settings and metrics of its own.

A front end is a folder below `frontends` with a subclass of FrontEnd, registered in `processes/node/front_ends.py`.
The node does everything else with it by this interface: it checks its ports before the start, starts and closes it, and
shows its connections, checks, certificates and addresses. See CONTRIBUTING.md, "How to add a front end".

    start    early front ends listen before recovery and report what the start waits for (HTTP); the others listen when
             the broker is ready, so that a client finds all topics
    stop     early front ends are closed last; the others are closed first, at the same time
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Protocol

from icestream.broker.guarded_broker import BrokerDoor
from icestream.metadata.store import MetadataStore
from icestream.observability.health import Check
from icestream.observability.http_listener import Response
from icestream.observability.http_request import Request
from icestream.runtime.connection_room import RoomState
from icestream.runtime.listener_tls import ListenerTls
from icestream.security.change_audit import ChangeAudit
from icestream.security.security_store import SecurityStore
from icestream.settings import Settings


class NodeView(Protocol):
    """What a front end may use of its node."""

    @property
    def instance(self) -> str:
        """Identifies this run of the broker to its own processes."""

    @property
    def door(self) -> BrokerDoor:
        """The broker, for sessions of clients. Available to front ends that are not early."""

    @property
    def open_door(self) -> BrokerDoor | None:
        """The door of an early front end; None until the rights of clients are known."""

    @property
    def store(self) -> MetadataStore:
        """The metadata store, for records that belong to the front end itself, such as Danube's client ids. Topics,
        subscriptions and messages are reached through the broker's use cases only."""

    @property
    def security(self) -> SecurityStore:
        """The accounts, roles and grants. Available to front ends that are not early."""

    @property
    def audit(self) -> ChangeAudit:
        """Where administrative changes are recorded. Available to front ends that are not early."""

    def tls(self, listener: str) -> ListenerTls | None:
        """The certificate of a listener (runtime/listener_tls.py); None for plain text."""

    def ports(self) -> dict[str, object]:
        """The ports on which the node listens, 0 for a port that is not open."""

    async def checks(self) -> Sequence[Check]:
        """The readiness checks of the node."""

    async def exposition(self) -> bytes:
        """The metrics of the node as Prometheus text."""

    async def log_range(self, request: Request) -> Response:
        """Bytes of a log file, for tasks of the pipeline on other machines."""


class FrontEnd(ABC):
    """One way for clients to reach the broker. The node makes an instance of every registered class."""

    name: ClassVar[str]  # unique among the front ends
    is_early: ClassVar[bool] = False  # listens before recovery, without a broker

    def __init__(self, settings: Settings, node: NodeView) -> None:
        self._settings = settings
        self._node = node

    # --- settings: known before anything is opened ---

    @classmethod
    @abstractmethod
    def configured_ports(cls, settings: Settings) -> Iterator[tuple[str, int]]:
        """Setting and number of each port that this front end will open; 0 for a free port."""

    # --- lifecycle ---

    @abstractmethod
    async def listen(self) -> None:
        """Opens the listeners. Raises ConfigurationError for a port that cannot be used."""

    @abstractmethod
    async def close(self) -> None:
        """Stops accepting clients, finishes what is in flight, and closes; within CLOSE_SECONDS_MAX."""

    # --- state ---

    @property
    @abstractmethod
    def open_ports(self) -> Mapping[str, int]:
        """The ports of the listeners, by their names in the call `ports`; 0 while they are closed."""

    @property
    @abstractmethod
    def connections(self) -> Sequence[RoomState]:
        """The connections of each listener, for metrics and the check `connections`."""

    def checks(self) -> Iterable[Check]:
        """Further readiness checks; they do no I/O (processes/node/node_health.py)."""
        return ()

    # --- presentation ---

    def greeting_lines(self) -> Iterator[str]:
        """How clients reach this front end, a line for each address, for people."""
        yield from ()

    def addresses(self) -> dict[str, object]:
        """The addresses of this front end for programs, by name; None for one that does not exist."""
        return {}


def local_address(host: str, port: int) -> str:
    """The address for clients on this machine: a wildcard host becomes the loopback address."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
