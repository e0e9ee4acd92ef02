"""Sessions that fell silent in other brokers until a restart, as scenarios (hazard 71), and the watchdog that sees one.

    EMQX #15142    a durable session on `edge/#` stops after some hundred messages; a reconnect gives one more
    EMQX #16251    one publisher's messages stop for one QoS 1 subscriber with clean session false
    EMQX #16669    a queue is silent although its consumers are there
    EMQX #17958    consumers of a queue are silent after a restart of the broker
    EMQX #16874    the store takes no more writes until a restart

And the waits that must be no skips: the table is away, or retention has removed what a session was owed (R27).
"""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from icestream import errors, limits
from icestream.broker.mqtt.mqtt_options import MqttOptions
from icestream.broker.mqtt.mqtt_session import MqttSession
from icestream.broker.service import Broker
from icestream.model.shard import ShardKey
from icestream.mqtt import packets
from icestream.observability import metrics
from tests.support.broker_machine import quiet
from tests.support.mqtt_tiers import TieredMqttMachine
from tests.support.mqtt_world import V3, MqttMachine, WorldClient, connected
from tests.support.tiers import InProcessScanWorker

pytestmark = pytest.mark.asyncio
KEY = ShardKey(1, 0)


async def durable(broker: Broker, client_id: str = "s", **options: object) -> WorldClient:
    return await connected(broker, client_id, clean=False, expiry_s=3_600, **options)


async def numbers(client: WorldClient, count: int) -> list[int]:
    """The numbers of the next deliveries, which are acked."""
    return [int((await client.message()).payload) for _ in range(count)]


async def test_emqx_15142_a_session_resumes_after_hundreds_of_messages_and_reconnects() -> None:
    broker = await MqttMachine().open_broker()
    client = await durable(broker, receive_maximum=10)
    await client.subscribe("edge/#", qos=1)
    publisher = await connected(broker, "p")
    seen: list[int] = []
    for batch in range(6):
        for number in range(150 * batch, 150 * (batch + 1)):
            await publisher.publish("edge/7", b"%d" % number)
        seen += await numbers(client, 120)
        client.lose()  # with a full window, and some in its socket
        client = await durable(broker, receive_maximum=10)
    seen += await numbers(client, 900 - len(seen))
    assert sorted(set(seen)) == list(range(900))
    await broker.shutdown()


async def test_emqx_16251_no_publisher_falls_silent_for_a_subscriber_that_comes_and_goes() -> None:
    machine = MqttMachine()
    broker = await machine.open_broker()
    publishers = [await connected(broker, f"p{number}", V3) for number in range(4)]
    seen: set[bytes] = set()
    for turn in range(20):
        client = await connected(broker, "s", V3, clean=False)
        if not turn:
            await client.subscribe("t/#", qos=1)
        for number, publisher in enumerate(publishers):
            await publisher.publish(f"t/{number}", b"%d/%d" % (number, turn))
        await quiet()
        for message in client.deliveries():
            seen.add(message.payload)
            if turn % 3:
                client.send(packets.PubackPacket(message.packet_id))
        await machine.pass_time(turn % 2)
        client.lose()
    client = await connected(broker, "s", V3, clean=False)
    while len(seen) < 80:
        seen.add((await client.message()).payload)
    for number, publisher in enumerate(publishers):
        await publisher.publish(f"t/{number}", b"%d/last" % number)
    assert {(await client.message()).payload for _ in publishers} == {b"%d/last" % number for number in range(4)}
    await broker.shutdown()


@pytest.mark.parametrize("is_killed", [False, True])
async def test_emqx_17958_a_group_resumes_after_a_restart_without_a_new_message(is_killed: bool) -> None:
    machine = MqttMachine()
    broker = await machine.open_broker()
    member = await durable(broker)
    await member.subscribe("$share/g/t/#", qos=1)
    publisher = await connected(broker, "p")
    member.lose()
    for number in range(50):
        await publisher.publish(f"t/{number % 5}", b"%d" % number)
    await (machine.kill() if is_killed else broker.shutdown())
    machine.disk.kill()
    broker = await machine.open_broker()
    again = await durable(broker)
    assert sorted(await numbers(again, 50)) == list(range(50))
    await broker.shutdown()


