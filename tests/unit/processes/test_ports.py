"""The fixed ports of a node are looked at together, before anything is opened."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from icestream import errors
from icestream.processes.broker_process import BrokerNode
from icestream.processes.node.ports import check_ports, own_ports
from tests.support.node_settings import node_settings

pytestmark = pytest.mark.asyncio


async def test_every_port_in_use_is_named_at_once(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        holders = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        native, http, danube = (holder.getsockname()[1] for holder in holders)
        ports = {"native": native, "broker_http": http, "lake": 0, "danube": danube, "danube_admin": 0}
        settings = node_settings(tmp_path, ports=ports, danube={"enable": True})
        with pytest.raises(errors.ConfigurationError) as caught:
            await BrokerNode.start(settings)
        for key, port in (("native", native), ("broker_http", http), ("danube", danube)):
            assert f"127.0.0.1:{port} (ports.{key}): another process listens there" in caught.value.message
            assert f"--set ports.{key}=0" in caught.value.hint
    await check_ports(settings)


async def test_unused_ports_are_not_checked(tmp_path: Path) -> None:
    alone = dict(own_ports(node_settings(tmp_path, ports={"native": 1, "broker_http": 0, "danube": 3, "raft": 4})))
    assert alone == {"ports.native": 1}
    seeds = node_settings(
        tmp_path, ports={"native": 0, "raft": 4, "broker_http": 0}, meta_store={"seed_nodes": ["127.0.0.1:4"]}
    )
    assert dict(own_ports(seeds)) == {"ports.raft": 4}
    assert dict(own_ports(node_settings(tmp_path), "127.0.0.1:9")) == {"ports.raft": 7650}
