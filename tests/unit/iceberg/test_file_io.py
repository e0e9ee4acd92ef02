"""The files of tables on a real disk, and the memory of documents."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from icestream import errors, limits
from icestream.catalog.catalog import Catalog
from icestream.catalog.documents import Documents
from icestream.iceberg.file_io import LocalFiles, LocalFolder, open_inside, open_local
from icestream.iceberg.identifier import identifier
from icestream.metadata.store import MemoryStore
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.randomness import SeededRandomness
from icestream.runtime.tasks import InlineOffload, ShortOffload, ThreadOffload
from tests.support.tables import SCHEMA, table, with_snapshots
from tests.support.warehouse import NS, TABLE, CatalogWorld

pytestmark = pytest.mark.asyncio


def local() -> LocalFiles:
    return LocalFiles(open_local, ThreadOffload("files", 2))


async def test_a_file_is_created_with_its_folders_read_and_removed(tmp_path: Path) -> None:
    files, location = local(), f"file:{tmp_path}/a/b/00000-x.metadata.json"
    await files.create(location, [b"one ", b"two"])
    assert await files.read(location) == b"one two"
    assert (tmp_path / "a" / "b" / "00000-x.metadata.json").read_bytes() == b"one two"
    await files.make_durable([location, f"file:{tmp_path}/none/x"])
    await files.remove(location)
    await files.remove(location)
    with pytest.raises(errors.MetadataFileMissing):
        await files.read(location)
    with pytest.raises(errors.MetadataFileMissing):
        await files.read(f"file:{tmp_path}/none/x")


async def test_a_path_that_is_no_file_is_missing(tmp_path: Path) -> None:
    """Registering such a path is refused as missing: after a 500 an engine would retry for half a minute."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    for name in ("folder", "file/00000-x.metadata.json", f"{'x' * 300}.metadata.json"):
        with pytest.raises(errors.MetadataFileMissing):
            await local().read(f"file:{tmp_path}/{name}")


async def test_creating_an_existing_folder_succeeds(tmp_path: Path) -> None:
    for _ in range(2):
        await local().make_folder(f"file:{tmp_path}/a/metadata")
    assert (tmp_path / "a" / "metadata").is_dir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(errors.PersistentStorageError, match="cannot be written"):
        await local().make_folder(f"file:{tmp_path}/file/metadata")


async def test_a_staged_table_has_a_folder_to_write_into(tmp_path: Path) -> None:
    """Engines put their manifests there before the commit that makes the table; not all of them make the folder."""
    clock = SimulatedClock()
    catalog = Catalog(MemoryStore(clock), local(), clock, SeededRandomness(1), f"file:{tmp_path}")
    await catalog.namespaces.create(NS, {})
    staged = await catalog.tables.stage(TABLE, {"schema": SCHEMA})
    assert await local().exists(f"{staged.location}/metadata")


async def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    files, location = local(), f"file:{tmp_path}/x.metadata.json"
    await files.create(location, [b"first"])
    with pytest.raises(errors.PersistentStorageError, match="cannot be written"):
        await files.create(location, [b"second"])
    assert await files.read(location) == b"first"


# --- links that lead out ----------------------------------------------------------------------------------------------