async def test_emqx_16669_a_group_gives_its_backlog_to_whichever_member_is_there() -> None:
    machine = MqttMachine()
    broker = await machine.open_broker()
    first, second = await durable(broker, "m1", receive_maximum=2), await durable(broker, "m2", receive_maximum=2)
    for member in (first, second):
        await member.subscribe("$share/g/t", qos=1)
    publisher = await connected(broker, "p")
    for number in range(30):
        await publisher.publish("t", b"%d" % number)
    await quiet()
    held = {message.payload for message in first.deliveries()}
    assert len(held) == 2  # it acks nothing, and is there
    seen = await numbers(second, 28)
    assert {b"%d" % number for number in seen} | held == {b"%d" % number for number in range(30)}
    await broker.shutdown()


async def test_emqx_16874_writes_go_on_after_the_disk_failed_for_a_while() -> None:
    machine = MqttMachine()
    broker = await machine.open_broker()
    client = await durable(broker)
    await client.subscribe("t", qos=1)
    publisher = await connected(broker, "p")
    await publisher.publish("t", b"0")
    machine.disk.fail("write", errno.EIO)
    publisher.send(packets.PublishPacket("t", b"1", 1, 7))
    await quiet()
    assert publisher.ended is not None, "the outcome is not known: closed without an ack"
    publisher = await connected(broker, "p")
    client = await durable(broker)
    await publisher.publish("t", b"2")
    payloads = [(await client.message()).payload]
    while payloads[-1] != b"2":
        payloads.append((await client.message()).payload)
    await broker.shutdown()


