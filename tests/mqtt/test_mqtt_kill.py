"""kill -9 of the broker: behind every packet of a QoS 2 flow in both directions, and at random under load.

What must hold under load is in tests/support/mqtt_device.py. The moments of a run follow from its seed as far as the
devices' progress does; a failure names the seed, and KILL_SEED runs one again.
"""

from __future__ import annotations

import asyncio
import os
import random
from functools import partial
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog

from icestream.mqtt import packets
from icestream.mqtt.packet_type import ProtocolVersion
from tests.mqtt.conftest import Scene
from tests.support.lake_run import until
from tests.support.mqtt_client import mqtt_client
from tests.support.mqtt_device import Fleet
from tests.support.mqtt_server import IcestreamServer, MqttServer
from tests.support.pipeline_process import PipelineRun

pytestmark = pytest.mark.asyncio
DEVICES, GROUPS = 50, 25
ENDS = 20  # messages behind the last one, in every shard
FLOW = ["PUBLISH", "PUBREC", "PUBREL", "PUBCOMP"]


@pytest.fixture
def killed(mqtt_server: MqttServer, version: ProtocolVersion) -> Scene:
    """A scene whose broker the test kills itself, without waiting for what it has not read yet."""
    return Scene(mqtt_server, version, is_owner_killed=True)


@pytest.mark.parametrize("last", [*FLOW, "PUBREC, which the client forgets"])
async def test_a_published_qos_2_message_is_one_row_after_a_kill_behind_any_packet(killed: Scene, last: str) -> None:
    """`last`: the packet that was sent or received when the broker died."""
    async with killed.session("reader") as reader:
        await reader.subscribe((killed.topic("a"), 2))
    async with killed.session("writer") as writer:
        packet_id = await writer.send_publish(killed.topic("a"), b"1", 2)
        if last != "PUBLISH":
            await writer.receive(packets.PubrecPacket)
        if last in ("PUBREL", "PUBCOMP"):
            await writer.send(packets.PubrelPacket(packet_id))
        if last == "PUBCOMP":
            await writer.receive(packets.PubcompPacket)
        await killed.kill_broker()
    async with killed.session("writer", is_present=True) as writer:
        if last not in FLOW[1:]:
            await writer.send_publish(killed.topic("a"), b"1", 2, packet_id=packet_id, is_duplicate=True)
            await writer.receive(packets.PubrecPacket)
        if last != "PUBCOMP":
            await writer.release(packet_id)
        # The id is free: a message with it is another one.
        await writer.send_publish(killed.topic("a"), b"2", 2, packet_id=packet_id)
        assert await writer.settled(2, packet_id) == 0
    async with killed.session("reader", is_present=True) as reader:
        assert await reader.payloads(2) == [b"1", b"2"]
        await killed.publish(("a", b"last", 2))
        assert await reader.payloads(1) == [b"last"]
    assert await killed.rows("a", b"last") == [b"1", b"2", b"last"]


@pytest.mark.parametrize("last", FLOW)
async def test_a_delivered_qos_2_message_arrives_once_after_a_kill_behind_any_packet(killed: Scene, last: str) -> None:
    async with killed.session("reader") as reader:
        await reader.subscribe((killed.topic("a"), 2))
        await killed.publish(("a", b"1", 2))
        message = await reader.message()
        assert message.payload == b"1"
        if last != "PUBLISH":
            await reader.send(packets.PubrecPacket(message.packet_id))
        if last in ("PUBREL", "PUBCOMP"):
            await reader.receive(packets.PubrelPacket)
        if last == "PUBCOMP":
            await reader.send(packets.PubcompPacket(message.packet_id))
        await killed.kill_broker()
    await killed.publish(("a", b"2", 2))
    arrived = [b"1"]
    owned = {message.packet_id: b"1"} if last in ("PUBLISH", "PUBREC") else {}
    async with killed.session("reader", is_present=True) as reader:
        while arrived[-1] != b"2" or owned:
            match await reader.read():
                case packets.PublishPacket(payload=payload, packet_id=packet_id, is_duplicate=is_duplicate):
                    if packet_id in owned:
                        assert (owned[packet_id], is_duplicate) == (payload, True)
                    else:
                        owned[packet_id] = payload
                        arrived.append(payload)
                    await reader.send(packets.PubrecPacket(packet_id))
                case packets.PubrelPacket(packet_id):
                    owned.pop(packet_id, None)
                    await reader.send(packets.PubcompPacket(packet_id))
        await killed.publish(("a", b"last", 2))
        assert await reader.payloads(1) == [b"last"]
    assert arrived == [b"1", b"2"]


