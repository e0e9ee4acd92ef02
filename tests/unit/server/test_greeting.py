"""What a start says to the person who started it."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream.server.greeting import greeting
from icestream.server.node import Node
from tests.support.node_settings import node_settings


@pytest.mark.asyncio
@pytest.mark.parametrize(("seeds", "count"), [((), 0), (("0.0.0.0:7650", "0.0.0.0:7651"), 1)])
async def test_seed_nodes_that_nobody_asks_are_said_to_be_so(
    tmp_path: Path, seeds: tuple[str, ...], count: int
) -> None:
    node = await Node.start(node_settings(tmp_path, meta_store={"seed_nodes": seeds}))
    try:
        assert sum("seed_nodes is not used yet" in line for line in greeting(node)) == count
    finally:
        await node.stop()
