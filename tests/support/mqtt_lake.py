"""The table of a topic with MQTT messages: its files are written by the pipeline's own code, and what the files had no
stream for is learned from one to the next, as the driver does."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.model import envelope
from icestream.model.block import iter_blocks
from icestream.model.scan_messages import ScanKind
from icestream.mqtt.learned_structure import LearnedStructure
from icestream.mqtt.topics import native_topic
from icestream.observability import metrics
from icestream.pipeline.files.file_store import FolderStore
from icestream.pipeline.files.topic_files import write_topic
from icestream.pipeline.round_plan import MqttTarget
from icestream.pipeline.rows.topic_rows import TopicRows
from icestream.pipeline.tables import table_policy
from icestream.readers.sections import TYPES
from tests.support.topic_lake import LEASE, TABLE, Row, TopicLake

POLICY = {"mqtt_columns": "on"}


class ScanCounts(NamedTuple):
    """What reads of tables cost, by the metrics."""

    read_groups: int
    skipped_groups: int
    skipped_files: int
    read_bytes: int
    sent_bytes: int


def scan_counts() -> ScanCounts:
    groups = metrics.SCAN_GROUPS
    values = (
        groups.labels("read"), groups.labels("skipped"), metrics.SCAN_FILES_SKIPPED, metrics.SCAN_READ_BYTES,
        metrics.SCAN_SENT_BYTES,
    )  # fmt: skip
    return ScanCounts(*(int(counter._value.get()) for counter in values))


@contextmanager
def counted_scans() -> Iterator[list[ScanCounts]]:
    """What the reads inside cost: one entry, when they are done."""
    before, counts = scan_counts(), list[ScanCounts]()
    yield counts
    counts.append(ScanCounts(*(now - then for now, then in zip(scan_counts(), before, strict=True))))


class MqttLake(TopicLake):
    """`has_columns`: False writes files without the derived columns, as before the topic had MQTT messages."""

    has_columns = True

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.structure = LearnedStructure()
        self.paths: list[Path] = []

    async def bind(self, shards: int = 1, start: int = 0) -> None:
        await super().bind(shards, start)
        updates = table_policy.evolution(await self.table(), POLICY)
        await self.catalog.commits.commit(TABLE, CommitRequest([], updates))

    async def write(self, messages: Sequence[Row], groups: int = 0, *, ids: bool = True, **more: Any) -> Any:
        """A data file of these rows by the pipeline's code; the entry of a manifest for it."""
        columns = {
            name: pa.array([_value(message.get(name)) for message in messages], TYPES[name])
            for name in TYPES
            if any(message.get(name) is not None for message in messages)
        }
        return await self.write_columns(columns, len(messages))

    async def write_columns(self, columns: dict[str, Any], rows: int) -> Any:
        """The same, of Arrow columns."""
        mqtt = MqttTarget(native_topic(self.topic), self.structure.encode())
        target = table_policy.target_of(await self.table(), POLICY, {}, mqtt if self.has_columns else None)
        store = FolderStore()
        written = await asyncio.to_thread(
            write_topic, [TopicRows(self.topic_id, columns, rows)], target, store, lambda: secrets.token_hex(16)
        )
        assert not store.settle()
        self.learn(written.new_topics)
        (file,) = written.files
        self.paths.append(Path(file.location.removeprefix("file:")))

        def pairs(values: dict[int, Any]) -> list[dict[str, Any]]:
            return [{"key": key, "value": value} for key, value in values.items()]

        data_file = {
            "content": 0,
            "file_path": file.location,
            "file_format": "PARQUET",
            "partition": {},
            "record_count": file.rows,
            "file_size_in_bytes": file.size_bytes,
            "lower_bounds": pairs(file.lower_bounds),
            "upper_bounds": pairs(file.upper_bounds),
            "null_value_counts": pairs(file.null_counts),
        }
        return {"status": 1, "snapshot_id": None, "sequence_number": None, "data_file": data_file}

    def learn(self, topics: Sequence[str]) -> None:
        if sum(self.structure.learn(topic) for topic in topics):
            self.structure.next_version()

    async def read_matching(
        self, filters: Sequence[str], shard: int = 0, position: int = 0, bytes_max: int = 1 << 20
    ) -> tuple[dict[int, tuple[bytes, bytes | None, int]], list[tuple[int, int, str]]]:
        """Payload, key and append time by offset, in the order in which they came, and the gaps."""
        delivered: dict[int, tuple[bytes, bytes | None, int]] = {}
        gaps: list[tuple[int, int, str]] = []
        while True:
            scanned = await self.ask(ScanKind.READ, position, shard, bytes_max, filters)
            assert scanned.end is not None
            if position >= scanned.end:
                return delivered, gaps
            assert position < scanned.next_offset <= scanned.end
            last = position - 1
            for section in scanned.sections:
                offsets = memoryview(section.offsets).cast("q")
                times = memoryview(section.append_times_us).cast("q")
                (block,) = iter_blocks(section.body)
                assert len(offsets) == len(times) == block.rows == section.rows
                values = zip(offsets, block.values(envelope.PAYLOAD), block.values(envelope.KEY), times, strict=True)
                for offset, payload, key, time_us in values:
                    assert last < offset < scanned.next_offset, "in order, and once"
                    last = offset
                    assert isinstance(payload, bytes)
                    assert key is None or isinstance(key, bytes)
                    delivered[offset] = payload, key, time_us
            gaps += [(gap.start, gap.end, gap.reason) for gap in scanned.missing]
            position = scanned.next_offset

    def read_files(self) -> Any:
        """All rows of all files that were written, as Arrow reads them."""
        return pa.concat_tables([pq.read_table(path) for path in self.paths], promote_options="default")


def _value(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) else value


__all__ = ["LEASE", "MqttLake", "ScanCounts", "counted_scans", "scan_counts"]
