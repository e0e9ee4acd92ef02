"""A table catalog over a store of pointers: each table's name leads to its metadata file (Glue, SQL).

Such a store checks no requirements and applies no updates; its client does, here with the rules of `iceberg`. A commit
reads the metadata, checks the requirements, writes the next metadata file under a new name, and swaps the pointer on
the condition that it is unchanged. Iceberg's other clients do the same, so tables are shared with them.

    reply to a swap     applied: DONE. Refused (the pointer changed) or ambiguous: the pointer is read
    pointer then is     ours                   DONE
                        unchanged              the same swap is sent again; it can be applied only once
                        a later metadata file  its metadata log shows whether ours was in between: DONE, or SUPERSEDED
                                               and the commit is planned again on the new metadata
                        missing, or of another the table may have been dropped or renamed with the commit in it: UNKNOWN
                        table                  if the swap was ambiguous, else the commit is planned again

A metadata file is removed only if no pointer leads to it, and no swap in flight can still set one to it.
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
    """Where a table's current metadata file is."""

    location: str  # of the current metadata file
    version: Any = None  # what a swap compares, in stores where that is not the location


class PointerStore(Protocol):
    """Each method sends at most one request. Raises StorageUnavailable, ambiguous if the request may have been
    applied."""

    async def list_namespaces(self, parent: Namespace) -> list[Namespace]: ...

    async def load_namespace(self, namespace: Namespace) -> dict[str, str]: ...

    async def create_namespace(self, namespace: Namespace, properties: Mapping[str, str]) -> None: ...

    async def drop_namespace(self, namespace: Namespace) -> None: ...

    async def list_tables(self, namespace: Namespace) -> list[Identifier]: ...

    async def find(self, identifier: Identifier) -> TablePointer: ...

    async def insert(self, identifier: Identifier, location: str, table: TableMetadata) -> None: ...

    async def swap(
        self, identifier: Identifier, expected: TablePointer, location: str, table: TableMetadata
    ) -> bool: ...

    async def remove(self, identifier: Identifier) -> None: ...

    async def rename(self, source: Identifier, target: Identifier) -> None: ...

    async def close(self) -> None: ...


class PointerSwap(Enum):
    """The outcome of a swap, as far as it can be determined."""

    DONE = auto()
    SUPERSEDED = auto()  # another commit was applied instead
    RENAMED = auto()  # the name leads to another table or none: the original may have the commit, so no file is removed
    UNKNOWN = auto()


