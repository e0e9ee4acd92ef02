"""Credentials of MQTT clients: what CONNECT and TLS carry, how refusals are told, and what happens when access ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream import errors
from icestream.frontends.mqtt.connect_request import credential_of
from icestream.mqtt import packets
from icestream.mqtt.packet_type import ProtocolVersion
from icestream.mqtt.reason_codes import ReasonCode
from icestream.runtime.listener_tls import ListenerTls, TlsFiles
from icestream.security.credential import BearerCredential, CertificateCredential, Credential, PasswordCredential
from icestream.security.principal import ANONYMOUS, local_user
from icestream.settings.tls_section import ClientCertificates
from tests.support.certificates import Certificates
from tests.support.mqtt_front import V3, V5, client_context, mqtt_front, mqtt_wire  # noqa: F401 (a fixture)
from tests.support.secured_access import SecuredAccess
from tests.support.until import until

TOKEN = "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhIn0.c2ln"
with_both_wires = pytest.mark.usefixtures("mqtt_wire")
both_versions = pytest.mark.parametrize("version", [V3, V5], ids=["3.1.1", "5.0"])


@pytest.mark.parametrize(
    ("user_name", "password", "certificate", "credential"),
    [
        (None, None, None, None),
        ("", None, None, None),
        ("alice", b"secret", None, PasswordCredential("alice", "secret")),
        ("alice", b"secret", b"der", PasswordCredential("alice", "secret")),
        ("alice", b"", None, PasswordCredential("alice", "")),
        ("alice", None, None, PasswordCredential("alice", "")),
        ("alice", None, b"der", CertificateCredential(b"der")),
        (None, None, b"der", CertificateCredential(b"der")),
        (None, b"opaque", None, BearerCredential("opaque")),
        ("", b"opaque", b"der", BearerCredential("opaque")),
        ("token", b"opaque", None, BearerCredential("opaque")),
        ("device-7", TOKEN.encode(), None, BearerCredential(TOKEN)),
        ("device-7", b"eyJ.not a token", None, PasswordCredential("device-7", "eyJ.not a token")),
    ],
)
def test_a_connect_has_the_credential_that_its_fields_say(
    user_name: str | None, password: bytes | None, certificate: bytes | None, credential: Credential | None
) -> None:
    packet = packets.ConnectPacket("c", user_name=user_name, password=password)
    assert credential_of(packet, certificate) == credential


def test_a_password_that_is_no_text_is_refused() -> None:
    with pytest.raises(errors.Unauthenticated):
        credential_of(packets.ConnectPacket("c", user_name="alice", password=b"\xff"), None)


@both_versions
@pytest.mark.asyncio
@with_both_wires
async def test_a_wrong_password_is_refused_and_a_right_one_is_the_account(version: ProtocolVersion) -> None:
    async with mqtt_front(SecuredAccess({})) as front:
        async with await front.client(version) as client:
            connack = await client.connect(user_name="alice", password=b"wrong")
            assert connack.reason_code == (ReasonCode.BAD_USER_NAME_OR_PASSWORD if version is V5 else 4)
            assert await client.read() is None
        async with await front.client(version) as client:
            await client.connect(user_name="alice", password=b"password-of-alice")
            assert front.broker.clients[-1].session.identity.principal == local_user("alice")
            assert front.broker.clients[-1].session.listener == "mqtt"
        async with await front.client(version) as client:
            await client.connect(user_name="token", password=b"token-of-bob")
            assert front.broker.clients[-1].session.identity.principal == local_user("bob")


@both_versions
@pytest.mark.asyncio
@with_both_wires
async def test_a_session_that_is_not_allowed_gets_the_reason(version: ProtocolVersion) -> None:
    async with mqtt_front(SecuredAccess({})) as front, await front.client(version) as client:
        front.broker.refusal = errors.PermissionDenied("alice may not")
        connack = await client.connect(user_name="alice", password=b"password-of-alice")
        assert connack.reason_code == (ReasonCode.NOT_AUTHORIZED if version is V5 else 5)
        await until(lambda: not front.connections.unfinished)


@pytest.mark.asyncio
@with_both_wires
async def test_a_client_without_a_credential_is_anonymous() -> None:
    """CVE-2026-32696: no credential is no credential, whatever else CONNECT has."""
    async with mqtt_front(SecuredAccess({})) as front, await front.client() as client:
        await client.connect("alice")
        assert front.broker.clients[-1].session.identity.principal == ANONYMOUS


@pytest.mark.asyncio
@with_both_wires
async def test_a_revoked_credential_ends_the_connection() -> None:
    access = SecuredAccess({})
    async with mqtt_front(access) as front, await front.client() as client:
        await client.connect(user_name="token", password=b"token-of-alice")
        session = front.session
        access.revoke("alice")
        assert session.ended is not None
        disconnect = await client.read()
        assert isinstance(disconnect, packets.DisconnectPacket)
        assert disconnect.reason_code == ReasonCode.NOT_AUTHORIZED
        assert await client.read() is None


@pytest.mark.asyncio
@with_both_wires
async def test_a_credential_that_is_revoked_while_the_session_opens_is_refused() -> None:
    access = SecuredAccess({})
    async with mqtt_front(access) as front, await front.client() as client:
        front.broker.opening.clear()
        await client.send(packets.ConnectPacket("c", user_name="token", password=b"token-of-alice"))
        await until(lambda: front.broker.clients)
        access.revoke("alice")
        connack = await client.read()
        assert isinstance(connack, packets.ConnackPacket)
        assert connack.reason_code == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        front.broker.opening.set()
        session = await front.session_number(1)
        await until(lambda: session.ended)
        assert session.calls == []


@pytest.mark.asyncio
@with_both_wires
async def test_a_client_that_left_has_no_access_session_any_more() -> None:
    access = SecuredAccess({})
    async with mqtt_front(access) as front:
        for refusal in (None, errors.PolicyReached("too many sessions")):
            front.broker.refusal = refusal
            async with await front.client() as client:
                await client.connect(user_name="token", password=b"token-of-alice")
            await until(lambda: not front.connections.unfinished)
        assert not access._sessions


# --- TLS --------------------------------------------------------------------------------------------------------------


def listener_tls(pem: Certificates, client_certificates: ClientCertificates) -> ListenerTls:
    key = pem.server.with_suffix(".key")
    return ListenerTls("mqtt", TlsFiles("tls.certificate", pem.server, key, pem.client_ca, client_certificates))


@pytest.mark.asyncio
@with_both_wires
async def test_the_certificate_of_a_tls_client_is_its_credential(tmp_path: Path) -> None:
    pem = Certificates(tmp_path)
    seen: list[Credential] = []
    access = SecuredAccess({})

    async def authenticate(credential: Credential, address: str, listener: str) -> object:
        seen.append(credential)
        raise errors.Unauthenticated("seen")

    access.names.authenticate = authenticate  # type: ignore[assignment, method-assign]
    async with mqtt_front(access, tls=listener_tls(pem, "optional")) as front:
        async with await front.client(tls=client_context(pem.ca, pem.client)) as client:
            assert (await client.connect()).reason_code == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        async with await front.client(tls=client_context(pem.ca)) as client:
            assert (await client.connect()).reason_code == ReasonCode.SUCCESS
    (credential,) = seen
    assert isinstance(credential, CertificateCredential)


@pytest.mark.asyncio
@with_both_wires
async def test_a_tls_connection_ends_with_its_reason(tmp_path: Path) -> None:
    pem = Certificates(tmp_path)
    tls = client_context(pem.ca)
    async with mqtt_front(tls=listener_tls(pem, "none")) as front, await front.client(tls=tls) as client:
        await client.connect()
        await client.ping()
        client.writer.write(b"\x36\x00")
        disconnect = await client.read()
        assert isinstance(disconnect, packets.DisconnectPacket)
        assert disconnect.reason_code == ReasonCode.MALFORMED_PACKET
        assert await client.read() is None
