"""The credential of a HELLO: verified before anything else, refused with one error, and never shown."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.client.client import connect
from icestream.client.client_credential import client_credential
from icestream.client.session import ClientOptions
from icestream.rpc import document, frame, handshake
from icestream.rpc.frame import FrameKind
from icestream.rpc.handshake import Hello, HelloCredential
from tests.support.raw_client import RawClient, call, ping, raw_client
from tests.support.secret_files import secret_file
from tests.support.secured_access import SecuredAccess
from tests.support.secured_broker import SecuredBroker, secured_broker
from tests.support.until import until

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("native_wire")]
RULES = {"alice": ["all on /default/*"], "anonymous": ["describe on /default/open"]}


@pytest_asyncio.fixture
async def served(native_wire: str) -> AsyncIterator[SecuredBroker]:
    async with secured_broker(SecuredAccess(RULES)) as served:
        yield served


def hello(credential: HelloCredential | None, number: int = 1) -> bytes:
    return frame.encode_frame(FrameKind.HELLO, number, handshake.encode_hello(Hello(credential=credential)))


async def refusal(client: RawClient) -> errors.IcestreamError:
    """The error with which the broker closes the connection."""
    (received,) = await client.read_all()
    assert (received.kind, received.number) == (FrameKind.ERROR, 0)
    return document.decode_error(received.body)


@pytest.mark.parametrize(
    "credential",
    [HelloCredential(token="token-of-alice"), HelloCredential(user="alice", password="password-of-alice")],
)
async def test_a_valid_credential_opens_the_connection(served: SecuredBroker, credential: HelloCredential) -> None:
    async with raw_client(served.address, Hello(credential=credential)) as client:
        assert (await client.call("create_topic", topic="/default/a"))["topic"] == "/default/a"


@pytest.mark.parametrize(
    "credential",
    [
        HelloCredential(token="forged"),
        HelloCredential(user="alice", password="wrong"),
        HelloCredential(role="lake", secret="secret-of-lake"),  # roles are for the local socket
    ],
)
async def test_an_invalid_credential_is_refused_and_nothing_behind_it_is_done(
    served: SecuredBroker, credential: HelloCredential
) -> None:
    async with raw_client(served.address, None) as client:
        await client.write(hello(credential), call(2, "create_topic", topic="/default/a"))
        assert isinstance(await refusal(client), errors.Unauthenticated)
    assert served.broker.topic_count == 0
    await until(lambda: not served.access.sessions)


async def test_frames_behind_a_hello_wait_for_its_verification(served: SecuredBroker) -> None:
    access = served.access
    assert isinstance(access, SecuredAccess)
    access.names.gate.clear()
    async with raw_client(served.address, None) as client:
        await client.write(
            hello(HelloCredential(token="token-of-alice")), ping(2, b"x"), call(3, "create_topic", topic="/default/a")
        )
        await until(lambda: access.names.waiting == 1)
        assert served.broker.topic_count == 0
        access.names.gate.set()
        assert [(await client.read()).kind for _ in range(3)] == [FrameKind.WELCOME, FrameKind.PONG, FrameKind.RESULT]


async def test_a_client_that_leaves_while_it_is_verified_leaves_nothing(served: SecuredBroker) -> None:
    access = served.access
    assert isinstance(access, SecuredAccess)
    access.names.gate.clear()
    async with raw_client(served.address, None) as client:
        await client.write(hello(HelloCredential(token="token-of-alice")))
        await until(lambda: access.names.waiting == 1)
    access.names.gate.set()
    await until(lambda: not served.listener.connections)
    assert (access.sessions, access.names.waiting) == (0, 0)


async def test_a_verification_that_takes_too_long_closes_the_connection(
    served: SecuredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HELLO_SECONDS_MAX", 0.05)
    monkeypatch.setattr(limits, "CLOSE_SECONDS_MAX", 1)
    access = served.access
    assert isinstance(access, SecuredAccess)
    access.names.gate.clear()
    async with raw_client(served.address, None) as client:
        await client.write(hello(HelloCredential(token="token-of-alice")))
        assert "not verified in time" in str(await refusal(client))
    access.names.gate.set()


async def test_a_client_without_a_credential_has_the_rights_of_anonymous(served: SecuredBroker) -> None:
    async with raw_client(served.address) as client:
        with pytest.raises(errors.UnknownTopic):
            await client.call("describe_topic", topic="/default/open")
        with pytest.raises(errors.Unauthenticated, match="needs a credential"):
            await client.call("describe_topic", topic="/default/a")


@pytest.mark.parametrize(
    "credential",
    [
        {"token": "t" * (limits.TOKEN_BYTES_MAX + 1)},
        {"token": "t", "user": "u", "password": "p"},
        {},
        {"secret": "s"},
        {"token": 7},
        "token",
    ],
)
async def test_a_malformed_credential_is_refused_without_its_value(served: SecuredBroker, credential: object) -> None:
    body = frame.MAGIC + document.encode({**Hello()._asdict(), "credential": credential})
    async with raw_client(served.address, None) as client:
        await client.write(frame.encode_frame(FrameKind.HELLO, 1, body))
        error = await refusal(client)
    assert isinstance(error, errors.DecodeError)
    assert "ttt" not in str(error)


async def test_a_label_is_not_an_identity(served: SecuredBroker) -> None:
    async with raw_client(served.address, Hello(client="alice")) as client:
        with pytest.raises(errors.Unauthenticated):
            await client.call("create_topic", topic="/default/a")


async def test_secrets_are_in_no_log_and_no_repr(served: SecuredBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    canary = "canary-7f3a"
    for options in ({"token": canary}, {"user": "alice", "password": canary}):
        with pytest.raises(errors.Unauthenticated) as refused:
            async with connect(served.address, **options):  # type: ignore[arg-type]
                pass
        assert canary not in str(refused.value)
    credential = HelloCredential(token=canary, password=canary, secret=canary)
    shown = f"{credential!r} {Hello(credential=credential)!r} {ClientOptions(credential=client_credential(canary))!r}"
    assert canary not in shown + caplog.text


async def test_a_token_file_and_its_variable_are_read_for_each_connection(
    served: SecuredBroker, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = secret_file(tmp_path_factory.mktemp("credential") / "token", "token-of-alice\n")
    monkeypatch.setenv("ICESTREAM_TOKEN_FILE", str(path))
    async with connect(served.address) as client:
        await client.create_topic("/default/a")
    path.write_text("forged")
    with pytest.raises(errors.Unauthenticated):
        async with connect(served.address, token_file=path):
            pass
    path.chmod(0o644)
    with pytest.raises(errors.ConfigurationError, match="can be read by other accounts"):
        async with connect(served.address):
            pass
    path.unlink()
    with pytest.raises(errors.ConfigurationError, match="cannot read the token"):
        async with connect(served.address):
            pass
    with pytest.raises(errors.InvalidInput, match="two credentials"):
        connect(served.address, token="a", user="b", password="c")
    with pytest.raises(errors.InvalidInput, match="needs a password"):
        connect(served.address, user="b")


async def test_hazard_124_publishing_asks_nothing(served: SecuredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a producer and a consumer are open, no decision is made for messages, acks and credit."""
    async with (
        connect(served.address, token="token-of-alice") as client,
        client.producer("/default/a") as producer,
        client.subscribe("/default/a", "s") as messages,
    ):
        await producer.send(b"0")
        (await anext(messages)).ack()

        def refuse(*arguments: object) -> None:
            raise AssertionError("a decision on the hot path")

        monkeypatch.setattr("icestream.security.access_session.decide", refuse)
        for number in range(20):
            await producer.send(b"%d" % number)
            message = await anext(messages)
            assert message.payload == b"%d" % number
            message.ack()
        await messages.flush()
