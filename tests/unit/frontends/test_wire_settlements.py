"""Acks, nacks and credits on the native wire: columns of a burst, with the decisions of the asyncio twin."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

import icestream
from icestream import errors, limits
from icestream.broker.broker_subscription import BrokerSubscription
from icestream.frontends.native.frame_wire import FrameWire
from icestream.frontends.native.native_connection import NativeConnection
from icestream.model.block import Numbering
from icestream.model.topic_name import TopicName
from icestream.rpc import document, frame
from icestream.rpc.frame import CUMULATIVE, AckRanges, Frame, FrameKind, Outcome, PublishPart
from icestream.testing import TestBroker
from tests.support.native_wires import use_wire
from tests.support.raw_client import ClosedByBroker, RawClient, block, credit, ping, publish, raw_client
from tests.support.until import until

pytestmark = pytest.mark.asyncio
TOPIC = "/default/orders"
LONG_MS = 200_000  # a nacked message does not come back during a test
POLICY = {"base_delay_ms": LONG_MS, "max_delay_ms": 4 * LONG_MS, "ack_timeout_ms": 10 * LONG_MS}
SHARDS, MESSAGES = 2, 40


@pytest_asyncio.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TestBroker]:
    use_wire(monkeypatch, is_used=True)
    async with icestream.testing.broker() as running:
        yield running


def settle(
    kind: FrameKind, handle: int, *ranges: tuple[int, int], shard: int = 0, generation: int = 0, extra: int = 0
) -> bytes:
    body = frame.encode_ranges(AckRanges(handle, shard, generation, extra, list(ranges)))
    return frame.encode_frame(kind, 0, body)


def ack(handle: int, *ranges: tuple[int, int], **more: int) -> bytes:
    return settle(FrameKind.ACK, handle, *ranges, **more)


def nack(handle: int, *ranges: tuple[int, int], **more: int) -> bytes:
    return settle(FrameKind.NACK, handle, *ranges, **more)


async def publish_messages(broker: TestBroker) -> None:
    """MESSAGES in each shard."""
    async with raw_client(broker.address) as client:
        opened = await client.call("open_producer", topic=TOPIC, producer="p", shards=SHARDS)
        numbering = Numbering(opened["producer_id"], opened["producer_epoch"], 0)
        batch = block(*[b"x"] * MESSAGES, numbering=numbering)
        await client.write(publish(100, *[PublishPart(opened["handle"], shard, batch) for shard in range(SHARDS)]))
        assert [result.outcome for result in await client.published(100)] == [Outcome.STORED] * SHARDS


async def subscribe(client: RawClient, subscription: str, consumer: str, type_: str, messages: int) -> int:
    """The handle of a consumer that has got so many messages."""
    result = await client.call(
        "subscribe",
        topic=TOPIC,
        subscription=subscription,
        consumer=consumer,
        type=type_,
        start="earliest",
        failure=POLICY,
    )
    handle: int = result["handle"]
    if messages:
        await client.write(credit(handle, messages))
    while messages > 0:
        received = await client.read()
        if received.kind == FrameKind.DELIVER:
            messages -= frame.decode_delivery(received.body).rows
    return handle


def subscription_of(broker: TestBroker, name: str) -> BrokerSubscription:
    return broker.node.broker.topics.get(TopicName.parse(TOPIC)).subscriptions[name]


def state_of(broker: TestBroker, name: str) -> list[tuple[int, list[tuple[int, int]], dict[int, tuple[int, int]]]]:
    """Of each shard: the position, the acked ranges, and how often and how long the failed messages are delayed."""
    states = []
    for delivery in subscription_of(broker, name).deliveries:
        dispatcher = delivery.dispatcher
        delays = {
            offset: (run.value.attempt, run.value.requested_ms)
            for run in dispatcher.delayed
            for offset in range(run.start, run.end)
        }
        states.append((dispatcher.acked.position, dispatcher.acked.ranges, delays))
    return states


def count_frames(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kinds of the frames that come up as they are from now on."""
    kinds: list[int] = []
    original = NativeConnection.frame_received

    def receive(self: NativeConnection, received: Frame) -> None:
        kinds.append(received.kind)
        original(self, received)

    monkeypatch.setattr(NativeConnection, "frame_received", receive)
    return kinds


