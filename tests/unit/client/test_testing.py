"""The broker that users get for their own tests."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

import icestream
from icestream import errors
from icestream.client.address import parse_address

TOPIC = "/default/orders"


@pytest.mark.asyncio
async def test_two_test_brokers_are_independent() -> None:
    async with (
        icestream.testing.broker() as first,
        icestream.testing.broker() as other,
        icestream.connect(first.address) as here,
        icestream.connect(other.address) as there,
    ):
        await here.create_topic(TOPIC)
        assert (await here.list_topics(), await there.list_topics()) == ([TOPIC], [])


def test_on_disk_a_restart_keeps_everything_and_the_end_removes_it() -> None:
    assert not asyncio.run(restarted()).exists()


async def restarted() -> Path:
    """The directory of a broker that was stopped."""
    async with icestream.testing.broker("disk") as broker:
        address, folder = broker.address, broker.node.settings.data_dir
        async with icestream.connect(address) as client, client.producer(TOPIC) as producer:
            await producer.send(b"x")
        await broker.restart()
        assert broker.address == address
        async with icestream.connect(address) as client, client.subscribe(TOPIC, "s", start="earliest") as messages:
            assert (await asyncio.wait_for(anext(messages), 20)).payload == b"x"
    return Path(folder)


@pytest.mark.asyncio
async def test_settings_of_a_user_count() -> None:
    settings = {"broker": {"auto_create_topics": False}, "node": {"name": "mine"}}
    async with icestream.testing.broker(settings=settings) as broker, icestream.connect(broker.address) as client:
        assert broker.node.settings.node.name == "mine"
        assert not broker.node.settings.broker.auto_create_topics
        assert await client.list_topics() == []


def test_it_has_an_address_only_while_it_runs() -> None:
    broker = icestream.testing.broker()
    with pytest.raises(errors.ClientClosed, match="not running"):
        assert broker.address
    with broker:
        assert parse_address(broker.address).port
    with pytest.raises(errors.ClientClosed, match="not running"):
        assert broker.node is None


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"node": {"bind_host": 7}}, "bind_host"), ({"nodes": {}}, "nodes"), ({"ports": {"native": -1}}, "native")],
)
def test_unusable_settings_are_named_and_leave_nothing(
    settings: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = threading.active_count()
    with pytest.raises(errors.ConfigurationError, match=says):
        icestream.testing.broker(settings=settings).__enter__()
    assert (threading.active_count(), list(tmp_path.iterdir())) == (before, [])


def test_an_invalid_storage_is_refused() -> None:
    wrong: Any = "ram"
    with pytest.raises(errors.InvalidInput, match="memory"):
        icestream.testing.broker(wrong)


def test_a_broker_can_stop_and_restart_in_its_thread() -> None:
    with icestream.testing.broker("disk") as broker, icestream.connect_sync(broker.address) as client:
        client.create_topic(TOPIC)
        broker.stop_sync()
        with pytest.raises(errors.ConnectionLost, match="icestream serve"):
            icestream.connect_sync(broker.address).open()
        broker.start_sync()
        assert client.list_topics() == [TOPIC]
    with pytest.raises(errors.ClientClosed, match="thread"):
        broker.stop_sync()
