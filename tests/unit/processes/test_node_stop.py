"""A stop of a node: its components stop at the same time, and a failure of one does not keep the log from closing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from icestream import errors, limits
from icestream.processes.broker_process import BrokerNode
from icestream.processes.node.child_processes import ChildProcess
from icestream.rpc.link import open_link
from icestream.runtime.clock import SystemClock
from tests.support.node_settings import node_settings
from tests.support.raw_client import raw_client
from tests.support.until import until
from tests.unit.processes.test_child_processes import DEAF, UNTIL_ASKED, python

pytestmark = pytest.mark.asyncio
FOR_EVER = 1000.0


async def node_with_child(path: Path, program: str) -> tuple[BrokerNode, ChildProcess]:
    node = await BrokerNode.start(node_settings(path))
    child = ChildProcess("lake", python(program), SystemClock())
    node.services.lake = child
    node.services._tasks.start(child.run(), "child")
    await until(lambda: child.is_up)
    return node, child


async def test_a_client_that_does_not_read_keeps_no_child_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLOSE_SECONDS_MAX", FOR_EVER)
    node, child = await node_with_child(tmp_path, UNTIL_ASKED)
    async with raw_client(f"127.0.0.1:{node.native.port}", receive_bytes=4096) as client:
        (connection,) = node.native._connections
        while connection.out.can_write.is_set():
            connection.out.send(bytes(65536))
            await asyncio.sleep(0)
        stopping = asyncio.create_task(node.stop())
        await until(lambda: child.pid is None)
        assert (node.native.connections, stopping.done()) == (1, False)
        client.close()
        await stopping


async def test_a_child_that_does_not_listen_keeps_no_client_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHILD_STOP_SECONDS", FOR_EVER)
    node, child = await node_with_child(tmp_path, DEAF)
    link = await open_link(node.settings.local_socket, "test")
    stopping = asyncio.create_task(node.stop())
    await asyncio.wait_for(link.lost.wait(), 20)
    assert (child.is_up, stopping.done()) == (True, False)
    assert child._process is not None
    child._process.kill()
    await stopping


async def test_errors_during_a_stop_are_raised_after_the_log_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await BrokerNode.start(node_settings(tmp_path))

    close = node.native.close

    async def fail() -> None:
        await close()
        raise errors.ConnectionLost("the socket is on fire")

    monkeypatch.setattr(node.native, "close", fail)
    with pytest.raises(errors.ConnectionLost, match="on fire"):
        await node.stop()
    again = await BrokerNode.start(node_settings(tmp_path))
    assert again.log is not None
    assert again.log.report.clean
    await again.stop()
