"""The listeners for clients of MQTT: TCP and WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from icestream import limits
from icestream.broker.guarded_broker import GuardedBroker
from icestream.cluster.members import NodeRecord
from icestream.frontends.front_end import FrontEnd, NodeView, local_address
from icestream.frontends.mqtt.mqtt_connection import MqttConnection, MqttConnections
from icestream.frontends.mqtt.mqtt_listener import MqttListener, WrapConnection
from icestream.mqtt.connection import ConnectionOptions
from icestream.runtime.connection_room import RoomState
from icestream.runtime.open_files import connections_allowed
from icestream.runtime.proxy_protocol import ProxyPeers
from icestream.settings import Settings


class MqttFrontEnd(FrontEnd):
    """One listener for TCP, one for WebSocket; with TLS both have it. Where another node serves MQTT, they pass
    connections on to it (ADR 81)."""

    name = "mqtt"

    def __init__(self, settings: Settings, node: NodeView) -> None:
        super().__init__(settings, node)
        self._tcp: MqttListener | None = None
        self._web: MqttListener | None = None
        self._following: asyncio.Task[None] | None = None

    @classmethod
    def configured_ports(cls, settings: Settings) -> Iterator[tuple[str, int]]:
        if settings.mqtt.enable:
            yield "ports.mqtt", settings.ports.mqtt
            yield "ports.mqtt_ws", settings.ports.mqtt_ws

    async def listen(self) -> None:
        settings = self._settings
        if not settings.mqtt.enable:
            return
        host, tls = settings.node.bind_host, self._node.tls(self.name)
        tcp = self._listener("mqtt", "ports.mqtt", None, lambda node: node.mqtt)
        await tcp.listen(host, settings.ports.mqtt, tls)
        self._tcp = tcp
        web = self._listener("mqtt_ws", "ports.mqtt_ws", self._websockets(), lambda node: node.mqtt_ws)
        await web.listen(host, settings.ports.mqtt_ws, tls)
        self._web = web
        self._following = asyncio.create_task(self._follow_home(), name="mqtt home")

    async def _follow_home(self) -> None:
        """A listener passes connections on while another node serves MQTT."""
        async for _ in self._node.door.mqtt_homes():
            for listener in self._listeners():
                listener.update_home()

    def _home_address(self, address_of: Callable[[NodeRecord], str]) -> str:
        home = self._node.door.mqtt_home()
        return "" if home is None else address_of(home)

    def _listener(
        self, name: str, setting: str, wrap: WrapConnection | None, address_of: Callable[[NodeRecord], str]
    ) -> MqttListener:
        connections_max = connections_allowed(limits.CONNECTIONS_MAX, limits.OPEN_FILES_MESSAGE_SHARE)
        options = connection_options(self._settings)
        connections = MqttConnections(name, self._node.door, GuardedBroker.connect_mqtt, options, connections_max)
        proxies = ProxyPeers(self._settings.mqtt.proxy_protocol_from)
        return MqttListener(setting, connections, proxies, wrap, partial(self._home_address, address_of))

    def _websockets(self) -> WrapConnection:
        # Here: the library is needed by none of the node's other parts, and a start should not wait for it.
        from icestream.frontends.mqtt.websocket_connection import WebSocketConnection

        mqtt = self._settings.mqtt
        # A frame of the largest packet, and some more: clients gather small packets.
        frame_bytes_max = mqtt.packet_bytes_max + limits.SOCKET_WRITE_BYTES_MIN

        def wrap(connection: MqttConnection) -> asyncio.BaseProtocol:
            return WebSocketConnection(connection, mqtt.websocket_path, mqtt.websocket_origins, frame_bytes_max)

        return wrap

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following
        await asyncio.gather(*(listener.close() for listener in self._listeners()))

    def _listeners(self) -> list[MqttListener]:
        return [listener for listener in (self._tcp, self._web) if listener is not None]

    @property
    def port(self) -> int:
        """0 while it does not listen."""
        return self._tcp.port if self._tcp is not None else 0

    @property
    def web_port(self) -> int:
        """0 while it does not listen."""
        return self._web.port if self._web is not None else 0

    @property
    def open_ports(self) -> Mapping[str, int]:
        return {"mqtt_port": self.port, "mqtt_ws_port": self.web_port}

    @property
    def connections(self) -> Sequence[RoomState]:
        return [listener.room for listener in self._listeners()]

    @property
    def url(self) -> str:
        """The address for clients on this machine; empty while the listener is closed."""
        scheme = "mqtt" if self._node.tls(self.name) is None else "mqtts"
        return f"{scheme}://{local_address(self._settings.node.bind_host, self.port)}" if self.port else ""

    @property
    def web_url(self) -> str:
        """The address of the WebSocket listener for clients on this machine; empty while it is closed."""
        scheme = "ws" if self._node.tls(self.name) is None else "wss"
        address = local_address(self._settings.node.bind_host, self.web_port)
        return f"{scheme}://{address}{self._settings.mqtt.websocket_path}" if self.web_port else ""

    def greeting_lines(self) -> Iterator[str]:
        if self.url:
            yield f"MQTT: {self.url}, {self.web_url}"

    def addresses(self) -> dict[str, object]:
        return {"mqtt": self.url or None, "mqtt_ws": self.web_url or None}


def connection_options(settings: Settings) -> ConnectionOptions:
    """What connections hold their clients to."""
    mqtt = settings.mqtt
    return ConnectionOptions(
        packet_bytes_max=mqtt.packet_bytes_max,
        receive_maximum=mqtt.receive_maximum,
        in_flight_max=mqtt.receive_maximum,
        topic_aliases_max=mqtt.topic_aliases_max,
        keep_alive_seconds_max=mqtt.keep_alive_max_s,
        session_expiry_seconds_max=mqtt.session_expiry_max_s,
        is_shared_available=mqtt.shared_subscriptions,
    )
