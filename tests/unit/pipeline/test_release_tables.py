"""Tables that earlier releases wrote are read, written, compacted and verified by this one.

The archives are of tests/support/release_tables.py. A release adds one; none is ever written again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import pytest_asyncio
from pyiceberg.table import StaticTable

from icestream.catalog.topic_rules import topic_schema
from icestream.iceberg.identifier import Identifier
from icestream.model.row_digest import FOOTER_KEY
from icestream.readers.row_hashes import digest_of
from tests.support.compaction import add_compaction, compact, data_files
from tests.support.fault_world import FaultWorld
from tests.support.release_backup import RELEASES
from tests.support.release_tables import LATER_COLUMNS, ROUNDS, open_tables, unpacked

pytestmark = pytest.mark.asyncio
ARCHIVES = sorted((RELEASES / "tables").glob("*.tar.xz"))
OLDER = RELEASES / "tables" / "0.1.0-older.tar.xz"


@pytest_asyncio.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
async def archive(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Path, FaultWorld]]:
    with unpacked(request.param) as folder:
        world = await open_tables(folder)
        yield request.param, world
        await world.close()


def footer(location: str) -> dict[bytes, bytes]:
    return pq.read_metadata(location.removeprefix("file:")).metadata or {}


async def column_ids(world: FaultWorld, topic_id: int = 1) -> dict[str, int]:
    table = (await world.catalog.load(Identifier(("default",), f"t{topic_id}"))).metadata
    (schema,) = (entry for entry in table["schemas"] if entry["schema-id"] == table["current-schema-id"])
    return {field["name"]: field["id"] for field in schema["fields"]}


async def test_tables_of_a_release_are_read_and_verified(archive: tuple[Path, FaultWorld]) -> None:
    path, world = archive
    await world.check()
    files = await data_files(world)
    assert len(files) == ROUNDS
    assert any(FOOTER_KEY in footer(file) for file in files) == (path != OLDER)
    assert set(LATER_COLUMNS).isdisjoint(await column_ids(world)) == (path == OLDER)


async def test_tables_of_a_release_are_written_and_compacted(archive: tuple[Path, FaultWorld]) -> None:
    path, world = archive
    ids_before, files_before = await column_ids(world), await data_files(world)
    life = world.driver()
    await world.publish_some()
    await world.drain(life)
    await world.check()
    assert len(await data_files(world)) == ROUNDS + 1
    ids = await column_ids(world)
    # Columns are added with ids of their own, and none of those that files have is changed.
    assert {name: ids[name] for name in ids_before} == ids_before
    assert set(ids) == set(topic_schema.COLUMNS)
    assert len(set(ids.values())) == len(ids)
    if path == OLDER:
        assert min(ids[name] for name in LATER_COLUMNS) > max(ids_before.values())
    job = add_compaction(life)
    await world.publish_some()
    await world.drain(life)
    await compact(life, job)
    (location,) = await data_files(world)
    assert location not in files_before
    rows = pq.read_table(location.removeprefix("file:"))
    assert footer(location)[FOOTER_KEY].decode() == digest_of(rows).text
    await world.check()


async def test_columns_that_a_release_did_not_have_are_null_in_its_rows(archive: tuple[Path, FaultWorld]) -> None:
    _, world = archive
    life = world.driver()
    await world.publish_some()
    await world.drain(life)
    metadata_location = (await world.catalog.load(Identifier(("default",), "t1"))).metadata_location
    scan = StaticTable.from_metadata(metadata_location or "").scan(selected_fields=("offset", *LATER_COLUMNS))
    rows = scan.to_arrow()
    assert rows.num_rows == len(
        [offset for key, part in world.published.items() if key.topic_id == 1 for offset in part]
    )
    assert all(rows.column(name).null_count == rows.num_rows for name in LATER_COLUMNS)


async def test_every_release_has_an_archive() -> None:
    assert {path.name for path in ARCHIVES} >= {"0.1.0.tar.xz", OLDER.name}
