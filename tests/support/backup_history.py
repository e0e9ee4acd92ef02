"""A history by chance around backups: what clients, engines and the pipeline do, and what is true of it afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from icestream import errors
from icestream.backup import backup_layout as layout
from icestream.backup.archive_run import ArchiveEffect
from icestream.backup.backup_root import BackupRoot
from icestream.backup.backup_run import BackupEffect
from icestream.backup.encryption import BackupKey
from icestream.backup.node_client import NodeClient
from icestream.broker.service import Broker
from icestream.iceberg.manifests import decode_manifest_list, live_entries
from icestream.model.shard import ShardKey
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from tests.support.archive_world import ArchiveWorld
from tests.support.backup_world import ORDERS, Crash
from tests.support.broker_machine import SubscriptionReader, quiet, subscribe
from tests.support.topic_lake import row

Effect = TypeVar("Effect", bound=StrEnum)


class Moment(NamedTuple):
    """What was true at a time: the messages that were acked to producers, by offset, and what was taken away."""

    time_us: int
    messages: dict[int, bytes]
    removed: frozenset[int]  # rows that an engine or retention removed from the table
    acked: frozenset[int]  # acks of consumers, also those that are not flushed
    flushed: frozenset[int]
    policy: int
    topics: frozenset[str]


class FinishedBackup(NamedTuple):
    root: BackupRoot
    before: Moment
    after: Moment


def crash_at(effect: Effect | None, skipped: int = 0) -> Callable[[Effect], None]:
    """Ends a run before an effect, as kill -9 does; not before the first `skipped` ones of the kind."""
    left = skipped

    def strike(reached: Effect) -> None:
        nonlocal left
        if reached is effect:
            left -= 1
            if left < 0:
                raise Crash

    return strike


def consumed(broker: Broker, name: TopicName) -> frozenset[int]:
    """The offsets that subscription `s` of a topic does not get again."""
    topic = broker.topics.get(name)
    cursor = topic.subscriptions["s"].delivery(0).cursor()
    assert cursor.topic_id == topic.record.id
    above = {offset for start, end in cursor.ranges for offset in range(start, end)}
    return frozenset({*range(cursor.offset), *above})


class BackupHistory:
    """`act` does something by chance. Backups and passes of the archive end before a step by chance, and go on."""

    def __init__(self, world: ArchiveWorld, chance: random.Random, key: BackupKey | None = None) -> None:
        self.archive = world
        self.world = world.world
        self.chance = chance
        self.key = key
        self.messages: dict[int, bytes] = {}
        self.removed: set[int] = set()
        self.acked: set[int] = set()
        self.flushed: frozenset[int] = frozenset()
        self.policy = 1
        self.topics: set[str] = {str(ORDERS)}
        self.files: dict[str, list[int]] = {}  # offsets by data file
        self.backups: list[FinishedBackup] = []
        self.moments: list[Moment] = []
        self.reader: SubscriptionReader | None = None
        self._created = self.restarts = 0

    async def begin(self) -> None:
        await self.world.create_topic()
        await self.world.bind()
        await self._policy()
        await self._subscribe()
        await self._publish()
        await self.archive.new_run().run_pass()  # the archive is of use with backups behind its begin
        await self._back_up()

    def now(self) -> Moment:
        return Moment(
            self.archive.now(), dict(self.messages), frozenset(self.removed), frozenset(self.acked), self.flushed,
            self.policy, frozenset(self.topics),
        )  # fmt: skip

    # --- what happens ---

    async def act(self) -> None:
        """Does something, and remembers the moment behind it."""
        acts = (self._publish, self._publish, self._ack, self._commit, self._compact, self._remove_rows, self._expire)
        rare = (self._policy, self._retain, self._topic, self._restart, self._crash, self._archive, self._archive)
        await self.chance.choice((*acts, *rare))()
        await quiet()  # the archive's look at changes of metadata
        self.moments.append(self.now())

    async def step(self) -> None:
        """An act, or a backup."""
        if self.chance.random() < 0.15:
            await self._back_up()
        else:
            await self.act()

    async def _publish(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            payload = b"m%d " % self.world.number + self.chance.randbytes(self.chance.choice((0, 3, 300)))
            offset = len(self.messages)
            await self.world.publish(1, payload=payload.replace(b"%", b"-"))
            self.messages[offset] = payload.replace(b"%", b"-")

    async def _subscribe(self) -> None:
        self.reader = await subscribe(self.world.node.broker, "s", topic=ORDERS)
        await quiet()

    async def _ack(self) -> None:
        assert self.reader is not None
        await quiet()
        waiting = sorted({*self.reader.sink.offsets} - self.acked)
        chosen = self.chance.sample(waiting, min(len(waiting), self.chance.randint(1, 4)))
        self.reader.ack(*chosen)
        self.acked.update(chosen)
        await quiet()
        if self.chance.random() < 0.5:
            await self.world.node.broker.storage.flush_cursors()
            self.flushed = frozenset(self.acked)

    async def _commit(self) -> None:
        world, lake = self.world, self.world.lake
        assert lake is not None
        end = self.chance.randint(world.committed, len(self.messages))
        if end == world.committed:
            return
        offsets = [*range(world.committed, end)]
        entry = await self._file(offsets)
        await lake.round((0, world.committed, end), entries=[entry])
        world.committed = end

    async def _file(self, offsets: Sequence[int]) -> Any:
        assert self.world.lake is not None
        entry = await self.world.lake.write([row(offset, payload=self.messages[offset]) for offset in offsets])
        self.files[entry["data_file"]["file_path"]] = [*offsets]
        return entry

    async def _compact(self) -> None:
        """All data and delete files become one data file."""
        lake = self.world.lake
        assert lake is not None
        data = [entry for entry in lake.live if entry["data_file"]["content"] == 0]
        if len(data) < 2:
            return
        offsets = sorted(offset for entry in data for offset in self.files[entry["data_file"]["file_path"]])
        left = [offset for offset in offsets if offset not in self.removed]
        if left:
            await lake.replace([await self._file(left)])

    async def _remove_rows(self) -> None:
        """An engine deletes rows by their positions."""
        lake = self.world.lake
        assert lake is not None
        data = [entry for entry in lake.live if entry["data_file"]["content"] == 0]
        if not data:
            return
        entry = self.chance.choice(data)
        offsets = self.files[entry["data_file"]["file_path"]]
        places = self.chance.sample(range(len(offsets)), self.chance.randint(1, min(2, len(offsets))))
        if {offsets[place] for place in places} <= self.removed:
            return
        deletes = await lake.write_deletes(entry, places)
        await lake.replace([*lake.live, deletes], "delete")
        self.removed.update(offsets[place] for place in places)

    async def _retain(self) -> None:
        """Retention removes the oldest file."""
        lake = self.world.lake
        assert lake is not None
        data = [entry for entry in lake.live if entry["data_file"]["content"] == 0]
        if len(data) < 2 or any(entry["data_file"]["content"] for entry in lake.live):
            return
        await lake.replace(data[1:], "delete")
        self.removed.update(self.files[data[0]["data_file"]["file_path"]])

    async def _expire(self) -> None:
        """Expires what no reference names, and removes at once every file that no snapshot names any more."""
        lake = self.world.lake
        assert lake is not None
        table = await lake.table()
        kept = {reference["snapshot-id"] for reference in (table.fields.get("refs") or {}).values()}
        gone = [entry["snapshot-id"] for entry in table.snapshots if entry["snapshot-id"] not in kept]
        if gone:
            await lake.expire(*gone)
        named: set[str] = set()
        for snapshot in (await lake.table()).snapshots:
            named.add(snapshot["manifest-list"])
            for manifest in decode_manifest_list("list", _content(snapshot["manifest-list"])):
                named.add(manifest.path)
                named.update(entry.file_path for entry in live_entries(manifest.path, _content(manifest.path)))
        folder = Path(table.location.removeprefix("file:"))
        for file in _files_below(folder):
            if file.suffix in (".parquet", ".avro") and f"file:{file}" not in named:
                file.unlink()

    async def _policy(self) -> None:
        self.policy += 1
        await self.world.node.broker.set_topic_policies(ORDERS, PolicyValues(max_producers=self.policy + 10))

    async def _topic(self) -> None:
        """Another topic comes or goes."""
        others = sorted(self.topics - {str(ORDERS)})
        if others and self.chance.random() < 0.5:
            name = self.chance.choice(others)
            await self.world.node.broker.delete_topic(TopicName.parse(name))
            self.topics.discard(name)
            return
        self._created += 1
        name = f"/default/extra{self._created}"
        await self.world.call("create_topic", topic=name)
        self.topics.add(name)

    async def _restart(self) -> None:
        self.restarts += 1
        if self.reader is not None:
            self.reader.leave()
            self.reader = None
        await self.world.restart()
        self.flushed = frozenset(self.acked)
        await self._subscribe()

    async def _crash(self) -> None:
        """The broker ends with its consumers, as by kill -9: every acked message is there, acks may be lost."""
        self.restarts += 1
        self.reader = None
        await self.world.crash()
        topic = self.world.node.broker.topics.get(ORDERS)
        assert self.world.node.broker.storage.shard_stream(ShardKey(topic.record.id, 0)).visible == len(self.messages)
        kept = consumed(self.world.node.broker, ORDERS)
        assert self.flushed <= kept <= self.acked
        self.acked, self.flushed = {*kept}, kept
        await self._subscribe()

    async def _archive(self) -> None:
        """A pass, which ends before an effect by chance; the next one goes on."""
        effect = self.chance.choice([None, *ArchiveEffect])
        try:
            await self.archive.new_run(crash_at(effect)).run_pass()
        except Crash:
            await self.archive.new_run().run_pass()

    # --- backups ---

    async def _back_up(self) -> None:
        """A backup with acts between its steps, which ends before an effect by chance; then it is completed."""
        before = self.now()
        effect = self.chance.choice([None, None, *BackupEffect])
        complete = [backup.root.id for backup in self.backups]
        options: dict[str, Any] = {
            "kind": self.chance.choice(["copy", "copy", "reference"]),
            "parent": self.chance.choice([None, *complete[-1:]]),
            "key": self.key,
        }
        run = self.world.run(on_effect=crash_at(effect, self.chance.randint(0, 1)), **options)
        plain, is_quiet = run._node._call, False

        async def call(method: str, /, **arguments: Any) -> Any:
            if not is_quiet and self.chance.random() < 0.3:
                await self.act()
            return await plain(method, **arguments)

        run._node._call = call
        try:
            root = await run.run()
        except (Crash, errors.IcestreamError):  # a broker that is started again forgets its part of a cut
            is_quiet = True
            await NodeClient(self.world.call, run._plan.id).end()  # as its lease does, after a while
            root = await self._complete(run._plan.id, options)
        self.backups.append(FinishedBackup(root, before, self.now()))

    async def _complete(self, backup_id: str, options: dict[str, Any]) -> BackupRoot:
        target = self.world.target
        if await target.get(layout.root_name(backup_id)) is not None:
            return await self.world.stored(self.key).root(backup_id)
        if await target.get(layout.progress_name(backup_id, 0)) is None:
            return await self.world.back_up(**options)
        for _ in range(self.chance.randint(0, 2)):
            await self.act()
        try:
            effect = self.chance.choice([None, BackupEffect.COPY, BackupEffect.LIST, BackupEffect.ROOT])
            return await self.world.run(id=backup_id, key=self.key, on_effect=crash_at(effect)).resume()
        except Crash:
            return await self.world.run(id=backup_id, key=self.key).resume()


def _files_below(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def _content(location: str) -> bytes:
    return Path(location.removeprefix("file:")).read_bytes()
