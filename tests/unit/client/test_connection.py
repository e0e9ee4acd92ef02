"""A connection against a server that says anything: nothing is believed that was not asked for, and nothing hangs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import icestream
from icestream import errors, limits
from icestream.model import envelope
from icestream.model.block import encode_block
from icestream.rpc import document, frame, handshake
from icestream.rpc.frame import Delivery, Frame, FrameKind, Outcome, PartResult
from icestream.rpc.stream import FrameStream
from tests.support.until import until

pytestmark = pytest.mark.asyncio
WAIT_SECONDS = 20.0
WELCOME = handshake.Welcome(1, "fake", limits.FRAME_BYTES_MAX_DEFAULT, "", 0)
OPENED = {
    "handle": 1, "producer_id": 1, "producer_epoch": 1, "shards": 1, "last_sequences": [None], "recent": [],
    "max_message_bytes": 0,
}  # fmt: skip
JOINED = {"handle": 2, "generations": [0], "subscription_id": 1, "created_ms": 1, "ack_timeout_ms": 30_000}
RESULTS: dict[str, dict[str, Any]] = {"open_producer": OPENED, "subscribe": JOINED, "list_topics": {"topics": []}}
Script = Callable[[Frame], list[bytes]]


class FakeBroker:
    """A broker that answers each frame with the bytes that its script returns."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.address = ""
        self.requests: list[Frame] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        stream = FrameStream()
        try:
            while data := await reader.read(65536):
                for request in stream.feed(data):
                    self.requests.append(request)
                    writer.writelines(self.script(request))
        except ConnectionError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def fake_broker(script: Script) -> AsyncIterator[FakeBroker]:
    broker = FakeBroker(script)
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield broker
    finally:
        server.close()


def polite(request: Frame) -> list[bytes]:
    """The answers of a broker without topics or messages."""
    match request.kind:
        case FrameKind.HELLO:
            return [frame.encode_frame(FrameKind.WELCOME, request.number, handshake.encode_welcome(WELCOME))]
        case FrameKind.CALL:
            method, _ = document.decode_call(request.body)
            return [frame.encode_frame(FrameKind.RESULT, request.number, document.encode(RESULTS.get(method, {})))]
        case FrameKind.PING:
            return [frame.encode_frame(FrameKind.PONG, request.number, request.body)]
        case FrameKind.PUBLISH:
            done = [PartResult(Outcome.STORED, 0) for _ in frame.decode_parts(request.body)]
            return [frame.encode_frame(FrameKind.PUBLISHED, request.number, frame.encode_part_results(done))]
        case _:
            return []


def with_answer(kind: FrameKind, answer: Callable[[Frame], list[bytes]]) -> Script:
    return lambda request: answer(request) if request.kind == kind else polite(request)


# --- the handshake ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", errors.WrongPort),
        (frame.encode_frame(FrameKind.PONG, 1), errors.DecodeError),
        (frame.encode_frame(FrameKind.WELCOME, 1, b"\xc1"), errors.DecodeError),
        (frame.encode_frame(FrameKind.WELCOME, 1, bytes(limits.HELLO_BYTES_MAX)), errors.DecodeError),
        (
            frame.encode_frame(FrameKind.WELCOME, 1, handshake.encode_welcome(WELCOME._replace(version=9))),
            errors.UnknownVersion,
        ),
        (
            frame.encode_frame(FrameKind.WELCOME, 1, handshake.encode_welcome(WELCOME._replace(compression="zstd"))),
            errors.DecodeError,
        ),
        (
            frame.encode_frame(FrameKind.WELCOME, 1, handshake.encode_welcome(WELCOME._replace(frame_bytes_max=10))),
            errors.InvalidInput,
        ),
        (
            frame.encode_frame(FrameKind.ERROR, 1, document.encode_error(errors.ShuttingDown("not now"))),
            errors.ShuttingDown,
        ),
    ],
    ids=["http", "pong", "garbage", "large", "version", "compression", "bound", "refusal"],
)
async def test_a_reply_that_is_no_welcome_is_raised(reply: bytes, kind: type[errors.IcestreamError]) -> None:
    async with fake_broker(lambda _: [reply]) as broker:
        with pytest.raises(kind):
            await asyncio.wait_for(icestream.connect(broker.address).__aenter__(), WAIT_SECONDS)


async def test_a_silent_server_times_out() -> None:
    async with fake_broker(lambda _: []) as broker:
        with pytest.raises(errors.ConnectionLost, match=r"no answer within 0.05 s.*icestream serve"):
            await icestream.connect(broker.address, connect_timeout=0.05)


# --- afterwards -------------------------------------------------------------------------------------------------------


