"""Hazard 105: the Raft port answers nodes of its own cluster, each under its own name, and no other process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
import ssl
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icestream import errors
from icestream.cluster import wire
from icestream.cluster.development_authority import LOOPBACK, make_certificate
from icestream.cluster.join_token import JOIN_TOKENS, token_key
from icestream.cluster.members import NodeRecord, encode_record, node_key
from icestream.cluster.peer_link import dial
from icestream.cluster.tls import PeerTls
from icestream.cluster.wire import PeerFrame, PeerHello, PeerWelcome
from icestream.internal_api.cluster_calls import ClusterCalls
from icestream.metadata import command as cmd
from icestream.metadata import eraftpb
from icestream.metadata.raft_core import has_raft_core
from icestream.processes.node.bind_check import check_accounts
from icestream.rpc.frame import encode_frame
from icestream.runtime.clock import SystemClock
from icestream.security.security_records import ENABLED, VERSION
from tests.support.cluster_nodes import SECONDS, Certified, ClusterNodes
from tests.support.node_settings import node_settings

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.timeout(90),
    pytest.mark.skipif(not has_raft_core(), reason="several voters need the native part"),
]
CLUSTER = "production"
NOW = datetime.now(UTC)


def certified(folder: Path) -> Certified:
    return CLUSTER, functools.cache(lambda name: make_certificate(folder, name, LOOPBACK, NOW, CLUSTER))


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


async def test_hazard_105_strangers_get_no_byte_of_state(tmp_path: Path) -> None:
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


async def test_hazard_105_a_node_joins_a_cluster_with_accounts_by_a_token_once(tmp_path: Path) -> None:
    nodes = ClusterNodes(tmp_path, 4, certified=certified(tmp_path / "pem"))
    first = await nodes.start(0, seeds=nodes.seeds[:1])
    await first.running.ready()
    calls = ClusterCalls(first, SystemClock()).calls()
    names = [f"node-{port}" for port in nodes.ports]
    no_caller = cast("Any", SimpleNamespace(session=None))  # without an audit its session is not used
    try:
        with pytest.raises(errors.InvalidInput, match="without a token"):
            await calls["cluster_join_token"](no_caller, {"node": names[1]})
        await first.running.put(ENABLED, b"{}")
        issued = await calls["cluster_join_token"](no_caller, {"node": names[1]})
        stored = b"".join(entry.value + key.encode() for key, entry in await first.running.list_all("/"))
        assert issued["token"].encode() not in stored
        for_other = (await calls["cluster_join_token"](no_caller, {"node": names[2]}))["token"]
        # A certificate of the cluster alone joins nothing and calls nothing.
        thief = certified(tmp_path / "pem")[1]("thief").client_context()
        own = first.identity.cluster_id
        async with asyncio.timeout(SECONDS):
            link = await dial(first.address, PeerHello(own, 7, "127.0.0.1:1", 0), thief, CLUSTER)
            envelope = cmd.encode_envelope(
                cmd.Envelope(cmd.VERSION, b"", 0, 0, cmd.Put("/security/users/thief", b"{}"))
            )
            for method, arguments in (
                ("ClientWrite", {"envelope": envelope}),
                ("Remove", {"node": f"{first.id:016x}"}),
                ("Confirmed", {"node": f"{first.id:016x}", "term": 9, "index": 9}),
            ):
                with pytest.raises(errors.NotReady, match="has to join first"):
                    await link.call(method, arguments)
            record = encode_record(NodeRecord("thief", "127.0.0.1:1"))
            joining = {"node": f"{7:016x}", "record": record, "security": VERSION}
            for token, reason in (("", "no join token"), ("x", "is unknown"), (issued["token"], "another node")):
                with pytest.raises(errors.ConfigurationError, match=reason):
                    await link.call("Join", {**joining, "token": token})
            # An older version does not know the switch: it would serve every client (hazard 112).
            with pytest.raises(errors.ConfigurationError, match="does not know it"):
                await link.call("Join", {"node": f"{7:016x}", "record": record, "token": issued["token"]})
            link.close()
            second = await nodes.start(1, join=nodes.seeds[0], join_token=issued["token"])
            await second.running.ready()
            assert (await first.running.list_all(JOIN_TOKENS))[0][0] == token_key(for_other)
            # It restarts without one, and the used one is worth nothing.
            await nodes.stop(1)
            second = await nodes.start(1, join=nodes.seeds[0])
            await second.running.ready()
            third = await nodes.start(2, join=nodes.seeds[0], join_token=issued["token"])
            with pytest.raises(errors.ConfigurationError, match="is unknown"):
                await third.running.ready()
            await nodes.stop(2)
            third = await nodes.start(2, join=nodes.seeds[0], join_token=for_other)
            await third.running.ready()
            # An invitation brings a token of its own.
            waiting = asyncio.create_task(nodes.start(3, seeds=(nodes.seeds[3], "127.0.0.1:1")))
            while not waiting.done():
                with contextlib.suppress(errors.ConnectionLost, errors.AlreadyExists):
                    await calls["cluster_add"](no_caller, {"address": nodes.seeds[3]})
                await SystemClock().sleep(0.02)
            fourth = await waiting
            await fourth.running.ready()
            assert await fourth.running.get(ENABLED) is not None
    finally:
        await nodes.close()


def heartbeat(to: int, sender: int, term: int) -> bytes:
    """A Raft message of a leader. One of a greater term deposes every leader."""
    return b"\x08\x08" + eraftpb.ends_of(to, sender) + b"\x20" + bytes([term])


@pytest.mark.parametrize("has_accounts", [False, True])
async def test_hazard_105_a_certificate_sends_no_raft_message_before_its_node_joined(
    tmp_path: Path, *, has_accounts: bool
) -> None:
    pem = certified(tmp_path / "pem")
    nodes = ClusterNodes(tmp_path, 1, certified=pem)
    await nodes.start_all()
    try:
        node, term = nodes.nodes[0], 99
        if has_accounts:
            await node.running.put(ENABLED, b"{}")
        context = pem[1]("thief").client_context()
        async with asyncio.timeout(SECONDS):
            link = await dial(node.address, PeerHello(node.identity.cluster_id, 7, "127.0.0.1:1", 0), context, CLUSTER)
            link.send([heartbeat(node.id, 7, term)])
            info = await link.call("GetNodeInfo", {})  # the message before it has been dropped or accepted
            if has_accounts:
                await node.running.put("/key", b"x")
                assert info["term"] == node.node.status()["term"] < term
                # The record of this id is younger than the greeting, and that of another node.
                await node.running.put(node_key(7), encode_record(NodeRecord("honest", "127.0.0.1:1")))
                link.send([heartbeat(node.id, 7, term)])
                with pytest.raises(errors.NotReady, match="has to join first"):
                    await link.call("Remove", {"node": f"{node.id:016x}"})
                assert node.node.status()["term"] < term
            else:
                await node.node.until(lambda: node.node.status()["term"] >= term)
            link.close()
    finally:
        await nodes.close()


async def test_hazard_105_a_node_that_was_away_takes_messages_of_a_member_that_joined_meanwhile(tmp_path: Path) -> None:
    nodes = ClusterNodes(tmp_path, 4, certified=certified(tmp_path / "pem"))
    seeds = nodes.seeds[:3]
    no_caller = cast("Any", SimpleNamespace(session=None))
    try:
        async with asyncio.timeout(SECONDS):
            members = await asyncio.gather(*(nodes.start(number, seeds=seeds) for number in range(3)))
            await asyncio.gather(*(node.running.ready() for node in members))
            await nodes.until_voters(3)
            await nodes.until_recorded()
            await nodes.leader.running.put(ENABLED, b"{}")
            away = next(number for number, node in nodes.nodes.items() if not node.node.leads)
            await nodes.stop(away)
            calls = ClusterCalls(nodes.leader, SystemClock()).calls()
            token = (await calls["cluster_join_token"](no_caller, {"node": f"node-{nodes.ports[3]}"}))["token"]
            joined = await nodes.start(3, join=nodes.leader.address, join_token=token)
            await joined.running.ready()
            await nodes.leader.calls["Promote"]({"node": f"{joined.id:016x}"})
            await joined.node.until(lambda: joined.id in joined.node.members.voters)
            await nodes.hand_over_to(joined)
            back = await nodes.start(away, seeds=seeds)
            await joined.running.put("/key", b"of the new leader")
            await back.node.until(lambda: back.node.machine.get("/key") is not None)
            # As long as it is a member, it speaks for itself only.
            other = next(node for node in nodes.nodes.values() if node not in (joined, back))
            assert joined.peers.get(back.id) is not None
            term = back.node.status()["term"]
            joined.peers.send(back.id, [heartbeat(back.id, other.id, 99)])
            await joined.peers.call(back.id, "GetNodeInfo", {})
            await joined.running.put("/key", b"again")
            assert back.node.status()["term"] == term
    finally:
        await nodes.close()


async def test_hazard_105_an_address_that_another_node_took_gets_no_messages(tmp_path: Path) -> None:
    """A node with a certificate that answers under an id of its own is not the member that is dialled."""
    nodes = ClusterNodes(tmp_path, 2, certified=certified(tmp_path / "pem"))
    await nodes.start_all()
    try:
        dialling, member = nodes.leader, nodes.followers[0]
        await dialling.running.put(ENABLED, b"{}")
        async with asyncio.timeout(SECONDS):
            (await dialling.peers.dial(member.id)).close()
            strangers_welcome = PeerWelcome(member.identity.cluster_id, 7, member.id, "127.0.0.1:1")
            member.greet = lambda hello: strangers_welcome  # type: ignore[method-assign]
            with pytest.raises(errors.NotReady, match="is not a member"):
                await dialling.peers.dial(member.id)
    finally:
        await nodes.close()


async def test_hazard_105_certificates_between_nodes_are_read_again(tmp_path: Path) -> None:
    files, renewed = (make_certificate(tmp_path / folder, "node", LOOPBACK, NOW) for folder in ("pem", "renewed"))
    former = make_certificate(tmp_path / "pem", "client", LOOPBACK, NOW).client_context()
    nodes = ClusterNodes(tmp_path, 2, files)
    await nodes.start_all()
    try:
        certificates = [entry for entry in nodes.certificates.values() if entry is not None]
        hello = PeerHello(nodes.leader.identity.cluster_id, 7, "127.0.0.1:1", 0)
        async with asyncio.timeout(SECONDS):
            shutil.copy(renewed.certificate, files.certificate)  # half of the pair: the former stays in use
            assert [entry.listener.refresh() for entry in certificates] == [True, True]
            assert all(entry.listener.fault for entry in certificates)
            (await dial(nodes.seeds[0], hello, former)).close()
            for source, target in ((renewed.key, files.key), (renewed.authority, files.authority)):
                shutil.copy(source, target)
            assert [entry.listener.refresh() for entry in certificates] == [True, True]
            with pytest.raises(errors.ConnectionLost):
                await dial(nodes.seeds[0], hello, former)
            # Both ends of a new connection use the new files.
            assert await nodes.nodes[0].fetch_info(nodes.seeds[1]) is not None
            await nodes.nodes[0].running.put("/key", b"x")
    finally:
        await nodes.close()
