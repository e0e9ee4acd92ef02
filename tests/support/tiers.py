"""A broker whose topic has a table: what is committed can leave the log, and is read from the table then."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from icestream import errors
from icestream.broker.iceberg_storage import IcebergStorage
from icestream.broker.scan_requests import ScanRequests
from icestream.broker.storage import PersistentStorage
from icestream.model import envelope
from icestream.model.block import Block, iter_blocks
from icestream.model.scan_messages import ScanRequest
from icestream.model.shard import ShardKey
from icestream.readers.row_group_cache_options import RowGroupCacheOptions
from icestream.wal.sink import Sink
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.broker_machine import TOPIC, BrokerMachine, quiet
from tests.support.topic_lake import Row, TopicLake


class InProcessScanWorker:
    """The lake process at the scan_requests, without a socket."""

    def __init__(self, scan_requests: ScanRequests, lake: TopicLake) -> None:
        self.scan_requests = scan_requests
        self.lake = lake
        self.asked: list[ScanRequest] = []
        self.tell = self._tell  # one object: the scan requests identify the worker by it
        scan_requests.attach_worker(self.tell)

    def leave(self) -> None:
        self.scan_requests.detach_worker(self.tell)

    def _tell(self, event: dict[str, Any]) -> None:
        if event["event"] == "asked":
            request = msgspec.convert(event["asked"], ScanRequest)
            self.asked.append(request)
            self._task = asyncio.get_running_loop().create_task(self._answer(request))

    async def _answer(self, request: ScanRequest) -> None:
        try:
            data = msgspec.msgpack.encode(await self.lake.scanner.answer(request))
        except errors.IcestreamError as error:
            self.scan_requests.fail(request.number, error)
            return
        half = len(data) // 2
        self.scan_requests.accept_part(request.number, data[:half], False)
        self.scan_requests.accept_part(request.number, data[half:], True)


class TieredMachine(BrokerMachine):
    def __init__(
        self,
        folder: Path,
        cache: RowGroupCacheOptions | None = None,
        lake: type[TopicLake] = TopicLake,
        **options: Any,
    ) -> None:
        super().__init__(**({"tail_bytes": 0} | options))
        self.lake = lake(folder, self.store, self.clock, cache, str(TOPIC), 1)
        self.scan_requests: ScanRequests | None = None
        self.scan_worker: InProcessScanWorker | None = None
        self.committed: dict[int, int] = {}

    async def open_storage(self, sink: Sink | None = None) -> PersistentStorage:
        storage = await super().open_storage(sink)
        assert isinstance(storage, IcebergStorage)
        self.scan_requests = storage.scan_requests = ScanRequests()
        self.scan_worker = InProcessScanWorker(self.scan_requests, self.lake)
        return storage

    async def commit(self, shards: int = 1, end: int | None = None, **more: Any) -> int:
        assert self.log is not None
        return await commit_log(self.lake, self.log, self.committed, shards, end, **more)

    async def forget(self) -> None:
        assert self.log is not None
        await forget_committed(self.log, 1, self.committed)
        await quiet()


async def commit_log(
    lake: TopicLake, log: WriteAheadLog, committed: dict[int, int], shards: int = 1, end: int | None = None, **more: Any
) -> int:
    """Commits the uncommitted messages of the log to the table, like a round. Returns the snapshot id."""
    await log.sync()
    rows: list[Row] = []
    ranges = []
    for shard in range(shards):
        key, start = ShardKey(lake.topic_id, shard), committed.get(shard, 0)
        stop = min(log.shard(*key).synced, end if end is not None else 2**62)
        if start < stop:
            rows += await rows_of_log(log, key, start, stop)
            ranges.append((shard, start, stop))
            committed[shard] = stop
    entries = [await lake.write(rows, **more)] if rows else []
    return await lake.round(*ranges, entries=entries)


async def forget_committed(log: WriteAheadLog, topic_id: int, committed: dict[int, int]) -> None:
    """The log lets go of every file that the table has."""
    await log.advance_floor({ShardKey(topic_id, shard): end for shard, end in committed.items()})
    await log.checkpoint()
    await log.checkpoint()


async def rows_of_log(log: WriteAheadLog, key: ShardKey, start: int, end: int) -> list[Row]:
    rows: list[Row] = []
    at = start
    while at < end:
        result = await log.reader.read(key, at)
        for section in result.sections:
            offset = section.base_offset
            for block in iter_blocks(section.body):
                for fields in rows_of_block(block):
                    if start <= offset < end:
                        rows.append(
                            {**fields, "shard": key.shard, "offset": offset, "append_time": section.append_time_us}
                        )
                    offset += 1
        at = result.next_offset
    return rows


def rows_of_block(block: Block) -> Iterator[dict[str, Any]]:
    """Numbers of a batch are its messages' own."""
    values = {column.name: block.values(column) for column in envelope.COLUMNS if column.in_table}
    for number in range(block.rows):
        row = {name: column[number] for name, column in values.items()}
        if block.numbering is not None:
            own = row["producer_id"]
            row["producer_id"] = block.numbering.producer_id if own is None else own
            row["sequence"] = block.numbering.first_sequence + number
        yield row
