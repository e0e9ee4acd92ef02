"""Hazards 112 and 113 in a cluster of real nodes: all or none switch security on, and a node that is cut off stops."""

from __future__ import annotations

import asyncio
import functools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from icestream import errors, limits
from icestream.cluster.cluster_node import ClusterNode
from icestream.cluster.development_authority import LOOPBACK, make_certificate
from icestream.cluster.peer_link import PeerLink
from icestream.internal_api.cluster_calls import ClusterCalls
from icestream.internal_api.security_calls import SecurityCalls
from icestream.metadata.raft_core import has_raft_core
from icestream.rpc.document import Document
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.security.action import Action
from icestream.security.key_ring_changes import KeyRingChanges
from icestream.security.password_hashing import PasswordHashing
from icestream.security.principal import CallerIdentity, local_user
from icestream.security.resource import Resource, ResourceKind
from icestream.security.security_records import ENABLED, RuleRecord
from tests.support.cluster_nodes import SECONDS, ClusterNodes
from tests.support.fake_clock import FakeClock
from tests.support.secured_store import ClosedHold, SecuredStore, secured_store

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.timeout(90),
    pytest.mark.skipif(not has_raft_core(), reason="several voters need the native part"),
]
NOW = datetime.now(UTC)
ALICE = local_user("alice")
ORDERS = Resource(ResourceKind.TOPIC, ("shop", "orders"))


class UnreachedAudit:
    """The audit of a change that is refused before it is recorded."""

    def change(self, *_: object) -> Any:
        raise AssertionError("the change was not refused")


async def init(node: ClusterNode, secured: SecuredStore, folder: Path) -> None:
    """`security init`, as the local socket of a node executes it; it must be refused."""
    clock = SystemClock()
    key_rings = KeyRingChanges(folder, clock, SystemRandomness())
    calls = SecurityCalls(
        secured.security, secured.control, clock, folder, PasswordHashing(), cast("Any", None), key_rings,
        UnreachedAudit(), cast("Any", None), ClusterCalls(node, clock),
    ).calls()  # fmt: skip
    await calls["security_init"](cast("Any", None), {"name": "root", "password": "a long password"})


@pytest.mark.parametrize("is_certified", [False, True])
async def test_hazard_112_init_needs_every_member(tmp_path: Path, is_certified: bool) -> None:
    folder = tmp_path / "pem"
    issue = functools.cache(lambda name: make_certificate(folder, name, LOOPBACK, NOW, "production"))
    nodes = ClusterNodes(tmp_path, 3, certified=("production", issue) if is_certified else None)
    await nodes.start_all()
    try:
        await nodes.until_voters(3)
        node = nodes.nodes[0]
        async with asyncio.timeout(SECONDS), secured_store(node.running, SystemClock(), initialised=False) as secured:
            while None in (await ClusterCalls(node, SystemClock()).member_infos()).values():
                await SystemClock().sleep(0.02)  # two that joined at the same time hear of each other a moment later
            if not is_certified:
                with pytest.raises(errors.InvalidInput, match="does not ask for certificates of nodes"):
                    await init(node, secured, tmp_path)
            # As a node of an older version answers.
            current = nodes.nodes[1].calls["GetNodeInfo"]

            async def older(arguments: Document) -> Document:
                return {key: value for key, value in (await current(arguments)).items() if key != "security"}

            nodes.nodes[1].calls["GetNodeInfo"] = older
            with pytest.raises(errors.InvalidInput, match="without security"):
                await init(node, secured, tmp_path)
            nodes.nodes[1].calls["GetNodeInfo"] = current
            await nodes.stop(2)
            with pytest.raises(errors.NotReady, match="does not answer"):
                await init(node, secured, tmp_path)
            assert await node.running.get(ENABLED) is None
    finally:
        await nodes.close()


async def cut_off(node: ClusterNode) -> None:
    """Nothing comes to the node any more, and nothing goes out."""

    async def unreachable(*_: object) -> PeerLink:
        raise errors.ConnectionLost("the network is down")

    node.peers._dial = unreachable  # type: ignore[method-assign]
    await node.listener.close()
    for peer_id in node.node.members.voters:
        if (peer := node.peers.get(peer_id)) is not None and peer.link is not None:
            peer.link.close()


async def test_hazard_113_a_node_that_is_cut_off_stops_at_its_graces(tmp_path: Path) -> None:
    nodes = ClusterNodes(tmp_path, 3)
    await nodes.start_all()
    clock = FakeClock()
    try:
        await nodes.until_voters(3)
        leader, away = nodes.leader, nodes.followers[0]
        async with (
            asyncio.timeout(SECONDS),
            secured_store(leader.running, SystemClock()) as here,
            secured_store(away.running, clock, 1, initialised=False) as there,
        ):
            await here.security.create_user("alice", "hash")
            grant = await here.security.grant(ALICE, rule=RuleRecord(["read"], "/shop/orders"))
            await there.watch.until_current()
            identity = CallerIdentity(ALICE, generation=here.security.state.users["alice"].generation)
            holds = [ClosedHold(node.session(identity), Action.CONSUME, ORDERS) for node in (here, there)]

            async def until_looked() -> None:
                """The next look of the cut-off node at its leader has ended, in vain."""
                looks = len(clock.sleeps)
                while len(clock.sleeps) == looks:
                    await SystemClock().sleep(0.01)

            await cut_off(away)
            await here.security.delete_grant(grant)
            assert isinstance(holds[0].reason, errors.PermissionDenied)
            clock.advance(limits.ACCESS_LOGIN_GRACE_MS / 1000)
            await until_looked()
            with pytest.raises(errors.NotReady, match="no leader"):
                await there.control.authenticate(None, "", "native")
            with pytest.raises(errors.NotReady, match="no leader"):
                ClosedHold(there.session(identity), Action.CONSUME, ORDERS)
            assert not holds[1].reasons
            clock.advance((limits.ACCESS_HOLD_GRACE_MS - limits.ACCESS_LOGIN_GRACE_MS) / 1000)
            await until_looked()
            assert isinstance(holds[1].reason, errors.NotReady)
            assert here.control.paused is None
    finally:
        await nodes.close()
