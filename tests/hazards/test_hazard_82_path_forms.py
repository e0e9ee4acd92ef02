"""Hazard 82, its part about paths: a live file is recognised in every form in which a manifest may name it, and a path
that cannot be understood stops the clean-up of its table. Else a live file looks like one that nothing refers to.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import pytest_asyncio

from icestream import errors
from icestream.iceberg.location import object_identity
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.manifests import ManifestEntry
from icestream.pipeline.file_cleanup.referenced_files import ReferencedFiles
from icestream.runtime.tasks import InlineOffload
from tests.support.fault_world import FaultWorld
from tests.support.interruptible_driver import InterruptibleDriver

Result = TypeVar("Result")
ONE_OBJECT = [
    ("s3://bucket/t/data/a.parquet", "s3a://bucket/t/data/a.parquet"),
    ("s3://bucket/t/data/a.parquet", "S3N://bucket/t/data/a.parquet"),
    ("file:/w/t/a b.parquet", "file:///w/t/a%20b.parquet"),
    ("/w/t/a.parquet", "file:/w/t/a.parquet"),
    ("abfss://c@account.dfs.core.windows.net/t/a", "wasbs://c@account.blob.core.windows.net/t/a"),
]


@pytest.mark.parametrize(("one", "other"), ONE_OBJECT)
def test_all_forms_of_a_location_are_one_object(one: str, other: str) -> None:
    assert object_identity(one) == object_identity(other)


def test_other_objects_are_distinguished() -> None:
    locations = ["s3://b/t/a", "s3://c/t/a", "s3://b/t/A", "gs://b/t/a", "file:/b/t/a", "s3://b/t/a%2Fb", "s3://b/t/c"]
    assert len({*map(object_identity, locations)}) == len(locations)
    with pytest.raises(errors.InvalidInput, match="Invalid location"):
        object_identity("s3://b//t/a")


class RenamingReader(ManifestReader):
    """Manifests as another engine may have written them: the same files under other forms of their paths."""

    def __init__(self, world: FaultWorld, form: Callable[[str], str]) -> None:
        super().__init__(world.files, InlineOffload())
        self._form = form

    async def select_entries(self, manifest: str, select: Callable[[Iterator[ManifestEntry]], Result]) -> Result:
        def renamed(entries: Iterator[ManifestEntry]) -> Iterator[ManifestEntry]:
            for entry in entries:
                entry.file_path = self._form(entry.file_path)
                yield entry

        return await super().select_entries(manifest, lambda entries: select(renamed(entries)))


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[FaultWorld]:
    fault_world = await FaultWorld.open(tmp_path)
    yield fault_world
    await fault_world.close()


async def cleaned(world: FaultWorld, form: Callable[[str], str]) -> InterruptibleDriver:
    """A second driver, which lists the folders of the table and takes what a first one left for orphans."""
    first = world.driver()
    for _ in range(2):
        await world.publish(1, 3)
        await world.drain(first)
    await first.lease.release()
    await first.end()
    second = world.driver(owner="another")
    assert second.cleaner is not None
    second.cleaner._references = ReferencedFiles(RenamingReader(world, form))
    await world.publish(1, 1)
    await world.drain(second)
    return second


@pytest.mark.asyncio
async def test_a_live_file_under_another_form_of_its_path_is_not_removed(world: FaultWorld) -> None:
    driver = await cleaned(world, lambda path: path.replace("/data/", "/dat%61/"))
    await world.clean(driver)
    assert await world.present(1) == await world.needed(1)
    await world.check()


@pytest.mark.asyncio
async def test_a_path_that_cannot_be_understood_stops_the_clean_up_of_its_table(world: FaultWorld) -> None:
    driver = await cleaned(world, lambda path: path.replace("/data/", "/./data//"))
    before = await world.present(1)
    assert driver.cleaner is not None
    await driver.cleaner.work(lambda: None)
    assert await world.present(1) == before
    assert before >= await world.needed(1)
    await world.check()
