"""Backups whose files are copied by tasks of Spark: the same objects, byte for byte, as those that threads copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from icestream import errors
from icestream.backup.backup_run import BackupEffect
from icestream.backup.backup_target import DirectoryTarget
from icestream.runtime.tasks import InlineOffload
from tests.support.backup_history import crash_at
from tests.support.backup_world import Crash, backup_world
from tests.support.restore_world import RestoreWorld
from tests.support.spark import Spark

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]


def objects(folder: Path) -> dict[str, bytes]:
    files = [file for file in (folder / "objects").rglob("*.parquet") if file.is_file()]
    return {file.name: file.read_bytes() for file in files}


async def test_tasks_make_the_objects_of_threads_and_are_resumed(tmp_path: Path, spark_process: Spark) -> None:
    counts: list[int] = []

    def run(_: Callable[[Iterable[bytes]], Iterator[bytes]], jobs: Sequence[bytes]) -> list[bytes]:
        counts.append(len(jobs))
        return spark_process.copy(jobs)

    async with backup_world(tmp_path) as world:
        await world.create_topic()
        await world.bind()
        for end in range(2, 16, 2):
            await world.publish(2)
            await world.commit(end)
        by_threads = await world.back_up()
        first, world.target = world.target, DirectoryTarget(tmp_path / "tasks", InlineOffload())
        killed = world.run(run_tasks=run, on_effect=crash_at(BackupEffect.LIST))
        with pytest.raises(Crash):
            await killed.run()
        root = await world.run(id=killed._plan.id, run_tasks=run).resume()
        assert counts == [2], "the tasks of both; the resumed run copies nothing again"
        assert await world.verify(root.id) == []
        assert objects(tmp_path / "tasks") == objects(tmp_path / "backups") != {}
        assert (root.bytes, root.files, root.topics[0].table) != (0, 0, None)
        again = world.run(run_tasks=run, parent=root.id)
        await again.run()
        assert counts == [2], "an incremental backup has nothing to copy"
        third = world.run(run_tasks=run)
        await third.run()
        assert counts == [2, 2]
        assert len(third._upload.reused) >= 7, "what the tasks found in the target"
        restored = await RestoreWorld(world).restore(root)
        assert restored.messages == 14
        world.target = first
        assert await world.verify(by_threads.id) == []


async def test_a_file_of_another_size_ends_the_backup_and_is_named(tmp_path: Path, spark_process: Spark) -> None:
    async with backup_world(tmp_path) as world:
        await world.create_topic()
        await world.bind()
        await world.publish(4)
        await world.commit(4)
        (file,) = (tmp_path / "warehouse").rglob("*.parquet")
        file.write_bytes(file.read_bytes() + b"x")
        with pytest.raises(errors.TableDamaged, match=file.name):
            await world.run(run_tasks=lambda _, jobs: spark_process.copy(jobs)).run()
