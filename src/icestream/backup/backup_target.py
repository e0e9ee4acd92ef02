"""The store that backups lie in: a directory, or a prefix of a bucket (ADR 70).

    put_new     a small object on the condition that its name is free; the same bytes under it are a success
    adopt       a finished temporary file becomes the object of this name, which is that of its bytes. False if there
                was one, which may be damaged: it has the bytes of the file then, also after a power loss; its name is
                durable after the next keep_names
    keep_names  these names, which adopt gave or found, are durable when it returns: once for many objects
    get         the bytes of a small object, None if it does not exist
    chunks      the bytes of an object, piece by piece, for a thread. Raises BackupDamaged if it does not exist
    size        in bytes, None if it does not exist
    names       all names below a prefix
    remove      removes an object if it exists
    sweep_spool removes temporary files of processes that were killed: not written to since this time, in epoch ms
    location    the absolute location of a name, as Iceberg metadata has it
    locks       the object lock of the store; None for one that has none, whatever its bucket says

A name that leads out of the target raises BackupDamaged. What the others have written is durable when they return.
`spool` is the directory for temporary files: of a directory target its own `.partial`, so that adopting is a rename and
not a copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from icestream import errors, limits
from icestream.backup.backup_layout import check_name
from icestream.catalogs.bucket import Bucket, open_bucket
from icestream.catalogs.object_files import parse_object_location
from icestream.catalogs.object_lock import ObjectLocks
from icestream.catalogs.storage_caller import CallTimeouts, StorageCaller
from icestream.catalogs.store_keys import StoreKeys
from icestream.catalogs.store_options import StoreOptions
from icestream.iceberg.location import normalize
from icestream.runtime.clock import Clock
from icestream.runtime.files import make_directory
from icestream.runtime.randomness import Randomness
from icestream.runtime.tasks import Offload

PARTIAL: Final = ".partial"
_SYNC_SHARES: Final = 4


class BackupTarget(Protocol):
    spool: Path

    @property
    def locks(self) -> ObjectLocks | None: ...

    def location(self, name: str) -> str: ...

    def chunks(self, name: str) -> Iterator[bytes]: ...

    async def put_new(self, name: str, data: bytes) -> None: ...

    async def put(self, name: str, data: bytes) -> None: ...

    async def adopt(self, path: Path, name: str) -> bool: ...

    async def keep_names(self, names: Iterable[str]) -> None: ...

    async def get(self, name: str) -> bytes | None: ...

    async def size(self, name: str) -> int | None: ...

    async def names(self, prefix: str) -> Sequence[str]: ...

    async def remove(self, name: str) -> None: ...

    async def sweep_spool(self, before_ms: int) -> None: ...


class DirectoryTarget:
    """A directory of this machine's file systems."""

    locks: ObjectLocks | None = None

    def __init__(self, root: Path, offload: Offload) -> None:
        self._root = root
        self._offload = offload
        self.spool = root / PARTIAL
        make_directory(self.spool)

    def location(self, name: str) -> str:
        return f"file:{self._root}/{name}"

    def _path(self, name: str) -> Path:
        """Raises BackupDamaged for a name that leads out of the directory."""
        return self._root / check_name(name)

    def chunks(self, name: str) -> Iterator[bytes]:
        try:
            with self._path(name).open("rb") as file:
                while chunk := file.read(limits.BACKUP_CHUNK_BYTES):
                    yield chunk
        except OSError as error:
            raise _unreadable(name, error) from None

    async def put_new(self, name: str, data: bytes) -> None:
        if not await self._offload.run(lambda: self._link(self._spool(data), name)) and await self.get(name) != data:
            raise errors.AlreadyExists(f"{self.location(name)} already exists")
        await self.keep_names([name])

    async def put(self, name: str, data: bytes) -> None:
        """Writes a small object, whatever was there."""

        def put() -> None:
            path = self._path(name)
            make_directory(path.parent)
            spooled = self._spool(data)
            _sync(spooled)
            spooled.replace(path)
            _sync(path.parent)

        await self._offload.run(put)

    def _spool(self, data: bytes) -> Path:
        number, name = tempfile.mkstemp(dir=self.spool)
        with os.fdopen(number, "wb") as file:
            file.write(data)
        return Path(name)

    def _link(self, path: Path, name: str) -> bool:
        """Gives a temporary file this name; False if the name is taken."""
        try:
            _sync(path)
            # A link, not a rename: it fails if the name exists, so nothing is ever replaced.
            _with_folder(os.link, path, self._path(name))
        except FileExistsError:
            return False
        finally:
            path.unlink()
        return True

    async def adopt(self, path: Path, name: str) -> bool:
        def adopt() -> bool:
            try:
                target = self._path(name)
                # Synced before it gets its name: an object that exists has all of its bytes, also after a power loss.
                _sync(path)
                has_existed = target.exists()
                # These bytes are those of the name, what is there may have been damaged. Its readers keep their file.
                _with_folder(os.replace, path, target)
            finally:
                path.unlink(missing_ok=True)
            return not has_existed

        return await self._offload.run(adopt)

    async def keep_names(self, names: Iterable[str]) -> None:
        # The names of folders, too: they were made without a sync.
        folders = [*{folder for name in names for folder in self._folders(name)}]

        def sync(share: Sequence[Path]) -> None:
            for folder in share:
                _sync(folder)

        # Only the first sync costs a commit of the file system's journal, the others a flush of the disk, which those
        # of several threads share.
        shares = (folders[number::_SYNC_SHARES] for number in range(_SYNC_SHARES))
        await asyncio.gather(*(self._offload.run(partial(sync, share)) for share in shares if share))

    def _folders(self, name: str) -> Iterator[Path]:
        """The folder of a name, and those that it lies in, up to the root."""
        folder = self._path(name).parent
        while folder != self._root:
            yield folder
            folder = folder.parent
        yield folder

    async def get(self, name: str) -> bytes | None:
        def read() -> bytes | None:
            try:
                return self._path(name).read_bytes()
            except FileNotFoundError:
                return None
            except OSError as error:
                raise _unreadable(name, error) from None

        return await self._offload.run(read)

    async def size(self, name: str) -> int | None:
        def size() -> int | None:
            try:
                return self._path(name).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

        return await self._offload.run(size)

    async def names(self, prefix: str) -> Sequence[str]:
        def names() -> list[str]:
            folder = self._path(prefix)
            return sorted(
                f"{Path(parent).relative_to(self._root).as_posix()}/{file}"
                for parent, _, files in os.walk(folder)
                for file in files
            )

        return await self._offload.run(names)

    async def remove(self, name: str) -> None:
        def remove() -> None:
            path = self._path(name)
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            # Empty folders of a deleted backup; the root itself stays.
            for folder in path.parents:
                if folder == self._root:
                    return
                try:
                    folder.rmdir()
                except OSError:
                    return

        await self._offload.run(remove)

    async def sweep_spool(self, before_ms: int) -> None:
        def sweep() -> None:
            for path in self.spool.iterdir():
                with contextlib.suppress(FileNotFoundError):  # its process, or another sweep
                    if path.stat().st_mtime * 1_000 < before_ms:
                        path.unlink()

        await self._offload.run(sweep)


