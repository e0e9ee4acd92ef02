"""The native wire: bursts of many connections, groups, and the same decisions as the asyncio twin."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

import icestream
from icestream import errors, limits
from icestream.frontends.native.frame_wire import FrameWire
from icestream.model.block import Numbering
from icestream.model.topic_name import TopicName
from icestream.rpc import document, frame
from icestream.rpc.frame import Frame, FrameKind, Outcome, PartResult, PublishPart
from icestream.testing import TestBroker
from tests.support.held_sink import held_log
from tests.support.native_sockets import is_stopped, set_send_buffer
from tests.support.native_wires import use_wire
from tests.support.raw_client import ClosedByBroker, RawClient, ack, block, call, credit, ping, publish, raw_client
from tests.support.until import until

pytestmark = pytest.mark.asyncio
TOPIC, OTHER = "/default/orders", "/default/other"


@pytest_asyncio.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TestBroker]:
    use_wire(monkeypatch, is_used=True)
    settings = {"storage": {"iceberg_config": {"wal": {"in_flight_bytes": limits.MIB, "max_message_bytes": 100_000}}}}
    async with icestream.testing.broker("disk", settings) as running:
        yield running


class Publisher:
    """A raw client with a producer that numbers its batches."""

    def __init__(self, client: RawClient, opened: dict[str, int]) -> None:
        self.client = client
        self.handle = opened["handle"]
        self._id, self._epoch = opened["producer_id"], opened["producer_epoch"]
        self._sequence = 0
        self._frame = 100

    def batch(self, *payloads: bytes, sequence: int | None = None) -> PublishPart:
        if sequence is None:
            sequence = self._sequence
            self._sequence += len(payloads)
        return PublishPart(self.handle, 0, block(*payloads, numbering=Numbering(self._id, self._epoch, sequence)))

    def frame(self, *parts: PublishPart) -> bytes:
        self._frame += 1
        return publish(self._frame, *parts)

    async def send(self, *payloads: bytes) -> PartResult:
        await self.client.write(self.frame(self.batch(*payloads)))
        (result,) = await self.client.published(self._frame)
        return result


async def publisher(stack: AsyncExitStack, broker: TestBroker, name: str, topic: str = TOPIC) -> Publisher:
    """One whose producer is declared: its first batch is stored."""
    client = await stack.enter_async_context(raw_client(broker.address))
    one = Publisher(client, await client.call("open_producer", topic=topic, producer=name))
    assert (await one.send(b"first")).outcome == Outcome.STORED
    return one


def groups_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of batches in each group that the wire hands over from now on."""
    sizes: list[int] = []
    original = FrameWire._on_group

    def count(self: FrameWire, batch: int, queues: bytes, slots: bytes, *rest: Any) -> None:
        sizes.append(len(slots) // 4)
        original(self, batch, queues, slots, *rest)

    def count_single(self: FrameWire, *details: int) -> None:
        sizes.append(1)
        single(self, *details)  # type: ignore[arg-type]

    single = FrameWire._on_single
    monkeypatch.setattr(FrameWire, "_on_group", count)
    monkeypatch.setattr(FrameWire, "_on_single", count_single)
    return sizes


def stored(broker: TestBroker, topic: str = TOPIC) -> int:
    return broker.node.broker.topics.get(TopicName.parse(topic)).published_messages


async def test_messages_of_many_connections_are_stored_in_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    use_wire(monkeypatch, is_used=True)
    sizes = groups_of(monkeypatch)
    async with icestream.testing.broker() as broker, AsyncExitStack() as stack:
        publishers = [await publisher(stack, broker, f"p{number}") for number in range(20)]
        for one in publishers:
            one.client.write_now(one.frame(one.batch(b"again")))
        results = [(await one.client.published(one._frame))[0] for one in publishers]
    assert max(sizes) > 1, "some of them were read together"
    assert sum(sizes) == 20, "the first batch of each came as a frame"
    assert sorted(result.base_offset for result in results) == list(range(20, 40))


async def test_large_frames_are_gathered_until_the_socket_is_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    """One read has at most two of these frames, and the rest of a third. A group for each read would mean twice as many
    writes and syncs of the log."""
    use_wire(monkeypatch, is_used=True)
    sizes = groups_of(monkeypatch)
    async with icestream.testing.broker() as broker, AsyncExitStack() as stack:
        one = await publisher(stack, broker, "p")
        rounds = 0
        while max(sizes, default=0) <= 3:
            rounds += 1
            assert rounds < 20, f"the largest group has {max(sizes)} frames"
            first = one._frame + 1
            one.client.write_now(b"".join([one.frame(one.batch(bytes(100_000))) for _ in range(30)]))
            results = [(await one.client.published(number))[0] for number in range(first, one._frame + 1)]
            assert {result.outcome for result in results} == {Outcome.STORED}


async def test_a_frame_with_parts_for_many_topics_has_one_answer_in_the_order_of_its_parts(broker: TestBroker) -> None:
    async with AsyncExitStack() as stack:
        one = await publisher(stack, broker, "p")
        opened = await one.client.call("open_producer", topic=OTHER, producer="p")
        other = Publisher(one.client, opened)
        other._frame = 200
        assert (await other.send(b"first")).outcome == Outcome.STORED
        other._frame = 300
        await one.client.write(
            other.frame(one.batch(b"a"), other.batch(b"b", b"c"), one.batch(b"d"), other.batch(b"e"))
        )
        results = await one.client.published(301)
    assert [result.base_offset for result in results] == [1, 1, 2, 3]


async def topics_publishers(stack: AsyncExitStack, broker: TestBroker, topics: int) -> list[Publisher]:
    """Producers of one connection, each for a topic of its own, and all declared."""
    client = await stack.enter_async_context(raw_client(broker.address))
    publishers = [
        Publisher(client, await client.call("open_producer", topic=f"/default/t{number}", producer="p"))
        for number in range(topics)
    ]
    results = await send_together(publishers, 1, [each.batch(b"first") for each in publishers])
    assert {result.outcome for result in results} == {Outcome.STORED}
    return publishers


async def send_together(publishers: list[Publisher], number: int, parts: list[PublishPart]) -> list[PartResult]:
    """Sends one frame with the parts; returns the result of each."""
    await publishers[0].client.write(publish(number, *parts))
    return await publishers[0].client.published(number)


async def test_a_frame_for_many_topics_is_stored_as_one_group_in_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    use_wire(monkeypatch, is_used=True)
    sizes = groups_of(monkeypatch)
    async with icestream.testing.broker("disk") as broker, AsyncExitStack() as stack:
        publishers = await topics_publishers(stack, broker, 20)
        lsn = broker.node.log.state.lsn
        parts = [each.batch(b"x", b"y") for each in publishers] + [each.batch(b"z") for each in publishers]
        results = await send_together(publishers, 2, parts)
        assert sizes == [40]
        assert broker.node.log.state.lsn == lsn + 1
        assert [stored(broker, f"/default/t{number}") for number in range(20)] == [4] * 20
    assert [(result.outcome, result.base_offset) for result in results] == (
        [(Outcome.STORED, 1)] * 20 + [(Outcome.STORED, 3)] * 20
    )


async def test_the_parts_of_a_frame_for_many_topics_are_refused_each_by_itself(broker: TestBroker) -> None:
    """Hazard 37: a gap in the numbers of one producer holds back that producer and no other."""
    async with AsyncExitStack() as stack:
        publishers = await topics_publishers(stack, broker, 4)
        gap, repeated, *others = publishers
        parts = [gap.batch(b"gap", sequence=7), repeated.batch(b"first", sequence=0)]
        results = await send_together(publishers, 2, [*parts, *(each.batch(b"x") for each in others)])
        assert [result.outcome for result in results] == (
            [Outcome.REFUSED, Outcome.DUPLICATE, Outcome.STORED, Outcome.STORED]
        )
        assert document.decode_error(results[0].text).code == errors.OutOfOrderSequence.code
        assert results[1].base_offset == 0
        results = await send_together(publishers, 3, [each.batch(b"y") for each in publishers])
        assert [result.outcome for result in results] == [Outcome.AFTER_REFUSED, *[Outcome.STORED] * 3]
    assert [stored(broker, f"/default/t{number}") for number in range(4)] == [1, 2, 3, 3]


async def test_a_policy_of_one_topic_decides_about_its_parts_of_a_frame_alone(broker: TestBroker) -> None:
    async with AsyncExitStack() as stack:
        publishers = await topics_publishers(stack, broker, 3)
        await publishers[1].client.call("topic_policies", topic="/default/t1", policies={"max_message_bytes": 1000})
        results = await send_together(publishers, 2, [each.batch(bytes(2000)) for each in publishers])
        assert [result.outcome for result in results] == [Outcome.STORED, Outcome.REFUSED, Outcome.STORED]
        assert document.decode_error(results[1].text).code == errors.MessageTooLarge.code


async def test_a_message_that_arrives_alone_is_bounded_by_the_policy_of_its_topic(
    broker: TestBroker,
) -> None:
    async with AsyncExitStack() as stack:
        one = await publisher(stack, broker, "p")
        await one.client.call("topic_policies", topic=TOPIC, policies={"max_message_bytes": 1000})
        assert (await one.send(bytes(1000))).outcome == Outcome.STORED  # its block is larger, its message is not
        result = await one.send(bytes(1001))
    assert result.outcome == Outcome.REFUSED
    assert document.decode_error(result.text).code == errors.MessageTooLarge.code


async def test_frames_for_many_topics_wait_for_room_in_the_order_of_each_topic(broker: TestBroker) -> None:
    async with AsyncExitStack() as stack:
        publishers = await topics_publishers(stack, broker, 3)
        (connection,) = [each for each in broker.node.native._connections if each.producers]
        number = 1
        with held_log(broker.node.log) as hold:
            while not is_stopped(connection):
                number += 1
                parts = [each.batch(bytes(40_000)) for each in publishers]
                publishers[0].client.write_now(publish(number, *parts))
                await asyncio.sleep(0)
            hold.release()
        for frame_number in range(2, number + 1):
            results = await publishers[0].client.published(frame_number)
            assert [(result.outcome, result.base_offset) for result in results] == (
                [(Outcome.STORED, frame_number - 1)] * 3
            )


async def test_a_failed_write_has_an_unknown_outcome_in_every_topic_of_a_frame(broker: TestBroker) -> None:
    async with AsyncExitStack() as stack:
        publishers = await topics_publishers(stack, broker, 3)
        with held_log(broker.node.log) as hold:
            publishers[0].client.write_now(publish(2, *[each.batch(b"lost?") for each in publishers]))
            await until(lambda: hold.is_waiting)
            hold.fail()
        assert [result.outcome for result in await publishers[0].client.published(2)] == [Outcome.UNKNOWN] * 3
        results = await send_together(publishers, 3, [each.batch(b"behind it") for each in publishers])
        assert [result.outcome for result in results] == [Outcome.AFTER_REFUSED] * 3


async def test_a_repeated_batch_in_a_group_is_answered_with_its_first_offset(broker: TestBroker) -> None:
    async with AsyncExitStack() as stack:
        one, other = [await publisher(stack, broker, name) for name in "ab"]
        with held_log(broker.node.log) as hold:
            one.client.write_now(one.frame(one.batch(b"x", sequence=1)) + one.frame(one.batch(b"x", sequence=1)))
            other.client.write_now(other.frame(other.batch(b"y")))
            await until(lambda: hold.is_waiting)
            hold.release()
        (first,), (repeated,) = await one.client.published(102), await one.client.published(103)
        assert (repeated.outcome, repeated.base_offset) == (Outcome.DUPLICATE, first.base_offset)
        assert (await other.client.published(102))[0].outcome == Outcome.STORED
    assert stored(broker) == 4


async def test_a_refused_batch_holds_back_those_behind_it_and_no_other_producer(broker: TestBroker) -> None:
    """Hazard 37, in one burst: the batches behind a gap in the numbers are not stored."""
    async with AsyncExitStack() as stack:
        one, other = [await publisher(stack, broker, name) for name in "ab"]
        frames = [one.frame(one.batch(b"gap", sequence=7)), one.frame(one.batch(b"next", sequence=8))]
        one.client.write_now(b"".join(frames))
        other.client.write_now(other.frame(other.batch(b"fine")))
        refused = [(await one.client.published(number))[0] for number in (102, 103)]
        assert {result.outcome for result in refused} <= {Outcome.REFUSED, Outcome.AFTER_REFUSED}
        assert (await other.client.published(102))[0].outcome == Outcome.STORED
        await one.client.write(one.frame(one.batch(b"still refused", sequence=1)))
        assert (await one.client.published(104))[0].outcome == Outcome.AFTER_REFUSED
        await one.client.call("reset_producer", handle=one.handle, shard=0)
        await one.client.write(one.frame(one.batch(b"again", sequence=1)))
        assert (await one.client.published(105))[0].outcome == Outcome.STORED
    assert stored(broker) == 4


@pytest.mark.parametrize(
    "policies",
    [{"max_message_bytes": 1000}, {"max_publish_rate": 1_000_000}],
    ids=["size", "rate"],
)
async def test_policies_that_need_each_batch_are_applied_to_each_batch(
    broker: TestBroker, policies: dict[str, int]
) -> None:
    async with AsyncExitStack() as stack:
        one = await publisher(stack, broker, "p")
        await one.client.call("topic_policies", topic=TOPIC, policies=policies)
        assert (await one.send(b"small")).outcome == Outcome.STORED
        large = await one.send(bytes(2000))
        expected = Outcome.REFUSED if "max_message_bytes" in policies else Outcome.STORED
        assert large.outcome == expected
        if expected == Outcome.REFUSED:
            assert document.decode_error(large.text).code == errors.MessageTooLarge.code


async def test_more_than_the_largest_batch_of_the_log_is_stored_batch_by_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A log with small files has a smaller bound than what one burst may bring."""
    use_wire(monkeypatch, is_used=True)
    settings = {"storage": {"iceberg_config": {"wal": {"max_file_size": "1MiB", "max_message_bytes": 100_000}}}}
    async with icestream.testing.broker("disk", settings) as broker, AsyncExitStack() as stack:
        one = await publisher(stack, broker, "p")
        largest = broker.node.broker.batch_bytes_max
        assert largest < limits.MIB
        frames = 1 + largest // 10_000
        await one.client.write(b"".join(one.frame(one.batch(bytes(10_000))) for _ in range(frames)))
        outcomes = [(await one.client.published(number))[0].outcome for number in range(102, 102 + frames)]
    assert outcomes == [Outcome.STORED] * frames


async def test_batches_of_a_producer_that_was_fenced_are_refused(broker: TestBroker) -> None:
    async with AsyncExitStack() as stack:
        one = await publisher(stack, broker, "p")
        await publisher(stack, broker, "p")
        result = await one.send(b"too late")
    assert result.outcome == Outcome.REFUSED
    assert document.decode_error(result.text).code == errors.ProducerFenced.code


async def test_batches_of_a_closed_producer_are_refused(broker: TestBroker) -> None:
    async with AsyncExitStack() as stack:
        one = await publisher(stack, broker, "p")
        await one.client.call("close_producer", handle=one.handle)
        result = await one.send(b"too late")
    assert result.outcome == Outcome.REFUSED


async def test_a_failed_write_has_an_unknown_outcome_for_every_batch_of_the_group(broker: TestBroker) -> None:
    async with AsyncExitStack() as stack:
        publishers = [await publisher(stack, broker, name) for name in "abc"]
        with held_log(broker.node.log) as hold:
            for one in publishers:
                one.client.write_now(one.frame(one.batch(b"lost?")))
            await until(lambda: hold.is_waiting)
            hold.fail()
        outcomes = [(await one.client.published(one._frame))[0].outcome for one in publishers]
        assert set(outcomes) <= {Outcome.UNKNOWN, Outcome.REFUSED}
        assert Outcome.UNKNOWN in outcomes
        result = await publishers[0].send(b"behind it")
        assert result.outcome == Outcome.AFTER_REFUSED


async def test_hazard_55_publishes_before_the_end_of_a_connection_are_stored(broker: TestBroker) -> None:
    async with AsyncExitStack() as stack:
        one = await publisher(stack, broker, "p")
        frames = [one.frame(one.batch(b"x")) for _ in range(10)]
        one.client.write_now(b"".join(frames) + frames[0][:7])
        one.client.close()
        await until(lambda: not broker.node.native.connections)
        await until(lambda: stored(broker) >= 11)
        assert stored(broker) == 11


async def test_hazard_55_frames_before_a_malformed_one_are_answered(broker: TestBroker) -> None:
    async with AsyncExitStack() as stack:
        one = await publisher(stack, broker, "p")
        frames = [one.frame(one.batch(b"x")), one.frame(one.batch(b"y")), b"\xff" * 16, one.frame(one.batch(b"z"))]
        one.client.write_now(b"".join(frames))
        *before, reason = await one.client.read_all()
    assert [answer.number for answer in before] == [102, 103]
    assert document.decode_error(reason.body).code == errors.DecodeError.code
    assert stored(broker) == 3


async def test_hazard_67_a_publish_that_waits_does_not_stop_other_connections(broker: TestBroker) -> None:
    """While the disk does not answer, publishers are not read beyond their bounds, and others are served."""
    async with AsyncExitStack() as stack:
        one = await publisher(stack, broker, "p")
        bystander = await stack.enter_async_context(raw_client(broker.address))
        (connection,) = [each for each in broker.node.native._connections if each.producers]
        payload = bytes(50_000)
        with held_log(broker.node.log) as hold:
            sent = 0
            while not is_stopped(connection):
                one.client.write_now(one.frame(one.batch(payload)))
                sent += 1
                assert sent < 1000
                await asyncio.sleep(0)
            await bystander.write(ping(50, b"still there"))
            assert (await bystander.read()).body == b"still there"
            hold.release()
        await until(lambda: not is_stopped(connection))


async def test_hazard_73_connections_are_not_read_beyond_the_bound_of_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_wire(monkeypatch, is_used=True)
    monkeypatch.setattr(limits, "WIRE_PENDING_BYTES_MAX", 10_000)
    async with icestream.testing.broker("disk") as broker, AsyncExitStack() as stack:
        publishers = [await publisher(stack, broker, f"p{number}") for number in range(4)]
        (wire,) = {id(broker.node.native._wire): broker.node.native._wire}.values()
        assert wire is not None
        with held_log(broker.node.log) as hold:
            for one in publishers:
                one.client.write_now(b"".join(one.frame(one.batch(bytes(5_000))) for _ in range(30)))
            connections = [each for each in broker.node.native._connections if each.producers]
            await until(lambda: all(map(is_stopped, connections)))
            # One burst of each connection may come on top: at the bound each connection finishes what was read.
            assert wire._server.pending_bytes() < 4 * 31 * 5_500
            pending = wire._server.pending_bytes()
            await asyncio.sleep(0.05)
            assert wire._server.pending_bytes() == pending
            hold.release()
        for one in publishers:
            for number in range(102, 132):
                assert (await one.client.published(number))[0].outcome == Outcome.STORED


async def test_a_client_that_is_gone_with_unread_answers_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket is not read because of its answers, and they never leave: the broker hears of the end all the same."""
    use_wire(monkeypatch, is_used=True)
    monkeypatch.setattr(limits, "CONNECTION_ANSWER_BYTES_MAX", 2_000)
    async with icestream.testing.broker() as broker:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(raw_client(broker.address, receive_bytes=2048))
            one = Publisher(client, await client.call("open_producer", topic=TOPIC, producer="p"))
            assert (await one.send(b"first")).outcome == Outcome.STORED
            (connection,) = broker.node.native._connections
            set_send_buffer(connection, 2048)
            while not is_stopped(connection):
                client.write_now(b"".join(one.frame(one.batch(b"x")) for _ in range(50)))
                await asyncio.sleep(0)
            client.reset()
        await until(lambda: not broker.node.native.connections)
        assert not broker.node.native._connections


async def test_a_shard_queue_without_producers_is_dropped_when_its_last_group_is_stored(broker: TestBroker) -> None:
    wire = broker.node.native._wire
    assert wire is not None
    async with AsyncExitStack() as stack:
        one = await publisher(stack, broker, "p")
        with held_log(broker.node.log) as hold:
            while not any(queue.waiting for queue in wire._queues.values()):
                one.client.write_now(one.frame(one.batch(bytes(90_000))))
                await asyncio.sleep(0)
            one.client.reset()
            await asyncio.sleep(0)
            hold.release()
        await until(lambda: not broker.node.native.connections)
        await until(lambda: not wire._queues)
    assert not wire._slots
    assert not wire._queues_by_key


async def test_hazard_73_a_stopping_broker_answers_what_it_has_taken(broker: TestBroker) -> None:
    async with AsyncExitStack() as stack:
        one = await publisher(stack, broker, "p")
        with held_log(broker.node.log) as hold:
            one.client.write_now(one.frame(one.batch(b"taken")))
            await until(lambda: hold.is_waiting)
            closing = asyncio.create_task(broker.node.native.close())
            await asyncio.sleep(0)
            hold.release()
        answer, reason = await one.client.read_all()
        await closing
    assert frame.decode_part_results(answer.body)[0].outcome == Outcome.STORED
    assert document.decode_error(reason.body).code == errors.ShuttingDown.code


# --- the twins --------------------------------------------------------------------------------------------------------


async def conversation(client: RawClient, chance: random.Random) -> list[bytes]:
    """Random frames with handles that exist, most of them valid, and mostly publishes."""
    producer = await client.call("open_producer", topic=TOPIC, producer="p", shards=2)
    consumer = await client.call("subscribe", topic=TOPIC, subscription="s", consumer="c", type="shared")
    handle, identity = producer["handle"], (producer["producer_id"], producer["producer_epoch"])
    frames: list[bytes] = []
    sequences, number = [0, 0], 100

    def part() -> PublishPart:
        shard, rows = chance.randrange(2), chance.randrange(1, 4)
        skip = chance.choice([0] * 12 + [1, -1])
        first = max(0, sequences[shard] + skip)
        sequences[shard] = first + rows
        made = block(*[chance.randbytes(chance.randrange(20))] * rows, numbering=Numbering(*identity, first))
        if chance.random() < 0.03:
            made = made[: chance.randrange(8, len(made))]
        return PublishPart(handle if chance.random() < 0.98 else 77, shard, made)

    for _ in range(chance.randrange(5, 40)):
        number += 1
        match chance.choice(["publish"] * 8 + ["ping", "ack", "credit", "bad"]):
            case "publish":
                frames.append(publish(number, *[part() for _ in range(chance.choice([1, 1, 1, 2, 5]))]))
            case "ping":
                frames.append(ping(number, b"p"))
            case "ack":
                frames.append(ack(consumer["handle"], 0, chance.randrange(1, 3)))
            case "credit":
                frames.append(credit(consumer["handle"], 0))
            case _ if chance.random() < 0.2:
                frames.append(frame.encode_frame(chance.randrange(30), number, chance.randbytes(9)))
    return frames


async def answers(broker: TestBroker, seed: int) -> list[tuple[int, list[tuple[bool, int]] | str]]:
    """What the broker answers to one conversation, cut into random pieces.

    Of each PUBLISHED frame its number and for each part whether it was refused, and its offset. Why it was refused
    depends on time: behind a refusal it is another reason once the refusal is known. Then the reason of the end.
    """
    chance = random.Random(seed)
    async with raw_client(broker.address) as client:
        rest = b"".join(await conversation(client, chance)) + ping(9_999, b"end")
        while rest:
            size = chance.choice([1, 7, 40, 200, 5_000])
            await client.write(rest[:size])
            rest = rest[size:]
            if chance.random() < 0.5:
                await asyncio.sleep(0)
        received = await _until_the_end(client)
    decisions: list[tuple[int, list[tuple[bool, int]] | str]] = []
    for answer in received:
        if answer.kind == FrameKind.PUBLISHED:
            parts = frame.decode_part_results(answer.body)
            refusals = {Outcome.REFUSED, Outcome.AFTER_REFUSED}
            decisions.append((answer.number, [(part.outcome in refusals, part.base_offset) for part in parts]))
        elif answer.kind == FrameKind.ERROR and not answer.number:
            decisions.append((0, str(document.decode_error(answer.body))))
    return decisions


async def _until_the_end(client: RawClient) -> list[Frame]:
    """Everything up to the answer of the last PING and all answers before it, or to the end of the connection."""
    received: list[Frame] = []
    try:
        while not received or received[-1].number != 9_999:
            received.append(await client.read())
        await client.write(call(10_000, "close_producer", handle=1))
        while received[-1].number != 10_000:
            received.append(await client.read())
        while True:
            received.append(await client.read(0.05))
    except (ClosedByBroker, TimeoutError):
        return received


@pytest.mark.parametrize("seed", range(25))
async def test_hazard_55_both_twins_decide_alike(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The same bytes, cut anywhere, have the same answers in the same order, and store the same messages.

    With odd seeds publishes wait for those before them, and other frames overtake them (hazard 67).
    """
    if seed % 2:
        monkeypatch.setattr(limits, "PRODUCER_WINDOW_BATCHES", 2)
        monkeypatch.setattr(limits, "CONNECTION_PARKED_BYTES_MAX", 500)
    seen: list[tuple[object, int]] = []
    for is_used in (False, True):
        use_wire(monkeypatch, is_used=is_used)
        async with icestream.testing.broker() as broker:
            received = await answers(broker, seed)
            seen.append((received, stored(broker)))
    assert seen[0] == seen[1]
