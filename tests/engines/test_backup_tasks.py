"""Backups whose files are copied by tasks of Spark: the same objects, byte for byte, as those that threads copy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from icestream import errors
from icestream.backup.backup_run import BackupEffect
from icestream.backup.backup_target import DirectoryTarget, open_target
from icestream.backup.encryption import BackupKey
from icestream.processes.component_options import store_options
from icestream.processes.copy_tasks import CopyTasks, command_tasks
from icestream.processes.scheduled_backups import ScheduledBackups
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import InlineOffload
from tests.support.backup_history import crash_at
from tests.support.backup_world import BackupWorld, Crash, backup_world
from tests.support.catalog_servers import new_name, s3_flags, settings_of
from tests.support.restore_world import RestoreWorld
from tests.support.seaweed import BUCKET, Seaweed
from tests.support.spark import Spark

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]


def objects(folder: Path) -> dict[str, bytes]:
    files = [file for file in (folder / "objects").rglob("*.parquet") if file.is_file()]
    return {file.name: file.read_bytes() for file in files}


async def prepare(world: BackupWorld) -> None:
    """Seven files of two messages each."""
    await world.create_topic()
    await world.bind()
    for end in range(2, 16, 2):
        await world.publish(2)
        await world.commit(end)
    assert world.lake is not None
    await world.lake.replace(world.lake.live, total_data_files="7")  # as the pipeline writes it into its snapshots


async def test_tasks_make_the_objects_of_threads_and_are_resumed(tmp_path: Path, spark_process: Spark) -> None:
    counts: list[int] = []

    def run(_: Callable[[Iterable[bytes]], Iterator[bytes]], jobs: Sequence[bytes]) -> list[bytes]:
        counts.append(len(jobs))
        return spark_process.copy(jobs)

    async with backup_world(tmp_path) as world:
        await prepare(world)
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


async def test_tasks_copy_into_a_bucket_what_is_restored_from_it(
    tmp_path: Path, spark_process: Spark, seaweed_server: Seaweed
) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        settings = settings_of(*s3_flags(seaweed_server))
        world.store = store_options(settings)
        (tmp_path / "spool").mkdir()
        world.target = open_target(
            f"s3://{BUCKET}/{new_name()}", world.store, SystemClock(), SystemRandomness(), InlineOffload(),
            tmp_path / "spool",
        )  # fmt: skip
        root = await world.run(run_tasks=lambda _, jobs: spark_process.copy(jobs)).run()
        assert await world.verify(root.id) == []
        data = [row for row in await world.stored().rows_of(root.id) if row.role == "data"]
        assert len({row.path for row in data}) == 7
        await RestoreWorld(world).restore(root)
        assert await RestoreWorld(world).rows() == [(offset, b"m%d" % offset) for offset in range(14)]


class CountedTasks:
    """The session of the shared Spark in the place of one that would be started."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark
        self.jobs = 0
        self.is_closed = False

    def run_tasks(self, _: Callable[[Iterable[bytes]], Iterator[bytes]], jobs: Sequence[bytes]) -> list[bytes]:
        self.jobs += len(jobs)
        return self._spark.copy(jobs)


def files_of(folder: Path) -> int:
    return len([*(folder / "objects").rglob("*.parquet")])


async def test_a_scheduled_backup_of_many_files_is_copied_by_tasks(tmp_path: Path, spark_process: Spark) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        assert world.lake is not None
        for spark_files, has_tasks in ((8, False), (7, True)):
            target = tmp_path / f"scheduled{spark_files}"
            flags = (f"backup.target={target}", "backup.schedule.interval_ms=1h", f"backup.spark_files={spark_files}")
            warehouse = f"storage.iceberg_config.warehouse={tmp_path / 'warehouse'}"
            tasks = CountedTasks(spark_process)
            schedule = ScheduledBackups(
                settings_of(*flags, warehouse), world.call, world.catalog, world.lake.files, SystemClock(),
                SystemRandomness(), InlineOffload(), CopyTasks(tasks.run_tasks, InlineOffload(), 2),
            )  # fmt: skip
            await schedule.run_pass()
            assert (tasks.jobs, files_of(target)) == (2 if has_tasks else 0, 7)
            world.target = DirectoryTarget(target, InlineOffload())
            (backup,) = await world.stored().backups()
            assert await world.verify(backup.id) == []


async def test_the_session_of_a_command_begins_with_the_first_job_and_ends_with_the_command(
    tmp_path: Path, spark_process: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: list[CountedTasks] = []

    @contextlib.contextmanager
    def open_writer(*_: object) -> Iterator[CountedTasks]:
        sessions.append(CountedTasks(spark_process))
        yield sessions[-1]
        sessions[-1].is_closed = True

    monkeypatch.setattr("icestream.pipeline.spark.writer.open_writer", open_writer)
    warehouse = f"storage.iceberg_config.warehouse={tmp_path / 'warehouse'}"
    settings = settings_of("backup.spark_files=5", f"backup.target={tmp_path / 'backups'}", warehouse)
    async with backup_world(tmp_path) as world:
        await prepare(world)
        with command_tasks(settings) as tasks:
            for parent in (None, "latest"):
                run = world.run(parent=(await world.stored().latest()).id if parent else None)  # type: ignore[union-attr]
                run._bulk = tasks.bulk_copy(settings, str(tmp_path / "backups"), run._upload, 0)
                assert run._bulk is not None
                await run.run()
            assert [session.jobs for session in sessions] == [2], "the second backup has no new file"
            assert not sessions[0].is_closed
        assert sessions[0].is_closed
        encrypted = world.run(key=BackupKey(bytes(range(32))))
        assert tasks.bulk_copy(settings, str(tmp_path / "backups"), encrypted._upload, 0) is None, "tasks get no key"
        assert [backup.id for backup in await world.stored().backups() if await world.verify(backup.id)] == []
