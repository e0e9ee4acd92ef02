"""MQTT sessions against a plain model: connections, clean starts, publishing, subscriptions, acks, time, expiry,
kill -9 and power loss.

A client has a store of its own that survives everything: what it published and has no ack for, and the QoS 2 messages
that it owns. What must hold, whatever happens:

    delivered     a message that was acked to its publisher while a durable subscription of QoS 1 or 2 was confirmed is
                  delivered, at the latest when the client is back (power loss: in mode `always`)
    once          a message whose flows were QoS 2 on both sides is delivered once, and is one row
    order         messages of one publisher and topic arrive in their order, resends aside
    packet ids    an id in flight stands for one message; a resend has DUP and the same content
    nothing else  a client gets only what was published and matches a filter that it had; nothing of a session that
                  expired, or that a clean start ended
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from icestream.broker.mqtt.mqtt_options import MqttOptions
from icestream.broker.service import Broker
from icestream.model import SyncMode
from icestream.model.topic_name import TopicName
from icestream.mqtt import packets
from icestream.mqtt.topics import matches
from tests.support.broker_machine import quiet, stored_rows
from tests.support.mqtt_world import V5, MqttMachine, WorldClient

Answer = TypeVar("Answer")
TOPICS = ("a/x", "a/y", "b/x")
FILTERS = ("a/#", "a/x", "+/x", "b/x")
READERS = ("r1", "r2")
EXPIRY_S = 3_600
MESSAGES = TopicName("mqtt", "messages")


@dataclass
class PublishedMessage:
    """A message that was published."""

    topic: str
    qos: int
    is_acked: bool = False


@dataclass
class ReaderModel:
    """A durable subscriber and its store."""

    client: WorldClient | None = None
    filters: dict[str, int] = field(default_factory=dict)  # confirmed
    ever: set[str] = field(default_factory=set)
    must: dict[bytes, int] = field(default_factory=dict)  # payload: effective QoS
    seen: Counter[bytes] = field(default_factory=Counter)  # completed deliveries
    order: dict[tuple[str, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    owned: dict[int, bytes] = field(default_factory=dict)  # QoS 2 ids between PUBREC and PUBREL
    in_flight: dict[int, bytes] = field(default_factory=dict)  # as the client last saw them
    stale: set[bytes] = field(default_factory=set)  # acked before the session of now began
    is_gone = False  # the session ended, and the client has not connected since

    def begin_again(self, sent: Mapping[bytes, PublishedMessage]) -> None:
        """Its session is gone, with all that it was owed."""
        for state in (self.filters, self.ever, self.must, self.owned, self.in_flight):
            state.clear()
        self.order.clear()
        self.stale = {payload for payload, message in sent.items() if message.is_acked}
        self.is_gone = True


class SessionModel(RuleBasedStateMachine):
    mode = SyncMode.ALWAYS
    crashes = 0  # of all examples
    expiries = 0

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.machine = MqttMachine(self.mode, mqtt=MqttOptions(shards=2))
        self.broker: Broker | None = None
        self.readers = {name: ReaderModel() for name in READERS}
        self.publisher: WorldClient | None = None
        self.sent: dict[bytes, PublishedMessage] = {}
        self.unacked: dict[int, tuple[bytes, bool]] = {}  # packet id: payload, whether PUBREC came (QoS 2)
        self.count = 0
        self.restarts = 0

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        async def bounded() -> Answer:  # in one task: a crash cancels all others
            async with asyncio.timeout(20):
                return await work

        return self.loop.run_until_complete(bounded())

    @initialize()
    def begin(self) -> None:
        self.run(self.open())

    async def open(self) -> None:
        self.broker = await self.machine.open_broker()

    # --- the broker ---

    @rule(power=st.booleans())
    def crash(self, power: bool) -> None:
        async def crash() -> None:
            # Without `always` a power loss may take what was acked: the model would have to forget it.
            power_is_lost = power and self.mode is SyncMode.ALWAYS
            await (self.machine.power_loss() if power_is_lost else self.machine.kill())
            for reader in self.readers.values():
                reader.client = None
            self.publisher = None
            await self.open()

        self.restarts += 1
        SessionModel.crashes += 1
        self.run(crash())

    @rule()
    def stop_in_order(self) -> None:
        async def stop() -> None:
            assert self.broker is not None
            await self.broker.shutdown()
            for reader in self.readers.values():
                reader.client = None
            self.publisher = None
            self.machine.disk.kill()
            await self.open()

        self.run(stop())

    @rule(seconds=st.sampled_from([0.5, 2.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        async def wait() -> None:
            await self.machine.pass_time(seconds)

        self.run(wait())

    # --- readers ---

    @rule(name=st.sampled_from(READERS))
    def connect(self, name: str) -> None:
        self.run(self._connect(name))

    @rule(name=st.sampled_from(READERS))
    def connect_with_a_clean_start(self, name: str) -> None:
        self.run(self._connect(name, is_clean=True))

    @rule()
    def expire(self) -> None:
        """Sessions end whose clients are away for long enough."""

        async def expire() -> None:
            await self._connect_publisher()
            await quiet()
            self.machine.clock.advance(EXPIRY_S + 11)
            await quiet()
            for reader in self.readers.values():
                if reader.client is None:
                    reader.begin_again(self.sent)

        self.run(expire())
        SessionModel.expiries += 1

    async def _connect(self, name: str, *, is_clean: bool = False) -> None:
        assert self.broker is not None
        reader = self.readers[name]
        if is_clean:
            reader.begin_again(self.sent)
        client = WorldClient(self.broker, name, V5, clean=is_clean, expiry_s=EXPIRY_S, receive_maximum=3)
        connack = await client.connect()
        assert connack.reason_code == 0
        if not connack.is_session_present:
            # Only before the first subscription was confirmed may the broker know nothing.
            assert not reader.filters, "a confirmed subscription was forgotten"
        assert not (connack.is_session_present and reader.is_gone), "a session that has ended is there"
        reader.is_gone = False
        reader.client = client
        await quiet()

    @rule(name=st.sampled_from(READERS))
    def lose(self, name: str) -> None:
        reader = self.readers[name]

        async def lose() -> None:
            await self._read(reader)
            if reader.client is not None:
                reader.client.lose()
            reader.client = None
            await quiet()

        self.run(lose())

    @rule(name=st.sampled_from(READERS))
    def disconnect(self, name: str) -> None:
        reader = self.readers[name]

        async def disconnect() -> None:
            await self._read(reader)
            if reader.client is not None:
                reader.client.send(packets.DisconnectPacket())
            reader.client = None
            await quiet()

        self.run(disconnect())

    @rule(name=st.sampled_from(READERS), topic_filter=st.sampled_from(FILTERS), qos=st.integers(0, 2))
    def subscribe(self, name: str, topic_filter: str, qos: int) -> None:
        reader = self.readers[name]

        async def subscribe() -> None:
            if reader.client is None:
                await self._connect(name)
            assert reader.client is not None
            reader.ever.add(topic_filter)
            suback = await reader.client.subscribe(topic_filter, qos=qos)
            assert suback.reason_codes == (qos,)
            reader.filters[topic_filter] = qos

        self.run(subscribe())

    @rule(name=st.sampled_from(READERS), topic_filter=st.sampled_from(FILTERS))
    def unsubscribe(self, name: str, topic_filter: str) -> None:
        reader = self.readers[name]
        if reader.client is not None:
            reader.filters.pop(topic_filter, None)
            self.run(reader.client.unsubscribe(topic_filter))

    @rule(name=st.sampled_from(READERS), count=st.integers(1, 5))
    def ack(self, name: str, count: int) -> None:
        reader = self.readers[name]

        async def ack() -> None:
            for _ in range(count):
                await self._read(reader)
                if not await self._ack_next(reader):
                    return

        self.run(ack())

    async def _read(self, reader: ReaderModel) -> None:
        """Looks at everything that arrived, and keeps it for acks."""
        await quiet()
        if reader.client is None:
            return
        for packet in reader.client.received:
            if isinstance(packet, packets.PublishPacket) and packet.qos:
                known = reader.in_flight.get(packet.packet_id)
                assert known is None or known == packet.payload or not packet.is_duplicate, "a resend changed"
                reader.in_flight[packet.packet_id] = packet.payload

    async def _ack_next(self, reader: ReaderModel) -> bool:
        client = reader.client
        if client is None or not client.received:
            return False
        packet = client.received.popleft()
        match packet:
            case packets.PublishPacket():
                assert packet.payload in self.sent, "nothing was published like this"
                assert packet.payload not in reader.stale, "of a session that has ended"
                assert any(matches(each, packet.topic) for each in reader.ever)
                if packet.qos == 2:
                    if reader.owned.get(packet.packet_id) != packet.payload:
                        assert packet.packet_id not in reader.owned, "the id of an owned message is used again"
                        reader.owned[packet.packet_id] = packet.payload
                        self._note(reader, packet)
                    client.send(packets.PubrecPacket(packet.packet_id))
                else:
                    self._note(reader, packet)
                    if packet.qos == 1:
                        reader.in_flight.pop(packet.packet_id, None)
                        client.send(packets.PubackPacket(packet.packet_id))
            case packets.PubrelPacket():
                reader.owned.pop(packet.packet_id, None)
                reader.in_flight.pop(packet.packet_id, None)
                client.send(packets.PubcompPacket(packet.packet_id))
        await quiet()
        return True

    def _note(self, reader: ReaderModel, packet: packets.PublishPacket) -> None:
        reader.seen[packet.payload] += 1
        if reader.seen[packet.payload] == 1 and packet.qos:
            order = reader.order[packet.topic, packet.qos]
            number = int(packet.payload)
            assert not order or order[-1] < number or self.restarts, f"{number} arrived behind {order[-1]}"
            order.append(number)

    # --- the publisher ---

    @rule()
    def reconnect_publisher(self) -> None:
        self.run(self._connect_publisher())

    async def _connect_publisher(self) -> None:
        assert self.broker is not None
        client = WorldClient(self.broker, "p", V5, clean=False, expiry_s=EXPIRY_S)
        await client.connect()
        client._last_id = self.count % 60_000
        self.publisher = client
        for packet_id, (payload, is_received) in list(self.unacked.items()):
            message = self.sent[payload]
            if is_received:
                client.send(packets.PubrelPacket(packet_id))
            else:
                client.send(packets.PublishPacket(message.topic, payload, message.qos, packet_id, is_duplicate=True))
        await self._take_acks()

    @rule(topic=st.sampled_from(TOPICS), qos=st.integers(0, 2), count=st.integers(1, 4))
    def publish(self, topic: str, qos: int, count: int) -> None:
        async def publish() -> None:
            if self.publisher is None:
                await self._connect_publisher()
            assert self.publisher is not None
            burst: list[packets.Packet] = []
            for _ in range(count):
                self.count += 1
                payload = b"%d" % self.count
                self.sent[payload] = PublishedMessage(topic, qos)
                packet_id = self.count % 60_000 + 1 if qos else 0
                if qos:
                    self.unacked[packet_id] = (payload, False)
                burst.append(packets.PublishPacket(topic, payload, qos, packet_id))
            self.publisher.send(*burst)
            await self._take_acks()

        self.run(publish())

    async def _take_acks(self) -> None:
        client = self.publisher
        assert client is not None
        for _ in range(3):
            await quiet()
            while client.received:
                match client.received.popleft():
                    case packets.PubackPacket(packet_id, reason_code):
                        assert reason_code < 0x80
                        self._acked(self.unacked.pop(packet_id)[0])
                    case packets.PubrecPacket(packet_id, reason_code):
                        assert reason_code < 0x80
                        payload, was_received = self.unacked[packet_id]
                        if not was_received:
                            self._acked(payload)
                        self.unacked[packet_id] = (payload, True)
                        client.send(packets.PubrelPacket(packet_id))
                    case packets.PubcompPacket(packet_id):
                        self.unacked.pop(packet_id, None)

    def _acked(self, payload: bytes) -> None:
        """From here on the message is owed to every confirmed subscription that matches."""
        message = self.sent[payload]
        if message.is_acked:
            return
        message.is_acked = True
        for reader in self.readers.values():
            qos = [granted for each, granted in reader.filters.items() if matches(each, message.topic)]
            if qos and min(max(qos), message.qos):
                reader.must[payload] = min(max(qos), message.qos)

    # --- the end ---

    def teardown(self) -> None:
        try:
            if self.broker is not None:
                self.run(self._finish())
        finally:
            self.loop.run_until_complete(self.machine._end())
            self.loop.close()

    async def _finish(self) -> None:
        await self._connect_publisher()
        for name, reader in self.readers.items():
            if reader.client is None:
                await self._connect(name)
            for _ in range(20):
                await self._read(reader)
                if not await self._ack_next(reader):
                    await self.machine.pass_time(1)
                    await self._read(reader)
                    if not await self._ack_next(reader):
                        break
                while await self._ack_next(reader):
                    pass
            missing = reader.must.keys() - reader.seen.keys()
            assert not missing, f"{name} never got {sorted(missing, key=int)}"
            repeated = [payload for payload, qos in reader.must.items() if qos == 2 and reader.seen[payload] > 1]
            assert not repeated, f"{name} got twice, with QoS 2: {repeated}"
        await self._check_rows()

    async def _check_rows(self) -> None:
        assert self.broker is not None
        if self.broker.find_topic(MESSAGES) is None:
            return
        rows: Counter[bytes] = Counter()
        for shard in range(2):
            rows.update(row["payload"] for row in (await stored_rows(self.broker, MESSAGES, shard)).values())
        for payload, message in self.sent.items():
            assert not message.is_acked or rows[payload], f"{payload!r} was acked and is no row"
            assert message.qos < 2 or rows[payload] <= 1, f"{payload!r} of QoS 2 is {rows[payload]} rows"


class PeriodicSessionModel(SessionModel):
    mode = SyncMode.PERIODIC


@pytest.mark.parametrize("model", [SessionModel, PeriodicSessionModel])
def test_sessions_match_their_model(model: type[SessionModel]) -> None:
    chosen = settings(
        max_examples=max(10, settings.default.max_examples // 2),
        stateful_step_count=40,
        deadline=None,
        phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    )
    before = SessionModel.crashes
    run_state_machine_as_test(model, settings=chosen)  # type: ignore[no-untyped-call]
    assert SessionModel.crashes - before >= 10, "a run without crashes proves little"
    assert SessionModel.expiries, "nothing expired"


class SharedModel(RuleBasedStateMachine):
    """A shared group of two durable members and one without expiry: each message is completed by at least one member.

    What a member completed and the broker had confirmed is not sent to another one; a crash may repeat what was acked
    since the last record, so only a run without crashes counts repetitions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.machine = MqttMachine(mqtt=MqttOptions(shards=2))
        self.broker: Broker | None = None
        self.clients: dict[str, WorldClient | None] = {"d1": None, "d2": None, "t": None}
        self.subscribed: set[str] = set()
        self.acked: set[bytes] = set()  # by the broker, while a durable member was subscribed
        self.completed: Counter[bytes] = Counter()
        self.count = 0
        self.is_disturbed = False

    completions = 0  # of all examples

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        async def bounded() -> Answer:
            async with asyncio.timeout(20):
                return await work

        return self.loop.run_until_complete(bounded())

    @initialize()
    def begin(self) -> None:
        self.run(self._begin())

    async def _begin(self) -> None:
        self.broker = await self.machine.open_broker()
        await self._join("d1")

    async def _join(self, name: str) -> None:
        assert self.broker is not None
        if self.clients[name] is None:
            expiry_s = 0 if name == "t" else 3_600
            client = WorldClient(self.broker, name, V5, clean=False, expiry_s=expiry_s, receive_maximum=2)
            await client.connect()
            self.clients[name] = client
            if name == "t":
                self.subscribed.discard(name)
        client = self.clients[name]
        assert client is not None
        if name not in self.subscribed:
            suback = await client.subscribe("$share/g/a/#", qos=1)
            assert suback.reason_codes == (1,)
            self.subscribed.add(name)
        await quiet()

    @rule(name=st.sampled_from(["d1", "d2", "t"]))
    def join(self, name: str) -> None:
        self.run(self._join(name))

    @rule(name=st.sampled_from(["d1", "d2", "t"]))
    def lose(self, name: str) -> None:
        async def lose() -> None:
            client = self.clients[name]
            if client is not None:
                client.lose()
                self.is_disturbed = True
            self.clients[name] = None
            await quiet()

        self.run(lose())

    @rule(count=st.integers(1, 4), topic=st.sampled_from(["a/1", "a/2", "a/3"]))
    def publish(self, count: int, topic: str) -> None:
        async def publish() -> None:
            assert self.broker is not None
            publisher = WorldClient(self.broker, "p", V5)
            await publisher.connect()
            for _ in range(count):
                self.count += 1
                payload = b"%d" % self.count
                await publisher.publish(topic, payload)
                self.acked.add(payload)
            publisher.lose()
            await quiet()

        self.run(publish())

    @rule(name=st.sampled_from(["d1", "d2", "t"]), count=st.integers(1, 4))
    def ack(self, name: str, count: int) -> None:
        async def ack() -> None:
            for _ in range(count):
                await quiet()
                self._ack_next(self.clients[name])
            await quiet()

        self.run(ack())

    def _ack_next(self, client: WorldClient | None) -> bool:
        for message in client.deliveries() if client is not None else []:
            assert client is not None
            client.received.remove(message)
            self.completed[message.payload] += 1
            client.send(packets.PubackPacket(message.packet_id))
            return True
        return False

    @rule()
    def crash(self) -> None:
        async def crash() -> None:
            await self.machine.kill()
            self.clients = dict.fromkeys(self.clients)
            self.is_disturbed = True
            self.broker = await self.machine.open_broker()

        self.run(crash())

    @rule()
    def time_passes(self) -> None:
        async def wait() -> None:
            await self.machine.pass_time(11)

        self.run(wait())

    def teardown(self) -> None:
        try:
            if self.broker is not None:
                self.run(self._finish())
        finally:
            self.loop.run_until_complete(self.machine._end())
            self.loop.close()

    async def _finish(self) -> None:
        for name in ("d1", "d2"):
            await self._join(name)
        for _ in range(200):
            await quiet()
            if not any(self._ack_next(client) for client in self.clients.values()):
                await self.machine.pass_time(2)
                if not any(self._ack_next(client) for client in self.clients.values()):
                    break
        SharedModel.completions += self.completed.total()
        missing = self.acked - self.completed.keys()
        assert not missing, f"no member got {sorted(missing, key=int)}"
        if not self.is_disturbed:
            assert max(self.completed.values(), default=1) == 1


def test_hazard_68_shared_groups_match_their_model() -> None:
    chosen = settings(
        max_examples=max(10, settings.default.max_examples // 2),
        stateful_step_count=30,
        deadline=None,
        phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    )
    run_state_machine_as_test(SharedModel, settings=chosen)  # type: ignore[no-untyped-call]
    assert SharedModel.completions > 20, "a run without messages proves little"
