"""Hazard 70: what is learned after a file was written never hides its rows. A replay with any filter is the linear scan
of the table with that filter, whatever the structure knew when each file was written, and whoever rewrote it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import limits
from icestream.model.scan_messages import ScanKind
from icestream.mqtt.learned_structure import LearnedStructure
from icestream.mqtt.topics import matches, row_topic
from tests.support import table_verification
from tests.support.hypothesis_effort import EIGHTH
from tests.support.mqtt_lake import MqttLake, counted_scans
from tests.support.topic_lake import Row, TopicLake, row

NATIVE = "default/orders"
LEVELS = st.sampled_from(["a", "b", "c", "", "$SYS", "1", "2", "3", "4", "5", "x" * 70])
KEYS = st.one_of(
    st.lists(LEVELS, min_size=1, max_size=10).map(lambda levels: "/".join(levels).encode()),
    st.sampled_from([None, b"", b"\xff", b"a/+", NATIVE.encode()]),
)
FILTER_LEVELS = st.one_of(LEVELS, st.just("+"))
FILTERS = st.one_of(
    st.lists(FILTER_LEVELS, min_size=1, max_size=5).map("/".join).filter(bool),
    st.lists(FILTER_LEVELS, max_size=4).map(lambda levels: "/".join([*levels, "#"])),
    st.just(NATIVE),
)
# How a file comes to be: by the pipeline, with what was learned so far or with nothing; without derived columns; by an
# engine that compacts everything that is there.
WRITERS = st.sampled_from(["pipeline", "pipeline", "forgetful", "before", "compaction"])


async def written(lake: MqttLake, messages: Sequence[Row], writer: str, start: int) -> None:
    if writer == "forgetful":
        lake.structure = LearnedStructure()
    lake.has_columns = writer != "before"
    end = start + len(messages)
    await lake.round((0, start, end), entries=[await lake.write(messages)])
    if writer == "compaction":
        together = lake.read_files().sort_by([("payload", "descending")])

        def save(table: Any, path: Path) -> None:
            pq.write_table(table, path, row_group_size=7)

        await lake.replace([await lake.write_table(together, save)])
        lake.paths = [Path(lake.live[0]["data_file"]["file_path"].removeprefix("file:"))]


async def check(folder: Path, rounds: list[tuple[str, list[bytes | None]]], filters: list[str]) -> None:
    lake = MqttLake(folder)
    await lake.bind()
    keys: list[bytes | None] = []
    for writer, new_keys in rounds:
        messages = [row(len(keys) + number, key=key) for number, key in enumerate(new_keys)]
        await written(lake, messages, writer, len(keys))
        keys += new_keys
    for topic_filter in filters:
        delivered, gaps = await lake.read_matching([topic_filter], bytes_max=300)
        assert not gaps, "what was passed over is not lost"
        topics = [row_topic(key, NATIVE) for key in keys]
        expected = [offset for offset, topic in enumerate(topics) if matches(topic_filter, topic)]
        assert [*delivered] == expected
        assert [(payload, key) for payload, key, _ in delivered.values()] == [
            (b"m%d" % at, keys[at]) for at in expected
        ]
        assert [time_us for *_, time_us in delivered.values()] == [1_000 * (at // 10) for at in expected]
    together, _ = await lake.read_matching(filters)
    assert [*together] == [
        offset for offset, key in enumerate(keys) if any(matches(text, row_topic(key, NATIVE)) for text in filters)
    ]
    everything, _ = await lake.read_all()
    assert [*everything] == list(range(len(keys)))
    assert all(report.is_good for report in await table_verification.reports())


@EIGHTH
@given(
    st.lists(st.tuples(WRITERS, st.lists(KEYS, min_size=1, max_size=30)), min_size=1, max_size=4),
    st.lists(FILTERS, min_size=1, max_size=3),
)
def test_hazard_70_a_replay_is_the_linear_scan(
    rounds: list[tuple[str, list[bytes | None]]], filters: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(limits, "STRUCTURE_THRESHOLDS", (4, 2))
        patch.setattr(limits, "CLUSTER_GROUP_BYTES_MIN", 300)
        patch.setattr(limits, "CLUSTER_BYTES", 2_000)
        asyncio.run(check(Path(folder), rounds, filters))


@pytest.mark.asyncio
async def test_hazard_70_row_groups_are_left_out_by_the_bounds_in_their_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A structure that knows nothing of the topics, as after a loss of the metadata store, changes nothing."""
    monkeypatch.setattr(limits, "CLUSTER_GROUP_BYTES_MIN", 1_000)
    lake = MqttLake(tmp_path)
    await lake.bind()
    keys = [b"%d/heat" % (number % 50) for number in range(200)] + [b"plant/%d" % number for number in range(200)]
    await lake.round((0, 0, 400), entries=[await lake.write([row(at, key=key) for at, key in enumerate(keys)])])
    lake.structure = LearnedStructure()
    with counted_scans() as counts:
        delivered, _ = await lake.read_matching(["plant/7"])
    assert [*delivered] == [207]
    assert counts[0].skipped_groups > 5 * counts[0].read_groups


