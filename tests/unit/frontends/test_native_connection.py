"""The front end of the native protocol against a client that speaks bytes: its rules, one by one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import icestream
from icestream import errors, limits
from icestream.frontends.native.native_connection import NativeConnection
from icestream.frontends.native.outbox import Outbox
from icestream.model import envelope
from icestream.model.block import Numbering, encode_block, iter_blocks
from icestream.model.topic_name import TopicName
from icestream.observability.health import connections_check
from icestream.rpc import document, frame
from icestream.rpc.body_compression import Compression
from icestream.rpc.frame import CUMULATIVE, SIZE_MIN, Frame, FrameKind, Outcome, PublishPart
from icestream.rpc.handshake import Hello, decode_welcome
from icestream.testing import TestBroker
from tests.support.native_sockets import set_send_buffer, unsent_bytes
from tests.support.raw_client import RawClient, ack, block, call, credit, ping, publish, raw_client
from tests.support.until import until

pytestmark = pytest.mark.asyncio
TOPIC = "/default/orders"
SMALL = limits.SOCKET_WRITE_BYTES_MIN


@pytest_asyncio.fixture
async def broker(native_wire: str) -> AsyncIterator[TestBroker]:
    async with icestream.testing.broker() as running:
        yield running


@pytest_asyncio.fixture
async def client(broker: TestBroker) -> AsyncIterator[RawClient]:
    async with raw_client(broker.address) as connected:
        yield connected


def stored(broker: TestBroker, topic: str = TOPIC) -> int:
    return broker.node.broker.topics.get(TopicName.parse(topic)).published_messages


def connection_of(broker: TestBroker) -> NativeConnection:
    (only,) = broker.node.native._connections
    return only


def with_small_buffers(connection: NativeConnection) -> NativeConnection:
    """Little of what the client does not read waits in the kernel, and in the broker no more than it must."""
    connection.set_share(SMALL)
    set_send_buffer(connection, 4096)
    return connection


def error_of(error_frame: Frame) -> errors.IcestreamError:
    assert error_frame.kind == FrameKind.ERROR
    return document.decode_error(error_frame.body)


async def opened(client: RawClient, producer: str = "p", topic: str = TOPIC) -> tuple[int, int]:
    """Handle and id."""
    reply = await client.call("open_producer", topic=topic, producer=producer)
    return reply["handle"], reply["producer_id"]


async def goodbye(client: RawClient) -> tuple[list[Frame], errors.IcestreamError]:
    """The frames before the goodbye, and its error."""
    *before, last = await client.read_all()
    assert last.number == 0
    return before, error_of(last)


# --- the handshake ----------------------------------------------------------------------------------------------------


def hello(**fields: object) -> bytes:
    return frame.encode_frame(FrameKind.HELLO, 1, frame.MAGIC + document.encode(dict(fields)))


@pytest.mark.parametrize(
    ("hello_frame", "version", "compression"),
    [
        (hello(version=1), 1, ""),
        (hello(version=9, version_min=1, client="from the future", news={"a": 1}), 1, ""),
        (hello(version=1, compression=["lz77", "zstd"]), 1, "zstd"),
        (hello(version=1, compression=["lz77"]), 1, ""),
    ],
    ids=["least", "later", "compression", "unknown compression"],
)
async def test_a_hello_is_answered_with_the_terms(
    broker: TestBroker, hello_frame: bytes, version: int, compression: str
) -> None:
    async with raw_client(broker.address, hello=None) as client:
        await client.write(hello_frame, ping(2))
        welcome = decode_welcome((await client.read()).body)
        assert (welcome.version, welcome.compression) == (version, compression)
        assert welcome.frame_bytes_max == limits.FRAME_BYTES_MAX_DEFAULT
        assert (await client.read()).kind == FrameKind.PONG, "a client may send frames before it has read the welcome"


@pytest.mark.parametrize(
    ("hello_frame", "kind"),
    [
        (hello(version=9, version_min=2), errors.UnknownVersion),
        (hello(version=9), errors.UnknownVersion),
        (hello(version=1, frame_bytes_max=1000), errors.InvalidInput),
        (hello(version="1"), errors.DecodeError),
        (hello(version=1, client="x" * 300), errors.DecodeError),
        (hello(version=1, pad=bytes(limits.HELLO_BYTES_MAX)), errors.DecodeError),
        (frame.encode_frame(FrameKind.HELLO, 1, b"ICESTRM2" + document.encode({"version": 1})), errors.DecodeError),
        (ping(1), errors.DecodeError),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", errors.DecodeError),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), errors.DecodeError),
    ],
    ids=["later", "only later", "bound", "type", "name", "size", "magic", "kind", "http", "tls"],
)
async def test_an_invalid_hello_is_refused_with_a_reason(
    broker: TestBroker, hello_frame: bytes, kind: type[errors.IcestreamError]
) -> None:
    async with raw_client(broker.address, hello=None) as client:
        await client.write(hello_frame)
        before, reason = await goodbye(client)
    assert before == []
    assert isinstance(reason, kind)
    assert reason.hint or kind is errors.DecodeError


async def test_a_second_hello_is_refused(client: RawClient) -> None:
    await client.write(hello(version=1))
    assert isinstance((await goodbye(client))[1], errors.DecodeError)


# --- publishing -------------------------------------------------------------------------------------------------------


async def test_one_answer_for_each_frame_in_order_with_the_offsets_of_each_part(
    client: RawClient, broker: TestBroker
) -> None:
    first, _ = await opened(client, "one")
    two, _ = await opened(client, "two", "/default/other")
    frames = [
        publish(10, PublishPart(first, 0, block(b"a", b"b")), PublishPart(two, 0, block(b"x"))),
        publish(11, PublishPart(first, 0, block(b"c")), PublishPart(first, 0, block(b"d", b"e"))),
        publish(12, PublishPart(two, 0, block(b"y"))),
    ]
    await client.write(*frames)
    answers = [[done.base_offset for done in await client.published(number)] for number in (10, 11, 12)]
    assert answers == [[0, 0], [2, 3], [1]]
    assert stored(broker) == 5


@pytest.mark.parametrize("handle", [0, 99, 2**32 - 1])
async def test_an_unknown_handle_in_a_later_part_stores_nothing_of_the_frame(
    client: RawClient, broker: TestBroker, handle: int
) -> None:
    mine, _ = await opened(client)
    await client.write(
        publish(10, PublishPart(mine, 0, block(b"before"))),
        publish(11, PublishPart(mine, 0, block(b"half")), PublishPart(handle, 0, block(b"done"))),
        publish(12, PublishPart(mine, 0, block(b"behind"))),
    )
    before, reason = await goodbye(client)
    assert isinstance(reason, errors.UnknownHandle)
    assert [(answer.kind, answer.number) for answer in before] == [(FrameKind.PUBLISHED, 10)]
    assert stored(broker) == 1


async def test_handles_of_consumers_and_producers_are_distinguished(client: RawClient, broker: TestBroker) -> None:
    mine, _ = await opened(client)
    theirs = (await client.call("subscribe", topic=TOPIC, subscription="s", consumer="c"))["handle"]
    await client.write(publish(10, PublishPart(theirs, 0, block(b"x"))))
    assert isinstance((await goodbye(client))[1], errors.UnknownHandle)
    async with raw_client(broker.address) as other:
        mine, _ = await opened(other)
        await other.write(ack(mine, 0, 1))
        assert isinstance((await goodbye(other))[1], errors.UnknownHandle)


async def test_a_publish_to_a_closed_producer_is_refused_and_its_neighbours_are_stored(
    client: RawClient, broker: TestBroker
) -> None:
    """The frame may have been in flight when the producer was closed: the connection stays open."""
    first, _ = await opened(client, "one")
    two, _ = await opened(client, "two")
    await client.call("close_producer", handle=first)
    await client.write(
        publish(
            10, PublishPart(two, 0, block(b"a")), PublishPart(first, 0, block(b"b")), PublishPart(two, 0, block(b"c"))
        )
    )
    done = await client.published(10)
    assert [answer.outcome for answer in done] == [Outcome.STORED, Outcome.REFUSED, Outcome.STORED]
    assert isinstance(document.decode_error(done[1].text), errors.UnknownHandle)
    assert stored(broker) == 2


@pytest.mark.parametrize("numbers", [(10, 10), (10, 9), (0,)], ids=["same", "falling", "zero"])
async def test_numbers_of_publish_frames_rise(client: RawClient, broker: TestBroker, numbers: tuple[int, ...]) -> None:
    mine, _ = await opened(client)
    await client.write(*(publish(number, PublishPart(mine, 0, block(b"x"))) for number in numbers))
    before, reason = await goodbye(client)
    assert [answer.number for answer in before] == list(numbers[:-1])
    assert isinstance(reason, errors.InvalidInput)
    assert "ascending order" in str(reason)
    assert stored(broker) == len(numbers) - 1


@pytest.mark.parametrize("question", [call(0, "list_topics"), ping(0)], ids=["call", "ping"])
async def test_a_question_without_a_number_is_refused(client: RawClient, question: bytes) -> None:
    """An answer without a number would be taken for the final error of the connection."""
    await client.write(question)
    _, reason = await goodbye(client)
    assert isinstance(reason, errors.InvalidInput)


async def test_all_batches_beyond_the_window_in_one_read_are_answered(client: RawClient, broker: TestBroker) -> None:
    mine, number = await opened(client)
    count = 3 * limits.PRODUCER_WINDOW_BATCHES
    parts = [PublishPart(mine, 0, block(b"x", numbering=Numbering(number, 1, row))) for row in range(count)]
    await client.write(*(publish(10 + row, part) for row, part in enumerate(parts[: count // 2])))
    await client.write(publish(1000, *parts[count // 2 :]))
    offsets = [done.base_offset for row in range(count // 2) for done in await client.published(10 + row)]
    offsets += [done.base_offset for done in await client.published(1000)]
    assert offsets == list(range(count))
    assert stored(broker) == count


async def test_bytes_after_a_waiting_publish_do_not_lose_its_reply(client: RawClient, broker: TestBroker) -> None:
    mine, number = await opened(client)
    count = 2 * limits.PRODUCER_WINDOW_BATCHES
    frames = [
        publish(10 + row, PublishPart(mine, 0, block(b"x", numbering=Numbering(number, 1, row))))
        for row in range(count)
    ]
    await client.write(*frames, b"\xff" * 16)
    before, reason = await goodbye(client)
    assert [answer.number for answer in before] == [10 + row for row in range(count)]
    assert isinstance(reason, errors.DecodeError)
    assert stored(broker) == count


# --- calls and pings --------------------------------------------------------------------------------------------------


async def test_all_calls_beyond_the_bound_are_answered(client: RawClient) -> None:
    count = 5 * limits.CALLS_IN_FLIGHT_MAX
    await client.write(*(call(number, "list_topics") for number in range(100, 100 + count)), ping(999))
    answers = [await client.read() for _ in range(count + 1)]
    assert sorted(answer.number for answer in answers) == [*range(100, 100 + count), 999]
    assert {answer.kind for answer in answers} == {FrameKind.RESULT, FrameKind.PONG}


async def test_concurrent_calls_are_bounded(
    client: RawClient, broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go, under_way, most = asyncio.Event(), 0, 0

    async def slow(*_: object) -> dict[str, object]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await may_go.wait()
        under_way -= 1
        return {}

    monkeypatch.setitem(connection_of(broker)._call_table.calls, "slow", slow)  # type: ignore[arg-type]
    await client.write(*(call(number, "slow") for number in range(100, 300)))
    await until(lambda: under_way == limits.CALLS_IN_FLIGHT_MAX)
    may_go.set()
    assert sorted([(await client.read()).number for _ in range(200)]) == list(range(100, 300))
    assert most == limits.CALLS_IN_FLIGHT_MAX


async def test_a_ping_is_answered_in_order_with_its_body(client: RawClient, broker: TestBroker) -> None:
    mine, _ = await opened(client)
    await client.write(publish(10, *(PublishPart(mine, 0, block(b"x")) for _ in range(3))), ping(11, b"abc"))
    answers = {answer.number: answer for answer in [await client.read(), await client.read()]}
    assert (answers[11].kind, answers[11].body) == (FrameKind.PONG, b"abc")
    assert stored(broker) == 3


async def test_a_ping_is_bounded(client: RawClient) -> None:
    await client.write(ping(10, bytes(limits.PING_BYTES_MAX)), ping(11, bytes(limits.PING_BYTES_MAX + 1)))
    before, reason = await goodbye(client)
    assert [(answer.kind, answer.number) for answer in before] == [(FrameKind.PONG, 10)]
    assert isinstance(reason, errors.DecodeError)


async def test_calls_in_front_of_a_bad_frame_are_answered(client: RawClient) -> None:
    await client.write(call(10, "create_topic", topic=TOPIC), b"\xff" * 16)
    before, reason = await goodbye(client)
    assert [(answer.kind, answer.number) for answer in before] == [(FrameKind.RESULT, 10)]
    assert isinstance(reason, errors.DecodeError)


# --- what a client does not read --------------------------------------------------------------------------------------


async def test_hazard_35_unread_replies_stop_reading(broker: TestBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTION_ANSWER_BYTES_MAX", SMALL)
    async with raw_client(broker.address, receive_bytes=4096) as client:
        connection = with_small_buffers(connection_of(broker))
        pings, sent = b"".join(ping(number, bytes(64)) for number in range(10, 5010)), 0
        while not connection._is_waiting:
            sent += client.write_now(pings[sent % len(pings) :])
            await asyncio.sleep(0)
        await until(lambda: not client.write_now(pings))  # the kernel's buffers are full, too
        assert unsent_bytes(connection) < 3 * SMALL + limits.SOCKET_READ_BYTES
        for _ in range(sent // len(ping(1, bytes(64)))):
            assert (await client.read()).kind == FrameKind.PONG


async def test_a_client_that_does_not_read_the_last_frame_is_disconnected(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLOSE_SECONDS_MAX", 0.05)
    monkeypatch.setattr(limits, "CONNECTION_ANSWER_BYTES_MAX", limits.GIB)
    async with raw_client(broker.address, receive_bytes=4096) as client:
        connection = with_small_buffers(connection_of(broker))
        while connection.out.can_write.is_set():
            await client.write(*[ping(10, bytes(64))] * 50)
            await asyncio.sleep(0)
        await client.write(b"\xff" * 16)
        await until(lambda: not broker.node.native.connections)
        assert connection.lost.is_set()


async def test_the_last_frames_arrive_although_the_client_keeps_sending(broker: TestBroker) -> None:
    """A socket that is closed with something unread would take back what the client has not read yet."""
    async with raw_client(broker.address, receive_bytes=4096) as client:
        connection = connection_of(broker)
        await client.write(*[ping(10, bytes(64))] * 3000, b"\xff" * 16)
        await until(lambda: connection._is_closing)
        await client.write(bytes(300_000))
        before, reason = await goodbye(client)
    assert isinstance(reason, errors.DecodeError)
    assert [answer.kind for answer in before] == [FrameKind.PONG] * 3000


async def test_a_client_that_does_not_close_is_disconnected(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLOSE_SECONDS_MAX", 0.05)
    async with raw_client(broker.address) as client:
        await client.write(b"\xff" * 16)
        assert error_of(await client.read()).code == "decode"
        await until(lambda: not broker.node.native.connections)


# --- what ends a connection -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad_frame", "kind"),
    [
        (credit(99, 1), errors.UnknownHandle),
        (ack(99, 0, 1), errors.UnknownHandle),
        (frame.encode_frame(FrameKind.PUBLISHED, 1), errors.DecodeError),
        (frame.encode_frame(FrameKind.PUBLISH, 9, b"short"), errors.DecodeError),
        (frame.encode_frame(FrameKind.CALL, 9, b"\xc1"), errors.DecodeError),
        (frame.encode_frame(FrameKind.CREDIT, 9, b"\0" * 8, flags=1), errors.DecodeError),
        (b"GET / HTTP/1.1\r\n\r\n", errors.DecodeError),
    ],
    ids=["credit", "ack", "kind", "parts", "document", "compressed", "http"],
)
async def test_a_protocol_error_ends_the_connection_with_the_reason(
    client: RawClient, broker: TestBroker, bad_frame: bytes, kind: type[errors.IcestreamError]
) -> None:
    mine, _ = await opened(client)
    await client.write(
        publish(5, PublishPart(mine, 0, block(b"x"))), bad_frame, publish(10, PublishPart(mine, 0, block(b"y")))
    )
    before, reason = await goodbye(client)
    assert [answer.number for answer in before] == [5]
    assert isinstance(reason, kind)
    await until(lambda: not broker.node.native.connections)
    assert stored(broker) == 1


async def test_frames_for_a_consumer_that_was_closed_are_passed_over(client: RawClient) -> None:
    await client.call("create_topic", topic=TOPIC)
    handle = (await client.call("subscribe", topic=TOPIC, subscription="s", consumer="c"))["handle"]
    await client.call("close_consumer", handle=handle)
    await client.write(credit(handle, 5), ack(handle, 0, 1), ping(50))
    assert (await client.read()).number == 50


async def test_a_cumulative_ack_on_a_shared_subscription_ends_the_connection(client: RawClient) -> None:
    await client.call("create_topic", topic=TOPIC)
    subscription = await client.call("subscribe", topic=TOPIC, subscription="s", consumer="c", type="shared")
    await client.write(ack(subscription["handle"], 0, 1, CUMULATIVE))
    assert isinstance((await goodbye(client))[1], errors.InvalidInput)


async def test_a_silent_client_is_disconnected(broker: TestBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HELLO_SECONDS_MAX", 0.02)
    async with raw_client(broker.address, hello=None) as client:
        _, reason = await goodbye(client)
    assert "HELLO" in str(reason)


def with_places(broker: TestBroker, places: int) -> None:
    broker.node.native._connections.room._capacity = places


async def test_while_all_connections_are_busy_another_one_is_refused_with_a_reason(broker: TestBroker) -> None:
    with_places(broker, 1)
    async with raw_client(broker.address) as first:
        await opened(first)
        async with raw_client(broker.address, hello=None) as second:
            _, reason = await goodbye(second)
        assert isinstance(reason, errors.Refused)
        assert (await first.call("open_producer", topic=TOPIC, producer="q"))["handle"], "the first one stays"
        check = connections_check(broker.node.services.rooms())
        assert (check.ok, check.is_needed) == (False, True)
        assert check.reason == "native: all 1 are busy, new ones are refused (1 so far)"


async def test_silent_connections_are_closed_for_new_ones(broker: TestBroker) -> None:
    with_places(broker, 3)
    async with contextlib.AsyncExitStack() as stack:
        busy = await stack.enter_async_context(raw_client(broker.address))
        await opened(busy)
        silent = [await stack.enter_async_context(raw_client(broker.address, hello=None)) for _ in range(6)]
        for index in range(4):
            client = await stack.enter_async_context(raw_client(broker.address))
            await opened(client, f"p{index}")
            await client.call("close_producer", handle=1)  # so that it is idle
        assert all([await connection.read_all() == [] for connection in silent])
        assert (await busy.call("open_producer", topic=TOPIC, producer="q"))["handle"]
        assert broker.node.native.room.refused == 0


async def test_an_idle_connection_is_closed_with_the_reason(broker: TestBroker) -> None:
    with_places(broker, 2)
    async with raw_client(broker.address) as busy, raw_client(broker.address) as idle:
        await opened(busy)
        async with raw_client(broker.address) as newest:
            assert isinstance((await goodbye(idle))[1], errors.Refused)
            await opened(newest, "q")


# --- consuming --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [(), ("zstd",)], ids=["plain", "compressed"])
async def test_a_delivery_never_exceeds_the_frame_size_of_the_client(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch, compression: tuple[str, ...]
) -> None:
    """Blocks larger than the client's frames are split; a single larger message ends the consumer with an error."""
    monkeypatch.setattr(limits, "FRAME_BYTES_MIN", 100_000)
    async with (
        raw_client(broker.address) as other,
        raw_client(broker.address, Hello(frame_bytes_max=100_000, compression=compression)) as client,
    ):
        mine, _ = await opened(other)
        await other.write(
            publish(10, PublishPart(mine, 0, block(*[bytes(45_000)] * 5)), PublishPart(mine, 0, block(bytes(100_000))))
        )
        await other.published(10)
        subscription = await client.call("subscribe", topic=TOPIC, subscription="s", consumer="c", start="earliest")
        await client.write(credit(subscription["handle"], 100))
        offsets: list[int] = []
        while (reply := await client.read()).kind == FrameKind.DELIVER:
            body = Compression().decompress(reply.body, 100_000) if reply.flags else reply.body
            assert bool(reply.flags) == bool(compression)
            assert len(body) + SIZE_MIN <= 100_000
            delivery = frame.decode_delivery(body)
            offsets += range(delivery.base_offset + delivery.first_row, delivery.base_offset + delivery.rows)
        assert offsets == [0, 1, 2, 3, 4]
        assert reply.kind == FrameKind.EVENT
        assert "offset 5" in document.decode(reply.body)["reason"]
        assert (await client.call("list_topics"))["topics"] == [TOPIC]


