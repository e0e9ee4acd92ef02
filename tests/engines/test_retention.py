"""A real broker, lake process and pipeline: a retention leaves one `earliest` for log, lake, engines and `verify`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from icestream import connect
from icestream.client.message import Gap
from tests.support.lake_run import until
from tests.support.lakehouse import duckdb_with_iceberg, new_name
from tests.support.pipeline_process import PipelineRun

ROUNDS, ROWS = 3, 20


@pytest.fixture
def topic(history: PipelineRun) -> str:
    """The name of a topic with a data file for each round, and a subscription that has read nothing."""
    name = new_name("kept")
    for number in range(ROUNDS):
        history.produce(f"/default/{name}", ROWS)
        history.icestream("lake", "commit-now", "--wait", "120")
        if not number:
            history.icestream("sub", "create", f"/default/{name}", "late", "--type", "exclusive", "--from", "earliest")
    return name


def shards(run: PipelineRun, topic: str) -> list[dict[str, Any]]:
    described = run.icestream("topic", "describe", f"/default/{topic}")
    entries: list[dict[str, Any]] = described["shard_offsets"]
    return entries


async def read_all(address: str, topic: str, subscription: str) -> tuple[list[int], list[Gap]]:
    """The offsets and gaps up to the last message."""
    offsets: list[int] = []
    async with (
        connect(f"icestream://{address}") as client,
        client.subscribe(topic, subscription, type="exclusive") as messages,
    ):
        async for message in messages:
            offsets.append(message.offset)
            if message.offset == ROUNDS * ROWS - 1:
                break
        return offsets, list(messages.gaps)


def test_a_retention_leaves_one_earliest(history: PipelineRun, topic: str) -> None:
    first = (ROUNDS - 1) * ROWS
    history.icestream("topic", "policy", f"/default/{topic}", f"retention_messages={ROWS}")
    history.produce("/default/wakes-the-pipeline", 1)
    until(lambda: shards(history, topic)[0]["earliest"] == first, 90)
    with duckdb_with_iceberg() as duckdb:
        duckdb.sql(f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{history.uri}', AUTHORIZATION_TYPE 'none')")
        rows = duckdb.sql(f'SELECT min("offset"), count(*) FROM lake.default.{topic}').fetchall()
    assert rows == [(first, ROWS)]
    report = history.verified(f"/default/{topic}")
    assert report["is_good"]
    assert [(finding["start"], finding["end"]) for finding in report["findings"]] == [(0, first)]
    offsets, gaps = asyncio.run(read_all(history.address, f"/default/{topic}", "late"))
    assert offsets == list(range(first, ROUNDS * ROWS))
    assert [(gap.start, gap.end) for gap in gaps] == [(0, first)]
    assert "retention" in gaps[0].reason
