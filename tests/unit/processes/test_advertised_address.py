"""The addresses that a node advertises to others."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from icestream.model.task_messages import TaskError
from icestream.pipeline.log_bytes.log_sources import LogOwner
from icestream.pipeline.round_plan import LogSource
from icestream.runtime.advertised_address import advertised_address
from tests.support.node_settings import node_settings
from tests.unit.internal_api.test_admin_calls import operated
from tests.unit.internal_api.test_pipeline_calls import backlog_of


@pytest.mark.parametrize(
    ("node", "own", "address"),
    [
        ({}, None, "127.0.0.1:9040"),
        ({"bind_host": "::1"}, None, "[::1]:9040"),
        ({"advertised_host": "broker.example"}, None, "broker.example:9040"),
        ({"advertised_host": "2001:db8::5"}, None, "[2001:db8::5]:9040"),
        ({"advertised_host": "broker.example"}, "danube.example", "danube.example:9040"),
        ({"bind_host": "0.0.0.0", "advertised_host": "10.0.0.5", "allow_insecure_bind": True}, None, "10.0.0.5:9040"),
        ({"bind_host": "::", "allow_insecure_bind": True}, None, f"{socket.gethostname()}:9040"),
    ],
)
def test_an_advertised_address_is_usable_by_others(
    tmp_path: Path, node: dict[str, Any], own: str | None, address: str
) -> None:
    assert advertised_address(node_settings(tmp_path, node=node), 9040, own) == address


@pytest.mark.asyncio
async def test_a_remote_task_reads_the_log_from_the_advertised_host(tmp_path: Path) -> None:
    async with operated(tmp_path / "data", node={"advertised_host": "localhost"}) as ask:
        await ask("create_topic", topic="/default/orders")
        await ask.publish(5)
        backlog = await backlog_of(ask)
        assert backlog.address == f"localhost:{ask.node.services.http.port}"
        (file,) = backlog.files
        leased = await ask("pipeline_lease", lease="r1", epoch=1, files=[file.number], ttl_ms=60_000)
        owner = LogOwner(LogSource(backlog.log_id, "", backlog.address, backlog.certificate, leased["token"], "r1"))
        position, _ = file.marks[0]
        data = await asyncio.to_thread(owner.read, file.number, position, file.end)
        owner.close()
        assert not isinstance(data, TaskError), data
        assert len(data) == file.end - position
