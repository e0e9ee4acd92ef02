"""A real node with an archive beside its backups, and restores of it to a point in time."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from icestream.backup.archive_run import ArchiveEffect, ArchiveRun
from icestream.backup.backup_root import BackupRoot
from icestream.backup.encryption import BackupKey
from icestream.backup.stored_archive import StoredArchive
from icestream.backup.tail_object import decode_tail
from icestream.model import envelope
from icestream.model.block import Block, Numbering, encode_block, iter_blocks
from icestream.model.shard import ShardKey
from icestream.model.topic_name import TopicName
from icestream.processes.point_in_time import ArchiveReplay, Cut, CutTime, PastBackup
from icestream.runtime.clock import Clock, SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import InlineOffload
from tests.support.backup_world import ORDERS, BackupWorld, backup_world


class ArchiveWorld:
    """`archive` is one life of the process that archives; `new_run` begins another one."""

    def __init__(self, world: BackupWorld, key: BackupKey | None = None) -> None:
        self.world = world
        self.key = key
        self.archive = self.new_run()

    def new_run(
        self, on_effect: Callable[[ArchiveEffect], None] = lambda _: None, clock: Clock | None = None
    ) -> ArchiveRun:
        self.archive = ArchiveRun(
            self.world.call, self.world.node.settings.node.name, self.world.target, self.key, clock or SystemClock(),
            SystemRandomness(), InlineOffload(), on_effect,
        )  # fmt: skip
        return self.archive

    @property
    def stored(self) -> StoredArchive:
        assert self.world.node.log is not None
        log_id = self.world.node.log.log_id.hex()
        return StoredArchive(self.world.target, self.world.node.settings.node.name, log_id, InlineOffload(), self.key)

    async def past(self, base: BackupRoot, cut: Cut | int) -> PastBackup:
        """The backup at a cut, or at a time in microseconds."""
        folder = Path(tempfile.mkdtemp(dir=self.world.folder))
        replay = ArchiveReplay(self.world.stored(self.key), base, self.stored, InlineOffload(), folder)
        return await replay.run(CutTime(cut) if isinstance(cut, int) else cut)

    async def messages(self, past: PastBackup, name: str = str(ORDERS), shard: int = 0) -> list[tuple[int, bytes]]:
        """Offset and payload of every message in the tails of a shard, in their order."""
        (topic,) = [topic for topic in past.root.topics if topic.name == name]
        rows: list[tuple[int, bytes]] = []
        for tail in topic.shards[shard].tails:
            data = await past.stored.content(tail.object, "tail")
            for section in decode_tail(tail.object.path, data, ShardKey(topic.id, shard)):
                payloads = [bytes(value) for block in iter_blocks(section.body) for value in _payloads(block)]
                rows += [
                    (section.base_offset + number, payload)
                    for number, payload in enumerate(payloads)
                    if tail.start <= section.base_offset + number < tail.end
                ]
        return rows

    async def publish_to(self, name: TopicName, count: int) -> None:
        broker = self.world.node.broker
        producer = await broker.open_producer(name, "p")
        for number in range(count):
            numbering = Numbering(producer.id, producer.epoch, number)
            await broker.publish(producer, 0, encode_block(1, {envelope.PAYLOAD: [b"m%d" % number]}, numbering))

    def now(self) -> int:
        return SystemClock().wall_us()


def _payloads(block: Block) -> list[Any]:
    return block.values(envelope.PAYLOAD)


def topic_names(past: PastBackup) -> set[str]:
    return {topic.name for topic in past.root.topics if not topic.name.startswith("/system")}


@contextlib.asynccontextmanager
async def archive_world(
    folder: Path, key: BackupKey | None = None, sections: dict[str, Any] | None = None, **archive: Any
) -> AsyncIterator[ArchiveWorld]:
    section = {"target": str(folder / "backups"), "archive": {"enable": True, **archive}}
    async with backup_world(folder, backup=section, **(sections or {})) as world:
        yield ArchiveWorld(world, key)
