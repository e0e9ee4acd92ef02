"""Nisshi's SASL bypass: a client that skips authentication, or goes on after it failed, gets nothing, on any
protocol."""

from __future__ import annotations

import pytest

from icestream import errors
from icestream.model.topic_name import TopicName
from icestream.mqtt import packets
from icestream.rpc import document
from icestream.rpc.frame import FrameKind, encode_frame
from icestream.rpc.handshake import Hello, HelloCredential, encode_hello
from tests.support.mqtt_front import V5, mqtt_front
from tests.support.raw_client import call, ping, raw_client
from tests.support.secured_access import SecuredAccess
from tests.support.secured_broker import SecuredBroker, secured_broker
from tests.support.secured_danube import Refusal, secured_danube

pytestmark = pytest.mark.asyncio
RULES = {"alice": ["all on /default/*"]}
TOPIC = "/default/made"
ALICE, FORGED = (Hello(credential=HelloCredential(token=token)) for token in ("token-of-alice", "forged"))


def hello(value: Hello, number: int = 1) -> bytes:
    return encode_frame(FrameKind.HELLO, number, encode_hello(value))


def make(number: int) -> bytes:
    return call(number, "create_topic", topic=TOPIC)


def was_made(served: SecuredBroker) -> bool:
    return served.broker.find_topic(TopicName.parse(TOPIC)) is not None


@pytest.mark.usefixtures("native_wire")
@pytest.mark.parametrize(
    "sent",
    [
        make(1),
        ping(1) + make(2),
        hello(Hello()) + make(2),
        hello(FORGED) + make(2),
        hello(FORGED) + hello(Hello(), 2) + make(3),
        hello(FORGED) + hello(ALICE, 2) + make(3),
        hello(Hello()) + hello(ALICE, 2) + make(3),
        encode_frame(FrameKind.WELCOME, 1, b"") + make(2),
    ],
    ids=["no hello", "ping first", "no credential", "forged", "forged, none", "forged, real", "none, real", "welcome"],
)
async def test_native_calls_are_made_by_the_credential_of_the_one_hello(sent: bytes) -> None:
    """A HELLO is the first frame of a connection, and there is no other: what follows a refusal is not read."""
    async with secured_broker(SecuredAccess(RULES)) as served:
        async with raw_client(served.address, None) as client:
            await client.write(sent + ping(99))
            frames = [await client.read()]
            while frames[-1].kind != FrameKind.ERROR:
                frames.append(await client.read())
            assert FrameKind.RESULT not in {frame.kind for frame in frames}
            problem = document.decode_error(frames[-1].body)
            assert isinstance(problem, (errors.Unauthenticated, errors.DecodeError)), problem
        assert not was_made(served)


async def test_danube_calls_without_a_credential_or_behind_a_refused_one_make_nothing() -> None:
    async with secured_danube(SecuredAccess({"alice": ["all on /default/*"]})) as danube:
        for caller in (danube.with_metadata(), danube.with_metadata(("authorization", "Bearer forged"))):
            for _ in range(2):  # the second on a connection whose first call was refused
                with pytest.raises(Refusal) as refused:
                    await caller.producer()
                assert refused.value.status == "UNAUTHENTICATED"
        assert danube.broker.list_topics() == []
        await danube.as_("alice").producer()
        with pytest.raises(Refusal):  # behind a call that was admitted, on the same connection
            await danube.with_metadata().producer("q")


@pytest.mark.parametrize("is_first_wrong", [True, False], ids=["wrong password", "no CONNECT"])
async def test_mqtt_packets_behind_a_refused_connect_are_not_read(is_first_wrong: bool) -> None:
    async with mqtt_front(SecuredAccess({})) as front, await front.client() as client:
        wrong = packets.ConnectPacket("c", user_name="alice", password=b"wrong")
        right = packets.ConnectPacket("c", user_name="alice", password=b"password-of-alice")
        publish = packets.PublishPacket("a", b"x", 0, 0)
        client.write(*([wrong] if is_first_wrong else []), publish, right, publish)
        received = await client.read_all()
        assert front.broker.sessions == []
        assert not any(isinstance(packet, packets.ConnackPacket) and not packet.reason_code for packet in received)
        assert V5 is client.version
