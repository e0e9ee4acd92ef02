"""TLS, with and without certificates of clients."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
import trustme
from danube import DanubeClient, DanubeClientBuilder

from icestream import errors
from icestream.server.node import Node
from tests.support.node_settings import node_settings

pytestmark = pytest.mark.asyncio


class Certificates:
    def __init__(self, folder: Path) -> None:
        self.ca, self.server, self.client = folder / "ca.pem", folder / "server.pem", folder / "client.pem"
        authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
        authority.cert_pem.write_to_path(self.ca)
        for path, name in ((self.server, "127.0.0.1"), (self.client, "client.test")):
            found = authority.issue_cert(name, key_type=trustme.KeyType.ECDSA)
            found.cert_chain_pems[0].write_to_path(path)
            found.private_key_pem.write_to_path(path.with_suffix(".key"))

    def settings(self, *, with_clients: bool) -> dict[str, object]:
        found = {"enable": True, "tls_certificate": self.server, "tls_key": self.server.with_suffix(".key")}
        return found | ({"tls_client_ca": self.ca} if with_clients else {})


@pytest.mark.parametrize("with_clients", [False, True])
async def test_tls_and_client_certificates(tmp_path: Path, with_clients: bool) -> None:
    pem = Certificates(tmp_path)
    settings = node_settings(tmp_path / "data", "memory", danube=pem.settings(with_clients=with_clients))
    node = await Node.start(settings)
    try:
        url = node.danube.url
        assert url.startswith("https://127.0.0.1:")
        built = DanubeClientBuilder().service_url(url)
        with_certificate = await built.with_mtls(
            str(pem.ca), str(pem.client), str(pem.client.with_suffix(".key"))
        ).build()
        await sends(with_certificate)
        without = await DanubeClientBuilder().service_url(url).with_tls(str(pem.ca)).build()
        if with_clients:
            await is_kept_out(without)
        else:
            await sends(without)
        await is_kept_out(await DanubeClientBuilder().service_url(url).build())
    finally:
        await node.stop()


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


async def test_a_certificate_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    missing = {"enable": True, "tls_certificate": tmp_path / "no.pem", "tls_key": tmp_path / "no.key"}
    with pytest.raises(errors.ConfigurationError, match=r"no\.pem"):
        await Node.start(node_settings(tmp_path / "data", "memory", danube=missing))


async def test_a_port_that_is_taken_is_said_so(tmp_path: Path) -> None:
    first = await Node.start(node_settings(tmp_path / "a", "memory", danube={"enable": True}))
    try:
        ports = {"native": 0, "broker_http": 0, "lake": 0, "danube": first.danube.port, "danube_admin": 0}
        settings = node_settings(tmp_path / "b", "memory", danube={"enable": True}, ports=ports)
        with pytest.raises(errors.ConfigurationError, match="another process listens") as caught:
            await Node.start(settings)
        assert "ports.danube" in caught.value.hint
    finally:
        await first.stop()