@pytest.mark.parametrize("fault", ["ended", "hangs"])
async def test_the_watchdog_restarts_a_session_that_does_not_read_its_backlog(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """`fault`: its task is gone, or waits for what never comes. Nothing else would notice."""
    machine = MqttMachine(mqtt=MqttOptions(shards=1))
    broker = await machine.open_broker()
    client = await durable(broker)
    await client.subscribe("t", qos=1)
    client.lose()
    publisher = await connected(broker, "p")
    for number in range(5):
        await publisher.publish("t", b"%d" % number)
    before = metrics.MQTT_REPAIRS._value.get()
    with monkeypatch.context() as patch:
        if fault == "hangs":
            patch.setattr(MqttSession, "_read_part", lambda *_: asyncio.get_running_loop().create_future())
        client = await durable(broker)
        session = next(session for session in broker.mqtt.sessions.values() if session.state.client_id == "s")
        assert session._catching_up is not None
        if fault == "ended":
            session._catching_up.cancel()
        await quiet()
    assert not client.deliveries()
    if fault == "hangs":
        await machine.pass_time(limits.MQTT_BEAT_SECONDS * limits.MQTT_SILENT_BEATS - 1)
        assert not client.deliveries()
        assert metrics.MQTT_REPAIRS._value.get() == before, "a slow read is no fault"
    await machine.pass_time(2 * limits.MQTT_BEAT_SECONDS)
    assert await numbers(client, 5) == list(range(5))
    assert metrics.MQTT_REPAIRS._value.get() == before + 1
    assert "did not read what it was owed" in caplog.text
    await machine.pass_time(10 * limits.MQTT_BEAT_SECONDS)
    assert metrics.MQTT_REPAIRS._value.get() == before + 1
    await broker.shutdown()


async def test_hazard_61_a_beat_does_nothing_for_sessions_that_are_away_and_gives_others_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MQTT_BEAT_SLICE", 2)
    machine = MqttMachine(mqtt=MqttOptions(shards=1, session_lag_bytes_max=10_000))
    broker = await machine.open_broker()
    for number in range(6):
        client = await durable(broker, f"s{number}")
        await client.subscribe("t", qos=1)
        if number < 4:
            client.lose()
    await quiet()
    turns: list[str] = []
    watch, owed_bytes = MqttSession.watch, MqttSession.owed_bytes.fget

    def watched(session: MqttSession) -> bool:
        turns.append(f"watch {session.state.client_id}")
        asyncio.get_running_loop().call_soon(turns.append, "others")
        return watch(session)

    def counted(session: MqttSession) -> int:
        turns.append(f"count {session.state.client_id}")
        asyncio.get_running_loop().call_soon(turns.append, "others")
        return int(owed_bytes(session))  # type: ignore[misc]

    monkeypatch.setattr(MqttSession, "watch", watched)
    monkeypatch.setattr(MqttSession, "owed_bytes", property(counted))
    await machine.pass_time(limits.MQTT_BEAT_SECONDS)
    assert [turn for turn in turns if turn.startswith("watch")] == ["watch s4", "watch s5"]
    counts = turns[turns.index("count s0") :]
    assert counts[:3] == ["count s0", "count s1", "others"]
    assert sum(turn.startswith("count") for turn in counts) == 6
    await broker.shutdown()


async def with_backlog_in_the_table(folder: Path, count: int) -> tuple[TieredMqttMachine, Broker]:
    """A durable session that is away, and messages for it that only the table has."""
    machine = TieredMqttMachine(folder)
    broker = await machine.open_broker()
    client = await durable(broker)
    await client.subscribe("t/#", qos=1)
    client.lose()
    await machine.lake.bind()
    publisher = await connected(broker, "p")
    for number in range(count):
        await publisher.publish(f"t/{number}", b"%d " % number + bytes(2_000))
    await machine.commit()
    for _ in range(20):  # the log of sessions holds the oldest files until it is written again
        await machine.pass_time(10.0)
        await machine.forget()
    assert machine.log is not None
    assert machine.log.reader.earliest(KEY) > count // 2
    return machine, broker


async def test_t_session_replay_retry_a_session_waits_for_a_table_that_is_away_and_skips_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SCAN_AWAY_SECONDS_MAX", 0.01)
    machine, broker = await with_backlog_in_the_table(tmp_path, 120)
    assert machine.scan_worker is not None
    assert machine.scan_requests is not None
    machine.scan_worker.leave()
    client = await durable(broker)
    session = next(session for session in broker.mqtt.sessions.values() if session.state.client_id == "s")
    while not session.wait_reason:
        await quiet()
    repairs = metrics.MQTT_REPAIRS._value.get()
    await machine.pass_time(60.0)
    assert not client.deliveries()
    assert metrics.MQTT_REPAIRS._value.get() == repairs, "a wait with a reason is no fault"
    publisher = await connected(broker, "p2")
    await publisher.publish("t/live", b"120 live")
    await quiet()
    assert not client.deliveries(), "nothing overtakes"
    machine.scan_worker = InProcessScanWorker(machine.scan_requests, machine.lake)
    await machine.pass_time(limits.MQTT_READ_RETRY_SECONDS_MAX)
    payloads = [(await client.message()).payload for _ in range(121)]
    assert [int(payload.split()[0]) for payload in payloads] == list(range(121))
    assert session.wait_reason == ""
    await broker.shutdown()


async def test_t_ds_resubscribe_a_storage_that_is_away_in_the_middle_of_a_resume_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SCAN_AWAY_SECONDS_MAX", 0.01)
    monkeypatch.setattr(limits, "MQTT_FEED_READ_BYTES", 20_000)
    machine, broker = await with_backlog_in_the_table(tmp_path, 120)
    client = await durable(broker, receive_maximum=5)
    seen = [int((await client.message()).payload.split()[0]) for _ in range(17)]
    assert machine.scan_worker is not None
    assert machine.scan_requests is not None
    machine.scan_worker.leave()
    for _ in range(5):
        seen += [int(message.payload.split()[0]) for message in client.deliveries()]
        for message in client.deliveries():
            client.received.remove(message)
            client.send(packets.PubackPacket(message.packet_id))
        await machine.pass_time(5.0)
    machine.scan_worker = InProcessScanWorker(machine.scan_requests, machine.lake)
    await machine.pass_time(limits.MQTT_READ_RETRY_SECONDS_MAX)
    seen += [int((await client.message()).payload.split()[0]) for _ in range(120 - len(seen))]
    assert seen == list(range(120))
    await broker.shutdown()


async def test_r27_t_replay_deleted_generation_a_session_resumes_behind_removed_messages_and_counts_the_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine, broker = await with_backlog_in_the_table(tmp_path, 120)
    lost = metrics.MQTT_LOST._value.get()
    assert machine.log is not None
    start = machine.log.reader.earliest(KEY)
    feed = broker.mqtt.feeds[KEY]

    async def history_start() -> int:
        return start

    async def gone(*arguments: object, **options: object) -> None:
        raise errors.PositionGone("retention removed it", hint="start later")

    stream = feed.stream
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "history_start", history_start)
        patch.setattr(stream, "read_matching", gone)
        client = await durable(broker)
        assert int((await client.message()).payload.split()[0]) == start
    rest = [int((await client.message()).payload.split()[0]) for _ in range(119 - start)]
    assert rest == list(range(start + 1, 120))
    assert metrics.MQTT_LOST._value.get() - lost == start
    assert "messages that a session was owed are gone" in caplog.text
    await broker.shutdown()