@pytest.mark.asyncio
async def test_hazard_70_a_file_without_level_columns_is_read(tmp_path: Path) -> None:
    lake = MqttLake(tmp_path)
    await lake.bind()
    messages = [row(at, key=b"a/%d" % at) for at in range(20)]
    await lake.round((0, 0, 20), entries=[await TopicLake.write(lake, messages)])
    with counted_scans() as counts:
        delivered, _ = await lake.read_matching(["b/#"])
        assert not delivered
    assert counts[0].read_groups == 1
    assert (await lake.read_matching(["a/7"]))[0].keys() == {7}


@pytest.mark.wrong_tables("files that must not be opened are removed")
@pytest.mark.asyncio
async def test_hazard_70_a_file_whose_bounds_exclude_the_filter_is_not_opened(tmp_path: Path) -> None:
    lake = MqttLake(tmp_path)
    await lake.bind()
    for start, name in ((0, "a"), (10, "b"), (20, "c")):
        messages = [row(at, key=f"{name}/{at}".encode()) for at in range(start, start + 10)]
        await lake.round((0, start, start + 10), entries=[await lake.write(messages)])
    lake.paths[0].unlink()
    lake.paths[2].unlink()
    with counted_scans() as counts:
        delivered, gaps = await lake.read_matching(["b/+"])
    assert [*delivered] == list(range(10, 20))
    assert not gaps
    assert (counts[0].skipped_files, counts[0].read_groups) == (2, 1)


@pytest.mark.asyncio
async def test_hazard_70_readers_with_other_filters_share_nothing_that_hides_rows(tmp_path: Path) -> None:
    """What is left of a window that was decoded for one reader is not for another, who is at the same place."""
    lake = MqttLake(tmp_path)
    await lake.bind()
    messages = [row(at, key=b"a/%d" % (at % 2), payload=bytes(100)) for at in range(60)]
    await lake.round((0, 0, 60), entries=[await lake.write(messages)])
    readers: dict[tuple[str, ...], list[int]] = {("a/0",): [], ("a/1",): [], ("a/0", "a/1"): [], (): []}
    positions = dict.fromkeys(readers, 0)
    while min(positions.values()) < 60:
        for filters in readers:
            if positions[filters] < 60:
                scanned = await lake.ask(ScanKind.READ, positions[filters], 0, 1_000, filters)
                for section in scanned.sections:
                    sparse = [*memoryview(section.offsets).cast("q")]
                    readers[filters] += sparse or range(section.base_offset, section.base_offset + section.rows)
                positions[filters] = scanned.next_offset
    both = list(range(60))
    assert [*readers.values()] == [both[::2], both[1::2], both, both]


def test_hazard_70_rows_of_several_structures_are_in_one_column(tmp_path: Path) -> None:
    """Each row says by which version it got its stream, and a topic that has one keeps it."""

    async def streams() -> list[tuple[str, int, str | None]]:
        lake = MqttLake(tmp_path)
        await lake.bind()
        for number in range(4):
            messages = [row(3 * number + at, key=b"plant/%d" % (at + number)) for at in range(3)]
            await lake.round((0, 3 * number, 3 * number + 3), entries=[await lake.write(messages)])
        table = lake.read_files().sort_by("offset").to_pylist()
        return [(fields["key"].decode(), fields["structure"], fields["stream"]) for fields in table]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "STRUCTURE_THRESHOLDS", (100, 3))
        rows = asyncio.run(streams())
    assert rows == [
        ("plant/0", 0, None),
        ("plant/1", 0, None),
        ("plant/2", 0, None),
        ("plant/1", 1, "plant/1"),
        ("plant/2", 1, "plant/2"),
        ("plant/3", 1, "plant/+"),
        ("plant/2", 1, "plant/2"),
        ("plant/3", 1, "plant/+"),
        ("plant/4", 1, "plant/+"),
        ("plant/3", 1, "plant/+"),
        ("plant/4", 1, "plant/+"),
        ("plant/5", 1, "plant/+"),
    ]
