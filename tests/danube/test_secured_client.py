"""Danube's own client with tokens and TLS before a whole node with accounts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import jwt
import pytest
import pytest_asyncio
from danube import DanubeClient, DanubeClientBuilder, DispatchStrategy, SubType

from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.processes.broker_process import BrokerNode
from icestream.runtime.randomness import SystemRandomness
from icestream.security import security_records as records
from icestream.security.key_ring import KeyRing, create_wrapping_key
from icestream.security.principal import Principal, service_account
from icestream.security.service_tokens import MintedToken
from tests.support.certificates import Certificates
from tests.support.node_settings import node_settings
from tests.support.tokens import DANUBE_KEY

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("wire")]
INGEST = service_account("ingest")
TOPIC = "/default/orders"


class SecuredNode:
    """A node with TLS and accounts; `ingest` has all rights on /default/*."""

    def __init__(self, node: BrokerNode, pem: Certificates) -> None:
        self.node = node
        self.pem = pem
        self._clients: list[DanubeClient] = []

    async def secure(self) -> None:
        randomness = SystemRandomness()
        wrapping_key = create_wrapping_key(self.node.settings.data_dir, randomness)
        ring = KeyRing.new(randomness, self.node.clock.wall_us()).encode(wrapping_key, randomness)
        await self.node.security.init("root", await self.node.passwords.hash("correct horse battery"), ring)
        await self.node.security.create_service("ingest")
        await self.grant(INGEST, "all", "/default/*")

    async def grant(self, principal: Principal, actions: str, pattern: str) -> str:
        return await self.node.security.grant(principal, rule=records.RuleRecord(actions.split(","), pattern))

    async def token(self) -> MintedToken:
        generation = self.node.policy_watch.find_service("ingest")
        assert generation is not None
        token = self.node.service_tokens.mint(INGEST, generation, [], 600)
        await self.node.security.record_token(token.token_id, INGEST, token.expires_us)
        return token

    async def client(self, tokens: list[str], certificate: Path | None = None) -> DanubeClient:
        """A client that sends the last of these tokens."""
        builder = DanubeClientBuilder().service_url(self.node.danube.url)
        if certificate is None:
            builder = builder.with_tls(str(self.pem.ca))
        else:
            builder = builder.with_mtls(str(self.pem.ca), str(certificate), str(certificate.with_suffix(".key")))
        client = await (builder.with_token_supplier(lambda: tokens[-1]) if tokens else builder).build()
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            for connection in client.connection_manager._connections.values():
                await connection.channel.close()
        await self.node.stop()


@pytest_asyncio.fixture
async def secured(tmp_path: Path, wire: str) -> AsyncIterator[SecuredNode]:
    pem, key = Certificates(tmp_path / "pem"), tmp_path / "danube.key"
    key.touch(0o600)
    key.write_bytes(DANUBE_KEY)
    tls = {"tls_certificate": pem.server, "tls_key": pem.server.with_suffix(".key"), "tls_client_ca": pem.client_ca}
    settings = node_settings(tmp_path, "memory", danube={"enable": True, **tls}, security={"danube_key_file": key})
    world = SecuredNode(await BrokerNode.start(settings), pem)
    try:
        await world.secure()
        yield world
    finally:
        await world.close()


async def test_produce_consume_denial_and_revocation_with_tokens(secured: SecuredNode) -> None:
    first, second = await secured.token(), await secured.token()
    tokens = [first.token]
    client = await secured.client(tokens, secured.pem.client)
    producer = client.new_producer().with_topic(TOPIC).with_name("web")
    producer = producer.with_dispatch_strategy(DispatchStrategy.RELIABLE).build()
    await producer.create()
    consumer = client.new_consumer().with_topic(TOPIC).with_consumer_name("w").with_subscription("billing")
    consumer = consumer.with_subscription_type(SubType.SHARED).build()
    await consumer.subscribe()
    messages = await consumer.receive()
    await producer.send(b"1")
    message = await asyncio.wait_for(messages.get(), 30)
    assert message.payload == b"1"
    await consumer.ack(message)

    denied = client.new_producer().with_topic("/system/audit").with_name("x").build()
    with pytest.raises(grpc.aio.AioRpcError, match="service:local:ingest may not produce on topic:/system/audit") as no:
        await denied.create()
    assert no.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert first.token not in str(no.value)

    tokens.append(second.token)  # the client renews its token; what the first one opened ends with it
    await secured.node.security.revoke_token(first.token_id)
    await producer.send(b"2")
    assert (await asyncio.wait_for(messages.get(), 30)).payload == b"2"

    await secured.node.security.revoke_token(second.token_id)
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await producer.send(b"3")
    assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED
    await consumer.close()
    await producer.close()


async def test_certificates_and_danubes_tokens_are_principals_of_their_own(secured: SecuredNode) -> None:
    claims = {"iss": "danube", "sub": "cli", "exp": 4e9, "principal_type": "user", "principal_name": "alice"}
    minted = jwt.encode(claims, DANUBE_KEY, "HS256")
    internal = jwt.encode({**claims, "principal_type": "broker_internal"}, DANUBE_KEY, "HS256")
    danube_user = Principal.parse("danube:user:alice")
    certificate = Principal.parse("certificate:danube:client.test")
    for principal, tokens in ((danube_user, [minted]), (certificate, [])):
        client = await secured.client(tokens, secured.pem.client)
        producer = client.new_producer().with_topic(TOPIC).with_name(principal.kind.value).build()
        with pytest.raises(grpc.aio.AioRpcError, match=f"{principal} may not produce on topic:{TOPIC}"):
            await producer.create()
        await secured.grant(principal, "produce,create", TOPIC)
        await producer.create()
        await producer.send(b"m")
        await producer.close()
    client = await secured.client([internal], secured.pem.client)
    with pytest.raises(grpc.aio.AioRpcError, match="the credential is not valid") as refused:
        await client.lookup_service.topic_partitions(client.uri, TOPIC)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_client_from_before_the_switch_continues_with_its_token(tmp_path: Path) -> None:
    pem = Certificates(tmp_path / "pem")
    tls = {"tls_certificate": pem.server, "tls_key": pem.server.with_suffix(".key")}
    world = SecuredNode(await BrokerNode.start(node_settings(tmp_path, "memory", danube={"enable": True, **tls})), pem)
    try:
        tokens = ["not read while security is off"]
        client = await world.client(tokens)
        producer = client.new_producer().with_topic(TOPIC).with_name("web").build()
        await producer.create()
        await producer.send(b"1")
        await world.secure()
        tokens.append((await world.token()).token)
        await producer.send(b"2")  # its id is unknown now, so it creates itself again
        await producer.close()
        sent = pb.TopicLookupRequest(request_id=1, topic=TOPIC).SerializeToString()
        credentials = grpc.ssl_channel_credentials(pem.ca.read_bytes())
        async with grpc.aio.secure_channel(f"127.0.0.1:{world.node.danube.port}", credentials) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as anonymous:
                await channel.unary_unary("/danube.Discovery/TopicLookup")(sent)
        assert anonymous.value.code() is grpc.StatusCode.UNAUTHENTICATED
    finally:
        await world.close()