@pytest.mark.timeout(300)  # it starts brokers 16 times, and a pipeline: a minute on a busy machine
@pytest.mark.parametrize("mode", ["always", "periodic"])
async def test_nothing_is_lost_or_doubled_by_15_kills_under_load(tmp_path: Path, mode: str) -> None:
    await check_kills(tmp_path, mode, kills=15, seed=20, is_committed=mode == "periodic")


@pytest.mark.chaos
@pytest.mark.parametrize("mode", ["always", "periodic", "none"])
async def test_nothing_is_lost_or_doubled_by_100_kills_under_load(tmp_path: Path, mode: str) -> None:
    await check_kills(tmp_path, mode, kills=100, seed=random.SystemRandom().randrange(10**9), is_committed=True)


async def check_kills(folder: Path, mode: str, kills: int, seed: int, is_committed: bool) -> None:
    """`is_committed`: also in the table, behind the pipeline's commits."""
    seed = int(os.environ.get("KILL_SEED", seed))
    server = IcestreamServer(folder, {"storage.iceberg_config.wal.sync_mode": mode})
    fleet = Fleet(DEVICES, GROUPS, seed)
    try:
        server.start()
        for _ in range(kills):
            fleet.connect(server.port)
            goal = fleet.completed + fleet.chance.randrange(1, 4 * DEVICES)
            await fleet.until(partial(fleet.has_completed, goal))
            await asyncio.to_thread(server.kill)
            await fleet.disconnected()
            await asyncio.to_thread(server.start)
        for device in fleet.devices:
            device.is_publishing = False
        fleet.connect(server.port)
        await fleet.until(fleet.is_settled)
        fleet.check()
        fleet.check_rows(await rows_of(server.port, len(fleet.published)))
        await asyncio.to_thread(server.stop)
        if is_committed:
            fleet.check_rows(await asyncio.to_thread(committed_rows, server.folder / "data", len(fleet.published)))
    except BaseException as error:
        error.add_note(f"KILL_SEED={seed}, mode {mode}, log in {folder}")
        raise
    finally:
        await fleet.close()
        await asyncio.to_thread(server.close)
    assert fleet.completed > kills * DEVICES / 2, f"hardly any load: {fleet.completed} messages"


def committed_rows(data_dir: Path, count: int) -> list[bytes]:
    """The payloads in the table, when its pipeline has committed `count` and `icestream verify --deep` has nothing to
    say about them."""
    with PipelineRun(data_dir) as run:
        catalog = RestCatalog("icestream", uri=run.uri)

        def committed() -> list[bytes]:
            if not catalog.table_exists("mqtt.messages"):
                return []
            payloads: list[bytes] = catalog.load_table("mqtt.messages").scan().to_arrow()["payload"].to_pylist()
            own = [payload for payload in payloads if not payload.startswith(b"end/")]
            return own if len(payloads) >= count + ENDS else []

        rows = until(committed)
        run.verify()
        return rows


async def rows_of(port: int, count: int) -> list[bytes]:
    """The payloads of all rows, at least `count`: as a replay from the beginning sends them."""
    async with mqtt_client(port, "auditor") as auditor:
        assert await auditor.subscribe(("$replay/earliest/fleet/#", 1)) == (1,)
        payloads = await auditor.payloads(count)
        # More than one row of a QoS 1 message: until the end, which a message marks.
        async with mqtt_client(port, "marker") as marker:
            for number in range(ENDS):
                await marker.publish(f"fleet/end/{number}", b"end/%d" % number)
        ends = 0
        while ends < ENDS:
            payload = (await auditor.payloads(1))[0]
            if payload.startswith(b"end/"):
                ends += 1
            else:
                payloads.append(payload)
        return payloads