async def test_acks_of_many_connections_are_one_row_with_an_entry_for_each_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_wire(monkeypatch, is_used=True)
    rows: list[list[Any]] = []
    original = FrameWire._on_acks

    def receive(self: FrameWire, acks: list[Any]) -> None:
        rows.append([(*entry, list(ranges)) for *entry, ranges in acks])
        original(self, acks)

    monkeypatch.setattr(FrameWire, "_on_acks", receive)
    async with icestream.testing.broker() as broker, AsyncExitStack() as stack:
        await publish_messages(broker)
        clients = [await stack.enter_async_context(raw_client(broker.address)) for _ in range(4)]
        handles = [await subscribe(client, "s", f"c{i}", "shared", 20) for i, client in enumerate(clients)]
        kinds = count_frames(monkeypatch)
        for i, (client, handle) in enumerate(zip(clients, handles, strict=True)):
            start = 10 * i
            client.write_now(ack(handle, (start, start + 5)) + ack(handle, (start + 5, start + 10), (3, 4)))
        await until(lambda: state_of(broker, "s")[0][0] == MESSAGES)
    assert not kinds, "declared by their first credit"
    assert sum(map(len, rows)) == 4, "the acks of each client came in one entry"
    assert max(map(len, rows)) > 1, "some of them were read together"
    assert {tuple(ranges) for row in rows for *_, ranges in row} == {
        ((10 * i, 10 * i + 10), (3, 4)) for i in range(4)
    }, "a range that continues the last is joined with it"


async def test_a_nack_before_an_ack_of_the_same_message_is_applied_before_it(broker: TestBroker) -> None:
    """Hazard 55: only runs of one kind are joined. The delay of the first nack counts."""
    await publish_messages(broker)
    async with raw_client(broker.address) as client:
        handle = await subscribe(client, "s", "c", "shared", 2 * MESSAGES)
        await client.write(
            ack(handle, (0, 2))
            + nack(handle, (4, 6), extra=LONG_MS + 1)
            + nack(handle, (4, 8), extra=LONG_MS + 2)
            + nack(handle, (8, 9), extra=LONG_MS + 1)
            + ack(handle, (5, 6))
            + nack(handle, (5, 7), extra=LONG_MS + 3)
            + ping(77)
        )
        while (await client.read()).kind != FrameKind.PONG:
            pass
        first = LONG_MS + 1
        delays = {4: (1, first), 6: (1, LONG_MS + 2), 7: (1, LONG_MS + 2), 8: (1, first)}
        assert state_of(broker, "s")[0] == (2, [(5, 6)], delays)


