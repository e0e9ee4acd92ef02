"""Deliveries in runs against deliveries row by row: the same packets to every client, and the same session state.

Both see the same random story: messages of all kinds in batches, subscriptions that change, acks in any order, clients
that take nothing, leave and come back, brokers that are killed. After each step everything happens that can.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.broker.mqtt.mqtt_options import MqttOptions
from icestream.broker.mqtt.mqtt_session import MqttSession
from icestream.broker.service import Broker
from icestream.durable.session_state import SessionState
from icestream.mqtt import packets
from icestream.mqtt.properties import NO_PROPERTIES, Properties, PropertyId
from tests.support.broker_machine import quiet
from tests.support.mqtt_world import V3, V5, MqttMachine, WorldClient

TOPICS: Final = ("a/x", "a/y", "b")
# Client id: version, seconds of expiry, Receive Maximum. "own" publishes too.
CLIENTS: Final = {"kept": (V5, 3_600, 7), "own": (V5, 3_600, 50), "clean": (V3, None, 0), "zero": (V5, 0, 3)}

Step = tuple[Any, ...]
kinds = st.sampled_from(["plain"] * 12 + ["retained", "property", "expiry"])
messages = st.tuples(st.sampled_from(TOPICS), st.sampled_from([1, 1, 1, 0, 2]), kinds)
# One topic and QoS many times is the common case of a run.
alike = st.builds(lambda one, count: [one] * count, messages, st.integers(2, 40))
mixed = st.lists(st.builds(lambda topic: (topic, 1, "plain"), st.sampled_from(TOPICS)), min_size=2, max_size=40)
client_names = st.sampled_from(sorted(CLIENTS))
filters = st.sampled_from(["#", "a/+", "b"])
options = st.tuples(st.sampled_from([0, 1, 1, 2]), st.booleans(), st.booleans(), st.integers(0, 2))
publishing = st.tuples(
    st.just("publish"), st.sampled_from(["publisher", "own"]),
    st.one_of(alike, alike, mixed, mixed, st.lists(messages, min_size=1, max_size=20)),
)  # fmt: skip
acking = st.tuples(st.just("ack"), client_names, st.sampled_from(["all", "all", "reversed", "some", "one"]))
steps = st.one_of(
    *[publishing] * 5,
    *[acking] * 3,
    st.tuples(st.just("subscribe"), client_names, filters, options),
    # What is published in between belongs to the subscription only in part.
    st.tuples(st.just("resubscribe"), client_names, filters, options, alike),
    st.tuples(st.just("unsubscribe"), client_names, filters),
    st.tuples(st.just("full"), client_names, st.booleans()),
    st.tuples(st.just("leave"), client_names),
    st.tuples(st.just("come"), client_names),
    st.tuples(st.just("kill")),
)
# Every client has two subscriptions, which overlap.
stories = st.builds(
    lambda subscriptions, story: [*subscriptions, *story],
    st.tuples(
        *(
            st.tuples(st.just("subscribe"), st.just(name), st.just(topic_filter), options)
            for name in CLIENTS
            for topic_filter in ("#", "a/+")
        )
    ),
    st.lists(steps, min_size=15, max_size=30),
)


class Outcome(NamedTuple):
    """What clients received, in order, and the sessions at the end; and how many deliveries went in runs."""

    received: dict[str, list[packets.PublishPacket]]
    sessions: dict[int, SessionState]
    run_rows: int


class Story:
    def __init__(self) -> None:
        self.machine = MqttMachine(mqtt=MqttOptions(shards=1))
        self.broker: Broker | None = None
        self.clients: dict[str, WorldClient] = {}
        self.received: dict[str, list[packets.PublishPacket]] = {name: [] for name in CLIENTS}
        self.unacked: dict[str, list[packets.PublishPacket]] = {name: [] for name in CLIENTS}
        self.count = 0

    async def tell(self, story: Sequence[Step]) -> dict[int, SessionState]:
        await self.begin()
        for name, *details in story:
            await getattr(self, name)(*details)
            await self.settle()
        assert self.broker is not None
        sessions = dict(self.broker.mqtt.log.table.sessions)
        await self.machine.kill()
        return sessions

    async def begin(self) -> None:
        self.broker = await self.machine.open_broker()
        self.clients.clear()
        self.clients["publisher"] = await self.connected("publisher", V5, 0, 0)
        for name in CLIENTS:
            await self.come(name)

    async def connected(self, name: str, version: Any, expiry_s: int | None, receive_maximum: int) -> WorldClient:
        assert self.broker is not None
        client = WorldClient(
            self.broker, name, version, clean=not expiry_s, expiry_s=expiry_s, receive_maximum=receive_maximum
        )
        await client.connect()
        return client

    async def settle(self) -> None:
        for _ in range(4):
            await quiet()
        for name, client in self.clients.items():
            if name != "publisher":
                new = client.deliveries()
                client.received.clear()
                self.received[name] += new
                self.unacked[name] += [packet for packet in new if packet.qos]

    # --- steps ---

    async def publish(self, name: str, batch: list[tuple[str, int, str]]) -> None:
        publisher = self.clients.get(name) or self.clients["publisher"]
        sent = []
        for topic, qos, kind in batch:
            self.count += 1
            properties = NO_PROPERTIES
            if kind == "property":
                properties = Properties([(PropertyId.USER_PROPERTY, ("a", "b"))])
            elif kind == "expiry":
                properties = Properties([(PropertyId.MESSAGE_EXPIRY_INTERVAL, 60)])
            packet_id = publisher.next_id() if qos else 0
            sent.append(
                packets.PublishPacket(
                    topic, b"%d" % self.count, qos, packet_id, kind == "retained", properties=properties
                )
            )
        publisher.send(*sent)
        for _ in range(2):
            await quiet()
        publisher.send(*(packets.PubrelPacket(packet.packet_id) for packet in sent if packet.qos == 2))

    async def subscribe(self, name: str, topic_filter: str, options: tuple[int, bool, bool, int]) -> None:
        if (client := self.clients.get(name)) is None:
            return
        qos, no_local, keeps_retain, identifier = options
        properties = NO_PROPERTIES
        if client.version is V5 and identifier:
            properties = Properties([(PropertyId.SUBSCRIPTION_IDENTIFIER, identifier)])
        request = packets.SubscriptionRequest(
            topic_filter, qos, no_local and client.version is V5, keeps_retain and client.version is V5
        )
        client.send(packets.SubscribePacket(client.next_id(), (request,), properties))

    async def resubscribe(
        self, name: str, topic_filter: str, options: tuple[int, bool, bool, int], batch: list[tuple[str, int, str]]
    ) -> None:
        await self.full(name, True)
        await self.publish("publisher", batch)
        await self.subscribe(name, topic_filter, options)
        await self.publish("publisher", batch)
        await self.settle()
        await self.full(name, False)

    async def unsubscribe(self, name: str, topic_filter: str) -> None:
        if (client := self.clients.get(name)) is not None:
            client.send(packets.UnsubscribePacket(client.next_id(), (topic_filter,)))

    async def ack(self, name: str, which: str) -> None:
        if (client := self.clients.get(name)) is None:
            return
        unacked = self.unacked[name]
        acked = {
            "all": unacked, "reversed": unacked[::-1], "some": unacked[::2], "one": unacked[:1],
        }[which]  # fmt: skip
        self.unacked[name] = [packet for packet in unacked if packet not in acked]
        client.send(
            *(
                packets.PubackPacket(packet.packet_id) if packet.qos == 1 else packets.PubrecPacket(packet.packet_id)
                for packet in acked
            )
        )
        await quiet()
        client.send(*(packets.PubcompPacket(packet.packet_id) for packet in acked if packet.qos == 2))

    async def full(self, name: str, is_full: bool) -> None:
        if (client := self.clients.get(name)) is not None:
            client.can_send = not is_full
            if not is_full and client.session is not None:
                client.session.resume_sending()

    async def leave(self, name: str) -> None:
        if (client := self.clients.pop(name, None)) is not None:
            client.lose()
            self.unacked[name].clear()

    async def come(self, name: str) -> None:
        if name not in self.clients:
            self.clients[name] = await self.connected(name, *CLIENTS[name])

    async def kill(self) -> None:
        await self.machine.kill()
        for unacked in self.unacked.values():
            unacked.clear()
        await self.begin()


def outcome_of(story: Sequence[Step], monkeypatch: pytest.MonkeyPatch, *, in_runs: bool) -> Outcome:
    with monkeypatch.context() as patch:
        patch.setattr(MqttSession, "takes_runs", in_runs)
        rows = 0
        send_run = WorldClient.send_run

        def counted(client: WorldClient, run: Any) -> list[int]:
            nonlocal rows
            rows += run.rows
            return send_run(client, run)

        patch.setattr(WorldClient, "send_run", counted)
        told = Story()
        sessions = asyncio.run(told.tell(story))
    return Outcome(told.received, sessions, rows)


def test_runs_and_rows_send_the_same_and_keep_the_same_state() -> None:
    run_rows = 0

    @settings(max_examples=max(40, settings.default.max_examples // 2), deadline=None)
    @given(stories)
    def compare(story: list[Step]) -> None:
        nonlocal run_rows
        with pytest.MonkeyPatch.context() as patch:
            by_runs = outcome_of(story, patch, in_runs=True)
            by_rows = outcome_of(story, patch, in_runs=False)
        assert by_runs.received == by_rows.received
        assert by_runs.sessions == by_rows.sessions
        assert not by_rows.run_rows
        run_rows += by_runs.run_rows

    compare()
    assert run_rows > 1000, "hardly anything went in runs"
