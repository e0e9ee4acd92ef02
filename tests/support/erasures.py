"""The erasure job in a driver of the fault world, with its tasks in this process, and the broker's side of it."""

from __future__ import annotations

import asyncio
import gzip
import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pyarrow.parquet as pq

from icestream.broker.erasure_service import ErasureService
from icestream.model.erasure_messages import ErasureMode, ErasureProgress, ErasureRequest, HistoryChoice
from icestream.model.shard import ShardKey
from icestream.pipeline.compaction.compaction_job import CompactionJob
from icestream.pipeline.driver.commit_sequence import CommitSequence
from icestream.pipeline.driver.rewrite_commit import RewriteCommit
from icestream.pipeline.erasure.erase_task import search_file
from icestream.pipeline.erasure.erasure_job import ErasureJob, ErasureOptions
from icestream.pipeline.task.task_run import fresh_name, open_store
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import InlineOffload
from tests.support.compaction import RULE, add_compaction
from tests.support.fault_world import HANGS_SECONDS, FaultWorld
from tests.support.interruptible_driver import InterruptibleDriver


def canary_places(folder: Path, canaries: Collection[bytes]) -> list[str]:
    """The files below a folder in which a canary can be read, with what they compress: the rows and the bounds of
    Parquet files, the records of Avro files, the content of gzip files."""
    places = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        try:
            data = path.read_bytes()
            data += _decoded(path, data)
        except FileNotFoundError:  # cleaned up meanwhile
            continue
        if any(canary in data for canary in canaries):
            places.append(str(path.relative_to(folder)))
    return places


def _decoded(path: Path, data: bytes) -> bytes:
    if data.startswith(b"Obj\x01"):
        reader: Any = fastavro.reader(io.BytesIO(data))
        return b"".join(_bytes_in([*reader, dict(reader.metadata)]))
    if data.startswith(b"PAR1") and data.endswith(b"PAR1"):
        return b"".join(_bytes_in(pq.read_table(io.BytesIO(data)).to_pylist()))
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else b""


def _bytes_in(value: Any) -> Iterator[bytes]:
    match value:
        case bytes():
            yield value
        case str():
            yield value.encode()
        case dict():
            for key, inner in value.items():
                yield from _bytes_in(key)
                yield from _bytes_in(inner)
        case list() | tuple():
            for inner in value:
                yield from _bytes_in(inner)


class LocalSearcher:
    """The tasks of an erasure, in this process. `before` is called in front of each file."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self._before = before

    def search(self, search_jobs: Sequence[bytes]) -> list[bytes]:
        results = []
        for job in search_jobs:
            self._before()
            results.append(search_file(job, open_store, fresh_name))
        return results


class ServiceBroker:
    """The broker of an erasure without a socket."""

    def __init__(self, service: ErasureService) -> None:
        self._service = service

    async def next_erasure(self) -> ErasureRequest | None:
        return self._service.next_request()

    async def report_erasure(self, progress: ErasureProgress) -> bool:
        # A copy, as over the socket.
        copy = msgspec.msgpack.decode(msgspec.msgpack.encode(progress), type=ErasureProgress)
        return await self._service.report(copy)

    async def retire_log(self, topic_id: int, cut: Mapping[int, int], *, is_check: bool) -> list[str]:
        return await self._service.retire_log(topic_id, cut, is_check=is_check)

    async def retained_places(self, topic_id: int, after: tuple[int, int] | None) -> list[tuple[int, int]]:
        places = await self._service.retained_places(topic_id)
        return [place for place in places if after is None or place > after][:2]  # more come with the next call

    async def forget_retained(self, topic_id: int, places: Sequence[tuple[int, int]]) -> None:
        await self._service.forget_retained(topic_id, set(places))


class RetainedRows:
    """The retained messages of MQTT, by topic id: shard and offset of each."""

    def __init__(self) -> None:
        self.rows: dict[int, set[tuple[int, int]]] = {}

    @property
    def retained_shard(self) -> ShardKey:
        return ShardKey(2**62, 1)  # of no topic in these worlds

    async def retained_places(self, topic_id: int) -> list[tuple[int, int]]:
        return sorted(self.rows.get(topic_id, ()))

    async def forget_retained(self, topic_id: int, places: AbstractSet[tuple[int, int]]) -> int:
        self.rows[topic_id] -= places
        return len(places)


class Erasures:
    """Erasures in a world. Lives of its driver come and go; the broker stays."""

    def __init__(self, world: FaultWorld) -> None:
        self.world = world
        self.retained = RetainedRows()
        key_file = Path(world.folder) / "erasure.key"
        self.service = ErasureService(
            world.log, world.store, world.clock, key_file, "node", world.lease_name, self.retained
        )

    def add_to(
        self,
        life: InterruptibleDriver,
        searcher: LocalSearcher | None = None,
        compaction: CompactionJob | None = None,
    ) -> tuple[ErasureJob, CompactionJob]:
        """Registers the job behind a compaction, as the pipeline process does; without one behind one that finds
        nothing to do."""
        compaction = compaction or add_compaction(life, RULE._replace(files_min=1_000, is_requested=False))
        sequence = CommitSequence(life.lease, life.ledger, life.committer, life.effects, life.clock, life.report)
        watched: Any = life.watched
        job = ErasureJob(
            ServiceBroker(self.service),
            watched.store,
            watched.catalog,
            life.lease,
            life.topics,
            life.manifests,
            compaction.erasable_files,
            watched.files,
            RewriteCommit(life.lease, life.committer, sequence, life.jobs),
            life.jobs,
            searcher or LocalSearcher(),
            InlineOffload(),
            life.effects,
            life.clock,
            SystemRandomness(),
            ErasureOptions(clean_up_delay_ms=0, lease_name=self.world.lease_name),
        )
        life.jobs.add(job)
        return job, compaction

    async def begin(self, where: str, mode: ErasureMode, *, history: HistoryChoice = HistoryChoice.DROP) -> str:
        request = await self.service.begin(1, "/default/t1", 2, where, mode, history=history)
        return request.id

    async def run(self, life: InterruptibleDriver, job: ErasureJob) -> None:
        """Runs turns of a driver until the request has ended."""
        job.ask()
        async with asyncio.timeout(HANGS_SECONDS):
            while job.is_busy:
                await life.driver.turn()

    async def do(
        self,
        life: InterruptibleDriver,
        job: ErasureJob,
        where: str,
        mode: ErasureMode,
        *,
        history: HistoryChoice = HistoryChoice.DROP,
    ) -> tuple[ErasureProgress, dict[str, Any]]:
        request_id = await self.begin(where, mode, history=history)
        await self.run(life, job)
        progress, report = self.service.progress(request_id)
        assert progress.is_done
        return progress, (report or {}).get("report", {})