class BucketTarget:
    """A prefix of a bucket."""

    locks: ObjectLocks | None = None

    def __init__(self, bucket: Bucket, location: str, prefix: str, spool: Path, offload: Offload) -> None:
        self._bucket = bucket
        self._location = location.rstrip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self.spool = spool
        self._offload = offload

    def location(self, name: str) -> str:
        return f"{self._location}/{name}"

    def key(self, name: str) -> str:
        """Raises BackupDamaged for a name that leads out of the prefix."""
        return self._prefix + check_name(name)

    def chunks(self, name: str) -> Iterator[bytes]:
        try:
            with self._bucket.reader(self.key(name)) as reader:
                while chunk := reader.read(limits.BACKUP_CHUNK_BYTES):
                    yield bytes(chunk)
        except OSError as error:
            raise _unreadable(name, error) from None

    async def put_new(self, name: str, data: bytes) -> None:
        await self._bucket.put_new(self.key(name), data)

    async def put(self, name: str, data: bytes) -> None:
        await self._bucket.upload(self.key(name), data)

    async def adopt(self, path: Path, name: str) -> bool:
        try:
            key, size = self.key(name), await self._offload.run(lambda: path.stat().st_size)
            existing = await self._bucket.size(key)
            # Compared, not uploaded again: the new version of an object would not have its lock (ADR 107), and would be
            # paid for in a bucket with versions.
            if existing != size or not await self._offload.run(lambda: self._has_bytes(name, path)):
                await self._bucket.upload(key, path)
            return existing is None
        finally:
            await self._offload.run(path.unlink)

    def _has_bytes(self, name: str, path: Path) -> bool:
        """Whether an object has the bytes of a file, in a thread."""
        with path.open("rb") as file:
            try:
                return all(file.read(len(chunk)) == chunk for chunk in self.chunks(name)) and not file.read(1)
            except errors.BackupDamaged:  # removed meanwhile, or not to be read
                return False

    async def keep_names(self, names: Iterable[str]) -> None:
        """An upload is durable, and so is its name."""

    async def get(self, name: str) -> bytes | None:
        return await self._bucket.get(self.key(name), limits.BACKUP_DOCUMENT_BYTES_MAX)

    async def size(self, name: str) -> int | None:
        return await self._bucket.size(self.key(name))

    async def names(self, prefix: str) -> Sequence[str]:
        names = await self._bucket.names_below(self.key(prefix))
        return [name.removeprefix(self._prefix) for name in names]

    async def remove(self, name: str) -> None:
        await self._bucket.remove(self.key(name))

    async def sweep_spool(self, before_ms: int) -> None:
        """Does nothing: the directory is of this process alone."""


