"""Copies files of tables into a backup target: in this process by threads, or by tasks of a Spark job (ADR 117).

Both run `FileCopy`: a file is read once, hashed, written, and becomes the object of its SHA-256, also if there is one,
which may be damaged. So whichever process copies it, and however often, the objects are the same.

    CopyJob     what one task copies, msgpack: files, target, store options, its share of the rate
    CopyResult  in the order of the files: reference, and whether the object is new
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from icestream import errors, limits
from icestream.backup.backup_layout import suffix_of
from icestream.backup.backup_root import ObjectRef
from icestream.backup.backup_target import open_target
from icestream.backup.object_upload import ObjectUpload, WriteRate
from icestream.backup.warehouse_files import WarehouseFiles
from icestream.catalogs.object_files import open_files
from icestream.catalogs.store_options import StoreOptions
from icestream.readers.lazy_scanner import file_opener
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import Offload, ThreadOffload


class SourceFile(msgspec.Struct, frozen=True):
    """A file of a table; `size` as its manifest has it."""

    location: str
    role: str
    size: int


class CopiedFile(msgspec.Struct, frozen=True):
    reference: ObjectRef
    is_new: bool


class SourceFiles(Protocol):
    """Reads files of tables by their locations; blocks, for threads."""

    def chunks(self, location: str) -> Iterator[bytes]: ...


class FileCopier(Protocol):
    """Copies files of tables."""

    async def copy(self, files: Sequence[SourceFile], on_file: Callable[[], None]) -> list[CopiedFile]:
        """Returns the objects in the order of the files. `on_file` is called before a file is read, or before all of
        them. Raises TableDamaged for a file of another size than its manifest says."""


class FileCopy:
    """Copies with the threads of an upload, a number of files at once."""

    def __init__(self, upload: ObjectUpload, source: SourceFiles) -> None:
        self._upload = upload
        self._source = source

    async def copy(self, files: Sequence[SourceFile], on_file: Callable[[], None]) -> list[CopiedFile]:
        copied: list[CopiedFile | None] = [None] * len(files)

        async def copy(number: int) -> None:
            on_file()
            copied[number] = await self._copy(files[number])

        await run_bounded((partial(copy, number) for number in range(len(files))), _AT_ONCE)
        complete = [file for file in copied if file is not None]
        await self._upload.keep_names(file.reference for file in complete)
        return complete

    async def _copy(self, file: SourceFile) -> CopiedFile:
        reference, is_new = await self._upload.upload_object(
            lambda: self._source.chunks(file.location), file.role, suffix_of(file.location)
        )
        if reference.content_size != file.size:
            raise errors.TableDamaged(
                f"{file.location} has {reference.content_size} bytes, its manifest says {file.size}"
            )
        return CopiedFile(reference, is_new)


_AT_ONCE: Final = limits.BACKUP_UPLOADS_AT_ONCE


async def run_bounded(calls: Iterable[Callable[[], Awaitable[Any]]], at_once: int) -> None:
    """Awaits all calls, so many at once, each begun when another one ended. Raises the first error, after those that
    run have ended."""
    waiting, has_failed = iter(calls), False

    async def work() -> None:
        nonlocal has_failed
        for call in waiting:
            if has_failed:
                return
            try:
                await call()
            except BaseException:
                has_failed = True
                raise

    workers = [asyncio.ensure_future(work()) for _ in range(at_once)]
    try:
        await asyncio.gather(*workers)
    except BaseException:
        await asyncio.gather(*workers, return_exceptions=True)
        raise


# --- tasks of a Spark job ---------------------------------------------------------------------------------------------


class CopyJob(msgspec.Struct, frozen=True):
    files: list[SourceFile]
    target: str
    store: dict[str, Any]
    rate_bytes: float
    roots: list[str]  # out of which no file of a machine is read


class CopyResult(msgspec.Struct, frozen=True):
    files: list[CopiedFile] = []
    error: str = ""  # of the table, not of the task: Spark would try again


# Runs the jobs as tasks, and returns their results in the order of the jobs. Blocks.
RunTasks = Callable[[Callable[[Iterable[bytes]], Iterator[bytes]], Sequence[bytes]], list[bytes]]


class SparkFileCopy:
    """Copies with the tasks of a Spark job, wherever its executors are."""

    def __init__(
        self,
        run: RunTasks,
        upload: ObjectUpload,
        offload: Offload,
        target: str,
        store: dict[str, Any],
        tasks_max: int,
        rate_bytes: float = 0,
        roots: Sequence[str] = (),
    ) -> None:
        """`target`, `store`: as open_target takes them. `rate_bytes`: of all tasks together; 0: no limit. `roots`: as
        file_opener takes them."""
        self._run = run
        self._upload = upload
        self._offload = offload
        self._target = target
        self._store = store
        self._tasks_max = tasks_max
        self._rate_bytes = rate_bytes
        self._roots = [*roots]

    async def copy(self, files: Sequence[SourceFile], on_file: Callable[[], None]) -> list[CopiedFile]:
        on_file()
        shares = shares_of(files, self._tasks_max)
        rate = self._rate_bytes / len(shares) if shares else 0
        jobs = [
            msgspec.msgpack.encode(
                CopyJob([files[number] for number in share], self._target, self._store, rate, self._roots)
            )
            for share in shares
        ]
        results = await self._offload.run(lambda: self._run(run_copy_jobs, jobs))
        copied: dict[int, CopiedFile] = {}
        for share, data in zip(shares, results, strict=True):
            result = msgspec.msgpack.decode(data, type=CopyResult)
            if result.error:
                raise errors.TableDamaged(result.error)
            copied.update(zip(share, result.files, strict=True))
        for file in copied.values():
            self._upload.count(file.reference, is_new=file.is_new)
        return [copied[number] for number in range(len(files))]


def shares_of(files: Sequence[SourceFile], tasks_max: int) -> list[list[int]]:
    """Shares files between tasks, by their numbers: the largest first, each to the task with the fewest bytes."""
    shares: list[list[int]] = [[] for _ in range(min(tasks_max, len(files)))]
    sizes = [0] * len(shares)
    for number in sorted(range(len(files)), key=lambda number: -files[number].size):
        least = min(range(len(shares)), key=sizes.__getitem__)
        shares[least].append(number)
        # A file costs a round trip or two whatever its size.
        sizes[least] += files[number].size + limits.BACKUP_CHUNK_BYTES
    return shares


def run_copy_jobs(jobs: Iterable[bytes]) -> Iterator[bytes]:
    """The task: copies the files of its jobs."""
    for data in jobs:
        job = msgspec.msgpack.decode(data, type=CopyJob)
        try:
            result = CopyResult(asyncio.run(_copy_job(job)))
        except errors.TableDamaged as error:
            result = CopyResult(error=str(error))
        yield msgspec.msgpack.encode(result)


async def _copy_job(job: CopyJob) -> list[CopiedFile]:
    clock, randomness, store = SystemClock(), SystemRandomness(), StoreOptions(**job.store)
    offload = ThreadOffload("copy", limits.BACKUP_UPLOADS_AT_ONCE)
    try:
        with tempfile.TemporaryDirectory(prefix="icestream-backup-") as spool:
            target = open_target(job.target, store, clock, randomness, offload, Path(spool))
            upload = ObjectUpload(target, offload, clock, randomness, None, WriteRate(job.rate_bytes))
            source = WarehouseFiles(file_opener(open_files(store), job.roots))
            return await FileCopy(upload, source).copy(job.files, lambda: None)
    finally:
        offload.close()
