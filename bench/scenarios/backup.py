"""Backups and restores.

The copies, against a plain parallel copy of the same files, each file synced, four at once: ours also hash each file
and name it by its digest; in one process, by threads, as below `backup.spark_files` files; without broker and catalog,
whose part does not grow with bytes. The inventory, as engines read it. And backups of a broker by the commands: a
reference backup, publishes beside a copy, recovery of an empty broker, and what kill -9 loses with an archive.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from bench import backup_node
from bench.figures import Figure, Goal, Row, ratios
from bench.harness import Bench, MissingPeer, RunFailed, settle
from icestream import limits
from icestream.backup.backup_layout import root_name
from icestream.backup.backup_root import (
    FORMAT_VERSION,
    BackupRoot,
    ListRef,
    ObjectRef,
    SeedManifests,
    encode_document,
)
from icestream.backup.backup_target import DirectoryTarget
from icestream.backup.file_copy import FileCopy, SourceFile, run_bounded
from icestream.backup.inventory_table import update_inventory
from icestream.backup.object_list import ObjectRow, encode_list, object_row
from icestream.backup.object_upload import ObjectUpload
from icestream.backup.stored_backups import StoredBackups
from icestream.backup.warehouse_files import WarehouseFiles
from icestream.catalogs.object_files import open_files
from icestream.catalogs.store_options import StoreOptions
from icestream.readers.lazy_scanner import file_opener
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import InlineOffload, ThreadOffload

NAME = "backup"
GOAL = (
    "MB/s of a copy backup and of a restore ≥ 0.7x a plain parallel copy of the same files; times of a broker's backups"
)
FILES = 10_000
INVENTORY_ROWS = 100_000
_MIB = 1 << 20
_PLAIN_THREADS = 4


def measure(bench: Bench) -> list[Row]:
    rows = [
        row
        for size, count in ((16 * _MIB, 24), (_MIB, 200))
        for row in bench.attempt(NAME, "copy", Goal(at_least=0.7), partial(_measured, bench, size, count))
    ]
    rows += bench.attempt(NAME, "inventory", None, partial(_inventory, bench))
    rows += bench.attempt(NAME, "backups of a broker", None, partial(_of_a_broker, bench))
    rows += bench.attempt(NAME, "loss by kill -9", Goal(at_most=10, unit=" s"), partial(_loss, bench))
    return rows


def _measured(bench: Bench, size: int, usual: int) -> list[Row]:
    count = int(bench.pick(usual, 8))
    with bench.place("backup-source") as folder:
        files = [folder / f"{number}.parquet" for number in range(count)]
        for file in files:
            file.write_bytes(os.urandom(size))
        sides = {
            "ours": partial(_ours, files=files),
            "restore": partial(_restore, files=files),
            "plain": partial(_plain, files=files),
        }
        seconds = bench.interleave(bench.rounds(5), sides)
    rates = {side: [count * size / _MIB / sample for sample in samples] for side, samples in seconds.items()}
    return [
        Row(
            NAME,
            f"{what} of {count} files of {size // _MIB} MiB, MiB/s",
            ratios(rates[side], rates["plain"]),
            Goal(at_least=0.7),
            ours=f"{Figure(rates[side])} MiB/s",
            peer=f"{Figure(rates['plain'])} MiB/s",
            peer_version="shutil.copyfile and fsync, 4 threads",
        )
        for side, what in (("ours", "backup"), ("restore", "restore"))
    ]


def _ours(path: Path, files: list[Path]) -> float:
    started = time.perf_counter()
    asyncio.run(_back_up(path, files))
    return time.perf_counter() - started


async def _back_up(path: Path, files: list[Path]) -> tuple[DirectoryTarget, list[ObjectRow], ThreadOffload]:
    offload = ThreadOffload("backup", limits.BACKUP_UPLOADS_AT_ONCE)
    target = DirectoryTarget(path / "target", offload)
    upload = ObjectUpload(target, offload, SystemClock(), SystemRandomness())
    copy = FileCopy(upload, WarehouseFiles(file_opener(open_files(StoreOptions()))))
    sources = [SourceFile(f"file:{file}", "data", file.stat().st_size) for file in files]
    copied = await copy.copy(sources, lambda: None)
    return target, [object_row(file.reference, backup_id="", role="data", added_ms=0) for file in copied], offload


def _restore(path: Path, files: list[Path]) -> float:
    """What RestoreRun does for each file of a table; its objects are synced, as those of a backup are."""
    target, rows, offload = asyncio.run(_back_up(path, files))
    os.sync()
    stored, tables = StoredBackups(target), open_files(StoreOptions())

    async def copy(row: ObjectRow) -> None:
        location = f"file:{path}/table/data/{row.content_sha256}.parquet"
        await tables.create_large(location, lambda: stored.checked_chunks(row, lambda _: iter(())))

    async def copy_all() -> None:
        await run_bounded((partial(copy, row) for row in rows), limits.RESTORE_FILES_AT_ONCE)

    started = time.perf_counter()
    asyncio.run(copy_all())
    taken = time.perf_counter() - started
    offload.close()
    return taken


def _plain(path: Path, files: list[Path]) -> float:
    def copy(file: Path) -> None:
        shutil.copyfile(file, path / file.name)
        with (path / file.name).open("rb") as copied:
            os.fsync(copied.fileno())

    started = time.perf_counter()
    with ThreadPoolExecutor(_PLAIN_THREADS) as pool:
        list(pool.map(copy, files))
    return time.perf_counter() - started


def _inventory(bench: Bench) -> list[Row]:
    """The object lists of ten backups, as one table."""
    count = int(bench.pick(INVENTORY_ROWS, 1_000))
    with bench.place("inventory") as folder:
        location = asyncio.run(_write_inventory(folder, count))
        engines: dict[str, Callable[[str], int]] = {"DuckDB": _by_duckdb, "PyIceberg": _by_pyiceberg}
        seconds: dict[str, list[float]] = {engine: [] for engine in engines}
        for _ in range(bench.rounds(5) + 1):  # the first round imports
            for engine, query in engines.items():
                started = time.perf_counter()
                if query(location) != count // 10:
                    raise RunFailed(f"{engine} does not see all rows of the inventory")
                seconds[engine].append(time.perf_counter() - started)
    return [
        Row(NAME, f"bytes of one topic in an inventory of {count:,} rows, {engine}", Figure(samples[1:], " s"))
        for engine, samples in seconds.items()
    ]


async def _write_inventory(folder: Path, count: int) -> str:
    target = DirectoryTarget(folder, InlineOffload())
    stored = StoredBackups(target)
    for number in range(10):
        backup_id = f"20261119T00000{number}Z-0000000{number}"
        rows = [
            object_row(
                ObjectRef(f"objects/{digest[:2]}/{digest}.parquet", 1, digest, 1, digest), backup_id=backup_id,
                role="data", added_ms=1, source=f"file:/warehouse/{index}.parquet", topic_id=index % 10,
                topic=f"/default/t{index % 10}", shard=0, offsets=(index, index + 1), rows=1, snapshot_id=1,
            )
            for index in range(count // 10)
            for digest in [f"{number * count + index:064x}"]
        ]  # fmt: skip
        data = encode_list(rows)
        reference = await stored.put_list(backup_id, data)
        objects = ListRef(reference.path, reference.size, reference.sha256, len(rows))
        nothing = ObjectRef("", 0, "", 0, "")
        root = BackupRoot(
            FORMAT_VERSION, backup_id, "copy", None, "", "", "", 1, 1, 1, 1, 1, "complete", [], [], nothing, [], [],
            objects, len(rows), len(rows), len(rows), "", SeedManifests(0, []), None,
        )  # fmt: skip
        await target.put_new(root_name(backup_id), encode_document(root))
    return await update_inventory(target, stored, 1)


def _by_duckdb(location: str) -> int:
    import duckdb

    with duckdb.connect() as connection:
        for name in ("avro", "iceberg"):
            connection.load_extension(str(_extension(name)))
        query = "SELECT sum(size) FROM iceberg_scan(?) WHERE topic = '/default/t3'"
        row = connection.execute(query, [location.removeprefix("file:")]).fetchone()
        return int(row[0]) if row is not None else 0


def _extension(name: str) -> Path:
    import duckdb

    package = find_spec(f"duckdb_extension_{name}")
    if package is None or package.origin is None:
        raise MissingPeer(f"DuckDB's extension {name} is not installed: make test installs it")
    return Path(package.origin).parent / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"


def _by_pyiceberg(location: str) -> int:
    import pyarrow.compute as pc  # type: ignore[import-untyped]
    from pyiceberg.table import StaticTable

    table = StaticTable.from_metadata(location)
    rows = table.scan(row_filter="topic = '/default/t3'", selected_fields=("size",)).to_arrow()
    return int(pc.sum(rows["size"]).as_py())


def _of_a_broker(bench: Bench) -> list[Row]:
    files = int(bench.pick(FILES, 500))
    with bench.place("backups") as folder:
        path, target = folder / "source", folder / "backups"
        path.mkdir()
        bench.tell(f"a table of {files} files")
        with backup_node.with_files(path, files) as running:
            references = [
                backup_node.back_up(running, folder / f"reference{number}", "--reference")
                for number in range(bench.rounds(3))
            ]
            made = backup_node.back_up(running, target)
            rate = made.bytes / made.copy_seconds / 2
            seconds = 0.5 * made.bytes / rate
            alone, beside, problem = [], [], ""
            backup_node.publishes(running, 1.0)
            for number in range(bench.rounds(5)):
                bench.tell(f"publishes beside a backup, {number + 1}")
                copy = folder / f"copy{number}"
                try:
                    p99_us = backup_node.publishes(running, seconds).p99_us
                    beside.append(backup_node.publishes_beside(running, copy, rate, seconds).p99_us)
                    alone.append(p99_us)
                except RunFailed as reason:  # the other rows are kept
                    problem = str(reason)
                shutil.rmtree(copy, ignore_errors=True)
                settle(folder)
        bench.tell("recovery")
        (folder / "restored").mkdir()
        recovered, restored = backup_node.recover(folder / "restored", target)
    size = made.bytes / 1e9
    return [
        Row(
            NAME,
            f"reference backup of {files:,} files, the whole command",
            Figure([reference.seconds for reference in references], " s"),
            Goal(at_most=5, unit=" s"),
            note=f"from its cut to its end {Figure([reference.copy_seconds for reference in references], ' s')}",
        ),
        Row(
            NAME,
            f"p99 of publishes beside a backup at half its bandwidth ({rate / _MIB:.0f} MiB/s)",
            ratios(beside, alone) if beside else None,
            Goal(at_most=1.5),
            ours=f"p99 {Figure(beside, ' us')}" if beside else "",
            peer=f"p99 {Figure(alone, ' us')}" if alone else "",
            missing=problem,
            peer_version="without a backup",
            note=f"a copy of {size:.2g} GB in {made.files:,} files takes {made.copy_seconds:.2g} s from its cut",
        ),
        Row(
            NAME,
            f"start of an empty broker, restore of {size:.2g} GB in {made.files:,} files, the first message",
            Figure([recovered], " s"),
            note=f"the restore alone {restored:.3g} s",
        ),
    ]


def _loss(bench: Bench) -> list[Row]:
    lost = []
    for number in range(bench.rounds(3)):
        bench.tell(f"kill -9 with an archive, {number + 1}")
        with bench.place("archive") as path:
            lost.append(backup_node.lost_seconds(path, bench.pick(14, 8) + number))
    return [
        Row(
            NAME,
            "kill -9 of a broker with an archive: age of the newest restored message",
            Figure(lost, " s"),
            Goal(at_most=10, unit=" s"),
            note="interval of 5 s, the default",
        )
    ]
