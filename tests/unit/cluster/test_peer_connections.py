"""Connections between nodes: how long they outlive a machine that is gone, and what is remembered of a peer's hello."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from icestream import errors, limits
from icestream.cluster.development_authority import LOOPBACK, make_certificate
from icestream.cluster.listener import PeerConnection, PeerListener
from icestream.cluster.peer_link import PeerLink, dial
from icestream.cluster.peers import Peers
from icestream.cluster.wire import NO_CLUSTER, PeerFrame, PeerHello, PeerWelcome, encode_welcome
from icestream.metadata.raft_core import has_raft_core
from icestream.rpc.frame import encode_frame
from icestream.runtime.clock import SimulatedClock
from tests.support.cluster_nodes import SECONDS, ClusterNodes

HELLO = PeerHello(NO_CLUSTER, 1, "127.0.0.1:1", 0)
pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(sys.platform != "linux", reason="TCP_USER_TIMEOUT is of Linux"),
]


def options(end: PeerLink | PeerConnection) -> list[int]:
    assert end._transport is not None
    sock = end._transport.get_extra_info("socket")
    tcp = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    return [sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)] + [
        sock.getsockopt(socket.IPPROTO_TCP, option) for option in tcp
    ]


@pytest.mark.skipif(not has_raft_core(), reason="a cluster needs the native part")
@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_both_ends_of_a_connection_detect_a_dead_machine(tmp_path: Path, is_encrypted: bool) -> None:
    """Otherwise a dead dialler keeps its connection slot for good, and a healed network is noticed late."""
    tls = make_certificate(tmp_path / "certificates", "node", LOOPBACK, datetime.now(UTC)) if is_encrypted else None
    nodes = ClusterNodes(tmp_path, 1, tls)
    node = await nodes.start(0)
    try:
        async with asyncio.timeout(SECONDS):
            link = await dial(nodes.seeds[0], HELLO, None if tls is None else tls.client_context())
        (dialled,) = [connection for connection in node.listener.connections if connection.hello == HELLO]
        idle, unacked_ms = limits.PEER_KEEP_ALIVE_SECONDS, int(limits.PEER_UNACKED_SECONDS_MAX * 1000)
        assert options(link) == options(dialled) == [1, idle, idle // 3, 3, unacked_ms]
        link.be_patient()
        assert options(link) == [1, idle, idle // 3, 3, int(limits.PEER_CALL_SECONDS_MAX * 1000)]
        link.close()
    finally:
        await nodes.close()


@pytest.mark.parametrize("turns", range(5))
async def test_a_close_ends_connections_that_were_accepted_a_moment_ago(turns: int) -> None:
    listener = PeerListener(cast("Any", None))
    await listener.listen("127.0.0.1", 0)
    clients = [socket.create_connection(("127.0.0.1", listener.port), timeout=1) for _ in range(3)]
    for _ in range(turns):
        await asyncio.sleep(0)
    await listener.close()
    for client in clients:  # not another turn of the loop: it may end now
        with client, contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""


@pytest.mark.skipif(not has_raft_core(), reason="a cluster needs the native part")
async def test_connections_that_do_not_greet_keep_no_node_out(tmp_path: Path) -> None:
    nodes = ClusterNodes(tmp_path, 1)
    node = await nodes.start(0)
    node.listener.places._capacity = 3
    host, _, port = nodes.seeds[0].rpartition(":")
    silent: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    try:
        member = HELLO._replace(cluster=node.identity.cluster_id)
        async with asyncio.timeout(SECONDS):
            link = await dial(nodes.seeds[0], member)
            silent += [await asyncio.open_connection(host, int(port)) for _ in range(6)]
            strangers = [await dial(nodes.seeds[0], HELLO) for _ in range(4)]
            for reader, _writer in silent:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            await strangers[0].lost.wait()
            assert await link.call("GetNodeInfo", {}), "the connection of a member stays"
            for stranger in strangers:
                stranger.close()
            link.close()
    finally:
        for _reader, writer in silent:
            writer.close()
        await nodes.close()


async def test_announced_addresses_are_bounded_and_those_of_members_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "PEERS_LEARNED_MAX", 3)
    peers = Peers(SimulatedClock(), lambda to: HELLO, lambda node_id: "")
    try:
        peers.learn(1, "127.0.0.1:9")
        peers.set_members({1})
        for stranger in range(2, 100):
            peers.learn(stranger, f"127.0.0.1:{stranger}")
            peers.learn(2, "127.0.0.1:2")  # it greets again and again
        assert [peers.address(node_id) for node_id in (1, 2, 99)] == ["127.0.0.1:9", "127.0.0.1:2", "127.0.0.1:99"]
        assert not any(peers.address(node_id) for node_id in range(3, 99))
    finally:
        await peers.close()


@pytest.mark.skipif(not has_raft_core(), reason="a cluster needs the native part")
async def test_nodes_without_a_cluster_are_not_remembered(tmp_path: Path) -> None:
    nodes = ClusterNodes(tmp_path, 1)
    node = await nodes.start(0)
    try:
        member_hello = HELLO._replace(cluster=node.identity.cluster_id)
        for hello, address in ((HELLO, ""), (member_hello, HELLO.address)):
            node.greet(hello)
            assert node.peers.address(HELLO.node) == address
    finally:
        await nodes.close()


async def test_a_connection_to_an_unresponsive_machine_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PEER_UNACKED_SECONDS_MAX", 0.2)
    greeted: list[asyncio.StreamWriter] = []

    async def greet_and_read_no_more(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeted.append(writer)
        writer.write(encode_frame(PeerFrame.WELCOME, 0, encode_welcome(PeerWelcome(NO_CLUSTER, 2, 0, ""))))
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is one that reads

    server = await asyncio.start_server(greet_and_read_no_more, "127.0.0.1", 0)
    try:
        async with asyncio.timeout(SECONDS):
            link = await dial(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", HELLO)
            while link.send([bytes(limits.MIB)]):
                pass
            call = asyncio.ensure_future(link.call("GetNodeInfo", {}))
            await link.lost.wait()
            with pytest.raises(errors.ConnectionLost, match="lost"):
                await call
    finally:
        server.close()
        for writer in greeted:
            writer.transport.abort()
