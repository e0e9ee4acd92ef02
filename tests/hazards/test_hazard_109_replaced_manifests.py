"""Hazard 109: a manifest that is replaced after its commit does not bring files of others to the readers of a table.

Each kind of path, in a manifest list, in a manifest and for old snapshots: for consumers, for lists of files, for
`verify` and for purges.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from icestream import errors, limits
from icestream.catalog.topic_rules import topic_schema
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.iceberg import file_listing
from icestream.iceberg.identifier import Identifier
from icestream.model.scan_messages import ScanKind
from icestream.readers.verify.verify_report import ShardLogState
from tests.support.avro_files import appended
from tests.support.topic_lake import TopicLake, rows
from tests.support.warehouse import CatalogWorld

pytestmark = [pytest.mark.asyncio, pytest.mark.wrong_tables]
SECRET = Identifier(("default",), "secret")
PLACES = ["other table", "other table, spelled otherwise", "outside", "%2e%2e", "fifo"]


class Warehouse:
    """A topic's table, another table with rows of the same columns, and places around them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lake = TopicLake(folder / "warehouse", is_secured=True)
        self.manifest = self.manifest_list = ""  # those of the first round

    async def fill(self) -> None:
        await self.lake.bind()
        await self.lake.catalog.tables.create(SECRET, {"schema": topic_schema.new_schema()})
        await self.lake.round((0, 0, 3), entries=[await self.lake.write(rows(0, 3))])
        folder = f"{(await self.lake.table()).location}/metadata"
        self.manifest, self.manifest_list = f"{folder}/m1-0.avro", f"{folder}/snap-1.avro"

    async def place(self, kind: str, name: str) -> str:
        """A location of this kind for a file of this name."""
        secret = (await self.lake.catalog.tables.load(SECRET)).table.location
        own = (await self.lake.table()).location
        outside = self.folder / "outside"
        for folder in (outside, Path(secret.removeprefix("file:")) / "data"):
            folder.mkdir(parents=True, exist_ok=True)
        match kind:
            case "other table":
                return f"{secret}/data/{name}"
            case "other table, spelled otherwise":
                return f"file://{secret.removeprefix('file:')}/data/{name}"
            case "outside":
                return f"file:{outside}/{name}"
            case "%2e%2e":
                return f"{own}/%2e%2e/{secret.rpartition('/')[2]}/data/{name}"
            case _:
                os.mkfifo(Path(own.removeprefix("file:")) / name)
                return f"{own}/{name}"

    async def stolen(self, kind: str) -> dict[str, Any]:
        """The entry of a file of this kind with the messages of somebody else."""
        entry: dict[str, Any] = await self.lake.write(rows(0, 3, payload=b"secret"))
        path = await self.place(kind, "stolen.parquet")
        source = Path(entry["data_file"]["file_path"].removeprefix("file:"))
        if kind != "fifo":
            move(source, Path(path.removeprefix("file://").removeprefix("file:").replace("%2e%2e", "..")))
        entry["data_file"]["file_path"] = path
        entry["sequence_number"], entry["snapshot_id"] = 1, 10_001
        return entry


async def refusal(lake: TopicLake) -> str:
    with pytest.raises((errors.TableUnreadable, OSError)) as refused:
        await lake.ask(ScanKind.READ)
    return str(refused.value)


