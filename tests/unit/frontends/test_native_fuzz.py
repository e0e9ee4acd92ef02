"""Anything that a client may say: it is carried out, answered with an error of ours, or ends the connection with one.

Never a mistake of the broker (`internal`, a task or callback that failed), never silence, no effect on other clients.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import icestream
from icestream import errors
from icestream.frontends.native.frame_wire import has_frame_wire
from icestream.model.block import Numbering
from icestream.model.topic_name import TopicName
from icestream.rpc import document, frame
from icestream.rpc.body_compression import Compression
from icestream.rpc.frame import COMPRESSED, AckRanges, Frame, FrameKind, Outcome, PublishPart
from icestream.rpc.handshake import Hello
from icestream.testing import TestBroker
from tests.support.native_sockets import incomplete_bytes
from tests.support.native_wires import use_wire
from tests.support.raw_client import ClosedByBroker, RawClient, ack, block, call, credit, ping, publish, raw_client

pytestmark = pytest.mark.asyncio
TOPIC = "/default/orders"
REFUSALS = {Outcome.REFUSED, Outcome.AFTER_REFUSED}
LAST = 2**40  # the number of the PING behind everything
OURS = set(errors.BY_CODE) - {errors.IcestreamError.code}
EDGES = [0, 1, 2, 3, 7, 8, 12, 2**15, 2**16 - 1, 2**20, 2**31 - 1, 2**31, 2**32 - 1]
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 255, 256, 2**31, 2**32, 2**53, 2**63 - 1, -(2**63), 2**64 - 1, 0.0, -0.5, 1e308,
    float("nan"), float("inf"), "", "a", TOPIC, "/default/other", "/default/orders-part-0", "//", "/", "/a/b/c", "s",
    "p", "exclusive", "shared", "failover", "key-shared", "earliest", "latest", "offset", "time", "\0", "é" * 300,
    "x" * 5000, b"", b"\xff" * 9, [], [None], ["*"], ["["] * 70, [[]], {}, {"": None}, {"max_message_bytes": -1},
    {"max_producers": 2**70 % 2**63}, {"poison": "dead-letter"}, {"ack_timeout_ms": 0}, {"backoff": "fixed"},
]  # fmt: skip
KEYS = [
    "topic", "subscription", "consumer", "producer", "type", "start", "start_value", "shard", "shards", "handle",
    "create", "instance", "resumes", "key_patterns", "failure", "policies", "dispatch", "after", "limit", "namespace",
    "key", "value", "prefix", "envelope", "max_dispatch_rate", "file",
]  # fmt: skip


@pytest_asyncio.fixture
async def failures() -> list[dict[str, Any]]:
    """Errors in the event loop that no task received."""
    contexts: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: contexts.append(context))
    return contexts


@pytest_asyncio.fixture
async def broker(failures: list[dict[str, Any]], native_wire: str) -> AsyncIterator[TestBroker]:
    """A broker; any error inside it fails the test."""
    async with icestream.testing.broker() as running:
        yield running
    assert failures == []


async def conversation(client: RawClient) -> list[bytes]:
    """The frames of a correct client, with existing handles."""
    producer = await client.call("open_producer", topic=TOPIC, producer="p", shards=2)
    consumer = await client.call("subscribe", topic=TOPIC, subscription="s", consumer="c", type="shared")
    handle, number = producer["handle"], Numbering(producer["producer_id"], producer["producer_epoch"], 0)
    ranges = AckRanges(consumer["handle"], 0, 0, 20, [(0, 1), (2, 3)])
    packed = Compression().compress(document.encode_call("describe_topic", {"topic": TOPIC, "pad": "x" * 2000}))[1]
    return [
        credit(consumer["handle"], 10),
        publish(
            10, PublishPart(handle, 0, block(b"one", b"two", numbering=number)), PublishPart(handle, 1, block(b"three"))
        ),
        publish(11, PublishPart(handle, 1, block(b"four"))),
        ack(consumer["handle"], 0, 2),
        frame.encode_frame(FrameKind.NACK, 0, frame.encode_ranges(ranges)),
        ping(12, b"hello"),
        call(13, "seek", topic=TOPIC, subscription="s", start="earliest"),
        call(14, "reset_producer", handle=handle, shard=1),
        frame.encode_frame(FrameKind.CALL, 15, packed, COMPRESSED),
        call(16, "close_consumer", handle=consumer["handle"]),
        publish(17, PublishPart(handle, 0, block(b"five"))),
        call(18, "close_producer", handle=handle),
    ]


def spoilt(frames: list[bytes], chance: random.Random) -> bytes:
    """The same frames with a few random faults."""
    frames = list(frames)
    for _ in range(chance.randrange(1, 4)):
        at, other = chance.randrange(len(frames)), chance.randrange(len(frames))
        damaged = bytearray(frames[at])
        match chance.randrange(7):
            case 0:
                damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
            case 1:
                where = chance.randrange(len(damaged))
                damaged[where : where + 4] = chance.choice(EDGES).to_bytes(4, "little")
            case 2:
                damaged[4] = chance.choice([kind.value for kind in FrameKind])
            case 3:
                body = bytes(damaged[16 : 16 + chance.randrange(len(damaged))])
                damaged = bytearray(frame.encode_frame(damaged[4], int.from_bytes(damaged[8:16], "little"), body))
            case 4:
                damaged += frames[other]
            case 5:
                frames[at], frames[other] = frames[other], frames[at]
                continue
            case 6:
                damaged = bytearray(
                    frame.encode_frame(damaged[4], at + 1, chance.randbytes(chance.randrange(80)), damaged[5] & 1)
                )
        frames[at] = bytes(damaged)
    return b"".join(frames)


async def read_answers(client: RawClient, broker: TestBroker) -> list[Frame]:
    """Everything up to the answer of the last PING, or to the end of the connection.

    Or until the broker waits for the rest of a frame that claims to be longer than what came.
    """
    frames: list[Frame] = []
    (connection,) = [candidate for candidate in broker.node.native._connections if candidate.peer == client.name] or [
        None
    ]
    unread = 0  # bytes that the broker had not parsed when nothing came
    while not frames or frames[-1].number != LAST:
        try:
            frames.append(await client.read(0.05))
            unread = 0
        except TimeoutError:
            # On a busy machine the time passes without turns of the loop, in which the broker runs too.
            for _ in range(50):
                await asyncio.sleep(0)
            before, unread = unread, 0 if connection is None else incomplete_bytes(connection)
            if connection is not None and unread and unread == before and not connection._is_closing:
                break
        except ClosedByBroker:
            assert frames, "it was closed without a word"
            assert (frames[-1].kind, frames[-1].number) == (FrameKind.ERROR, 0)
            break
    return frames


def code_of(reply: Frame) -> str:
    body = Compression().decompress(reply.body, 2**20) if reply.flags else reply.body
    return document.decode_error(body).code


@pytest.mark.parametrize("seed", range(6))
async def test_spoilt_conversations_are_answered_or_ended_with_a_reason(broker: TestBroker, seed: int) -> None:
    chance = random.Random(seed)
    async with raw_client(broker.address) as witness:
        for _ in range(40):
            hello = Hello(compression=("zstd",) if chance.random() < 0.7 else ())
            async with raw_client(broker.address, hello) as client:
                spoilt_frames = spoilt(await conversation(client), chance)
                await client.write(spoilt_frames, ping(LAST))
                for reply in await read_answers(client, broker):
                    assert reply.kind != FrameKind.ERROR or code_of(reply) in OURS
            assert (await witness.call("describe_topic", topic=TOPIC))["shards"] == 2


async def decisions(broker: TestBroker, seed: int) -> list[object]:
    """What becomes of some spoilt conversations: the answers to publishes and PINGs, the end, and what is stored.

    Of a publish whether each part was refused, and its offset: why depends on time (behind a refusal it is another
    reason once the refusal is known). Of calls only that they are answered: they run beside each other.
    """
    chance, seen = random.Random(seed), []
    for _ in range(12):
        async with raw_client(broker.address) as client:
            pieces = spoilt(await conversation(client), chance) + ping(LAST)
            while pieces:
                size = chance.choice([1, 20, 300, 5_000])
                client.write_now(pieces[:size])
                pieces = pieces[size:]
                if chance.random() < 0.3:
                    await asyncio.sleep(0)
            published, pongs, ending = list[object](), list[tuple[int, bytes]](), ""
            for reply in await read_answers(client, broker):
                if reply.kind == FrameKind.PUBLISHED:
                    parts = frame.decode_part_results(reply.body)
                    published.append((reply.number, [(part.outcome in REFUSALS, part.base_offset) for part in parts]))
                elif reply.kind == FrameKind.PONG:
                    pongs.append((reply.number, reply.body))
                elif reply.kind == FrameKind.ERROR and not reply.number:
                    ending = str(document.decode_error(reply.body))
            seen.append((published, pongs, ending))
    stored = broker.node.broker.topics.get(TopicName.parse(TOPIC)).published_messages
    return [*seen, stored]


@pytest.mark.skipif(not has_frame_wire(), reason="the native part is not built")
@pytest.mark.parametrize("seed", range(8))
async def test_hazard_55_both_twins_decide_alike_about_spoilt_bytes(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    seen = []
    for is_used in (False, True):
        use_wire(monkeypatch, is_used=is_used)
        async with icestream.testing.broker() as broker:
            seen.append(await decisions(broker, seed))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("seed", range(4))
async def test_calls_with_any_arguments_are_answered(broker: TestBroker, seed: int) -> None:
    chance = random.Random(seed)
    methods = list(broker.node.native._call_table.calls)
    async with raw_client(broker.address) as client:
        await check_calls(client, methods, chance)


async def test_calls_of_the_local_socket_with_any_arguments_are_answered(failures: list[dict[str, Any]]) -> None:
    async with icestream.testing.broker("disk") as broker:
        local = broker.node.services.local
        assert local is not None
        async with raw_client(f"unix://{broker.node.settings.local_socket}") as client:
            await client.call("create_topic", topic=TOPIC)
            await check_calls(client, list(local._call_table.calls), random.Random(1))
    assert failures == []


async def check_calls(client: RawClient, methods: list[str], chance: random.Random) -> None:
    numbers = range(100, 400)
    for number in numbers:
        names = [*chance.sample(KEYS, chance.randrange(6)), "topic", "subscription", "consumer", "producer"]
        arguments = {name: chance.choice(VALUES) for name in names if chance.random() < 0.8}
        if chance.random() < 0.7:
            arguments |= {"topic": TOPIC, "subscription": "s", "consumer": "c", "producer": "p"}
        await client.write(
            frame.encode_frame(FrameKind.CALL, number, document.encode_call(chance.choice(methods), arguments))
        )
    await client.write(ping(LAST))
    answered: dict[int, Frame] = {}
    while len(answered) < len(numbers) + 1:
        reply = await client.read()
        if reply.kind in (FrameKind.RESULT, FrameKind.ERROR, FrameKind.PONG):
            assert reply.number not in answered
            answered[reply.number] = reply
    for number in numbers:
        reply = answered[number]
        assert reply.kind == FrameKind.RESULT or code_of(reply) in OURS
