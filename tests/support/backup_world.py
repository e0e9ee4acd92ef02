"""A real node, its catalog and a backup target, in this process: what a backup meets, without Spark."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from icestream import limits
from icestream.backup.backup_layout import new_backup_id
from icestream.backup.backup_root import BackupRoot
from icestream.backup.backup_run import BackupEffect, BackupPlan, BackupRun, BulkCopy
from icestream.backup.backup_target import BackupTarget, DirectoryTarget
from icestream.backup.backup_verify import BackupFinding, BackupVerification
from icestream.backup.encryption import BackupKey
from icestream.backup.file_copy import RunTasks, SparkFileCopy
from icestream.backup.node_client import NodeClient
from icestream.backup.object_upload import ObjectUpload, WriteRate
from icestream.backup.seed_manifest import SeedOptions
from icestream.backup.stored_backups import StoredBackups
from icestream.catalogs.embedded import EmbeddedCatalog
from icestream.catalogs.store_options import StoreOptions
from icestream.model import envelope
from icestream.model.block import Numbering, encode_block
from icestream.model.topic_name import TopicName
from icestream.processes.broker_process import BrokerNode
from icestream.rpc.link import Link, open_link
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import InlineOffload
from tests.support.node_settings import node_settings
from tests.support.topic_lake import TopicLake, row

ORDERS = TopicName("default", "orders")


class Crash(BaseException):
    """Ends a backup, an archive or a restore as kill -9 does: nothing of it goes on, and no handler of errors runs."""


class LocalSource:
    """Files of the warehouse."""

    def chunks(self, location: str) -> Iterator[bytes]:
        with Path(location.removeprefix("file:")).open("rb") as file:
            while chunk := file.read(limits.BACKUP_CHUNK_BYTES):
                yield chunk


class PowerLossTarget(DirectoryTarget):
    """A target that knows which names a power loss would take, and whether a record of the backup was written then."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, InlineOffload())
        self.fragile: set[str] = set()
        self.records = 0

    async def adopt(self, path: Path, name: str) -> bool:
        self.fragile.add(name)
        return await super().adopt(path, name)

    async def keep_names(self, names: Iterable[str]) -> None:
        names = [*names]
        await super().keep_names(names)
        self.fragile -= {*names}

    async def put_new(self, name: str, data: bytes) -> None:
        if name.endswith(".json") and name.startswith("backups/"):
            assert not self.fragile, f"{name} is written before the names of objects are durable"
            self.records += 1
        await super().put_new(name, data)


class RecordingSource:
    """A source of files that remembers which were read; put in the place of that of a run."""

    def __init__(self, run: BackupRun) -> None:
        self.read: list[str] = []
        self._source = run._source
        run._source = self

    def chunks(self, location: str) -> Iterable[bytes]:
        self.read.append(location)
        return self._source.chunks(location)


