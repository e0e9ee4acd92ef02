"""The benchmark's client of gRPC, against a broker: what it counts was really stored, delivered and acked."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from bench import danube_round_trip
from bench.http2 import Connection, Failed, Headers
from icestream.model.topic_name import TopicName
from tests.support.danube_broker import DanubeBroker, danube_broker

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def danube(tmp_path: Path) -> AsyncIterator[DanubeBroker]:
    async with danube_broker(tmp_path) as broker:
        yield broker


def address(danube: DanubeBroker) -> str:
    assert danube.node is not None
    return danube.node.danube.url.removeprefix("http://")


async def test_round_trips_match_the_count_of_the_broker(danube: DanubeBroker) -> None:
    server = str(os.getpid())
    figures = await asyncio.to_thread(danube_round_trip.measure, address(danube), 16, 0.0, 0.2, server)
    (delivery,) = danube.broker.subscription(TopicName.parse(danube_round_trip.TOPIC), "s").deliveries
    acked = delivery.stream.visible - delivery.lag
    assert 0 < figures["messages"] < acked, "the first one is not counted"
    assert not figures["out_of_order"]
    assert acked <= figures["messages"] + 1 + 16, "what was under way at the end may be acked"


async def test_a_refused_call_is_not_counted_as_a_reply(danube: DanubeBroker) -> None:
    connection = Connection(address(danube), 10)
    try:
        with pytest.raises(Failed, match="was refused"):
            await asyncio.to_thread(connection.answer, "/danube.ConsumerService/Nothing", b"")
    finally:
        connection.close()


async def test_headers_are_sent_once() -> None:
    headers = Headers("h:1")
    first, again, other = headers.block("/a"), headers.block("/a"), headers.block("/b")
    assert b"/a" in first
    assert again == b"\x83\x86" + indexed_fields(3, 2, 1, 0)
    assert other == b"\x83\x86\x44\x02/b" + indexed_fields(3, 2, 1)


def indexed_fields(*ages: int) -> bytes:
    """Places in the table of headers that were sent, the last one first."""
    return bytes(0x80 | 62 + age for age in ages)