async def test_settlements_behind_frames_that_wait_keep_their_place(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that does not read its PONGs makes its frames wait; rows of the same burst wait behind them."""
    await publish_messages(broker)
    async with raw_client(broker.address) as client:
        handle = await subscribe(client, "s", "c", "shared", 2 * MESSAGES)
        kinds = count_frames(monkeypatch)
        monkeypatch.setattr(limits, "CONNECTION_ANSWER_BYTES_MAX", 20)
        monkeypatch.setattr(limits, "ACK_RANGES_MAX", 2)
        await client.write(
            ping(50, b"x" * 20)
            + ping(51)
            + ack(handle, (0, 1), (2, 3))
            + ack(handle, (4, 5), (6, 7))
            + nack(handle, (1, 2), extra=LONG_MS)
            + credit(handle, 3)
            + ping(52)
        )
        numbers = [(await client.read()).number for _ in range(3)]
        assert numbers == [50, 51, 52]
        assert state_of(broker, "s")[0] == (1, [(2, 3), (4, 5), (6, 7)], {1: (1, LONG_MS)})
        assert subscription_of(broker, "s").consumers["c"].credit_messages == 3
    ping_, ack_, nack_, credit_ = FrameKind.PING, FrameKind.ACK, FrameKind.NACK, FrameKind.CREDIT
    assert kinds == [ping_, ping_, ack_, ack_, nack_, credit_, ping_]


async def test_settlements_of_a_closed_consumer_are_ignored(broker: TestBroker) -> None:
    await publish_messages(broker)
    wire = broker.node.native._wire
    assert wire is not None
    async with raw_client(broker.address) as client:
        handle = await subscribe(client, "s", "c", "shared", 2 * MESSAGES)
        assert len(wire._consumers) == 1
        subscription_of(broker, "s").disconnect("c", "test")
        assert not wire._consumers
        await client.write(ack(handle, (0, 3)) + nack(handle, (4, 5)) + credit(handle, 5) + ping(50))
        while (await client.read()).number != 50:
            pass
        assert state_of(broker, "s")[0] == (0, [], {})


async def test_a_consumer_that_was_replaced_cannot_settle_what_arrives_late(broker: TestBroker) -> None:
    """Hazard 59: rows count only if their connection owns the consumer at the decision."""
    await publish_messages(broker)
    wire = broker.node.native._wire
    assert wire is not None
    async with raw_client(broker.address) as old, raw_client(broker.address) as new:
        handle = await subscribe(old, "s", "c", "exclusive", 2 * MESSAGES)
        (slot,) = wire._consumers
        await subscribe(new, "s", "c", "exclusive", 0)
        wire._on_acks([(slot, 0, 0, [(0, 3)])])  # it was read in the burst of the takeover
        wire._on_nacks([(slot, 0, 0, 0, [(4, 5)])])
        wire._on_credits([(slot, 5)])
        await old.write(ack(handle, (0, 3)) + ping(50))
        while (await old.read()).number != 50:
            pass
        assert state_of(broker, "s")[0] == (0, [], {})


async def test_acks_of_shards_that_were_added_become_columns(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish_messages(broker)
    async with raw_client(broker.address) as client:
        handle = await subscribe(client, "s", "c", "exclusive", 2 * MESSAGES)
        node = broker.node.broker
        await node._partitions._add_shards(node.topics.get(TopicName.parse(TOPIC)), SHARDS + 1)
        kinds = count_frames(monkeypatch)
        for _ in range(2):
            await client.write(ack(handle, (0, 1), shard=SHARDS) + ping(50))
            while (await client.read()).number != 50:
                pass
    assert kinds.count(FrameKind.ACK) == 1


async def test_a_connection_ends_without_a_slot_left(broker: TestBroker) -> None:
    await publish_messages(broker)
    wire = broker.node.native._wire
    assert wire is not None
    async with raw_client(broker.address) as client:
        handle = await subscribe(client, "s", "c", "shared", 2 * MESSAGES)
        assert wire._consumers
        client.write_now(ack(handle, (0, 3)) + ack(handle, (3, 4))[:9])
        client.close()
        await until(lambda: not broker.node.native.connections)
    assert not wire._consumers
    assert state_of(broker, "s")[0][0] == 3, "what arrived whole before the end is applied"


# --- the twins --------------------------------------------------------------------------------------------------------


def conversation(handles: list[int], chance: random.Random) -> list[bytes]:
    """Acks, nacks and credits, most of them valid, with PINGs between them. The last handle's type is exclusive."""

    def ranges(count: int) -> list[tuple[int, int]]:
        starts = [chance.randrange(MESSAGES + 3) for _ in range(count)]
        return [(start, start + chance.choice([1, 1, 2, 5])) for start in starts]

    frames: list[bytes] = []
    for number in range(100, 100 + chance.randrange(5, 40)):
        handle = chance.choice(handles)
        shard = chance.randrange(SHARDS)
        generation = chance.choice([0] * 9 + [1])
        match chance.choice(["ack"] * 6 + ["nack"] * 4 + ["credit"] * 2 + ["cumulative", "ping", "ping", "bad"]):
            case "ack":
                frames.append(ack(handle, *ranges(chance.choice([1, 1, 3])), shard=shard, generation=generation))
            case "nack":
                delay = LONG_MS + chance.randrange(3)
                some = ranges(chance.choice([1, 1, 3]))
                frames.append(nack(handle, *some, shard=shard, generation=generation, extra=delay))
            case "credit":
                frames.append(credit(handle, chance.choice([0, 1, 7, limits.CREDIT_MAX, 2**32 - 1])))
            case "cumulative":
                if chance.random() < 0.9:
                    handle = handles[-1]
                frames.append(ack(handle, *ranges(1), shard=shard, generation=generation, extra=CUMULATIVE))
            case "ping":
                frames.append(ping(number, b"x" * chance.randrange(30)))
            case _ if chance.random() < 0.4:
                frames.append(hostile(handle, number, chance))
    return frames


def hostile(handle: int, number: int, chance: random.Random) -> bytes:
    """A frame that ends the connection, for one reason of many."""
    body = bytearray(frame.encode_ranges(AckRanges(handle, 0, 0, 0, [(1, 2)])))
    kind = chance.choice([FrameKind.ACK, FrameKind.NACK, FrameKind.CREDIT])
    match chance.randrange(7):
        case 0:
            return settle(kind, 77, (0, 1)) if kind != FrameKind.CREDIT else credit(77, 1)
        case 1:
            return settle(FrameKind.ACK, handle, (0, 1), shard=SHARDS + chance.randrange(3))
        case 2:
            low, high = chance.choice([(2, 2), (3, 1), (-1, 4), (0, 2**62 + 1)])
            return settle(FrameKind.NACK, handle, (low, high))
        case 3:
            extra = chance.choice([2, 3, 2**32 - 1])
            return settle(FrameKind.ACK, handle, (0, 1), extra=extra)
        case 4:
            return settle(FrameKind.NACK, handle, (0, 1), extra=limits.FAILURE_POLICY_VALUE_MAX + 1)
        case 5:
            return frame.encode_frame(kind, number, bytes(body[: chance.randrange(len(body))]))
        case _:
            return frame.encode_frame(kind, number, chance.randbytes(chance.choice([0, 8, 16, 32, 33])), flags=1)


async def decisions(broker: TestBroker, seed: int) -> object:
    """The state of both subscriptions after one conversation, cut into random pieces, and how it ended."""
    chance = random.Random(seed)
    await publish_messages(broker)
    async with raw_client(broker.address) as client:
        handles = [
            await subscribe(client, "shared", "a", "shared", MESSAGES),
            await subscribe(client, "shared", "b", "shared", MESSAGES),
            await subscribe(client, "exclusive", "c", "exclusive", 2 * MESSAGES),
        ]
        rest = b"".join(conversation(handles, chance)) + ping(9_999, b"end")
        while rest:
            size = chance.choice([1, 7, 40, 200, 5_000])
            client.write_now(rest[:size])
            rest = rest[size:]
            if chance.random() < 0.5:
                await asyncio.sleep(0)
        pongs: list[int] = []
        ending = ""
        try:
            while not pongs or pongs[-1] != 9_999:
                received = await client.read()
                if received.kind == FrameKind.PONG:
                    pongs.append(received.number)
                elif received.kind == FrameKind.ERROR:
                    ending = str(document.decode_error(received.body))
        except ClosedByBroker:
            pass
        credits_ = {
            consumer.name: consumer.credit_messages
            for name in ("shared", "exclusive")
            for consumer in subscription_of(broker, name).consumers.values()
        }
    return pongs, ending, credits_, state_of(broker, "shared"), state_of(broker, "exclusive")


@pytest.mark.parametrize("seed", range(25))
async def test_hazard_55_both_twins_settle_alike(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The same bytes, cut anywhere, settle the same messages in the same order; a flood of PONGs changes nothing."""
    if seed % 3 == 0:
        monkeypatch.setattr(limits, "CONNECTION_ANSWER_BYTES_MAX", 40)
    seen = []
    for is_used in (False, True):
        use_wire(monkeypatch, is_used=is_used)
        async with icestream.testing.broker() as broker:
            seen.append(await decisions(broker, seed))
    assert seen[0] == seen[1]


async def test_every_refusal_has_the_error_of_the_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals: list[tuple[Callable[[int], bytes], type[errors.IcestreamError]]] = [
        (lambda handle: ack(handle, (0, 1), extra=CUMULATIVE), errors.InvalidInput),
        (lambda handle: ack(handle, (0, 1), shard=SHARDS), errors.InvalidInput),
        (lambda handle: ack(handle + 1, (0, 1)), errors.UnknownHandle),
        (lambda handle: nack(handle, (1, 1)), errors.DecodeError),
    ]
    for is_used in (False, True):
        use_wire(monkeypatch, is_used=is_used)
        async with icestream.testing.broker() as broker:
            await publish_messages(broker)
            for refused, error in refusals:
                async with raw_client(broker.address) as client:
                    handle = await subscribe(client, "s", "c", "shared", 2)
                    await client.write(ack(handle, (0, 1)) + refused(handle) + ack(handle, (1, 2)))
                    *_, reason = await client.read_all()
                    assert document.decode_error(reason.body).code == error.code
                assert 1 in dict(subscription_of(broker, "s").deliveries[0].dispatcher.acked.missing(1, 2))
