"""The broker of these tests, and the scene of a scenario.

MQTT_TEST_BROKER=mosquitto runs the scenarios against mosquitto instead, to see that the tests themselves are right.
What mosquitto does otherwise is listed in MOSQUITTO_DIFFERS: those tests are expected to fail there.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from typing import Final

import pytest

from icestream.mqtt import packets
from icestream.mqtt.packet_type import ProtocolVersion
from icestream.mqtt.properties import NO_PROPERTIES, Properties
from tests.support.mosquitto import mosquitto_path
from tests.support.mqtt_client import EXPIRY_NEVER, V3, V5, MqttClient, mqtt_client
from tests.support.mqtt_server import IcestreamServer, MosquittoServer, MqttServer

BROKER: Final = os.environ.get("MQTT_TEST_BROKER", "icestream")
_NUMBERS: Final = itertools.count(1)

# By the beginning of the test's name, parameters included: what mosquitto 2.0.11 does otherwise.
MOSQUITTO_DIFFERS: Final[dict[str, str]] = {
    "test_connect_discards_existing_client[owner stays-v5]": "closes without DISCONNECT 0x8E",
    "test_connect_discards_existing_client[owner killed-v5]": "closes without DISCONNECT 0x8E",
    "test_assigned_clientid_persistent_session[owner killed]": "sessions that began with a clean start are not saved",
    "test_session_discard[owner killed-non_persistent-persistent]": "those that began with a clean start are not saved",
    "test_session_discard[owner killed-persistent-persistent]": "sessions that began with a clean start are not saved",
    "test_process_dies_session_expires[owner killed]": "an expiry does not survive a restart",
    "test_session_expiration[owner killed": "an expiry does not survive a restart",
    "test_session_gc[owner killed]": "an expiry does not survive a restart",
    "test_multiple_subscription_matches": "a copy for each filter; in 3.1.1 the lower QoS",
    "test_client_replies_wrong_ack[owner stays-v5": "closes without a reason code",
    "test_client_replies_wrong_ack[owner killed-v5": "closes without a reason code",
    "test_flow_control_no_wrap_around[owner stays-v5]": "one more in flight than Receive Maximum",
    "test_flow_control_no_wrap_around[owner killed-v5]": "one more in flight than Receive Maximum",
    "test_client_loss": "what a lost member took is lost",
    "test_intensive_reassign": "what a lost member took is lost",
    "test_lease_initial[owner killed]": "shared subscriptions are not saved",
    "test_two_clients[owner killed]": "shared subscriptions are not saved",
    "test_graceful_disconnect[owner killed]": "shared subscriptions are not saved",
    "test_disconnect_no_double_replay[owner killed]": "shared subscriptions are not saved",
    "test_unsubscribe[owner killed]": "shared subscriptions are not saved",
}


@pytest.fixture(scope="session")
def mqtt_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqttServer]:
    """One broker for all scenarios, each with client ids and topics of its own. Some kill it."""
    folder = tmp_path_factory.mktemp("mqtt")
    if BROKER == "mosquitto":
        if mosquitto_path() is None:
            pytest.skip("mosquitto is not installed")
        yield from started(MosquittoServer(folder))
    else:
        yield from started(IcestreamServer(folder))


@pytest.fixture(scope="session")
def memory_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqttServer]:
    """The same without durable sessions (R26)."""
    if BROKER == "mosquitto":
        pytest.skip("mosquitto has no other sessions")
    folder = tmp_path_factory.mktemp("mqtt-memory")
    yield from started(IcestreamServer(folder, {"mqtt.durable_sessions.enable": "false"}))


def started(server: MqttServer) -> Iterator[MqttServer]:
    """The server, until the test session ends."""
    server.start()
    try:
        yield server
    finally:
        server.close()


class Scene:
    """The names of one scenario at a shared broker, and its clients."""

    def __init__(self, server: MqttServer, version: ProtocolVersion, *, is_owner_killed: bool) -> None:
        self.version = version
        self.is_owner_killed = is_owner_killed
        self._server = server
        # Tests run in several processes, each with a broker of its own.
        self._prefix = f"s{next(_NUMBERS)}"

    @property
    def port(self) -> int:
        return self._server.port

    def topic(self, levels: str) -> str:
        """A topic or filter of this scenario only."""
        return f"{self._prefix}/{levels}"

    def client_id(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    async def owner_lost(self) -> None:
        """The point at which the owner of all sessions may be killed: SIGKILL, and a new process on its data.

        Where the owner is not killed, nothing happens. Connections of the scenario are lost or not.
        """
        if self.is_owner_killed:
            await self._until_written()
            await self.kill_broker()

    async def kill_broker(self) -> None:
        """SIGKILL at this moment, and a new process on its data."""
        await asyncio.to_thread(self._server.kill)
        await asyncio.to_thread(self._server.start)

    async def rows(self, levels: str, last: bytes) -> list[bytes]:
        """The payloads of all rows of a topic, up to the one with the payload `last`, as a replay sends them."""
        async with self.client("auditor", version=V3) as auditor:
            assert await auditor.subscribe((f"$replay/earliest/{self.topic(levels)}", 1)) == (1,)
            payloads = []
            while last not in payloads:
                payloads += await auditor.payloads(1)
            return payloads

    async def _until_written(self) -> None:
        """What clients have sent so far is read and written: acks go with the next write of the broker, and an ack of
        a message says that everything before it is written."""
        async with mqtt_client(self.port, self.client_id("barrier")) as barrier:
            for _ in range(2):
                await barrier.publish("barrier", b"", 1)

    @contextlib.asynccontextmanager
    async def client(
        self,
        name: str,
        *,
        version: ProtocolVersion | None = None,
        is_clean_start: bool = True,
        expiry_seconds: int | None = None,
        will: packets.Will | None = None,
        properties: Properties = NO_PROPERTIES,
    ) -> AsyncIterator[MqttClient]:
        """A client whose session ends with its connection, unless `expiry_seconds` says otherwise."""
        async with mqtt_client(
            self.port,
            self.client_id(name),
            version or self.version,
            is_clean_start=is_clean_start,
            expiry_seconds=expiry_seconds,
            will=will,
            properties=properties,
        ) as client:
            yield client

    @contextlib.asynccontextmanager
    async def session(
        self,
        name: str = "session",
        *,
        is_present: bool | None = None,
        expiry_seconds: int = EXPIRY_NEVER,
        will: packets.Will | None = None,
        properties: Properties = NO_PROPERTIES,
    ) -> AsyncIterator[MqttClient]:
        """A client with a durable session, new or resumed. `is_present`: what CONNACK must say."""
        async with self.client(
            name,
            is_clean_start=False,
            expiry_seconds=expiry_seconds if self.version is V5 else None,
            will=will,
            properties=properties,
        ) as client:
            assert client.connack is not None
            if is_present is not None:
                assert client.connack.is_session_present is is_present, client.connack
            yield client

    async def check_session(self, name: str, *, is_present: bool, expiry_seconds: int = EXPIRY_NEVER) -> None:
        """Connects and leaves again: the session of this name is there, or not."""
        async with self.session(name, is_present=is_present, expiry_seconds=expiry_seconds):
            pass

    async def publish(self, *messages: tuple[str, bytes, int], is_retained: bool = False) -> None:
        """Publishes topic, payload and QoS of each, in this order; returns when all are acked."""
        async with self.client("writer") as writer:
            for topic, payload, qos in messages:
                code = await writer.publish(self.topic(topic), payload, qos, is_retained=is_retained)
                assert code < 0x80, code
            await writer.disconnect()


@pytest.fixture(params=["v3.1.1", "v5"])
def version(request: pytest.FixtureRequest) -> ProtocolVersion:
    return V3 if request.param == "v3.1.1" else V5


OWNERS: Final = ("owner stays", "owner killed", "in memory")


@pytest.fixture(params=OWNERS)
def scene(request: pytest.FixtureRequest, version: ProtocolVersion) -> Scene:
    """A scenario three times: undisturbed, with the broker killed, and without durable sessions (R26)."""
    return _scene(request, version)


@pytest.fixture(params=OWNERS)
def scene5(request: pytest.FixtureRequest) -> Scene:
    """For what only 5.0 has."""
    return _scene(request, V5)


def _scene(request: pytest.FixtureRequest, version: ProtocolVersion) -> Scene:
    server = request.getfixturevalue("memory_server" if request.param == "in memory" else "mqtt_server")
    return Scene(server, version, is_owner_killed=request.param == "owner killed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if BROKER != "mosquitto":
        return
    for item in items:
        for prefix, why in MOSQUITTO_DIFFERS.items():
            if item.name.startswith(prefix):
                # Not run where it would only wait for what never comes.
                item.add_marker(
                    pytest.mark.xfail(reason=why, strict=True, run="lost" not in why and "saved" not in why)
                )