BODY = encode_block(3, {envelope.PAYLOAD: [b"a", b"b", b"c"]})
DELIVERY = Delivery(2, 0, 0, 0, 10, 0, 0, 3, BODY)


def published(number: int, *done: PartResult) -> bytes:
    return frame.encode_frame(FrameKind.PUBLISHED, number, frame.encode_part_results(done))


def deliver(**changes: Any) -> bytes:
    return frame.encode_frame(FrameKind.DELIVER, 0, frame.encode_delivery(DELIVERY._replace(**changes)))


@pytest.mark.parametrize(
    "reply",
    [
        frame.encode_frame(FrameKind.RESULT, 99, document.encode({})),
        frame.encode_frame(FrameKind.PONG, 99),
        frame.encode_frame(FrameKind.CALL, 1, document.encode_call("x", {})),
        frame.encode_frame(FrameKind.WELCOME, 1, handshake.encode_welcome(WELCOME)),
        published(99, PartResult(Outcome.STORED, 0)),
        deliver(consumer=7),
        deliver(shard=1),
        deliver(rows=4),
        deliver(first_row=2, rows=2),
        deliver(body=b"garbage"),
        deliver(rows=1000, body=encode_block(1000, {envelope.PAYLOAD: [b"x"] * 1000})),
        frame.encode_frame(FrameKind.GAP, 0, frame.encode_gap(frame.GapNotice(2, 0, 0, 99, 1, 2, "why"))),
        frame.encode_frame(FrameKind.EVENT, 2, b"\xc1"),
        frame.encode_frame(FrameKind.RESULT, 1, b"", flags=1),
        b"\xff" * 64,
    ],
    ids=[
        "result", "pong", "call", "welcome", "published", "consumer", "shard", "rows", "first row", "blocks", "credit",
        "gap", "event", "compressed", "garbage",
    ],
)  # fmt: skip
async def test_an_unrequested_reply_ends_the_connection_and_the_client_reconnects(reply: bytes) -> None:
    is_told = False

    def script(request: Frame) -> list[bytes]:
        nonlocal is_told
        if request.kind == FrameKind.CREDIT and not is_told:
            is_told = True
            return [reply]
        return polite(request)

    async with (
        fake_broker(script) as broker,
        icestream.connect(broker.address) as client,
        client.subscribe("/default/t", "s"),
    ):
        await until(lambda: broker.connections == 2 and client.is_connected)
        assert is_told
        assert await client.list_topics() == []


@pytest.mark.parametrize(
    "answer",
    [
        lambda request: [published(request.number + 1, PartResult(Outcome.STORED, 0))],
        lambda request: [published(request.number, PartResult(Outcome.STORED, 0), PartResult(Outcome.STORED, 1))],
        lambda request: [published(request.number, PartResult(Outcome.REFUSED, -1, b"garbage"))],
        lambda request: [frame.encode_frame(FrameKind.PUBLISHED, request.number, b"short")],
    ],
    ids=["number", "parts", "text", "body"],
)
async def test_an_answer_to_a_publish_that_does_not_add_up_is_not_believed(answer: Script) -> None:
    answers = [answer]

    def script(request: Frame) -> list[bytes]:
        return answers.pop()(request) if request.kind == FrameKind.PUBLISH and answers else polite(request)

    async with fake_broker(script) as broker, icestream.connect(broker.address) as client:
        async with client.producer("/default/t") as producer:
            assert (await asyncio.wait_for(producer.send(b"x"), WAIT_SECONDS)).offset == 0
        assert broker.connections == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"handle": 0}, {"handle": "1"}, {"shards": 0}, {"shards": 2}, {"last_sequences": [-1]}, {"last_sequences": 7},
        {"recent": [[1, 2]]}, {"recent": [["x", 1, 1]]}, {"producer_id": None}, {"max_batch_bytes": 0},
    ],
)  # fmt: skip
async def test_an_answer_to_open_producer_that_does_not_add_up_is_raised(changes: dict[str, Any]) -> None:
    def script(request: Frame) -> list[bytes]:
        if request.kind == FrameKind.CALL:
            return [frame.encode_frame(FrameKind.RESULT, request.number, document.encode({**OPENED, **changes}))]
        return polite(request)

    async with fake_broker(script) as broker, icestream.connect(broker.address) as client:
        with pytest.raises(errors.DecodeError):
            await client.producer("/default/t")


@pytest.mark.parametrize(
    "changes", [{"handle": None}, {"generations": []}, {"generations": [-1]}, {"generations": "0"}]
)
async def test_an_answer_to_subscribe_that_does_not_add_up_is_raised(changes: dict[str, Any]) -> None:
    def script(request: Frame) -> list[bytes]:
        if request.kind == FrameKind.CALL:
            return [frame.encode_frame(FrameKind.RESULT, request.number, document.encode({**JOINED, **changes}))]
        return polite(request)

    async with fake_broker(script) as broker, icestream.connect(broker.address) as client:
        with pytest.raises(errors.DecodeError):
            await client.subscribe("/default/t", "s")