class BackupWorld:
    """`publish` goes to the log of the node; `commit` writes offsets into the topic's table, as the pipeline does."""

    def __init__(self, node: BrokerNode, link: Link, folder: Path) -> None:
        self.node = node
        self.link = link
        self.folder = folder
        self.is_foreign = False  # the tables are in another catalog than ours
        self.target: BackupTarget = DirectoryTarget(folder / "backups", InlineOffload())
        self.lake: TopicLake | None = None
        self.store = StoreOptions()  # for tasks that copy
        self.calls: list[str] = []
        self.number = 0
        self.committed = 0

    @property
    def catalog(self) -> EmbeddedCatalog:
        assert self.lake is not None
        return EmbeddedCatalog(self.lake.catalog)

    async def call(self, method: str, /, **arguments: Any) -> Any:
        self.calls.append(method)
        return await self.link.call(method, arguments)

    async def create_topic(self, shards: int = 1) -> int:
        await self.call("create_topic", topic=str(ORDERS), shards=shards)
        topic_id = await self._topic_id()
        self.lake = TopicLake(
            self.folder / "warehouse", self.node.store, SystemClock(), topic=str(ORDERS), topic_id=topic_id
        )
        return topic_id

    async def _topic_id(self) -> int:
        assert self.node.log is not None
        return next(topic.id for topic in self.node.log.state.topics.values() if topic.name == str(ORDERS))

    async def bind(self, shards: int = 1) -> None:
        assert self.lake is not None
        await self.lake.bind(shards)

    async def publish(self, count: int, shard: int = 0, payload: bytes = b"m%d") -> None:
        producer = await self.node.broker.open_producer(ORDERS, "p")
        for _ in range(count):
            numbering = Numbering(producer.id, producer.epoch, self.number)
            body = payload % self.number if b"%d" in payload else payload
            await self.node.broker.publish(producer, shard, encode_block(1, {envelope.PAYLOAD: [body]}, numbering))
            self.number += 1

    async def commit(self, end: int, *, is_floor_moved: bool = False, **values: Any) -> None:
        """Writes the offsets below `end` that are not committed yet into the table."""
        assert self.lake is not None
        assert self.node.ingest is not None
        entry = await self.lake.write([row(offset, **values) for offset in range(self.committed, end)])
        await self.lake.round((0, self.committed, end), entries=[entry])
        self.committed = end
        if is_floor_moved:
            await self.node.ingest.committed([(self.lake.topic_id, 0, end)])

    async def crash(self) -> None:
        """Ends the node as kill -9 does, and starts another one over its files. They are as they were at this moment:
        what the node had in memory is lost, and what it does while it is torn down is thrown away."""
        data, left = self.node.settings.data_dir, self.folder / "left-by-kill"
        while True:
            before = _times_below(data)
            shutil.copytree(data, left, ignore=shutil.ignore_patterns("*.sock"))
            if _times_below(data) == before:  # no thread wrote meanwhile: the copy is of one moment
                break
            shutil.rmtree(left)
        await self.restart(data, left)

    async def restart(self, data: Path | None = None, left: Path | None = None) -> None:
        """Stops the node and starts it again over the same files, or over those that a crash left."""
        settings = self.node.settings
        self.link.close()
        await self.node.stop()
        if data is not None and left is not None:
            shutil.rmtree(data)
            shutil.move(left, data)
        self.node = await BrokerNode.start(settings)
        self.link = await open_link(settings.local_socket, "test")
        if self.lake is not None:
            former = self.lake
            self.lake = TopicLake(
                self.folder / "warehouse", self.node.store, SystemClock(), topic=former.topic, topic_id=former.topic_id
            )
            self.lake.go_on_from(former)

    def stored(self, key: BackupKey | None = None) -> StoredBackups:
        return StoredBackups(self.target, key)

    def run(
        self,
        *,
        seed: SeedOptions | None = None,
        key: BackupKey | None = None,
        on_effect: Callable[[BackupEffect], None] = lambda _: None,
        bucket: WriteRate | None = None,
        run_tasks: RunTasks | None = None,
        **plan: Any,
    ) -> BackupRun:
        clock = SystemClock()
        randomness = SystemRandomness()
        backup_id = plan.pop("id", None) or new_backup_id(clock.wall_us() // 1_000, randomness.token(4))
        upload = ObjectUpload(self.target, InlineOffload(), clock, randomness, key, bucket)
        bulk = None
        if run_tasks is not None:
            store = dataclasses.asdict(self.store)
            location = self.target.location("").rstrip("/")
            bulk = BulkCopy(SparkFileCopy(run_tasks, upload, InlineOffload(), location, store, 2), 0)
        return BackupRun(
            NodeClient(self.call, backup_id),
            self.catalog,
            LocalSource(),
            upload,
            clock,
            BackupPlan(backup_id, **plan),
            seed or SeedOptions(),
            on_effect=on_effect,
            bulk=bulk,
            is_foreign=self.is_foreign,
        )

    async def back_up(self, **options: Any) -> BackupRoot:
        return await self.run(**options).run()

    async def verify(self, backup_id: str, *, deep: bool = True, key: BackupKey | None = None) -> list[BackupFinding]:
        verification = BackupVerification(self.stored(key), InlineOffload(), LocalSource().chunks)
        return await verification.verify(backup_id, is_deep=deep)


def _times_below(folder: Path) -> dict[Path, int]:
    times = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            times[path] = path.stat().st_mtime_ns
    return times


@contextlib.asynccontextmanager
async def backup_world(folder: Path, **sections: Any) -> AsyncIterator[BackupWorld]:
    node = await BrokerNode.start(node_settings(folder / "data", "iceberg", **sections))
    world: BackupWorld | None = None
    try:
        link = await open_link(node.settings.local_socket, "test")
        world = BackupWorld(node, link, folder)
        try:
            yield world
        finally:
            world.link.close()
    finally:
        await (world.node if world is not None else node).stop()  # the test may have started another one