def move(source: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return source.rename(target)


@pytest.mark.parametrize("kind", PLACES)
async def test_hazard_109_a_consumer_is_not_served_from_files_of_others(tmp_path: Path, kind: str) -> None:
    warehouse = Warehouse(tmp_path)
    await warehouse.fill()
    stolen = await warehouse.stolen(kind)
    if kind not in ("%2e%2e", "fifo"):
        path = stolen["data_file"]["file_path"].removeprefix("file://").removeprefix("file:")
        assert pq.read_table(path)["payload"].to_pylist() == [b"secret"] * 3, "it could be read"
    warehouse.lake.replace_files("manifest", warehouse.manifest, [stolen])
    reason = "not a regular file" if kind == "fifo" else "not in a place of its own"
    assert reason in await refusal(warehouse.lake)


@pytest.mark.parametrize("kind", ["other table", "outside"])
async def test_hazard_109_a_manifest_of_others_is_not_read(tmp_path: Path, kind: str) -> None:
    warehouse = Warehouse(tmp_path)
    await warehouse.fill()
    theirs = await warehouse.place(kind, "m.avro")
    warehouse.lake.replace_files("manifest", theirs, [await warehouse.lake.write(rows(0, 3, payload=b"secret"))])
    warehouse.lake.replace_files("list", warehouse.manifest_list, [theirs])
    assert "m.avro', which is not in a place of its own" in await refusal(warehouse.lake)
    table = await warehouse.lake.table()
    with pytest.raises(errors.TableUnreadable, match="not in a place of its own"):
        await file_listing.list_files(table, warehouse.lake.manifests, None, "", 10, warehouse.lake.rules.check)


@pytest.mark.parametrize("kind", ["other table", "outside"])
async def test_hazard_109_verify_tells_nothing_about_files_of_others(tmp_path: Path, kind: str) -> None:
    """An old snapshot, whose manifests `verify` alone reads."""
    warehouse = Warehouse(tmp_path)
    await warehouse.fill()
    lake = warehouse.lake
    await lake.replace([await lake.write(rows(0, 3))], "overwrite")
    stolen = await warehouse.stolen(kind)
    stolen["data_file"]["file_size_in_bytes"] = 1
    lake.replace_files("manifest", warehouse.manifest, [stolen])
    view = await lake.scans.new_tables().fresh(lake.topic_id)
    assert view is not None
    log = {0: ShardLogState(3, 3)}
    report = lake.scans.verifier(view, log, await lake.scans.rule_of(view)).verify(deep=False)
    findings = " ".join(finding.text for finding in report.findings)
    assert "not in a place of its own" in findings
    assert "bytes" not in findings, "its size is not told"
    unsecured = lake.scans.verifier(view, log).verify(deep=False)
    assert "bytes" in " ".join(finding.text for finding in unsecured.findings), "the test can fail"


async def test_hazard_109_files_in_the_roots_without_a_table_are_read(tmp_path: Path) -> None:
    """As `add_files` of an administrator brings them; and while security is off everything is read."""
    warehouse = Warehouse(tmp_path)
    await warehouse.fill()
    lake = warehouse.lake
    entry = await lake.write(rows(0, 3))
    path = Path(entry["data_file"]["file_path"].removeprefix("file:"))
    entry["data_file"]["file_path"] = f"file:{move(path, tmp_path / 'warehouse' / 'old' / 'x.parquet')}"
    entry["sequence_number"], entry["snapshot_id"] = 1, 10_001
    lake.replace_files("manifest", warehouse.manifest, [entry])
    assert len((await lake.read_all())[0]) == 3
    stolen = await warehouse.stolen("other table")
    other = Warehouse(tmp_path / "b")
    await other.fill()
    other.lake.is_secured = False
    other.lake.replace_files("manifest", other.manifest, [stolen])
    assert len((await other.lake.read_all())[0]) == 3


async def test_hazard_109_a_purge_leaves_the_files_of_others() -> None:
    world = CatalogWorld()
    mine, theirs = await world.with_table("mine"), await world.with_table("theirs")
    locations = [(await world.catalog.tables.load(table)).table.location for table in (mine, theirs)]
    world.write("file:/elsewhere/x.parquet")
    await world.catalog.commits.commit(theirs, CommitRequest([], appended(world, locations[1], 1)))
    own = sorted(name for name in world.disk.names() if not name.startswith(locations[0].removeprefix("file:")))
    named = [f"file:{name}" for name in own] + [f"{locations[0]}/../x", f"{locations[0]}/%2e%2e/x"]
    await world.catalog.commits.commit(mine, CommitRequest([], appended(world, locations[0], 1, *named)))
    await world.catalog.tables.drop(mine, is_purging=True)
    world.clock.advance(limits.CATALOG_FILE_GRACE_MS / 1000)
    await world.clean_up()
    assert sorted(world.disk.names()) == own
