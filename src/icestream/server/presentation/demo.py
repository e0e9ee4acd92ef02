"""The first minute with a broker: a few messages are published, and shown where they have become rows.

`icestream serve --demo`, and with it `make run`. Only a broker without any topic does it, so that no later start adds
anything. Nobody waits for it: where the pipeline cannot run, the broker has said so, and the messages stay in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from icestream.broker.pipeline_service import PipelineService
from icestream.model import envelope
from icestream.model.block import ConstantColumn, encode_block
from icestream.model.topic_name import TopicName
from icestream.pipeline.driver.commit_now import request_commit
from icestream.runtime.clock import SystemClock
from icestream.server.broker_node import BrokerNode
from icestream.server.presentation.greeting import catalog_url
from icestream.server.presentation.read_commands import read_commands

TOPIC: Final = TopicName("default", "demo")
MESSAGES: Final = (b"hello", b"from", b"icestream")


class FirstSnapshot(NamedTuple):
    table: list[str]  # level by level
    id: int


def should_run_demo(node: BrokerNode) -> bool:
    return node.ingest is not None and node.services.pipeline is not None and not len(node.broker.topics)


async def run_demo(node: BrokerNode, say: Callable[[str], None]) -> None:
    """Until the messages are rows, or somebody stops it."""
    ingest = node.ingest
    assert ingest is not None
    await publish(node)
    say(f"Demo: {len(MESSAGES)} messages are in the log, in {TOPIC}. Spark is being started; soon they are rows.")
    await request_commit(node.store)
    found = await _committed(ingest)
    for line in demo_lines(node, found):
        say(line)


async def publish(node: BrokerNode) -> None:
    """As any producer would."""
    columns: dict[envelope.EnvelopeColumn, Any] = {
        envelope.PAYLOAD: list(MESSAGES),
        envelope.PUBLISH_TIME: ConstantColumn(SystemClock().wall_us()),
    }
    producer = await node.broker.open_producer(TOPIC, "demo", create=True)
    try:
        await node.broker.publish(producer, 0, encode_block(len(MESSAGES), columns))
    finally:
        node.broker.close_producer(producer)


async def _committed(ingest: PipelineService) -> FirstSnapshot:
    """The driver tells after each round."""
    told = asyncio.Event()
    ingest.on_told = told.set
    try:
        while (found := first_snapshot(ingest.state["state"])) is None:
            await told.wait()
            told.clear()
    finally:
        ingest.on_told = None
    return found


def first_snapshot(state: dict[str, Any] | None) -> FirstSnapshot | None:
    """Of the demo's table, in what a driver says of itself."""
    for one in (state or {}).get("first_snapshots", ()):
        if one.get("topic") == str(TOPIC):
            return FirstSnapshot(list(one["table"]), int(one["snapshot_id"]))
    return None


def demo_lines(node: BrokerNode, found: FirstSnapshot) -> Iterator[str]:
    table = ".".join(found.table)
    yield f"Demo: {TOPIC} is the Iceberg table {table}; its first snapshot, {found.id}, has {len(MESSAGES)} rows."
    for line in read_commands(found.table, catalog_url(node)):
        yield f"  {line}"
