"""docs/danube.md can be followed word for word."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from pathlib import Path

import pytest

from icestream.model.subscription_options import SubscriptionType
from icestream.model.topic_name import TopicName
from tests.support.command_line import icestream
from tests.support.danube_broker import danube_broker
from tests.tidy.tree import ROOT

PAGE = (ROOT / "docs" / "danube.md").read_text(encoding="utf-8")
ORDERS = TopicName("default", "orders")


def on_the_page(pattern: str) -> str:
    match = re.search(pattern, PAGE, re.DOTALL)
    assert match is not None, pattern
    return match[1]


@pytest.mark.asyncio
async def test_the_script_and_the_command_of_the_page(tmp_path: Path) -> None:
    command = shlex.split(on_the_page(r"`icestream (sub create [^`]*)`"))
    script = on_the_page(r"```python\n(.*?)```")
    async with danube_broker(tmp_path / "data", "iceberg") as danube:
        await danube.broker.create_topic(ORDERS)
        ran = await asyncio.to_thread(icestream, *command, "--broker", str(tmp_path / "data" / "broker.sock"))
        assert ran.code == 0, ran.err
        assert danube.broker.subscription(ORDERS, "billing").record.type is SubscriptionType.SHARED
        assert danube.node is not None
        script = script.replace("http://127.0.0.1:6650", danube.node.danube.url)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
        assert (process.returncode, out) == (0, b"0 b'an order'\n"), err.decode()
