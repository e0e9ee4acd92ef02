"""Two restores of one topic of one backup at once: they share the topic's id and the folder of its table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from icestream import errors
from icestream.backup.backup_root import BackupRoot
from icestream.iceberg.file_io import LocalFiles, open_local
from icestream.processes.restore_run import RestoreRun, TableWriter
from icestream.runtime.tasks import InlineOffload
from tests.support.backup_world import BackupWorld, Crash, backup_world
from tests.support.restore_world import RestoreWorld

pytestmark = pytest.mark.asyncio
ROWS = [(offset, b"m%d" % offset) for offset in range(6)]


async def backed_up(world: BackupWorld) -> BackupRoot:
    await world.create_topic()
    await world.bind()
    await world.publish(6)
    await world.commit(4, is_floor_moved=True)
    return await world.back_up()


class KilledWriter:
    """A writer of a process that saw an empty folder, and is killed in the middle of its first data file."""

    def __init__(self, inner: TableWriter) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def names(self, folder: str) -> set[str]:
        return set()

    async def copy(self, location: str, pieces: Callable[[], Iterator[bytes]]) -> None:
        def cut() -> Iterator[bytes]:
            for piece in pieces():
                yield piece[: len(piece) // 2]
                raise Crash

        await self._inner.copy(location, cut)


class KilledRestores(RestoreWorld):
    """Restores of such a process."""

    def run_of(self, *arguments: Any, **options: Any) -> RestoreRun:
        run = super().run_of(*arguments, **options)
        run._writer = KilledWriter(run._writer)  # type: ignore[assignment]
        return run


def restored_files(world: BackupWorld) -> list[Path]:
    folder = world.folder / "warehouse" / "default"
    return [file for path in folder.glob("orders_restored-*") for file in path.rglob("*.parquet")]


async def interfere(world: BackupWorld, other: Callable[[], Any]) -> None:
    """Lets another process restore when the next restore has copied its data files."""
    call, calls = world.call, []

    async def calling(method: str, /, **arguments: object) -> Any:
        if method == "restore_erased":
            calls.append(method)
            if len(calls) == 2:
                await other()
        return await call(method, **arguments)

    world.call = calling  # type: ignore[method-assign]


async def test_a_restore_that_another_one_took_over_does_not_create_the_topic(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        root = await backed_up(world)

        async def killed() -> None:
            with pytest.raises(Crash):
                await KilledRestores(world).restore(root)

        await interfere(world, killed)
        with pytest.raises(errors.LeaseLost, match="another restore of /default/orders_restored"):
            await RestoreWorld(world).restore(root)
        for file in restored_files(world):
            pq.read_table(file)  # whole
        await RestoreWorld(world).restore(root)
        assert await RestoreWorld(world).rows() == ROWS


async def test_the_restore_that_began_last_is_whole(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        root = await backed_up(world)

        async def restored() -> None:
            await RestoreWorld(world).restore(root)

        await interfere(world, restored)
        with pytest.raises(errors.IcestreamError):
            await RestoreWorld(world).restore(root)
        assert await RestoreWorld(world).rows() == ROWS


async def test_a_large_file_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    files, location = LocalFiles(open_local, InlineOffload()), f"file:{tmp_path}/a.parquet"
    await files.create_large(location, lambda: [b"whole"])

    def cut() -> Iterator[bytes]:
        yield b"ha"
        raise Crash

    with pytest.raises(Crash):
        await files.create_large(location, cut)
    assert await files.read(location) == b"whole"

    def failing() -> Iterator[bytes]:
        yield b"ha"
        raise errors.BackupDamaged("the digest differs")

    before = await files.files_below(f"file:{tmp_path}")
    with pytest.raises(errors.BackupDamaged):
        await files.create_large(location, failing)
    assert await files.files_below(f"file:{tmp_path}") == before
    await files.create_large(location, lambda: [b"other ", b"bytes"])
    assert await files.read(location) == b"other bytes"