@pytest.mark.parametrize("takes_picks", [True, False])
async def test_picks_are_sent_only_to_clients_that_support_them(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch, takes_picks: bool
) -> None:
    monkeypatch.setattr(limits, "FRAME_BYTES_MIN", 100_000)
    keys = [b"%d" % (number // 2) for number in range(10)]
    async with (
        raw_client(broker.address) as other,
        raw_client(broker.address, Hello(frame_bytes_max=100_000)) as client,
    ):
        mine, _ = await opened(other)
        payloads = [bytes([number]) * 30_000 for number in range(10)]
        body = encode_block(10, {envelope.PAYLOAD: payloads, envelope.KEY: keys})
        options = {"picks": True} if takes_picks else {}
        subscription = await client.call(
            "subscribe", topic=TOPIC, subscription="s", consumer="c", start="earliest", type="key-shared", **options
        )
        await client.write(credit(subscription["handle"], 100))
        await other.write(publish(10, PublishPart(mine, 0, body)))
        offsets: list[int] = []
        kinds: list[int] = []
        while len(offsets) < 5:
            reply = await client.read()
            assert len(reply.body) + SIZE_MIN <= 100_000
            kinds.append(reply.kind)
            if reply.kind == FrameKind.PICK:
                picked = frame.decode_pick(reply.body)
                assert picked.ranges is not None
                offsets += [start for start, _ in picked.ranges]
                assert [value for block_ in iter_blocks(picked.body) for value in block_.values(envelope.PAYLOAD)] == [
                    payloads[start] for start, _ in picked.ranges
                ]
            else:
                delivery = frame.decode_delivery(reply.body)
                offsets.append(delivery.base_offset + delivery.first_row)
        assert offsets == [0, 2, 4, 6, 8]
        assert (FrameKind.PICK in kinds) == takes_picks


async def test_a_message_is_encoded_once_for_all_its_subscribers(
    broker: TestBroker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies: list[bytes] = []
    send = Outbox.send

    def record(outbox: Outbox, head: bytes, body: bytes = b"") -> None:
        if b"to all of them" in body:
            bodies.append(body)
        send(outbox, head, body)

    monkeypatch.setattr(Outbox, "send", record)
    handle, _ = await opened(client)
    async with contextlib.AsyncExitStack() as connections:
        subscribers = [await connections.enter_async_context(raw_client(broker.address)) for _ in range(3)]
        for number, subscriber in enumerate(subscribers):
            reply = await subscriber.call("subscribe", topic=TOPIC, subscription=f"s{number}", consumer="c")
            await subscriber.write(credit(reply["handle"], 10))
        await client.write(publish(10, PublishPart(handle, 0, block(b"to all of them"))))
        for subscriber in subscribers:
            delivery = await subscriber.read()
            assert (delivery.kind, b"to all of them" in delivery.body) == (FrameKind.DELIVER, True)
    assert (len(bodies), len({id(body) for body in bodies})) == (3, 1)


async def test_deliveries_never_exceed_the_credit(client: RawClient, broker: TestBroker) -> None:
    mine, _ = await opened(client)
    subscription = await client.call("subscribe", topic=TOPIC, subscription="s", consumer="c")
    await client.write(
        publish(10, PublishPart(mine, 0, block(*[b"x"] * 10))), credit(subscription["handle"], 3), ping(11)
    )
    frames = [await client.read() for _ in range(3)]
    await client.write(ping(12))
    while frames[-1].number != 12:
        frames.append(await client.read())
    rows = [frame.decode_delivery(reply.body).rows for reply in frames if reply.kind == FrameKind.DELIVER]
    assert sum(rows) == 3


async def test_a_stopping_broker_answers_accepted_requests_and_sends_shutting_down(broker: TestBroker) -> None:
    async with raw_client(broker.address) as client:
        mine, _ = await opened(client)
        await client.write(*(publish(number, PublishPart(mine, 0, block(b"x"))) for number in range(10, 40)))
        await until(lambda: stored(broker) == 30)
        stopping = asyncio.create_task(broker.stop())
        before, reason = await goodbye(client)
        await stopping
    assert [answer.number for answer in before] == list(range(10, 40))
    assert isinstance(reason, errors.ShuttingDown)
