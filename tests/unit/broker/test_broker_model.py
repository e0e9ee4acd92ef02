"""The broker against a plain model: publishing, all types of subscriptions, faults of consumers, crashes, restarts.

acked publishes    are there after every restart (kill, and power loss as far as the mode promises), in order
one payload        an offset is never seen with two, over all lives
until acked        every message reaches every subscription until it is acked, and not after that
replay             a crash repeats at most what was acked since the cursors were last written
positions          no message is written below a held or stored one; none is stored beyond what is synced
ids                of topics, producers, subscriptions and consumers survive; failures are not forgiven
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from icestream import errors
from icestream.broker import records
from icestream.broker.broker_options import BrokerOptions
from icestream.broker.broker_topic import BrokerProducer
from icestream.broker.publish_result import PublishResult
from icestream.broker.service import Broker
from icestream.model import SyncMode, envelope
from icestream.model.block import iter_blocks
from icestream.model.subscription_options import FailurePolicy, StartAt, SubscriptionStart, SubscriptionType
from icestream.model.topic_name import TopicName
from tests.support.broker_machine import BrokerMachine, SubscriptionReader, block, quiet, subscribe

Answer = TypeVar("Answer")
TOPICS = {TopicName("default", "one"): 1, TopicName("default", "two"): 2}
NAMES = st.sampled_from(sorted(TOPICS))
SUBSCRIPTIONS = {
    "e": SubscriptionType.EXCLUSIVE,
    "f": SubscriptionType.FAILOVER,
    "s": SubscriptionType.SHARED,
    "k": SubscriptionType.KEY_SHARED,
}
PATIENT = FailurePolicy(max_redelivery_count=10_000, base_delay_ms=20, max_delay_ms=2_000)
SHARDS = st.integers(0, 1)


@dataclass
class ConsumerLine:
    """One subscription in one shard, as its consumers know it."""

    position: int  # where it began, or was sought to
    acked: set[int] = field(default_factory=set)
    flushed: set[int] = field(default_factory=set)  # acked, and the cursor was written after that
    failures: dict[int, int] = field(default_factory=dict)  # of messages, when the cursor was written
    seen: set[int] = field(default_factory=set)  # delivered since the start, the seek or the restart
    generation: int = 0


@dataclass
class ModelTopic:
    id: int
    messages: dict[tuple[int, int], bytes] = field(default_factory=dict)  # (shard, offset) of what was acked
    ever: dict[tuple[int, int], bytes] = field(default_factory=dict)  # every message that a reader has seen
    sent_payloads: dict[int, list[bytes]] = field(default_factory=dict)  # by shard, in the order of sending
    lines: dict[str, list[ConsumerLine]] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)


@dataclass
class ModelSender:
    producer: BrokerProducer
    next: dict[int, int] = field(default_factory=dict)


class BrokerModel(RuleBasedStateMachine):
    mode = SyncMode.ALWAYS
    restarts = 0

    @initialize(seed=st.integers(0, 2**32), tail_bytes=st.sampled_from([0, 5_000, 10**6]))
    def begin(self, seed: int, tail_bytes: int) -> None:
        self.runner = asyncio.Runner()
        options = BrokerOptions(unacked_max=8)
        self.machine = BrokerMachine(seed, self.mode, broker=options, tail_bytes=tail_bytes)
        self.topics: dict[TopicName, ModelTopic] = {}
        self.payloads = 0
        self.pending: list[tuple[TopicName, int, list[bytes], PublishResult]] = []
        self.start()

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return self.runner.run(work)

    def start(self) -> None:
        self.senders: dict[tuple[TopicName, str], ModelSender] = {}
        self.readers: dict[tuple[TopicName, str, str], SubscriptionReader] = {}
        self.read: dict[tuple[TopicName, str, str], int] = {}  # deliveries that were looked at
        self.broker: Broker = self.run(self.machine.open_broker())
        type(self).restarts += 1

    # --- topics ---

    @rule(name=NAMES)
    def create(self, name: TopicName) -> None:
        if name not in self.topics:
            topic = self.run(self.broker.create_topic(name, TOPICS[name]))
            assert all(topic.record.id > other.id for other in self.topics.values() if other.id == topic.record.id)
            self.topics[name] = ModelTopic(topic.record.id)

    @precondition(lambda self: self.topics)
    @rule(name=NAMES)
    def delete(self, name: TopicName) -> None:
        if name not in self.topics:
            return
        self.collect()
        self.run(self.broker.delete_topic(name))
        old = [sender for (topic, _), sender in self.senders.items() if topic == name]
        self.senders = {key: sender for key, sender in self.senders.items() if key[0] != name}
        for key in [key for key in self.readers if key[0] == name]:
            assert self.readers.pop(key).sink.events[-1] == "closed"
        del self.topics[name]
        for sender in old:
            with pytest.raises(errors.UnknownTopic):
                self.broker.publish(sender.producer, 0, block(b"late"))
        left = self.run(self.machine.store.list_all("/"))
        # Its tombstone keeps the names until the topic can no longer be brought back.
        tombstones = (records.TOMBSTONES, records.TOMBSTONE_NAMES)
        kept = [key for key, _ in left if name.name in key and not key.startswith(tombstones)]
        assert not kept, "something is left of a deleted topic"

    # --- publishing ---

    @precondition(lambda self: self.topics)
    @rule(
        name=NAMES, producer_name=st.sampled_from(["p", "numbered"]), shard=SHARDS,
        sizes=st.lists(st.integers(1, 4), max_size=3), wait=st.booleans(), bytes_each=st.sampled_from([1, 700]),
    )  # fmt: skip
    def publish(
        self, name: TopicName, producer_name: str, shard: int, sizes: list[int], wait: bool, bytes_each: int
    ) -> None:
        if name not in self.topics:
            return
        shard %= TOPICS[name]
        sender = self.sender(name, producer_name)
        for rows in sizes:
            self.publish_one(name, sender, shard, rows, bytes_each)
        if wait:
            self.run(quiet())
            self.collect()
            assert not self.pending

    def sender(self, name: TopicName, producer_name: str) -> ModelSender:
        model_sender = self.senders.get((name, producer_name))
        if model_sender is None:
            producer = self.run(self.broker.open_producer(name, producer_name))
            topic = self.topics[name]
            assert topic.ids.setdefault(f"producer {producer_name}", producer.id) == producer.id
            model_sender = self.senders[name, producer_name] = ModelSender(producer)
            for shard in range(TOPICS[name]):
                last = self.broker.last_sequence_of_name(producer, shard)
                model_sender.next[shard] = 0 if last is None else last + 1
        return model_sender

    def publish_one(self, name: TopicName, sender: ModelSender, shard: int, rows: int, bytes_each: int) -> None:
        payloads = [b"%d.%s" % (self.payloads + at, b"x" * bytes_each) for at in range(rows)]
        self.payloads += rows
        keys = [b"key %d" % (int(payload.split(b".")[0]) % 3) for payload in payloads]
        is_numbered = sender.producer.name == "numbered"
        producer = sender.producer if is_numbered else None
        sent = block(*payloads, keys=keys, producer=producer, first=sender.next[shard])

        async def go() -> list[PublishResult]:
            times = 2 if is_numbered and self.payloads % 3 == 0 else 1  # a client that is not sure sends again
            return [self.broker.publish(sender.producer, shard, sent) for _ in range(times)]

        sender.next[shard] += rows
        self.topics[name].sent_payloads.setdefault(shard, []).extend(payloads)
        self.pending += [(name, shard, payloads, stored) for stored in self.run(go())]

    def collect(self) -> None:
        """Notes the answers that have arrived: from here on these messages are promises."""
        left = []
        for name, shard, payloads, stored in self.pending:
            if stored.outcome is None:
                left.append((name, shard, payloads, stored))
                continue
            assert stored.error is None
            assert stored.base_offset is not None
            for at, payload in enumerate(payloads, stored.base_offset):
                self.note(name, shard, at, payload)
                self.topics[name].messages[shard, at] = payload
        self.pending = left

    def note(self, name: TopicName, shard: int, offset: int, payload: bytes) -> None:
        before = self.topics[name].ever.setdefault((shard, offset), payload)
        assert before == payload, f"offset {offset} of {name} {shard} was seen as {before!r} and as {payload!r}"

    # --- consuming ---

    @precondition(lambda self: self.topics)
    @rule(
        name=NAMES, which=st.sampled_from(sorted(SUBSCRIPTIONS)), consumer_name=st.sampled_from(["c1", "c2"]),
        credit=st.integers(0, 12), earliest=st.booleans(),
    )  # fmt: skip
    def join(self, name: TopicName, which: str, consumer_name: str, credit: int, earliest: bool) -> None:
        if name in self.topics:
            self.join_one(name, which, consumer_name, credit, StartAt.EARLIEST if earliest else StartAt.LATEST)

    def join_one(self, name: TopicName, which: str, consumer_name: str, credit: int, at: StartAt) -> None:
        self.run(quiet())
        self.collect()
        topic, kind = self.topics[name], SUBSCRIPTIONS[which]
        others = [key for key in self.readers if key[:2] == (name, which) and key[2] != consumer_name]
        joining = subscribe(self.broker, which, kind, consumer_name, SubscriptionStart(at), credit, name, PATIENT)
        if kind is SubscriptionType.EXCLUSIVE and others:
            with pytest.raises(errors.SubscriptionTaken):
                self.run(joining)
            return
        self.look(name, which, consumer_name)
        reader = self.run(joining)
        assert topic.ids.setdefault(f"{which} {consumer_name}", reader.consumer.id) == reader.consumer.id
        assert topic.ids.setdefault(which, reader.subscription.record.id) == reader.subscription.record.id
        if which not in topic.lines:
            topic.lines[which] = [
                ConsumerLine(0 if at is StartAt.EARLIEST else delivery.stream.visible)
                for delivery in reader.subscription.deliveries
            ]
        self.readers[name, which, consumer_name] = reader
        self.read[name, which, consumer_name] = 0

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), credit=st.integers(1, 10))
    def give_credit(self, data: st.DataObject, credit: int) -> None:
        reader = self.readers[data.draw(st.sampled_from(sorted(self.readers)))]
        self.run(self.later(lambda: reader.credit(credit)))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), count=st.integers(1, 8), is_ack=st.integers(0, 4))
    def settle(self, data: st.DataObject, count: int, is_ack: int) -> None:
        """Acks, mostly; in any order."""
        key = data.draw(st.sampled_from(sorted(self.readers)))
        self.look(*key)
        reader, lines = self.readers[key], self.topics[key[0]].lines[key[1]]
        unacked = [
            (shard, offset)
            for shard, generation, offset in dict.fromkeys(reader.sink.positions)
            if generation == lines[shard].generation and offset not in lines[shard].acked
        ]
        if not unacked:
            return
        for shard, offset in data.draw(st.lists(st.sampled_from(unacked), max_size=count, unique=True)):
            if is_ack:
                self.run(self.later(partial(reader.ack, offset, shard=shard)))
                lines[shard].acked.add(offset)
            else:
                self.run(self.later(partial(reader.nack, offset, shard=shard)))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), is_full=st.booleans())
    def socket_fills_or_drains(self, data: st.DataObject, is_full: bool) -> None:
        reader = self.readers[data.draw(st.sampled_from(sorted(self.readers)))]
        reader.sink.is_full = is_full
        if not is_full:
            self.run(self.later(reader.consumer.drained))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.readers)))
        self.look(*key)
        self.run(self.later(self.readers.pop(key).leave))

    @precondition(lambda self: any(topic.lines for topic in self.topics.values()))
    @rule(data=st.data(), offset=st.integers(0, 30))
    def seek(self, data: st.DataObject, offset: int) -> None:
        places = [(name, which) for name, topic in self.topics.items() for which in topic.lines]
        name, which = data.draw(st.sampled_from(sorted(places)))
        for key in self.readers:
            self.look(*key)
        self.run(self.broker.seek(name, which, SubscriptionStart(StartAt.OFFSET, offset)))
        subscription = self.broker.subscription(name, which)
        for line, delivery in zip(self.topics[name].lines[which], subscription.deliveries, strict=True):
            line.position = min(offset, delivery.stream.visible)
            line.acked, line.flushed, line.seen, line.failures = set(), set(), set(), {}
            line.generation = delivery.generation
        for key in self.readers:
            if key[:2] == (name, which):
                self.forget_older(key)

    def forget_older(self, key: tuple[TopicName, str, str]) -> None:
        """Drops deliveries from before the seek; deliveries after it may have arrived already."""
        sink, lines = self.readers[key].sink, self.topics[key[0]].lines[key[1]]
        both = zip(sink.received, sink.positions, strict=True)
        current = [(received, place) for received, place in both if place[1] == lines[place[0]].generation]
        sink.received[:] = [received for received, _ in current]
        sink.positions[:] = [place for _, place in current]
        self.read[key] = 0

    async def later(self, call: Any) -> None:
        call()
        await quiet()

    def look(self, name: TopicName, which: str, consumer_name: str) -> None:
        """Checks what a consumer got since the last look."""
        reader = self.readers.get((name, which, consumer_name))
        if reader is None:
            return
        self.collect()
        sink, lines = reader.sink, self.topics[name].lines[which]
        start = self.read[name, which, consumer_name]
        for (offset, payload, attempt), (shard, generation, _) in zip(
            sink.received[start:], sink.positions[start:], strict=True
        ):
            line = lines[shard]
            assert generation == line.generation, "a delivery from before a seek"
            self.note(name, shard, offset, payload)
            assert offset >= line.position
            if SUBSCRIPTIONS[which] in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER):
                is_new = offset not in line.seen
                assert not is_new or offset > max(line.seen, default=-1), "first deliveries are not in order"
            line.seen.add(offset)
            assert not attempt or offset in line.seen
        self.read[name, which, consumer_name] = len(sink.received)

    # --- time, crashes ---

    @rule(seconds=st.sampled_from([0.03, 3, 12, 31]))
    def time_passes(self, seconds: float) -> None:
        self.run(self.machine.pass_time(seconds))
        self.collect()
        if seconds > 10:
            self.check_flushed()

    def check_flushed(self) -> None:
        """An interval has passed: the stored cursors know everything that was acked."""
        for name, topic in self.topics.items():
            for which, lines in topic.lines.items():
                for shard, line in enumerate(lines):
                    stored = self.stored(name, which, shard)
                    missing = {offset for offset in line.acked if offset >= stored.offset} - in_ranges(stored)
                    assert not missing, f"acked and not stored after an interval: {missing}"
                    self.keep(line, stored.failures)  # some messages may have failed since it was written

    def keep(self, line: ConsumerLine, failures: list[tuple[int, int, int]]) -> None:
        """The cursor was written with these failures, and with everything acked."""
        line.flushed = set(line.acked)
        line.failures = {at: count for low, high, count in failures for at in range(low, high)}

    def stored(self, name: TopicName, which: str, shard: int) -> records.CursorRecord:
        key = records.cursor_key(name, which, shard, TOPICS[name])
        entry = self.run(self.machine.store.get(key))
        assert entry is not None, "a subscription without a cursor"
        return records.decode(records.CursorRecord, key, entry.value)

    @rule(how=st.sampled_from(["kill", "power", "stop"]), is_quiet=st.booleans())
    def restart(self, how: str, is_quiet: bool) -> None:
        if is_quiet:
            self.run(quiet())
        self.collect()
        for key in self.readers:
            self.look(*key)
        before = self.synced()
        if how == "stop":
            self.run(self.broker.shutdown())
            self.run(quiet())
            self.collect()
            for name, topic in self.topics.items():
                for which, lines in topic.lines.items():
                    for line, delivery in zip(lines, self.broker.subscription(name, which).deliveries, strict=True):
                        self.keep(line, delivery.dispatcher.attempts)
        elif how == "kill":
            self.run(self.machine.kill())
        else:
            self.run(self.machine.power_loss())
        self.pending = []
        self.start()
        self.check_after(before if how == "power" else None)

    def synced(self) -> dict[int, list[int]]:
        log = self.machine.log
        assert log is not None
        return {topic.id: [log.shard(topic.id, shard).synced for shard in range(2)] for topic in self.topics.values()}

    def check_after(self, synced: dict[int, list[int]] | None) -> None:
        """What a start found. `synced`: how far each shard was when the power went."""
        assert {topic.name: topic.record.id for topic in self.broker.topics} == {
            name: topic.id for name, topic in self.topics.items()
        }
        for name, topic in self.topics.items():
            if synced is not None:
                synced_marks = synced[topic.id] if self.mode is not SyncMode.ALWAYS else None
                topic.messages = {
                    place: payload
                    for place, payload in topic.messages.items()
                    if synced_marks is None or place[1] < synced_marks[place[0]]
                }
            for shard in range(TOPICS[name]):
                self.check_shard(name, shard)
            assert set(self.broker.topics.get(name).subscriptions) == set(topic.lines)
            for which, lines in topic.lines.items():
                self.check_lines(name, which, lines)

    def check_shard(self, name: TopicName, shard: int) -> None:
        topic = self.topics[name]
        payloads = self.run(read_shard(self.broker, name, shard))
        for offset, payload in payloads.items():
            self.note(name, shard, offset, payload)
        for (at, offset), payload in topic.messages.items():
            assert at != shard or payloads.get(offset) == payload, f"acked message {offset} of {name} {shard} is gone"
        topic.messages.update({(shard, offset): payload for offset, payload in payloads.items()})
        in_order = [int(payloads[offset].split(b".")[0]) for offset in sorted(payloads)]
        assert in_order == sorted(in_order), "messages changed their order"
        assert len(set(in_order)) == len(in_order), "a message is there twice"

    def check_lines(self, name: TopicName, which: str, lines: list[ConsumerLine]) -> None:
        """Only messages acked since the last cursor write may be delivered again."""
        subscription = self.broker.subscription(name, which)
        for shard, (line, delivery) in enumerate(zip(lines, subscription.deliveries, strict=True)):
            acked = delivery.dispatcher.acked
            visible = {offset for at, offset in self.topics[name].messages if at == shard}
            again = {offset for offset in line.acked & visible if offset not in acked}
            assert not again & line.flushed, f"{again & line.flushed} were acked before the last flush and come again"
            forgotten = {offset for offset in visible if offset >= line.position and offset in acked} - line.acked
            assert not forgotten, f"{forgotten} were never acked and do not come again"
            line.acked = {offset for offset in line.acked if offset in acked}
            line.seen = set()
            line.generation = delivery.generation
            again = {at: count for low, high, count in delivery.dispatcher.attempts for at in range(low, high)}
            for offset, count in line.failures.items():
                is_here = offset in visible and offset not in acked
                assert not is_here or again.get(offset, 0) >= count, f"{count} failures of {offset} were forgiven"

    @invariant()
    def positions_are_not_beyond_the_end(self) -> None:
        for topic in self.broker.topics if hasattr(self, "broker") else ():
            for subscription in topic.subscriptions.values():
                for delivery in subscription.deliveries:
                    assert delivery.dispatcher.acked.end <= delivery.stream.visible
                    shard = delivery.stream.key.shard
                    assert self.stored(topic.name, subscription.name, shard).end <= delivery.stream.synced

    # --- the end ---

    def teardown(self) -> None:
        """With willing consumers everything comes, until it is acked."""
        if not hasattr(self, "broker"):
            return
        self.run(quiet())
        self.collect()
        for name, topic in self.topics.items():
            for which in topic.lines:
                if not any(key[:2] == (name, which) for key in self.readers):
                    self.join_one(name, which, "last", 0, StartAt.EARLIEST)
        for reader in self.readers.values():
            reader.sink.is_full = False
            self.run(self.later(reader.consumer.drained))
        for _ in range(40):
            if not self.drain():
                break
        for name, topic in self.topics.items():
            for which, lines in topic.lines.items():
                for shard, line in enumerate(lines):
                    expected = {at for at_shard, at in topic.messages if at_shard == shard and at >= line.position}
                    assert expected <= line.acked, f"{expected - line.acked} never came to {which} of {name}"
                assert self.broker.subscription(name, which).lag == 0
        self.run(self.broker.shutdown())
        self.runner.close()

    def drain(self) -> int:
        """Takes and acks what comes; how much is left."""
        for (name, which, consumer_name), reader in self.readers.items():
            self.run(self.later(partial(reader.credit, 1000)))
            self.look(name, which, consumer_name)
            lines = self.topics[name].lines[which]
            for shard, generation, offset in dict.fromkeys(reader.sink.positions):
                if generation == lines[shard].generation and offset not in lines[shard].acked:
                    self.run(self.later(partial(reader.ack, offset, shard=shard)))
                    lines[shard].acked.add(offset)
        self.run(self.machine.pass_time(4))
        return sum(
            self.broker.subscription(name, which).lag for name, topic in self.topics.items() for which in topic.lines
        )


class PeriodicBrokerModel(BrokerModel):
    mode = SyncMode.PERIODIC


class UnsyncedBrokerModel(BrokerModel):
    mode = SyncMode.NONE


def in_ranges(cursor: records.CursorRecord) -> set[int]:
    return {offset for start, end in cursor.ranges for offset in range(start, end)}


async def read_shard(broker: Broker, name: TopicName, shard: int) -> dict[int, bytes]:
    stream = (await broker.storage.create_subscription_stream(name.namespace, name.name, "none")).shards[shard]
    messages: dict[int, bytes] = {}
    offset = stream.log_start()
    while offset < stream.visible:
        result = await stream.read(offset, 50_000)
        for section in result.sections:
            values = [value for block in iter_blocks(section.body) for value in block.values(envelope.PAYLOAD)]
            messages.update(
                (at, value) for at, value in enumerate(values, section.base_offset) if isinstance(value, bytes)
            )
        offset = result.next_offset
    return messages


MODELS = pytest.mark.parametrize(
    "model", [BrokerModel, PeriodicBrokerModel, UnsyncedBrokerModel], ids=["always", "periodic", "none"]
)


def run(model: type[BrokerModel], examples: int) -> int:
    chosen = settings(max_examples=examples, stateful_step_count=40, deadline=None, phases=[Phase.generate])
    run_state_machine_as_test(model, settings=chosen)  # type: ignore[no-untyped-call]
    return model.restarts


@MODELS
def test_the_broker_matches_its_model(model: type[BrokerModel]) -> None:
    assert run(model, 25) > 30, "a run without restarts proves little"


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@MODELS
def test_the_broker_matches_its_model_in_long_runs(model: type[BrokerModel]) -> None:
    assert run(model, 1000) > 1000
