"""TLS, with and without certificates of clients."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import grpc
import pytest
from danube import DanubeClient, DanubeClientBuilder

from icestream import errors
from icestream.processes.broker_process import BrokerNode
from tests.support.certificates import Certificates
from tests.support.node_settings import node_settings

pytestmark = pytest.mark.asyncio


def danube_settings(pem: Certificates, *, with_clients: bool) -> dict[str, object]:
    settings = {"enable": True, "tls_certificate": pem.server, "tls_key": pem.server.with_suffix(".key")}
    return settings | ({"tls_client_ca": pem.client_ca} if with_clients else {})


def credentials(pem: Certificates, certificate: Path | None) -> grpc.ChannelCredentials:
    if certificate is None:
        return grpc.ssl_channel_credentials(pem.ca.read_bytes())
    key = certificate.with_suffix(".key")
    return grpc.ssl_channel_credentials(pem.ca.read_bytes(), key.read_bytes(), certificate.read_bytes())


@pytest.mark.usefixtures("wire")
@pytest.mark.parametrize("with_clients", [False, True])
async def test_tls_and_client_certificates(tmp_path: Path, with_clients: bool) -> None:
    pem = Certificates(tmp_path / "pem")
    settings = node_settings(tmp_path / "data", "memory", danube=danube_settings(pem, with_clients=with_clients))
    node = await BrokerNode.start(settings)
    try:
        url = node.danube.url
        assert url.startswith("https://127.0.0.1:")
        await sends(await client_of(url, pem, pem.client))
        for certificate in (None, pem.stranger):
            client = await client_of(url, pem, certificate)
            await (is_kept_out(client) if with_clients else sends(client))
        await is_kept_out(await DanubeClientBuilder().service_url(url).build())
        port = node.danube.admin_port
        assert await operator_gets(port, pem, pem.client) == "OK"
        for certificate in (None, pem.stranger):
            assert await operator_gets(port, pem, certificate) == ("UNAVAILABLE" if with_clients else "OK")
    finally:
        await node.stop()


async def client_of(url: str, pem: Certificates, certificate: Path | None) -> DanubeClient:
    built = DanubeClientBuilder().service_url(url)
    if certificate is None:
        return await built.with_tls(str(pem.ca)).build()
    return await built.with_mtls(str(pem.ca), str(certificate), str(certificate.with_suffix(".key"))).build()


async def operator_gets(port: int, pem: Certificates, certificate: Path | None) -> str:
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials(pem, certificate)) as channel:
        try:
            await channel.unary_unary("/danube_admin.BrokerAdmin/ListBrokers")(b"")
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
    return "OK"


async def sends(client: DanubeClient) -> None:
    producer = client.new_producer().with_topic("/default/t").with_name("p").build()
    await producer.create()
    await producer.send(b"m")
    await producer.close()
    await close(client)


async def is_kept_out(client: DanubeClient) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.lookup_service.topic_partitions(client.uri, "/default/t")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await close(client)


async def close(client: DanubeClient) -> None:
    for connection in client.connection_manager._connections.values():
        await connection.channel.close()


async def test_danube_uses_the_common_section_and_a_renewed_certificate(tmp_path: Path, wire: str) -> None:
    pem = Certificates(tmp_path / "pem")
    settings = node_settings(tmp_path / "data", "memory", danube={"enable": True}, tls=pem.settings("optional"))
    node = await BrokerNode.start(settings)
    try:
        await sends(await client_of(node.danube.url, pem, None))
        await sends(await client_of(node.danube.url, pem, pem.client))
        stranger = await client_of(node.danube.url, pem, pem.stranger)
        await (is_kept_out(stranger) if wire == "native" else sends(stranger))  # grpc.aio asks for no certificate
        renewed = pem.issue("renewed", pem.authority, "127.0.0.1")
        for suffix in (".pem", ".key"):
            renewed.with_suffix(suffix).replace(pem.server.with_suffix(suffix))
        assert node.certificates.listeners["danube"].refresh()
        assert await asyncio.to_thread(certificate_of, node.danube.port) == pem.server.read_text().strip()
        await sends(await client_of(node.danube.url, pem, None))
    finally:
        await node.stop()


def certificate_of(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=10).strip()


async def test_a_missing_certificate_is_reported(tmp_path: Path) -> None:
    missing = {"enable": True, "tls_certificate": tmp_path / "no.pem", "tls_key": tmp_path / "no.key"}
    with pytest.raises(errors.ConfigurationError, match=r"no\.pem"):
        await BrokerNode.start(node_settings(tmp_path / "data", "memory", danube=missing))


async def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    first = await BrokerNode.start(node_settings(tmp_path / "a", "memory", danube={"enable": True}))
    try:
        ports = {"native": 0, "broker_http": 0, "lake": 0, "danube": first.danube.port, "danube_admin": 0}
        settings = node_settings(tmp_path / "b", "memory", danube={"enable": True}, ports=ports)
        with pytest.raises(errors.ConfigurationError, match="another process listens") as caught:
            await BrokerNode.start(settings)
        assert "ports.danube" in caught.value.hint
    finally:
        await first.stop()
