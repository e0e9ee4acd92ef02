"""Clients of other projects against the broker: the same three tasks for each, in every version that it speaks.

    round trip    a message of every QoS, subscribed by a wildcard, with its payload and QoS
    retained      a retained message for a later subscription, and none after it was cleared
    resume        a durable session: what is published while its client is away, in order, when it returns

A client that is not installed is skipped, and says what installs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import queue
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import aiomqtt
import gmqtt
import pytest
from gmqtt.mqtt.constants import MQTTv50, MQTTv311
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from conformance import mqttjs
from tests.support.mqtt_server import MqttServer

WAIT_SECONDS: Final = 30.0
EXPIRY_SECONDS: Final = 600
_NUMBERS: Final = itertools.count(1)
QOS: Final = (0, 1, 2)
# Fewer than any Receive Maximum, because gmqtt refuses to publish more at once.
OFFLINE: Final = [(b"m%d" % number, 1 + number % 2) for number in range(14)]


def check_order(received: list[tuple[bytes, int]]) -> None:
    """All of OFFLINE, in the order of each QoS: clients hand out QoS 2 messages with PUBREL, later than others."""
    assert sorted(received, key=lambda message: message[1]) == sorted(OFFLINE, key=lambda message: message[1])


@pytest.fixture
def name() -> str:
    """The prefix of topics and client ids of a test. Brokers are shared by tests of one process."""
    return f"interop{next(_NUMBERS)}"


# --- paho-mqtt --------------------------------------------------------------------------------------------------------


class PahoClient:
    """paho-mqtt in its own thread, with the messages as a queue."""

    def __init__(self, port: int, client_id: str, version: int, *, is_durable: bool) -> None:
        self.messages: queue.Queue[tuple[str, bytes, int, bool]] = queue.Queue()
        self.events: queue.Queue[Any] = queue.Queue()
        arguments: dict[str, Any] = {} if version == paho.MQTTv5 else {"clean_session": not is_durable}
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version, **arguments)
        self.client.on_connect = lambda *event: self.events.put(event[2])
        self.client.on_subscribe = lambda *event: self.events.put([code.value for code in event[3]])
        self.client.on_disconnect = lambda *event: self.events.put("disconnected")
        self.client.on_message = lambda _client, _data, message: self.messages.put(
            (message.topic, message.payload, message.qos, message.retain)
        )
        if version == paho.MQTTv5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = EXPIRY_SECONDS if is_durable else 0
            self.client.connect("127.0.0.1", port, clean_start=not is_durable, properties=properties)
        else:
            self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        self.flags = self.events.get(timeout=WAIT_SECONDS)

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self.client.subscribe(topic_filter, qos)
        assert self.events.get(timeout=WAIT_SECONDS) == [qos]

    def publish(self, topic: str, payload: bytes, qos: int, *, is_retained: bool = False) -> None:
        published = self.client.publish(topic, payload, qos, is_retained)
        published.wait_for_publish(WAIT_SECONDS)
        assert published.is_published()

    def next(self) -> tuple[str, bytes, int, bool]:
        return self.messages.get(timeout=WAIT_SECONDS)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@contextlib.contextmanager
def paho_client(port: int, client_id: str, version: int, *, is_durable: bool = False) -> Iterator[PahoClient]:
    client = PahoClient(port, client_id, version, is_durable=is_durable)
    try:
        yield client
    finally:
        client.close()


paho_versions = pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5], ids=["v3.1.1", "v5"])


@paho_versions
def test_paho_round_trip(mqtt_server: MqttServer, name: str, version: int) -> None:
    with paho_client(mqtt_server.port, name, version) as client:
        client.subscribe(f"{name}/+", 2)
        for qos in QOS:
            client.publish(f"{name}/a", b"%d" % qos, qos)
            assert client.next() == (f"{name}/a", b"%d" % qos, qos, False)


@paho_versions
def test_paho_retained(mqtt_server: MqttServer, name: str, version: int) -> None:
    with paho_client(mqtt_server.port, name, version) as client:
        client.publish(f"{name}/a", b"kept", 1, is_retained=True)
        client.subscribe(f"{name}/a", 1)
        assert client.next() == (f"{name}/a", b"kept", 1, True)
        client.publish(f"{name}/a", b"", 1, is_retained=True)
        assert client.next()[1] == b""
        client.subscribe(f"{name}/+", 1)
        client.publish(f"{name}/b", b"behind", 1)
        assert client.next() == (f"{name}/b", b"behind", 1, False)


@paho_versions
def test_paho_resume(mqtt_server: MqttServer, name: str, version: int) -> None:
    with paho_client(mqtt_server.port, name, version, is_durable=True) as client:
        assert not client.flags.session_present
        client.subscribe(f"{name}/#", 2)
    with paho_client(mqtt_server.port, f"{name}-writer", version) as writer:
        for payload, qos in OFFLINE:
            writer.publish(f"{name}/a", payload, qos)
    with paho_client(mqtt_server.port, name, version, is_durable=True) as client:
        assert client.flags.session_present
        check_order([client.next()[1:3] for _ in OFFLINE])


# --- aiomqtt ----------------------------------------------------------------------------------------------------------


def aiomqtt_client(port: int, client_id: str, version: Any, *, is_durable: bool = False) -> aiomqtt.Client:
    arguments: dict[str, Any] = {"clean_session": not is_durable}
    if version is aiomqtt.ProtocolVersion.V5:
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = EXPIRY_SECONDS if is_durable else 0
        arguments = {"clean_start": not is_durable, "properties": properties}
    return aiomqtt.Client("127.0.0.1", port, identifier=client_id, protocol=version, timeout=WAIT_SECONDS, **arguments)


aiomqtt_versions = pytest.mark.parametrize(
    "version", [aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5], ids=["v3.1.1", "v5"]
)


@pytest.mark.asyncio
@aiomqtt_versions
async def test_aiomqtt_round_trip(mqtt_server: MqttServer, name: str, version: Any) -> None:
    async with aiomqtt_client(mqtt_server.port, name, version) as client, asyncio.timeout(WAIT_SECONDS):
        await client.subscribe(f"{name}/#", 2)
        for qos in QOS:
            await client.publish(f"{name}/a/b", b"%d" % qos, qos)
            message = await anext(client.messages)
            assert (str(message.topic), message.payload, message.qos) == (f"{name}/a/b", b"%d" % qos, qos)


@pytest.mark.asyncio
@aiomqtt_versions
async def test_aiomqtt_retained(mqtt_server: MqttServer, name: str, version: Any) -> None:
    async with aiomqtt_client(mqtt_server.port, name, version) as client, asyncio.timeout(WAIT_SECONDS):
        await client.publish(f"{name}/a", b"kept", 2, retain=True)
        await client.subscribe(f"{name}/a", 2)
        message = await anext(client.messages)
        assert (message.payload, message.retain) == (b"kept", True)
        await client.publish(f"{name}/a", b"", 1, retain=True)


@pytest.mark.asyncio
@aiomqtt_versions
async def test_aiomqtt_resume(mqtt_server: MqttServer, name: str, version: Any) -> None:
    async with aiomqtt_client(mqtt_server.port, name, version, is_durable=True) as client:
        await client.subscribe(f"{name}/#", 2)
    async with aiomqtt_client(mqtt_server.port, f"{name}-writer", version) as writer:
        for payload, qos in OFFLINE:
            await writer.publish(f"{name}/a", payload, qos)
    async with (
        aiomqtt_client(mqtt_server.port, name, version, is_durable=True) as client,
        asyncio.timeout(WAIT_SECONDS),
    ):
        messages = [await anext(client.messages) for _ in OFFLINE]
        check_order([(bytes(message.payload), message.qos) for message in messages])


# --- gmqtt ------------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def gmqtt_client(
    port: int, client_id: str, version: int, *, is_durable: bool = False
) -> AsyncIterator[tuple[gmqtt.Client, asyncio.Queue[Any], asyncio.Queue[Any]]]:
    """The client, its messages, and the SUBACKs."""
    messages: asyncio.Queue[Any] = asyncio.Queue()
    subscribed: asyncio.Queue[Any] = asyncio.Queue()
    arguments = {"session_expiry_interval": EXPIRY_SECONDS} if is_durable and version == MQTTv50 else {}
    client = gmqtt.Client(client_id, clean_session=not is_durable, **arguments)

    async def on_message(_client: Any, topic: str, payload: bytes, qos: int, properties: dict[str, Any]) -> int:
        messages.put_nowait((topic, payload, qos, properties))
        return 0

    client.on_message = on_message
    client.on_subscribe = lambda *event: subscribed.put_nowait(event)
    async with asyncio.timeout(WAIT_SECONDS):
        await client.connect("127.0.0.1", port, version=version)
        try:
            yield client, messages, subscribed
        finally:
            await client.disconnect()


gmqtt_versions = pytest.mark.parametrize("version", [MQTTv311, MQTTv50], ids=["v3.1.1", "v5"])


@pytest.mark.asyncio
@gmqtt_versions
async def test_gmqtt_round_trip(mqtt_server: MqttServer, name: str, version: int) -> None:
    async with gmqtt_client(mqtt_server.port, name, version) as (client, messages, subscribed):
        client.subscribe(f"{name}/#", qos=2)
        await subscribed.get()
        for qos in QOS:
            user = {"user_property": [("a", "1"), ("a", "2")]} if version == MQTTv50 else {}
            client.publish(f"{name}/a", b"%d" % qos, qos=qos, **user)
            topic, payload, delivered, properties = await messages.get()
            assert (topic, payload, delivered) == (f"{name}/a", b"%d" % qos, qos)
            if version == MQTTv50:
                assert properties["user_property"] == [("a", "1"), ("a", "2")]


@pytest.mark.asyncio
@gmqtt_versions
async def test_gmqtt_retained(mqtt_server: MqttServer, name: str, version: int) -> None:
    async with gmqtt_client(mqtt_server.port, name, version) as (client, messages, subscribed):
        client.subscribe(f"{name}/ready", qos=1)
        await subscribed.get()
        client.publish(f"{name}/a", b"kept", qos=1, retain=True)
        client.publish(f"{name}/ready", b"", qos=1)
        await messages.get()
        client.subscribe(f"{name}/a", qos=1)
        topic, payload, _, properties = await messages.get()
        assert (topic, payload, properties["retain"]) == (f"{name}/a", b"kept", 1)
        client.publish(f"{name}/a", b"", qos=1, retain=True)
        await messages.get()


@pytest.mark.asyncio
@gmqtt_versions
async def test_gmqtt_resume(mqtt_server: MqttServer, name: str, version: int) -> None:
    async with gmqtt_client(mqtt_server.port, name, version, is_durable=True) as (client, _, subscribed):
        client.subscribe(f"{name}/#", qos=2)
        await subscribed.get()
    async with gmqtt_client(mqtt_server.port, f"{name}-writer", version) as (writer, messages, subscribed):
        writer.subscribe(f"{name}-end", qos=1)
        await subscribed.get()
        for payload, qos in OFFLINE:
            writer.publish(f"{name}/a", payload, qos=qos)
        writer.publish(f"{name}-end", b"", qos=1)
        await messages.get()
    async with gmqtt_client(mqtt_server.port, name, version, is_durable=True) as (_, messages, _):
        check_order([(await messages.get())[1:3] for _ in OFFLINE])


# --- mosquitto_pub and mosquitto_sub ----------------------------------------------------------------------------------

needs_mosquitto = pytest.mark.skipif(
    shutil.which("mosquitto_sub") is None, reason="mosquitto_sub is not installed: `apt install mosquitto-clients`"
)
mosquitto_versions = pytest.mark.parametrize("version", ["mqttv311", "mqttv5"], ids=["v3.1.1", "v5"])


def mosquitto(program: str, port: int, version: str, *arguments: str, lines: bytes = b"") -> list[bytes]:
    """The lines that the program prints. Raises CalledProcessError."""
    done = subprocess.run(
        [program, "-h", "127.0.0.1", "-p", str(port), "-V", version, *arguments],
        input=lines,
        stdout=subprocess.PIPE,
        timeout=WAIT_SECONDS + 5,
        check=True,
    )
    return done.stdout.splitlines()


@needs_mosquitto
@mosquitto_versions
def test_mosquitto_clients(mqtt_server: MqttServer, name: str, version: str) -> None:
    port = mqtt_server.port
    durable = ["-i", name, "-c", *(["-x", str(EXPIRY_SECONDS)] if version == "mqttv5" else [])]
    mosquitto("mosquitto_sub", port, version, *durable, "-q", "2", "-t", f"{name}/#", "-E")
    for qos in (1, 2):
        lines = b"".join(payload + b"\n" for payload, other in OFFLINE if other == qos)
        mosquitto("mosquitto_pub", port, version, "-q", str(qos), "-t", f"{name}/a", "-l", lines=lines)
    arguments = ["-q", "2", "-t", f"{name}/#", "-C", str(len(OFFLINE)), "-W", "30", "-F", "%q %p"]
    printed = [line.split() for line in mosquitto("mosquitto_sub", port, version, *durable, *arguments)]
    check_order([(payload, int(qos)) for qos, payload in printed])
    mosquitto("mosquitto_pub", port, version, "-q", "1", "-r", "-t", f"{name}/kept", "-m", "value")
    retained = mosquitto("mosquitto_sub", port, version, "-q", "1", "-t", f"{name}/kept", "-C", "1", "-F", "%r %p")
    assert retained == [b"1 value"]
    mosquitto("mosquitto_pub", port, version, "-q", "1", "-r", "-n", "-t", f"{name}/kept")


# --- MQTT.js ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not mqttjs.is_installed(), reason="MQTT.js is not installed: `make conformance ARGS=mqttjs`")
def test_mqttjs(mqtt_server: MqttServer) -> None:
    done = subprocess.run(
        mqttjs.command("127.0.0.1", mqtt_server.port),
        env={**os.environ, **mqttjs.environment()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
