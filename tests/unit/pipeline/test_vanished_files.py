"""Committed files that were removed before the log freed their messages (docs/adr/0042)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prometheus_client import REGISTRY
from pyiceberg.table import StaticTable

from icestream import errors
from icestream.catalogs.table_catalog import CommitOutcome, TableCatalog, TableChange
from icestream.iceberg.file_io import LocalFiles
from icestream.iceberg.identifier import Identifier
from icestream.pipeline.driver.effects import Effect, Effects, Fault
from tests.support.interruptible_driver import DriverKilled
from tests.support.pipeline_harness import PipelineHarness

pytestmark = pytest.mark.asyncio


class FileRemovingCatalog:
    """A catalog beside which another engine takes the files of a commit that is on its way for orphans, once."""

    def __init__(self, folder: Path, inner: TableCatalog) -> None:
        self._folder, self._inner = folder, inner
        self._before: set[Path] = set()
        self._pattern = ""
        self.removed: list[Path] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def remove_next(self, table: str, suffix: str) -> None:
        """The files of this table that the next commit brings."""
        self._pattern = f"**/{table}-*/**/*{suffix}"
        self._before = set(self._folder.glob(self._pattern))

    async def commit(self, identifier: Identifier, change: TableChange) -> CommitOutcome:
        self._remove()
        return await self._inner.commit(identifier, change)

    async def commit_all(self, changes: Mapping[Identifier, TableChange]) -> dict[Identifier, CommitOutcome]:
        self._remove()
        return await self._inner.commit_all(changes)

    def _remove(self) -> None:
        if self._pattern and not self.removed:
            self.removed = sorted(set(self._folder.glob(self._pattern)) - self._before)
            for path in self.removed:
                path.unlink()


class VanishedFilesWorld(NamedTuple):
    pipeline: PipelineHarness
    other: FileRemovingCatalog


def opened(folder: Path, is_foreign: bool = False, **options: Any) -> VanishedFilesWorld:
    catalogs: list[FileRemovingCatalog] = []

    def wrap(inner: TableCatalog) -> Any:
        catalogs.append(FileRemovingCatalog(folder, inner))
        return catalogs[0]

    return VanishedFilesWorld(PipelineHarness(folder, is_foreign=is_foreign, wrap=wrap, **options), catalogs[0])


async def offsets(pipeline: PipelineHarness, name: str) -> list[int]:
    loaded = await pipeline.world.catalog.load(Identifier(("default",), name))
    scan = StaticTable.from_metadata(loaded.metadata_location or "").scan(selected_fields=("offset",))
    return sorted(scan.to_arrow()["offset"].to_pylist())


@pytest.mark.parametrize("suffix", [".parquet", ".avro"], ids=["data", "manifests"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first-round", "later-round"])
@pytest.mark.parametrize("is_foreign", [False, True], ids=["own", "foreign"])
async def test_files_that_vanish_before_the_commit_are_written_again_from_the_log(
    tmp_path: Path, is_foreign: bool, is_first: bool, suffix: str
) -> None:
    pipeline, remover = opened(tmp_path / "warehouse", is_foreign)
    broker, counter = pipeline.broker, "icestream_pipeline_vanished_files_total"
    before = REGISTRY.get_sample_value(counter) or 0
    start = 0
    if not is_first:
        broker.publish(1, 4)
        await pipeline.round()
        start = 4
    remover.remove_next("t1", suffix)
    broker.publish(1, 5)
    broker.publish(2, 3)
    await pipeline.round()
    assert remover.removed
    assert broker.floors == {(1, 0): start, (2, 0): 3}, "the log keeps what is in no file"
    assert pipeline.driver.report.as_document()["vanished_files"] == len(remover.removed)
    assert REGISTRY.get_sample_value(counter) == before + len(remover.removed)
    await pipeline.round()
    assert broker.floors == {(1, 0): start + 5, (2, 0): 3}
    assert await offsets(pipeline, "t1") == list(range(start + 5)), "each once"
    assert await offsets(pipeline, "t2") == [0, 1, 2]
    assert not pipeline.topics.halted
    await pipeline.close()


async def test_a_driver_that_ends_before_the_check_is_followed_by_one_that_checks(
    tmp_path: Path,
) -> None:
    def strike() -> None:
        raise DriverKilled

    effects = Effects(Fault(True, Effect.LOOK_AGAIN, 1), strike)
    first, remover = opened(tmp_path / "w", effects=effects, owner="child")
    remover.remove_next("t1", ".parquet")
    first.broker.publish(1, 5)
    with pytest.raises(DriverKilled):
        await first.round()
    if first.lease._renewing is not None:
        first.lease._renewing.cancel()
    assert first.broker.floors == {(1, 0): 0}
    second = PipelineHarness(tmp_path / "w", broker=first.broker, store=first.world.store, owner="child")
    await second.round()
    await second.round()
    assert first.broker.floors == {(1, 0): 5}
    assert await offsets(second, "t1") == [0, 1, 2, 3, 4]
    await second.close()


async def test_an_irrevocable_commit_stops_its_topic_and_keeps_its_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For instance, another engine has committed on top of it."""
    pipeline, remover = opened(tmp_path / "warehouse")
    undo = pipeline.world.books.undo

    async def refused(*_: object) -> None:
        raise errors.CommitConflict("the table has gone on")

    monkeypatch.setattr(pipeline.world.books, "undo", refused)
    remover.remove_next("t1", ".parquet")
    pipeline.broker.publish(1, 5)
    pipeline.broker.publish(2, 3)
    for _ in range(2):  # by what it committed, and by what it finds in the table
        await pipeline.round()
        assert pipeline.broker.floors == {(1, 0): 0, (2, 0): 3}
        (halted,) = pipeline.topics.halted.values()
        assert str(remover.removed[0]) in halted.stopped.reason
        assert "icestream lake rewind" in halted.stopped.hint
        pipeline.pass_pauses()
    monkeypatch.setattr(pipeline.world.books, "undo", undo)
    await pipeline.round()
    await pipeline.round()
    assert await offsets(pipeline, "t1") == [0, 1, 2, 3, 4]
    assert pipeline.broker.floors == {(1, 0): 5, (2, 0): 3}
    await pipeline.close()


async def test_a_topic_whose_committed_files_cannot_be_checked_stops_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both for its own commits and for commits that the driver finds in a table: only that topic's floor stays."""
    pipeline, _ = opened(tmp_path / "warehouse")
    exists = LocalFiles.exists

    async def refused(files: LocalFiles, location: str) -> bool:
        if "/t1-" in location and "/data/" in location:
            raise errors.PersistentStorageError(
                f"{location} cannot be read: Permission denied", hint="look at its mode"
            )
        return await exists(files, location)

    monkeypatch.setattr(LocalFiles, "exists", refused)
    for topic in (1, 2, 3):
        pipeline.broker.publish(topic, 5)
    for _ in range(2):
        await pipeline.round()
        assert pipeline.broker.floors == {(1, 0): 0, (2, 0): 5, (3, 0): 5}
        (halted,) = pipeline.topics.halted.values()
        assert "cannot be checked" in halted.stopped.reason
        pipeline.pass_pauses()
    monkeypatch.setattr(LocalFiles, "exists", exists)
    await pipeline.round()
    assert pipeline.broker.floors == {(1, 0): 5, (2, 0): 5, (3, 0): 5}
    assert await offsets(pipeline, "t1") == [0, 1, 2, 3, 4]
    await pipeline.close()
