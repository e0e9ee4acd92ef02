"""Mutual TLS between nodes: those of the cluster's authority form a cluster, all other connections are refused."""

from __future__ import annotations

import asyncio
import ssl
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from icestream import errors
from icestream.cluster.development_authority import LOOPBACK, make_certificate
from icestream.cluster.peer_link import dial
from icestream.cluster.tls import PeerCertificates, PeerTls
from icestream.cluster.wire import NO_CLUSTER, PeerHello
from icestream.metadata.raft_core import has_raft_core
from tests.support.cluster_nodes import SECONDS, ClusterNodes

HELLO = PeerHello(NO_CLUSTER, 1, "127.0.0.1:1", 0)
NOW = datetime.now(UTC)
needs_raft = pytest.mark.skipif(not has_raft_core(), reason="several voters need the native part")


def certificate(folder: Path, name: str = "node", hosts: tuple[str, ...] = LOOPBACK) -> PeerTls:
    return make_certificate(folder, name, hosts, NOW)


@needs_raft
@pytest.mark.asyncio
async def test_nodes_of_one_authority_form_a_cluster_and_refuse_all_others(tmp_path: Path) -> None:
    nodes = ClusterNodes(tmp_path, 3, certificate(tmp_path / "certificates"))
    await nodes.start_all()
    try:
        await nodes.until_voters(3)
        await nodes.nodes[1].running.put("/key", b"x")
        assert await nodes.nodes[2].running.get("/key") is not None
        client_tls = certificate(tmp_path / "certificates", "client")
        async with asyncio.timeout(SECONDS):
            link = await dial(nodes.seeds[0], HELLO, client_tls.client_context())
            link.close()
            stranger = certificate(tmp_path / "strange")
            stranger_who_trusts = PeerTls(stranger.certificate, stranger.key, client_tls.authority)
            for context in (None, stranger.client_context(), stranger_who_trusts.client_context()):
                with pytest.raises(errors.ConnectionLost):
                    await dial(nodes.seeds[0], HELLO, context)
    finally:
        await nodes.close()


def test_a_node_may_only_use_the_name_of_its_certificate(tmp_path: Path) -> None:
    elsewhere = PeerCertificates(certificate(tmp_path, "elsewhere", ("node-7.example",))).listener.context
    ours = certificate(tmp_path).client_context()
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = elsewhere.wrap_bio(to_server, to_client, server_side=True)
    client = ours.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    for end in (client, server):  # hello, and the answer with the certificate
        with pytest.raises(ssl.SSLWantReadError):
            end.do_handshake()
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        client.do_handshake()


def test_an_authority_is_created_once_and_never_replaced(tmp_path: Path) -> None:
    first = certificate(tmp_path)
    authority_bytes = first.authority.read_bytes()
    second = certificate(tmp_path, "other")
    assert second.authority.read_bytes() == authority_bytes
    for key in (first.key, second.key, tmp_path / "ca.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = first.certificate.read_bytes()
    with pytest.raises(errors.InvalidInput, match="exists already"):
        certificate(tmp_path)
    assert first.certificate.read_bytes() == before


@pytest.mark.parametrize("name", ["ca", "../node", "a/b", ""])
def test_a_name_cannot_leave_its_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(errors.InvalidInput, match="is not a valid certificate name"):
        certificate(tmp_path / "certificates", name)
    assert list(tmp_path.iterdir()) == []


def test_invalid_certificate_files_are_reported(tmp_path: Path) -> None:
    good = certificate(tmp_path)
    (tmp_path / "text").write_text("no certificate")
    for broken in (
        PeerTls(tmp_path / "missing", good.key, good.authority),
        PeerTls(good.certificate, tmp_path / "ca.key", good.authority),
        PeerTls(good.certificate, good.key, tmp_path / "text"),
    ):
        with pytest.raises(errors.ConfigurationError, match=r"meta_store\.tls_"):
            PeerCertificates(broken)
    (tmp_path / "ca.key").write_text("no key")
    with pytest.raises(errors.ConfigurationError, match="cannot sign"):
        certificate(tmp_path, "third")
