"""TLS, with and without certificates of clients."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
import trustme
from danube import DanubeClient, DanubeClientBuilder

from icestream import errors
from icestream.processes.broker_process import BrokerNode
from tests.support.node_settings import node_settings

pytestmark = pytest.mark.asyncio


class Certificates:
    def __init__(self, folder: Path) -> None:
        self.ca, self.server, self.client = folder / "ca.pem", folder / "server.pem", folder / "client.pem"
        self.stranger = folder / "stranger.pem"
        authority, other = (trustme.CA(key_type=trustme.KeyType.ECDSA) for _ in range(2))
        authority.cert_pem.write_to_path(self.ca)
        certificates = (self.server, "127.0.0.1", authority), (self.client, "client.test", authority)
        for path, name, signs in (*certificates, (self.stranger, "client.test", other)):
            certificate = signs.issue_cert(name, key_type=trustme.KeyType.ECDSA)
            certificate.cert_chain_pems[0].write_to_path(path)
            certificate.private_key_pem.write_to_path(path.with_suffix(".key"))

    def settings(self, *, with_clients: bool) -> dict[str, object]:
        settings = {"enable": True, "tls_certificate": self.server, "tls_key": self.server.with_suffix(".key")}
        return settings | ({"tls_client_ca": self.ca} if with_clients else {})

    def credentials(self, certificate: Path | None) -> grpc.ChannelCredentials:
        if certificate is None:
            return grpc.ssl_channel_credentials(self.ca.read_bytes())
        key = certificate.with_suffix(".key")
        return grpc.ssl_channel_credentials(self.ca.read_bytes(), key.read_bytes(), certificate.read_bytes())


@pytest.mark.usefixtures("wire")
@pytest.mark.parametrize("with_clients", [False, True])
async def test_tls_and_client_certificates(tmp_path: Path, with_clients: bool) -> None:
    pem = Certificates(tmp_path)
    settings = node_settings(tmp_path / "data", "memory", danube=pem.settings(with_clients=with_clients))
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
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", pem.credentials(certificate)) as channel:
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
