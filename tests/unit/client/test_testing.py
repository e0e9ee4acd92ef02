"""The broker that users get for their own tests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import icestream
from icestream import errors
from icestream.client.address import parse_address

TOPIC = "/default/orders"


@pytest.mark.asyncio
async def test_two_brokers_know_nothing_of_each_other() -> None:
    async with (
        icestream.testing.broker() as one,
        icestream.testing.broker() as other,
        icestream.connect(one.address) as here,
        icestream.connect(other.address) as there,
    ):
        await here.create_topic(TOPIC)
        assert (await here.list_topics(), await there.list_topics()) == ([TOPIC], [])


def test_on_disk_a_restart_keeps_everything_and_the_end_leaves_nothing() -> None:
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


def test_settings_that_cannot_be_used_leave_nothing_behind() -> None:
    with pytest.raises(Exception, match="bind_host"):
        icestream.testing.broker(settings={"node": {"bind_host": 7}}).__enter__()