class PointerCatalog:
    """A `TableCatalog` over a store that only keeps pointers."""

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
            return await self._namespace_exists(namespace)

        await resolve_change(
            self._caller,
            f"create namespace {'.'.join(namespace)}",
            lambda: self._pointers.create_namespace(namespace, properties),
            is_done,
        )

    async def drop_namespace(self, namespace: Namespace) -> None:
        async def is_done() -> bool:
            return not await self._namespace_exists(namespace)

        operation = f"drop namespace {'.'.join(namespace)}"
        await resolve_change(self._caller, operation, lambda: self._pointers.drop_namespace(namespace), is_done)

    async def _namespace_exists(self, namespace: Namespace) -> bool:
        try:
            await self.load_namespace(namespace)
        except errors.UnknownNamespace:
            return False
        return True

    # --- tables ---

    async def list_tables(self, namespace: Namespace) -> list[Identifier]:
        return await self._caller.read("list tables", lambda: self._pointers.list_tables(namespace))

    async def load(self, identifier: Identifier) -> LoadedTable:
        pointer, table = await self._read(identifier)
        return LoadedTable(table.as_json(), pointer.location)

    async def _read(self, identifier: Identifier) -> tuple[TablePointer, TableMetadata]:
        """Returns the pointer of a table and its metadata. Raises UnknownTable, MetadataFileMissing,
        MetadataFileDamaged."""
        pointer = await self._find(identifier)
        try:
            return pointer, await self._read_metadata(pointer.location)
        except errors.MetadataFileMissing:
            current = await self._find(identifier)  # another commit removed the old file
            if current.location == pointer.location:
                raise
            return current, await self._read_metadata(current.location)

    async def _find(self, identifier: Identifier) -> TablePointer:
        return await self._caller.read(f"find {identifier}", lambda: self._pointers.find(identifier))

    async def _pointer_or_none(self, identifier: Identifier) -> TablePointer | None:
        try:
            return await self._find(identifier)
        except errors.UnknownTable:
            return None

    async def _read_metadata(self, location: str) -> TableMetadata:
        data = metadata_file.decompress(location, await self._files.read(location))
        try:
            return table_metadata.decode(data)
        except errors.InvalidInput as error:
            raise errors.MetadataFileDamaged(f"{location} is not a metadata file: {error.message}") from None

    async def _write(self, table: TableMetadata, version: int) -> str:
        name = metadata_file.new_name(version, self._new_uuid(), table.properties)
        location = normalize(f"{metadata_file.directory(table.location, table.properties)}/{name}")
        await self._files.create(location, metadata_file.compress(location, table.pieces()))
        return location

    async def create(self, identifier: Identifier, definition: Object) -> LoadedTable:
        """Writes the first metadata file and inserts the pointer. Raises AlreadyExists, UnknownNamespace,
        OutcomeUnknown."""
        await self.load_namespace(identifier.namespace)
        requested = values.optional_text(definition, "location")
        uuid_text = self._new_uuid()
        table_location = (
            normalize(requested)
            if requested
            else new_location(namespace_location(self._warehouse, identifier.namespace), identifier.name, uuid_text)
        )
        table = new_table_metadata(definition, table_location, uuid_text, self._now_ms())
        # Checked before a file is written; `insert` decides in the end, if another creation comes in between.
        if await self._pointer_or_none(identifier) is not None:
            raise errors.AlreadyExists(f"Table already exists: {identifier}")
        location = await self._write(table, 0)

        async def is_done() -> bool:
            """By UUID, whatever was committed to the table since."""
            try:
                return (await self._read(identifier))[1].uuid == uuid_text
            except errors.UnknownTable:
                return False

        try:
            await resolve_change(
                self._caller,
                f"create {identifier}",
                lambda: self._pointers.insert(identifier, location, table),
                is_done,
            )
        except (errors.OutcomeUnknown, errors.AlreadyExists):
            raise  # the table may exist, by now under another name: its metadata file must stay
        except errors.IcestreamError:
            await self._files.remove(location)
            raise
        return LoadedTable(table.as_json(), location)

    async def check_registers(self, *, is_renaming: bool = False) -> None:
        """Never raises: a pointer may be set to any metadata file."""

    async def register(self, identifier: Identifier, metadata_location: str) -> LoadedTable:
        """Inserts a pointer to the file, which is not changed and stays whatever happens."""
        await self.load_namespace(identifier.namespace)
        location = normalize(metadata_location)
        table = await self._read_metadata(location)
        if await self._pointer_or_none(identifier) is not None:
            raise errors.AlreadyExists(f"Table already exists: {identifier}")

        async def is_done() -> bool:
            """By UUID, whatever was committed to the table since."""
            try:
                return (await self._read(identifier))[1].uuid == table.uuid
            except errors.UnknownTable:
                return False

        await resolve_change(
            self._caller, f"register {identifier}", lambda: self._pointers.insert(identifier, location, table), is_done
        )
        return LoadedTable(table.as_json(), location)

    async def drop(self, identifier: Identifier, is_purging: bool = False) -> None:
        """Raises InvalidInput for a purge: there is no server that could remove the files later."""
        if is_purging:
            raise errors.InvalidInput(
                "glue and sql catalogs do not purge: no server removes the files later",
                hint="drop the table without purge, and remove its files by hand",
            )

        async def is_done() -> bool:
            return await self._pointer_or_none(identifier) is None

        await resolve_change(self._caller, f"drop {identifier}", lambda: self._pointers.remove(identifier), is_done)

    async def rename(self, source: Identifier, target: Identifier) -> None:
        pointer = await self._find(source)
        await self.load_namespace(target.namespace)

        async def is_done() -> bool:
            target_pointer = await self._pointer_or_none(target)
            return (
                target_pointer is not None
                and target_pointer.location == pointer.location
                and await self._is_gone(source)
            )

        await resolve_change(self._caller, f"rename {source}", lambda: self._pointers.rename(source, target), is_done)

    async def _is_gone(self, identifier: Identifier) -> bool:
        return await self._pointer_or_none(identifier) is None

    # --- commits ---

    async def commit_all(self, changes: Mapping[Identifier, TableChange]) -> dict[Identifier, CommitOutcome]:
        return await commit_sequentially(changes, self.commit)

    async def commit(self, identifier: Identifier, change: TableChange) -> CommitOutcome:
        """Commits by swapping the pointer; plans again on the new metadata after a concurrent commit, up to
        CATALOG_ATTEMPTS_MAX times."""
        table_commit.check_size(change.requirements, change.updates)
        for _ in range(limits.CATALOG_ATTEMPTS_MAX):
            pointer, base = await self._read(identifier)
            before = LoadedTable(base.as_json(), pointer.location)
            try:
                table_commit.check_requirements(base, change.requirements)
                table = table_commit.apply_updates(base, pointer.location, change.updates, self._now_ms())
            except errors.CommitConflict as error:
                return CommitRefused(error.message, before, error.details)
            if table is base:
                return CommitDone(before)
            location = await self._write(table, metadata_file.version_of(pointer.location) + 1)
            match await self._swap_pointer(identifier, pointer, location, table):
                case PointerSwap.DONE:
                    return CommitDone(LoadedTable(table.as_json(), location))
                case PointerSwap.UNKNOWN:
                    return CommitUnknown(
                        f"commit to {identifier}: outcome not determined; {location} may become current"
                    )
                case PointerSwap.SUPERSEDED:
                    await self._files.remove(location)
                # The file stays: under its other name the table may point to it.
                case PointerSwap.RENAMED:
                    pass
        return CommitRefused(f"commit conflict: gave up after {limits.CATALOG_ATTEMPTS_MAX} attempts")

    async def _swap_pointer(
        self, identifier: Identifier, expected: TablePointer, location: str, table: TableMetadata
    ) -> PointerSwap:
        """Swaps the pointer and determines the outcome. After an ambiguous swap the pointer is read before it is sent
        again."""
        deadline_ns = self._caller.deadline_ns()
        operation = f"commit to {identifier}"
        may_be_applied = False  # a swap was ambiguous: it may be applied even later
        is_read = True  # the pointer was read since the last swap was sent
        attempt = 0
        while True:
            if is_read:
                try:
                    if await self._caller.change(
                        operation, lambda: self._pointers.swap(identifier, expected, location, table), deadline_ns
                    ):
                        return PointerSwap.DONE
                except errors.IcestreamError as error:
                    is_ambiguous = isinstance(error, errors.StorageUnavailable) and error.is_ambiguous
                    # Refused, and no copy is in flight: the pointer will never lead to the file.
                    if not is_ambiguous and not may_be_applied:
                        await self._files.remove(location)
                        raise
                    may_be_applied = True
            is_read = False
            with contextlib.suppress(errors.PersistentStorageError):
                swap = await self._read_swap_outcome(identifier, expected, location, table)
                is_read = True
                if swap is not None:
                    return PointerSwap.UNKNOWN if swap is PointerSwap.RENAMED and may_be_applied else swap
            attempt += 1
            # The pointer has not moved and a swap may still arrive: unknown, never a conflict, because a caller that
            # hears of a conflict deletes the files of its commit (hazard 13).
            if not await self._caller.pause(attempt, deadline_ns):
                return PointerSwap.UNKNOWN

    async def _read_swap_outcome(
        self, identifier: Identifier, expected: TablePointer, location: str, table: TableMetadata
    ) -> PointerSwap | None:
        """Returns the outcome by the current pointer; None if the pointer is unchanged."""
        current = await self._pointer_or_none(identifier)
        if current is None:
            return PointerSwap.RENAMED
        if current.location == location:
            return PointerSwap.DONE
        if current == expected:
            return None
        metadata = await self._read_metadata(current.location)
        log = metadata.metadata_log
        # Later commits list the file that they replaced: ours was current for a while, so its commit is in the table.
        if any(entry["metadata-file"] == location for entry in log):
            return PointerSwap.DONE
        # Another table has the name now. Ours lives on under a name that is not known here, perhaps with the swap
        # applied.
        if metadata.uuid != table.uuid:
            return PointerSwap.RENAMED
        # The log of a table is cut at a length. Only if it reaches back to the pointer that was read, the absence of
        # our file proves that it was never current.
        reaches_back = metadata_file.version_of(current.location) - metadata_file.version_of(expected.location) <= len(
            log
        )
        return PointerSwap.SUPERSEDED if reaches_back else PointerSwap.UNKNOWN

    async def close(self) -> None:
        await self._pointers.close()

    def _now_ms(self) -> int:
        return self._caller.clock.wall_us() // 1000

    def _new_uuid(self) -> str:
        return str(uuid.UUID(bytes=self._randomness.token(16), version=4))
