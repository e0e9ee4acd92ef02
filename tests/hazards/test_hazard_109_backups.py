"""Hazard 109 in backups: neither a replaced manifest nor a target that was changed brings files of others to a reader.

A backup reads tables with the rights of the broker, and a restore what the target says: both lead into a new topic.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from icestream import errors
from icestream.backup.backup_layout import root_name
from icestream.backup.backup_root import BackupRoot, encode_document
from icestream.backup.backup_target import BackupTarget, DirectoryTarget
from icestream.backup.object_list import ObjectRow, decode_list, encode_list
from icestream.backup.warehouse_files import WarehouseFiles
from icestream.catalog.topic_rules import topic_schema
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.iceberg.file_io import LocalFiles, open_local
from icestream.iceberg.identifier import Identifier
from icestream.readers.lazy_scanner import file_opener
from icestream.runtime.tasks import InlineOffload
from tests.support.backup_world import BackupWorld, backup_world
from tests.support.restore_world import RestoreWorld
from tests.support.topic_lake import rows

pytestmark = [pytest.mark.asyncio, pytest.mark.wrong_tables]
SECRET = Identifier(("default",), "secret")
NAMES = ["../x", "/etc/passwd", "objects/../../x", "objects//x", "", "a/./b", "a\x00b"]


@pytest.mark.parametrize("name", NAMES)
async def test_no_name_leads_out_of_a_target(tmp_path: Path, name: str) -> None:
    target: BackupTarget = DirectoryTarget(tmp_path / "backups", InlineOffload())
    (tmp_path / "x").write_text("theirs")
    with pytest.raises(errors.BackupDamaged, match="is not a name in a backup target"):
        await target.get(name)
    with pytest.raises(errors.BackupDamaged):
        await target.put(name, b"mine")
    with pytest.raises(errors.BackupDamaged):
        await target.remove(name)
    with pytest.raises(errors.BackupDamaged):
        list(target.chunks(name))
    assert (tmp_path / "x").read_text() == "theirs"


async def prepare(world: BackupWorld) -> None:
    await world.create_topic()
    await world.bind()
    await world.publish(4)
    await world.commit(4, is_floor_moved=True)


async def with_rows(world: BackupWorld, root: BackupRoot, change: Any) -> BackupRoot:
    """A backup whose object list somebody with access to the target has changed, with the digests that belong to it."""
    data = await world.target.get(root.objects.path)
    assert data is not None
    changed = encode_list(change(row) for row in decode_list(root.objects.path, data))
    objects: dict[str, Any] = {
        "path": root.objects.path,
        "sha256": hashlib.sha256(changed).hexdigest(),
        "size": len(changed),
    }
    await world.target.put(root.objects.path, changed)
    forged = msgspec.structs.replace(root, objects=msgspec.structs.replace(root.objects, **objects))
    await world.target.put(root_name(root.id), encode_document(forged))
    return forged


def is_data(row: ObjectRow) -> bool:
    return row.role == "data"


@pytest.mark.parametrize(
    "columns", [{"path": "../theirs"}, {"content_sha256": ""}, {"content_sha256": "../../../theirs"}], ids=str
)
async def test_hazard_109_a_changed_object_list_names_nothing_outside(tmp_path: Path, columns: dict[str, Any]) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        root = await world.back_up()

        def change(row: ObjectRow) -> ObjectRow:
            if not is_data(row):
                return row
            (tmp_path / "theirs").write_bytes((tmp_path / "backups" / row.path).read_bytes())  # the digest is right
            return row._replace(**columns)

        forged = await with_rows(world, root, change)
        before = parquet_files(tmp_path)
        with pytest.raises(errors.BackupDamaged, match=r"is not a name in a backup target|without the SHA-256"):
            await RestoreWorld(world).restore(forged)
        assert parquet_files(tmp_path) == before


def parquet_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


async def test_hazard_109_a_changed_object_list_opens_the_warehouse_only(tmp_path: Path) -> None:
    """A reference backup names files of the warehouse, by any location."""
    theirs, warehouse = tmp_path / "theirs", tmp_path / "warehouse"
    theirs.write_bytes(b"theirs")
    warehouse.mkdir()
    (warehouse / "own").write_bytes(b"own")
    (warehouse / "link").symlink_to(theirs)
    roots = [f"file:{warehouse}"]
    files = WarehouseFiles(file_opener(LocalFiles(open_local, InlineOffload()), roots), roots)
    assert list(files.chunks(f"file:{warehouse}/own")) == [b"own"]
    for place in (
        f"file:{theirs}",
        f"file://{theirs}",
        f"file:{warehouse}/../theirs",
        f"file:{warehouse}/%2e%2e/theirs",
    ):
        with pytest.raises((errors.TableUnreadable, errors.InvalidInput)):
            list(files.chunks(place))
    with pytest.raises(OSError, match="a symbolic link leads out of the warehouse"):
        list(files.chunks(f"file:{warehouse}/link"))


def move(source: str, target: str) -> None:
    path = Path(target.removeprefix("file:"))
    path.parent.mkdir(parents=True, exist_ok=True)
    Path(source.removeprefix("file:")).rename(path)


async def bind_secret(world: BackupWorld) -> str:
    """Another topic with a table; returns the location of a file in it."""
    assert world.lake is not None
    assert world.node.log is not None
    await world.call("create_topic", topic="/default/secret")
    topic_id = next(topic.id for topic in world.node.log.state.topics.values() if topic.name == "/default/secret")
    catalog = world.lake.catalog
    await catalog.tables.create(SECRET, {"schema": topic_schema.new_schema()})
    await catalog.topics.bind(SECRET, "/default/secret", topic_id, {0: (0, 0)})
    location = (await catalog.tables.load(SECRET)).table.location
    manifest_list = f"{location}/metadata/empty.avro"
    Path(manifest_list.removeprefix("file:")).parent.mkdir(parents=True, exist_ok=True)
    world.lake.replace_files("list", manifest_list, [])
    snapshot = {
        "snapshot-id": 7, "sequence-number": 1, "timestamp-ms": world.lake.clock.wall_us() // 1000,
        "manifest-list": manifest_list, "summary": {"operation": "append"}, "schema-id": 0,
    }  # fmt: skip
    point = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 7}
    updates: list[dict[str, Any]] = [{"action": "add-snapshot", "snapshot": snapshot}, point]
    await catalog.commits.commit(SECRET, CommitRequest([], updates))
    return f"{location}/data/theirs.parquet"


@pytest.mark.parametrize("kind", ["copy", "reference"])
@pytest.mark.parametrize("place", ["data file", "manifest"])
async def test_hazard_109_a_backup_takes_no_file_of_another_topic(tmp_path: Path, kind: str, place: str) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        assert world.lake is not None
        theirs = await bind_secret(world)
        await world.back_up(kind=kind)
        entry = await world.lake.write(rows(0, 4, payload=b"secret"))
        move(entry["data_file"]["file_path"], theirs)
        entry["data_file"]["file_path"] = theirs
        entry["sequence_number"], entry["snapshot_id"] = 1, 10_001
        folder = f"{(await world.lake.table()).location}/metadata"
        if place == "data file":
            world.lake.replace_files("manifest", f"{folder}/m1-0.avro", [entry])
        else:
            theirs = theirs.replace("theirs.parquet", "theirs.avro")
            world.lake.replace_files("manifest", theirs, [entry])
            world.lake.replace_files("list", f"{folder}/snap-1.avro", [theirs])
        with pytest.raises(errors.TableUnreadable, match="which is not in a place of its own"):
            await world.back_up(kind=kind)
