"""Backups and restores that end at any of their calls: of the broker, of the catalog, of the target, of the warehouse.

Each run is made once without an end; from the list of its calls come the cases. What was interrupted is continued, and
then there is nothing that an uninterrupted run does not have: the same objects with the same bytes, the same root.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from icestream import errors
from icestream.backup import backup_layout as layout
from icestream.backup.backup_run import BackupEffect, BackupRun, release_pins
from icestream.backup.encryption import BackupKey
from icestream.backup.node_client import NodeClient
from icestream.catalog.catalog_holds import BACKUP_TAG
from icestream.catalogs.table_catalog import TableChange
from icestream.iceberg.identifier import Identifier
from icestream.runtime.clock import SimulatedClock
from tests.support.backup_history import crash_at
from tests.support.backup_world import BackupWorld, Crash, backup_world
from tests.support.cut_off_calls import CATALOG_CALLS, CutOffCalls, CutOffPoint, TargetOf
from tests.support.topic_lake import TABLE

pytestmark = pytest.mark.asyncio
KEY = BackupKey(bytes(range(32)))


@pytest.fixture(autouse=True)
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine does not lose power here, and there are thousands of files."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


KINDS: dict[str, dict[str, Any]] = {
    "copy": {},
    "reference": {"kind": "reference"},
    "incremental": {"parent": "latest"},
    "encrypted": {"key": KEY},
    "encrypted incremental": {"key": KEY, "parent": "latest"},
}


class InterruptedBackups:
    """Backups of a small lake: three data files, position deletes, a tail; the parent of an incremental one has two of
    the files."""

    def __init__(self, world: BackupWorld, options: dict[str, Any]) -> None:
        self.world = world
        self.options = options
        self.clock = SimulatedClock()
        self.cut = world.folder / "cut"

    @classmethod
    async def of(cls, world: BackupWorld, options: dict[str, Any]) -> InterruptedBackups:
        await world.create_topic()
        await world.bind()
        await world.publish(14)
        for end in (4, 8):
            await world.commit(end, is_floor_moved=True)
        assert world.lake is not None
        deletes = await world.lake.write_deletes(world.lake.live[0], [1])
        await world.lake.replace([*world.lake.live, deletes], "delete")
        if options.get("parent"):
            parent = await world.back_up(key=options.get("key"))
            options = options | {"parent": parent.id}
        await world.commit(10, is_floor_moved=True)
        return cls(world, options)

    def run(self, calls: CutOffCalls, **more: Any) -> BackupRun:
        """A run whose calls are counted, at a time that stands still: equal runs write equal roots."""
        with TargetOf(self.world, calls):
            run = self.world.run(**self.options, **more)
        run._clock = self.clock
        run._node._call = calls.function("call", run._node._call)
        run._catalog = calls.of(run._catalog, *CATALOG_CALLS)
        run._source = calls.of(run._source)
        return run

    async def pins(self) -> list[str]:
        """Holds and tags of backups."""
        assert self.world.lake is not None
        holds = [key for key, _ in await self.world.node.store.list_all("/holds/")]
        return holds + [name for name in (await self.world.lake.table()).references if name.startswith(BACKUP_TAG)]

    def content(self) -> dict[str, bytes]:
        """All files of the target but the inventory, whose versions are counted."""
        folder = self.world.folder / "backups"
        names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        return {name: (folder / name).read_bytes() for name in names if not name.startswith((layout.INVENTORY, "."))}

    def keep(self) -> None:
        """Remembers the target as it is."""
        shutil.rmtree(self.cut, ignore_errors=True)
        shutil.copytree(self.world.folder / "backups", self.cut)

    def reset(self) -> None:
        shutil.rmtree(self.world.folder / "backups")
        shutil.copytree(self.cut, self.world.folder / "backups")

    async def pin(self, backup_id: str, snapshot_id: int) -> None:
        """As the cut did."""
        uuid = (await self.world.catalog.load(TABLE)).uuid
        assert uuid is not None
        await NodeClient(self.world.call, backup_id).pin(uuid, snapshot_id)
        tag = {"ref-name": f"{BACKUP_TAG}{backup_id}", "type": "tag", "snapshot-id": snapshot_id}
        await self.world.catalog.commit(TABLE, TableChange([], [{"action": "set-snapshot-ref", **tag}]))

    async def give_up(self, backup_id: str) -> None:
        """What `icestream backup delete` does with a run that cannot be resumed."""
        node = NodeClient(self.world.call, backup_id)
        await release_pins(node, self.world.catalog, backup_id)
        if await self.world.target.get(layout.begin_name(backup_id)) is not None:
            await self.world.stored(self.options.get("key")).delete(backup_id, now_ms=0)
        await node.end()  # as its lease does after a while


async def plain_rows(backups: InterruptedBackups, backup_id: str) -> list[tuple[Any, ...]]:
    """What a backup has of tables and logs, whatever the encryption made of it."""
    rows = await backups.world.stored().rows_of(backup_id)
    return sorted(
        (row.role, row.source, row.first_offset or 0, row.end_offset or 0, row.content_size, row.content_sha256)
        for row in rows
        if row.role in ("data", "deletes", "tail")
    )


async def interrupted_before_its_cut(backups: InterruptedBackups, point: CutOffPoint) -> bool:
    """Ends a run at a point; False if its cut is recorded then, so that the other test has this point."""
    calls = CutOffCalls(point)
    run = backups.run(calls)
    with pytest.raises(Crash):
        await run.run()
    if await backups.world.target.get(layout.progress_name(run._plan.id, 0)) is not None:
        await backups.give_up(run._plan.id)
        return False
    roots = [backup.id for backup in await backups.world.stored().backups() if backup.root is not None]
    assert roots == [*filter(None, [backups.options.get("parent")])], "no root, no backup"
    await backups.give_up(run._plan.id)
    assert await backups.pins() == [], calls.names[point.number]
    return True


@pytest.mark.parametrize("kind", KINDS)
async def test_a_backup_that_ends_before_its_cut_leaves_nothing_behind(tmp_path: Path, kind: str) -> None:
    async with backup_world(tmp_path) as world:
        backups = await InterruptedBackups.of(world, KINDS[kind])
        before = backups.content()
        counted = CutOffCalls()
        whole = backups.run(counted)
        await whole.run()
        expected = await plain_rows(backups, whole._plan.id)
        await backups.give_up(whole._plan.id)
        points = 0
        for point in counted.points():
            if not await interrupted_before_its_cut(backups, point):
                break
            points += 1
            assert backups.content() == before, counted.names[point.number]
        assert points > 20
        again = await world.back_up(**backups.options)
        assert await plain_rows(backups, again.id) == expected
        assert await world.verify(again.id, key=backups.options.get("key")) == []


@pytest.mark.parametrize(
    "kind",
    # Encryption and parents of their own in chaos: together they are here.
    [pytest.param(kind, marks=pytest.mark.chaos if kind in ("incremental", "encrypted") else ()) for kind in KINDS],
)
async def test_a_backup_that_ends_at_any_call_behind_its_cut_is_resumed_and_identical(
    tmp_path: Path, kind: str
) -> None:
    async with backup_world(tmp_path) as world:
        backups = await InterruptedBackups.of(world, KINDS[kind])
        key = backups.options.get("key")
        cut = backups.run(CutOffCalls(name="call backup_end"))  # the cut is recorded
        backup_id = cut._plan.id
        with pytest.raises(Crash):
            await cut.run()
        backups.keep()
        assert world.lake is not None
        snapshot_id = (await world.catalog.load(TABLE)).current_snapshot_id
        assert snapshot_id is not None
        counted = CutOffCalls()
        root = await backups.run(counted, id=backup_id).resume()
        expected, rows = backups.content(), await plain_rows(backups, backup_id)
        pins = await backups.pins()
        assert bool(pins) is (root.kind == "reference")
        assert await world.verify(backup_id, key=key) == []
        for point in counted.points():
            backups.reset()
            await backups.pin(backup_id, snapshot_id)
            struck = backups.run(CutOffCalls(point), id=backup_id)
            with pytest.raises(Crash):
                await struck.resume()
            place = f"{'before' if point.is_before else 'after'} {counted.names[point.number]}"
            is_over = await world.target.get(layout.progress_name(backup_id, 0)) is None
            resumed = backups.run(CutOffCalls(), id=backup_id)
            again = await (world.stored().root(backup_id) if is_over else resumed.resume())
            content = backups.content()
            assert await plain_rows(backups, backup_id) == rows, place
            if key is None:
                assert {name: content[name] for name in expected} == expected, place
                assert again == root, place
            else:
                assert await world.verify(backup_id, key=key) == [], place
            assert await backups.pins() == pins, place
        assert len(counted.names) > 30
        files = [name for name in counted.names if name.startswith("chunks file:") and name.endswith(".parquet")]
        assert len(files) == {"reference": 0}.get(kind, 1 if root.parent else 4), "of its parent it reads none"


async def test_the_pins_of_a_run_that_ended_behind_its_root_are_given_back_by_the_next(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        backups = await InterruptedBackups.of(world, {})
        with pytest.raises(Crash):
            await world.run(on_effect=crash_at(BackupEffect.RELEASE)).run()
        assert len(await backups.pins()) == 2
        reference = await world.back_up(kind="reference")
        assert {reference.id in pin for pin in await backups.pins()} == {True}
        assert not [name for name in backups.content() if "progress" in name]


class FailingCatalog:
    """A catalog whose tables cannot be loaded while `is_failing` says so."""

    def __init__(self, inner: Any, error: errors.IcestreamError, is_failing: Callable[[], bool]) -> None:
        self._inner = inner
        self._error = error
        self._is_failing = is_failing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def load(self, identifier: Identifier) -> Any:
        if self._is_failing():
            raise self._error
        return await self._inner.load(identifier)


async def test_a_broker_that_is_away_behind_the_recorded_cut_takes_no_pins_back(tmp_path: Path) -> None:
    """The hold on the log ends by itself; the backup goes on, or can be resumed."""
    async with backup_world(tmp_path) as world:
        backups = await InterruptedBackups.of(world, {})
        run = world.run()
        call, failed = run._node._call, []

        async def losing(method: str, /, **arguments: object) -> Any:
            if method == "backup_end":
                failed.append(method)
                raise errors.ConnectionLost("the link was cut")
            return await call(method, **arguments)

        run._node._call = losing
        root = await run.run()
        assert (root.state, failed) == ("complete", ["backup_end"])
        assert await world.verify(root.id) == []
        assert await backups.pins() == []


async def test_a_namespace_that_is_gone_fails_no_other_backup_at_its_end(tmp_path: Path) -> None:
    """REST servers answer so for a table of such a namespace. It was that of a run that ended behind its root."""
    async with backup_world(tmp_path) as world:
        backups = await InterruptedBackups.of(world, {})
        with pytest.raises(Crash):
            await world.run(on_effect=crash_at(BackupEffect.RELEASE)).run()
        run = world.run()
        gone = errors.UnknownNamespace("namespace default does not exist")
        run._catalog = FailingCatalog(run._catalog, gone, lambda: run.progress.phase == "finish")  # type: ignore[assignment]
        assert (await run.run()).state == "complete"
        assert not [name for name in backups.content() if "progress" in name]


async def test_another_backup_whose_pins_cannot_be_removed_fails_no_backup(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await InterruptedBackups.of(world, {})
        killed = world.run(on_effect=crash_at(BackupEffect.RELEASE))
        with pytest.raises(Crash):
            await killed.run()
        run = world.run(kind="reference")
        away = errors.StorageUnavailable("the catalog cannot be reached")
        run._catalog = FailingCatalog(run._catalog, away, lambda: run.progress.phase == "finish")  # type: ignore[assignment]
        assert (await run.run()).state == "complete"
        assert await world.stored().half_finished() == [killed._plan.id], "the next backup tries again"


async def test_a_table_whose_namespace_is_gone_keeps_no_backup_from_beginning(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await InterruptedBackups.of(world, {})
        run = world.run()
        gone = errors.UnknownNamespace("namespace default does not exist")
        run._catalog = FailingCatalog(run._catalog, gone, lambda: True)  # type: ignore[assignment]
        root = await run.run()
        assert [topic.table for topic in root.topics] == [None]


async def test_temporary_files_of_killed_processes_are_removed_after_a_day(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await InterruptedBackups.of(world, {})
        old, new = (world.target.spool / name for name in ("old", "new"))
        for file in (old, new):
            file.write_bytes(b"half an object")
        long_ago = time.time() - 25 * 3_600
        os.utime(old, (long_ago, long_ago))
        await world.back_up()
        assert [*world.target.spool.iterdir()] == [new]
