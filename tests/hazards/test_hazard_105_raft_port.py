"""Hazard 105: the Raft port answers nodes of its own cluster, each under its own name, and nobody else."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from icestream import errors
from icestream.cluster import wire
from icestream.cluster.development_authority import LOOPBACK, make_certificate
from icestream.cluster.members import NodeRecord, encode_record
from icestream.cluster.peer_link import dial
from icestream.cluster.tls import PeerTls
from icestream.cluster.wire import PeerFrame, PeerHello
from icestream.metadata.raft_core import has_raft_core
from icestream.processes.node.bind_check import check_accounts
from icestream.rpc.frame import encode_frame
from icestream.security.security_records import ENABLED
from tests.support.cluster_nodes import SECONDS, ClusterNodes
from tests.support.node_settings import node_settings

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.timeout(90),
    pytest.mark.skipif(not has_raft_core(), reason="several voters need the native part"),
]
CLUSTER = "production"
NOW = datetime.now(UTC)


async def first_bytes(address: str, context: ssl.SSLContext | None, hello: PeerHello) -> bytes:
    """Everything that the port answers to a greeting."""
    host, port = wire.dialled(address)
    try:
        reader, writer = await asyncio.open_connection(
            host, port, ssl=context, server_hostname=host if context is not None else None
        )
        writer.write(encode_frame(PeerFrame.HELLO, 0, wire.encode_hello(hello)))
        data = await reader.read()
        writer.close()
        return data
    except OSError:
        return b""


async def test_hazard_105_nobody_gets_a_byte_of_state(tmp_path: Path) -> None:
    folder = tmp_path / "pem"

    def certificate(name: str, cluster: str = CLUSTER) -> PeerTls:
        return make_certificate(folder, name, LOOPBACK, NOW, cluster)

    nodes = ClusterNodes(tmp_path, 3, certified=(CLUSTER, certificate))
    await nodes.start_all()
    try:
        await nodes.until_voters(3)
        await nodes.nodes[0].running.put("/canary", b"state")
        leader = nodes.leader
        own = leader.identity.cluster_id
        claimed = PeerHello(own, nodes.followers[0].id, "127.0.0.1:1", 0)
        stranger = make_certificate(tmp_path / "strange", "node", LOOPBACK, NOW, CLUSTER)
        impostor = PeerTls(stranger.certificate, stranger.key, folder / "ca.pem")
        contexts = {
            "no certificate": None,
            "an unknown authority's": impostor.client_context(),
            "one that names no node": certificate("client", "").client_context(),
            "another cluster's": certificate("other", "staging").client_context(),
        }
        async with asyncio.timeout(SECONDS):
            for what, context in contexts.items():
                assert await first_bytes(leader.address, context, claimed) == b"", what
            # A's certificate that claims to be B: an error that tells nothing.
            intruder = certificate("intruder").client_context()
            with pytest.raises(errors.ForeignCluster, match="that of another node") as refused:
                await dial(leader.address, claimed, intruder)
            assert own.hex() not in str(refused.value)
            # As itself it may greet, and join under no other name.
            link = await dial(leader.address, PeerHello(own, 7, "127.0.0.1:1", 0), intruder, CLUSTER)
            for node_id in (7, 8):
                record = encode_record(NodeRecord("node-elsewhere", "127.0.0.1:1"))
                with pytest.raises(errors.ForeignCluster, match="name of its certificate"):
                    await link.call("Join", {"node": f"{node_id:016x}", "record": record})
            link.close()
        assert len(leader.node.members.voters) == 3
    finally:
        await nodes.close()


async def test_hazard_105_accounts_need_a_door_at_the_raft_port(tmp_path: Path) -> None:
    settings = node_settings(tmp_path / "settings")
    for is_certified in (False, True):
        folder = tmp_path / str(is_certified)
        pem = (CLUSTER, lambda name, folder=folder: make_certificate(folder / "pem", name, LOOPBACK, NOW, CLUSTER))
        nodes = ClusterNodes(folder, 1, certified=pem if is_certified else None)
        await nodes.start_all()
        try:
            node = nodes.nodes[0]
            await check_accounts(settings, node.running, node)
            await node.running.put(ENABLED, b"{}")
            if is_certified:
                await check_accounts(settings, node.running, node)
            else:
                with pytest.raises(errors.ConfigurationError, match="Raft port"):
                    await check_accounts(settings, node.running, node)
        finally:
            await nodes.close()
