"""A table catalog over nothing but pointers: each table's name leads to its metadata file (Glue, SQL).

Such a catalog checks no requirements and applies no updates; its client does. Here that is the same code as in our own
catalog: the documents and rules of `catalog.table`. A commit reads the document, judges it, writes the next one under a
name of its own, and moves the pointer if it still is what was read. Iceberg's other clients do the same, so tables are
shared with them.

    swap          done, or false: it is not what was read. Unclear: the pointer is read
    pointer       ours: done. As before: the same swap again, which can count once only. Another: its metadata log tells
                  whether ours was in between; if not, the commit is judged anew on the new document. None, or that
                  of another table: ours may have been dropped or renamed with the commit in it. Unknown, if the swap
                  was unclear; else the commit is judged anew

A metadata file is removed only when it is certain that nothing points or will point to it.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, NamedTuple, Protocol

from icestream import errors, limits
from icestream.catalogs.commit_resolution import resolve_change
from icestream.catalogs.sequential_commits import commit_sequentially
from icestream.catalogs.storage_caller import StorageCaller
from icestream.catalogs.table_catalog import (
    CommitDone,
    CommitOutcome,
    CommitRefused,
    CommitUnknown,
    LoadedTable,
    TableChange,
)
from icestream.iceberg import metadata_file, table_commit, table_metadata, values
from icestream.iceberg.file_io import TableFiles
from icestream.iceberg.identifier import Identifier, Namespace
from icestream.iceberg.location import namespace_location, new_location, normalize
from icestream.iceberg.table_commit import new_table_metadata
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.runtime.randomness import Randomness


class TablePointer(NamedTuple):
    location: str  # of the metadata file in force
    version: Any = None  # what a swap compares, where that is not the location


class PointerStore(Protocol):
    """One request each, at most. Raises StorageUnavailable, ambiguous where the request may have been carried out."""

    async def list_namespaces(self, parent: Namespace) -> list[Namespace]: ...

    async def load_namespace(self, namespace: Namespace) -> dict[str, str]: ...

    async def create_namespace(self, namespace: Namespace, properties: Mapping[str, str]) -> None: ...

    async def drop_namespace(self, namespace: Namespace) -> None: ...

    async def list_tables(self, namespace: Namespace) -> list[Identifier]: ...

    async def find(self, identifier: Identifier) -> TablePointer: ...

    async def insert(self, identifier: Identifier, location: str, made: TableMetadata) -> None: ...

    async def swap(
        self, identifier: Identifier, expected: TablePointer, location: str, made: TableMetadata
    ) -> bool: ...

    async def remove(self, identifier: Identifier) -> None: ...

    async def rename(self, source: Identifier, target: Identifier) -> None: ...

    async def close(self) -> None: ...


class PointerSwap(Enum):
    DONE = auto()
    OVERTAKEN = auto()  # the table went on without it
    PARTED = auto()  # its name leads elsewhere: it may have another one, so no file is removed
    UNKNOWN = auto()


class PointerCatalog:
    def __init__(
        self, pointers: PointerStore, files: TableFiles, caller: StorageCaller, randomness: Randomness, warehouse: str
    ) -> None:
        self._pointers = pointers
        self._files = files
        self._caller = caller
        self._randomness = randomness
        self._warehouse = normalize(warehouse)

    # --- namespaces ---

    async def list_namespaces(self, parent: Namespace = ()) -> list[Namespace]:
        return await self._caller.read("list namespaces", lambda: self._pointers.list_namespaces(parent))

    async def load_namespace(self, namespace: Namespace) -> dict[str, str]:
        return await self._caller.read("load a namespace", lambda: self._pointers.load_namespace(namespace))

    async def create_namespace(self, namespace: Namespace, properties: Mapping[str, str]) -> None:
        async def is_done() -> bool:
            return await self._is_there(namespace)

        await resolve_change(
            self._caller,
            f"create namespace {'.'.join(namespace)}",
            lambda: self._pointers.create_namespace(namespace, properties),
            is_done,
        )

    async def drop_namespace(self, namespace: Namespace) -> None:
        async def is_done() -> bool:
            return not await self._is_there(namespace)

        what = f"drop namespace {'.'.join(namespace)}"
        await resolve_change(self._caller, what, lambda: self._pointers.drop_namespace(namespace), is_done)

    async def _is_there(self, namespace: Namespace) -> bool:
        try:
            await self.load_namespace(namespace)
        except errors.UnknownNamespace:
            return False
        return True

    # --- tables ---

    async def list_tables(self, namespace: Namespace) -> list[Identifier]:
        return await self._caller.read("list tables", lambda: self._pointers.list_tables(namespace))

    async def load(self, identifier: Identifier) -> LoadedTable:
        pointer, found = await self._read(identifier)
        return LoadedTable(found.as_json(), pointer.location)

    async def _read(self, identifier: Identifier) -> tuple[TablePointer, TableMetadata]:
        pointer = await self._find(identifier)
        try:
            return pointer, await self._document(pointer.location)
        except errors.MetadataFileMissing:
            now = await self._find(identifier)  # others went on, and tidied up
            if now.location == pointer.location:
                raise
            return now, await self._document(now.location)

    async def _find(self, identifier: Identifier) -> TablePointer:
        return await self._caller.read(f"find {identifier}", lambda: self._pointers.find(identifier))

    async def _pointer_or_none(self, identifier: Identifier) -> TablePointer | None:
        try:
            return await self._find(identifier)
        except errors.UnknownTable:
            return None

    async def _document(self, location: str) -> TableMetadata:
        data = metadata_file.decompress(location, await self._files.read(location))
        try:
            return table_metadata.decode(data)
        except errors.InvalidInput as error:
            raise errors.MetadataFileDamaged(f"{location} is no metadata file: {error.message}") from None

    async def _write(self, made: TableMetadata, version: int) -> str:
        name = metadata_file.new_name(version, self._new_uuid(), made.properties)
        location = normalize(f"{metadata_file.directory(made.location, made.properties)}/{name}")
        await self._files.create(location, metadata_file.compress(location, made.pieces()))
        return location

    async def create(self, identifier: Identifier, definition: Object) -> LoadedTable:
        await self.load_namespace(identifier.namespace)
        given = values.optional_text(definition, "location")
        uuid_text = self._new_uuid()
        place = (
            normalize(given)
            if given
            else new_location(namespace_location(self._warehouse, identifier.namespace), identifier.name, uuid_text)
        )
        made = new_table_metadata(definition, place, uuid_text, self._now_ms())
        if await self._pointer_or_none(identifier) is not None:
            raise errors.AlreadyExists(f"Table already exists: {identifier}")
        location = await self._write(made, 0)

        async def is_done() -> bool:
            """Whatever others committed to it since."""
            try:
                return (await self._read(identifier))[1].uuid == uuid_text
            except errors.UnknownTable:
                return False

        try:
            await resolve_change(
                self._caller,
                f"create {identifier}",
                lambda: self._pointers.insert(identifier, location, made),
                is_done,
            )
        except (errors.OutcomeUnknown, errors.AlreadyExists):
            raise  # after a lost answer it may be there, under a name that it got since
        except errors.IcestreamError:
            await self._files.remove(location)
            raise
        return LoadedTable(made.as_json(), location)

    async def drop(self, identifier: Identifier, is_purging: bool = False) -> None:
        """Without a server there is nobody to remove the files later."""
        if is_purging:
            raise errors.InvalidInput(
                "this kind of catalog does not remove files", hint="drop the table, and remove its files by hand"
            )

        async def is_done() -> bool:
            return await self._pointer_or_none(identifier) is None

        await resolve_change(self._caller, f"drop {identifier}", lambda: self._pointers.remove(identifier), is_done)

    async def rename(self, source: Identifier, target: Identifier) -> None:
        pointer = await self._find(source)
        await self.load_namespace(target.namespace)

        async def is_done() -> bool:
            there = await self._pointer_or_none(target)
            return there is not None and there.location == pointer.location and await self._is_gone(source)

        await resolve_change(self._caller, f"rename {source}", lambda: self._pointers.rename(source, target), is_done)

    async def _is_gone(self, identifier: Identifier) -> bool:
        return await self._pointer_or_none(identifier) is None

    # --- commits ---

    async def commit_all(self, changes: Mapping[Identifier, TableChange]) -> dict[Identifier, CommitOutcome]:
        return await commit_sequentially(changes, self.commit)

    async def commit(self, identifier: Identifier, change: TableChange) -> CommitOutcome:
        table_commit.check_size(change.requirements, change.updates)
        for _ in range(limits.CATALOG_ATTEMPTS_MAX):
            pointer, base = await self._read(identifier)
            before = LoadedTable(base.as_json(), pointer.location)
            try:
                table_commit.check_requirements(base, change.requirements)
                made = table_commit.apply_updates(base, pointer.location, change.updates, self._now_ms())
            except errors.CommitConflict as error:
                return CommitRefused(error.message, before, error.details)
            if made is base:
                return CommitDone(before)
            location = await self._write(made, metadata_file.version_of(pointer.location) + 1)
            match await self._moved(identifier, pointer, location, made):
                case PointerSwap.DONE:
                    return CommitDone(LoadedTable(made.as_json(), location))
                case PointerSwap.UNKNOWN:
                    return CommitUnknown(f"commit to {identifier}: no clear answer; {location} may become the table")
                case PointerSwap.OVERTAKEN:
                    await self._files.remove(location)
                case PointerSwap.PARTED:
                    pass
        return CommitRefused(f"others were faster {limits.CATALOG_ATTEMPTS_MAX} times")

    async def _moved(
        self, identifier: Identifier, expected: TablePointer, location: str, made: TableMetadata
    ) -> PointerSwap:
        """After a swap that is unclear nothing is sent before the pointer was read."""
        deadline_ns = self._caller.deadline_ns()
        what = f"commit to {identifier}"
        may_come = False
        is_read = True
        number = 0
        while True:
            if is_read:
                try:
                    if await self._caller.change(
                        what, lambda: self._pointers.swap(identifier, expected, location, made), deadline_ns
                    ):
                        return PointerSwap.DONE
                except errors.IcestreamError as error:
                    is_ambiguous = isinstance(error, errors.StorageUnavailable) and error.is_ambiguous
                    if not is_ambiguous and not may_come:
                        await self._files.remove(location)
                        raise
                    may_come = True
            is_read = False
            with contextlib.suppress(errors.PersistentStorageError):
                seen = await self._seen(identifier, expected, location, made)
                is_read = True
                if seen is not None:
                    return PointerSwap.UNKNOWN if seen is PointerSwap.PARTED and may_come else seen
            number += 1
            if not await self._caller.pause(number, deadline_ns):
                return PointerSwap.UNKNOWN

    async def _seen(
        self, identifier: Identifier, expected: TablePointer, location: str, made: TableMetadata
    ) -> PointerSwap | None:
        """What the pointer says; None while it is as it was."""
        now = await self._pointer_or_none(identifier)
        if now is None:
            return PointerSwap.PARTED
        if now.location == location:
            return PointerSwap.DONE
        if now == expected:
            return None
        found = await self._document(now.location)
        log = found.metadata_log
        if any(entry["metadata-file"] == location for entry in log):
            return PointerSwap.DONE
        if found.uuid != made.uuid:
            return PointerSwap.PARTED
        known = metadata_file.version_of(now.location) - metadata_file.version_of(expected.location) <= len(log)
        return PointerSwap.OVERTAKEN if known else PointerSwap.UNKNOWN

    async def close(self) -> None:
        await self._pointers.close()

    def _now_ms(self) -> int:
        return self._caller.clock.wall_us() // 1000

    def _new_uuid(self) -> str:
        return str(uuid.UUID(bytes=self._randomness.token(16), version=4))
