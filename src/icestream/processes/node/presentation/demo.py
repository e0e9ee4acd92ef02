"""The demo of `icestream serve --demo`, which `make run` uses: publishes a few messages and shows them as table rows.

It runs only on a broker without topics, so that later starts add nothing. Nothing waits for it: where the pipeline
cannot run, the broker has reported it, and the messages stay in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from icestream.broker.pipeline_service import PipelineService
from icestream.model import envelope
from icestream.model.block import ConstantColumn, encode_block
from icestream.model.topic_name import TopicName
from icestream.pipeline.driver.commit_now import request_commit
from icestream.processes.node.presentation.greeting import catalog_url
from icestream.processes.node.presentation.read_commands import read_commands
from icestream.runtime.clock import SystemClock

if TYPE_CHECKING:
    from icestream.processes.broker_process import BrokerNode

TOPIC: Final = TopicName("default", "demo")
MESSAGES: Final = (b"hello", b"from", b"icestream")


class FirstSnapshot(NamedTuple):
    table: list[str]  # the identifier by levels
    id: int


def should_run_demo(node: BrokerNode) -> bool:
    return node.ingest is not None and node.services.pipeline is not None and not len(node.broker.topics)


async def run_demo(node: BrokerNode, print_line: Callable[[str], None]) -> None:
    """Publishes the messages and returns when they are rows. Cancel it to stop earlier."""
    ingest = node.ingest
    assert ingest is not None
    await publish(node)
    print_line(f"Demo: {len(MESSAGES)} messages are in the log of {TOPIC}. Starting Spark; they become rows soon.")
    await request_commit(node.store)
    snapshot = await _wait_for_snapshot(ingest)
    for line in demo_lines(node, snapshot):
        print_line(line)


async def publish(node: BrokerNode) -> None:
    """Publishes the messages like any producer."""
    columns: dict[envelope.EnvelopeColumn, Any] = {
        envelope.PAYLOAD: list(MESSAGES),
        envelope.PUBLISH_TIME: ConstantColumn(SystemClock().wall_us()),
    }
    producer = await node.broker.open_producer(TOPIC, "demo", create=True)
    try:
        await node.broker.publish(producer, 0, encode_block(len(MESSAGES), columns))
    finally:
        node.broker.close_producer(producer)


async def _wait_for_snapshot(ingest: PipelineService) -> FirstSnapshot:
    """Waits for the first snapshot of the demo's table, which the driver reports after its round."""
    reported = asyncio.Event()
    ingest.on_report = reported.set
    try:
        while (snapshot := first_snapshot(ingest.state["state"])) is None:
            await reported.wait()
            reported.clear()
    finally:
        ingest.on_report = None
    return snapshot


def first_snapshot(state: dict[str, Any] | None) -> FirstSnapshot | None:
    """The first snapshot of the demo's table in the state that a driver reports."""
    for entry in (state or {}).get("first_snapshots", ()):
        if entry.get("topic") == str(TOPIC):
            return FirstSnapshot(list(entry["table"]), int(entry["snapshot_id"]))
    return None


def demo_lines(node: BrokerNode, snapshot: FirstSnapshot) -> Iterator[str]:
    table = ".".join(snapshot.table)
    yield f"Demo: {TOPIC} is the Iceberg table {table}; its first snapshot, {snapshot.id}, has {len(MESSAGES)} rows."
    for line in read_commands(snapshot.table, catalog_url(node)):
        yield f"  {line}"