def open_target(
    location: str, options: StoreOptions, clock: Clock, randomness: Randomness, offload: Offload, spool: Path
) -> BackupTarget:
    """The target at a location: a path, `file:…`, or a bucket with the credentials of `options`.

    `spool`: the directory for temporary files of a bucket. Raises ConfigurationError for another scheme.
    """
    if "://" not in location and not location.startswith("file:"):
        location = f"file:{Path(location).absolute()}"
    try:
        location = normalize(location)
        if location.startswith("file:"):
            return DirectoryTarget(Path(location.removeprefix("file:")), offload)
        place = parse_object_location(location)
    except (errors.InvalidInput, OSError) as error:
        raise errors.ConfigurationError(
            f"not a backup target: {location[:200]!r}: {error}", hint="a directory, s3://…, gs://… or abfss://…"
        ) from None
    caller = StorageCaller(
        f"backup target {place.bucket}", clock, randomness, CallTimeouts(request_seconds=options.request_seconds)
    )
    bucket = open_bucket(options, place.kind, place.bucket, caller)
    target = BucketTarget(bucket, location, place.name, spool, offload)
    if place.kind == "s3":
        target.locks = ObjectLocks(options, place.bucket, target.key, StoreKeys(options, clock), caller)
    return target


def _unreadable(name: str, error: OSError) -> errors.BackupDamaged:
    reason = "it does not exist" if isinstance(error, FileNotFoundError) else str(error)
    return errors.BackupDamaged(f"object {name} of the backup cannot be read: {reason}")


def _with_folder(move: Callable[[Path, Path], None], path: Path, target: Path) -> None:
    """Links or renames a file, and makes the folder of its new name if there is none."""
    try:
        move(path, target)
    except FileNotFoundError:
        target.parent.mkdir(parents=True, exist_ok=True)
        move(path, target)


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