def fenced(*roots: Path) -> LocalFiles:
    return LocalFiles(open_inside([f"file:{root}" for root in roots]), InlineOffload())


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """With a link to a folder beside it, in which there is a file."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "log-1.wal").write_bytes(b"acked")
    (tmp_path / "warehouse").mkdir()
    (tmp_path / "warehouse" / "x").symlink_to(tmp_path / "log")
    return tmp_path / "warehouse"


async def test_a_symlink_out_of_the_warehouse_is_not_followed(warehouse: Path) -> None:
    files, log = fenced(warehouse), warehouse.parent / "log"
    through = f"file:{warehouse}/x"
    for folder in (through, f"{through}/metadata"):
        with pytest.raises(errors.InvalidInput, match="leads out of the warehouse"):
            await files.create(f"{folder}/00000-x.metadata.json", [b"x"])
        with pytest.raises(errors.InvalidInput, match="leads out of the warehouse"):
            await files.make_folder(folder)
    for operation in (files.read, files.exists):
        with pytest.raises(errors.PersistentStorageError, match="leads out of the warehouse"):
            await operation(f"{through}/log-1.wal")
    with pytest.raises(errors.PersistentStorageError, match="leads out of the warehouse"):
        await files.names(through)
    with pytest.raises(errors.InvalidInput, match="leads out of the warehouse"):
        await files.make_durable([f"{through}/log-1.wal"])
    assert await files.size(f"{through}/log-1.wal") == 0
    await files.remove(f"{through}/log-1.wal")
    (log / "empty").mkdir()
    await files.remove_empty(through)
    await files.remove_empty(f"{through}/empty")
    assert sorted(file.name for file in log.iterdir()) == ["empty", "log-1.wal"]


async def test_registering_through_a_link_out_of_the_warehouse_is_a_mistake_of_the_client(warehouse: Path) -> None:
    """The link is refused like any location outside the warehouse, not as a storage fault that a client would retry."""
    clock = SimulatedClock()
    catalog = Catalog(MemoryStore(clock), fenced(warehouse), clock, SeededRandomness(1), f"file:{warehouse}")
    await catalog.namespaces.create(("ns",), {})
    (warehouse.parent / "log" / "00000-x.metadata.json").write_text("{}")
    location = f"file:{warehouse}/x/00000-x.metadata.json"
    for register in (catalog.tables.register, catalog.views.register):
        with pytest.raises(errors.InvalidInput, match=r"Invalid location: .* leads out of the warehouse"):
            await register(identifier(("ns",), "t"), location)


async def test_a_symlink_out_is_not_read_and_only_the_link_is_removed(warehouse: Path) -> None:
    target = warehouse.parent / "log" / "log-1.wal"
    (warehouse / "00000-x.metadata.json").symlink_to(target)
    location = f"file:{warehouse}/00000-x.metadata.json"
    with pytest.raises(errors.PersistentStorageError, match="leads out of the warehouse"):
        await fenced(warehouse).read(location)
    await fenced(warehouse).remove(location)
    assert (target.exists(), (warehouse / "00000-x.metadata.json").is_symlink()) == (True, False)


async def test_the_warehouse_may_be_a_symlink_and_be_moved(tmp_path: Path) -> None:
    link = tmp_path / "warehouse"
    files = fenced(link)
    for disk in ("first", "second"):
        (tmp_path / disk).mkdir()
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / disk)
        await files.create(f"file:{link}/t/{disk}", [b"x"])
        assert await files.read(f"file:{link}/t/{disk}") == b"x"
        assert (tmp_path / disk / "t" / disk).exists()


async def test_links_between_the_roots_are_followed(warehouse: Path) -> None:
    files = fenced(warehouse, warehouse.parent / "log")
    assert await files.read(f"file:{warehouse}/x/log-1.wal") == b"acked"
    (warehouse / "deep" / "er").mkdir(parents=True)
    (warehouse / "short").symlink_to("deep/er")
    await fenced(warehouse).create(f"file:{warehouse}/short/a", [b"x"])
    assert (warehouse / "deep" / "er" / "a").read_bytes() == b"x"


async def test_a_missing_warehouse_is_created(tmp_path: Path) -> None:
    await fenced(tmp_path / "a" / "b").create(f"file:{tmp_path}/a/b/c/d", [b"x"])
    assert (tmp_path / "a" / "b" / "c" / "d").read_bytes() == b"x"


class SlowFolder(LocalFolder):
    """A folder whose syncs take 50 ms; records the threads that they ran in."""

    def __init__(self, path: Path, is_new: bool, clock: SimulatedClock, threads: list[threading.Thread]) -> None:
        super().__init__(path, read_only=not is_new)
        self.clock = clock
        self.threads = threads

    def sync(self) -> None:
        self.clock.advance(0.05)
        self.threads.append(threading.current_thread())
        super().sync()


async def test_slow_syncs_run_off_the_loop_despite_short_calls_between(tmp_path: Path) -> None:
    clock, disk, seen = SimulatedClock(), ThreadOffload("files", 2), list[threading.Thread]()
    files = LocalFiles(
        lambda path, is_new: SlowFolder(path, is_new, clock, seen),
        disk,
        clock,
        near=lambda: ShortOffload(disk, clock, lambda: True, limits.CATALOG_INLINE_BELOW_NS),
    )
    await files.create(f"file:{tmp_path}/first", [b"x"])
    for number in range(20):
        assert await files.exists(f"file:{tmp_path}/first")
        await files.create(f"file:{tmp_path}/{number}", [b"x"], is_synced=False)
    await files.create(f"file:{tmp_path}/second", [b"x"])
    main = threading.main_thread()
    assert [thread is main for thread in seen] == [True, False], (
        "the first slow sync runs inline: its duration was not known"
    )
    disk.close()


async def test_impossible_metadata_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CATALOG_DOCUMENT_BYTES_MAX", 10)
    (tmp_path / "big").write_bytes(b"x" * 11)
    with pytest.raises(errors.MetadataFileDamaged, match="11 bytes"):
        await local().read(f"file:{tmp_path}/big")
    with pytest.raises(errors.InvalidInput, match="local files only"):
        await local().read("s3://bucket/x")


async def test_a_packed_table_is_written_and_read_by_its_name() -> None:
    world = CatalogWorld()
    await world.with_table(properties={"write.metadata.compression-codec": "gzip"})
    (location,) = world.metadata_files()
    assert location.endswith(".gz.metadata.json")
    assert world.disk.content(location.removeprefix("file:")).startswith(b"\x1f\x8b")
    loaded = await world.another(9).tables.load((await world.with_table("other"))._replace(name="table"))
    assert loaded.location == location


async def test_the_memory_of_documents_is_bounded_and_keeps_the_newest() -> None:
    world = CatalogWorld()
    files = world.catalog.tables._runner.documents._files
    document_bytes = len(table().encode())
    documents = Documents(files, SeededRandomness(1), ["file:/"], 2 * document_bytes + 10)
    locations = [await documents.write(table(), {}, number) for number in range(4)]
    cached = list(documents._cache)
    assert cached == locations[2:]
    assert documents._cache_bytes == 2 * document_bytes
    first = await documents.table(locations[2])
    assert await documents.table(locations[2]) is first
    await documents.table(locations[0])
    assert list(documents._cache) == [locations[2], locations[0]]
    await documents.remove(locations[2])
    assert documents._cache_bytes == document_bytes
    large = await documents.write(with_snapshots(50), {}, 9)
    assert list(documents._cache) == [large], "one is always kept: a commit reads it again at once"