async def test_events_that_overtake_the_answer_to_subscribe_are_not_lost() -> None:
    active = frame.encode_frame(FrameKind.EVENT, 2, document.encode({"event": "active"}))
    gap = frame.encode_frame(FrameKind.GAP, 0, frame.encode_gap(frame.GapNotice(2, 0, 0, 1, 5, 9, "why")))

    def script(request: Frame) -> list[bytes]:
        is_subscribe = request.kind == FrameKind.CALL and document.decode_call(request.body)[0] == "subscribe"
        return [active, gap, *polite(request)] if is_subscribe else polite(request)

    async with (
        fake_broker(script) as broker,
        icestream.connect(broker.address) as client,
        client.subscribe("/default/t", "s", type="failover") as messages,
    ):
        assert messages.is_active
        assert [(seen.start, seen.end) for seen in messages.gaps] == [(5, 9)]


async def test_any_number_of_gaps_may_overtake_the_answer_to_subscribe() -> None:
    """Each crash leaves a gap; the notices follow the answer before the client has seen it. The newest are kept."""
    count = limits.CLIENT_GAPS_MAX + 5
    gaps = [
        frame.encode_frame(
            FrameKind.GAP, 0, frame.encode_gap(frame.GapNotice(handle, 0, 0, 1, start, start + 1, "why"))
        )
        for start in range(count)
        for handle in (2, 3)
    ]

    def script(request: Frame) -> list[bytes]:
        is_subscribe = request.kind == FrameKind.CALL and document.decode_call(request.body)[0] == "subscribe"
        return [*polite(request), *gaps] if is_subscribe else polite(request)

    async with (
        fake_broker(script) as broker,
        icestream.connect(broker.address) as client,
        client.subscribe("/default/t", "s") as messages,
    ):
        assert await client.list_topics() == []
        assert messages.gaps[-1].end == count
        assert len(messages.gaps) <= limits.CLIENT_GAPS_MAX
        assert broker.connections == 1


async def test_deliveries_to_a_closed_consumer_are_ignored() -> None:
    def script(request: Frame) -> list[bytes]:
        is_close = request.kind == FrameKind.CALL and document.decode_call(request.body)[0] == "close_consumer"
        return [deliver(), *polite(request)] if is_close else polite(request)

    async with fake_broker(script) as broker, icestream.connect(broker.address) as client:
        async with client.subscribe("/default/t", "s"):
            pass
        assert await client.list_topics() == []
        assert broker.connections == 1


async def test_forged_values_raise_when_they_are_read() -> None:
    at = BODY.index(b"\x01\0\0\0\x02\0\0\0\x03\0\0\0abc")
    forged = BODY[: at + 4] + b"\xff\xff\0\0" + BODY[at + 8 :]
    script = with_answer(FrameKind.CREDIT, lambda _: [deliver(body=forged)])
    async with (
        fake_broker(script) as broker,
        icestream.connect(broker.address) as client,
        client.subscribe("/default/t", "s") as messages,
    ):
        message = await asyncio.wait_for(anext(messages), WAIT_SECONDS)
        with pytest.raises(errors.DecodeError, match="payload"):
            assert message.payload


@pytest.mark.parametrize("seed", range(20))
async def test_a_server_that_sends_changed_bytes_never_breaks_the_client(seed: int) -> None:
    """Good answers with a few bits turned: each one is believed, refused or ends the connection, and nothing hangs."""
    chance = random.Random(seed)

    def script(request: Frame) -> list[bytes]:
        replies = polite(request)
        if request.kind == FrameKind.CREDIT:
            replies = [deliver()]
        if request.kind == FrameKind.HELLO or chance.random() < 0.5:
            return replies
        changed = bytearray(b"".join(replies))
        for _ in range(chance.randrange(1, 4)):
            if changed:
                changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        return [bytes(changed)]

    async with fake_broker(script) as broker:
        client = icestream.connect(broker.address, call_timeout=0.05, send_timeout=0.2)
        async with client, asyncio.timeout(WAIT_SECONDS):
            for _ in range(10):
                try:
                    async with client.producer("/default/t") as producer:
                        await producer.send(b"x")
                    async with client.subscribe("/default/t", "s") as messages, asyncio.timeout(0.05):
                        assert isinstance((await anext(messages)).payload, bytes)
                except (errors.IcestreamError, TimeoutError):
                    continue
        assert broker.requests
