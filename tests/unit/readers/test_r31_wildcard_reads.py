"""R31: a filter that begins with its static levels and one that begins with a wildcard read about the bytes that match,
of a table of a hundred thousand publishers. Counters say so."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icestream.mqtt.topics import matches
from tests.support.mqtt_lake import MqttLake, counted_scans

pytestmark = pytest.mark.asyncio
PUBLISHERS = 100_000
PREFIX, SUFFIX = "a/b/c/#", "+/a/b/c/d"


def topics_of_publishers() -> list[str]:
    """Each publisher has one topic of each of these shapes, and they publish in any order."""
    topics = [f"a/b/c/{number}" for number in range(PUBLISHERS)]
    topics += [f"{number}/a/b/c/d" for number in range(PUBLISHERS)]
    topics += [f"{number}/state" for number in range(PUBLISHERS // 2)]
    topics += [f"plant/{number % 500}/line/{number % 40}/heat" for number in range(PUBLISHERS // 2)]
    random.Random(31).shuffle(topics)
    return topics


async def filled(folder: Path, topics: Sequence[str], rounds: int) -> MqttLake:
    """A table of one shard; each round is a file."""
    lake = MqttLake(folder)
    await lake.bind()
    chance = np.random.default_rng(1)
    ends = [len(topics) * number // rounds for number in range(rounds + 1)]
    for start, end in pairwise(ends):
        rows = end - start
        payloads = chance.bytes(100 * rows)
        columns = {
            "shard": pa.array(np.zeros(rows, np.int32)),
            "offset": pa.array(np.arange(start, end)),
            "append_time": pa.array(np.arange(start, end) // 50, pa.timestamp("us", tz="UTC")),
            "key": pa.array([topic.encode() for topic in topics[start:end]], pa.binary()),
            "payload": pa.array([payloads[100 * row : 100 * row + 100] for row in range(rows)], pa.binary()),
        }
        await lake.round((0, start, end), entries=[await lake.write_columns(columns, rows)])
    return lake


async def test_r31_both_shapes_of_filters_read_about_the_bytes_that_match(tmp_path: Path) -> None:
    topics = topics_of_publishers()
    lake = await filled(tmp_path, topics, 2)
    costs: dict[str, float] = {}
    groups: dict[str, int] = {}
    for topic_filter in (PREFIX, SUFFIX):
        lake.reader._cache = type(lake.reader._cache)(lake.cache_options)  # each filter reads from the files
        with counted_scans() as counts:
            delivered, gaps = await lake.read_matching([topic_filter], bytes_max=2 << 20)
        (cost,) = counts
        expected = [offset for offset, topic in enumerate(topics) if matches(topic_filter, topic)]
        assert [*delivered] == expected
        assert not gaps
        delivered_bytes = sum(len(payload) + len(key or b"") for payload, key, _ in delivered.values())
        costs[topic_filter] = cost.read_bytes / delivered_bytes
        groups[topic_filter] = cost.read_groups
        assert cost.skipped_groups > cost.read_groups, "a third of all rows match"
    assert max(costs.values()) <= 2 * min(costs.values())
    assert max(costs.values()) < 1.5, "bytes of files for each byte of matching messages"
    assert max(groups.values()) <= 2 * min(groups.values())
