"""Files below the folder of a table that no table of the catalog names: shown for a plan, and in other catalogs removed
on request (hazards 76, 82).

Every table of the catalog is read, because any of them may name a file of the folder; one that cannot be read ends it.
In another catalog nobody else can be asked whether a file is about to be committed. There nothing goes on a schedule,
and on request only what an earlier request, at least the delay before, has found in no table either; of our own files
those of epochs below the one that the table was last committed under, as `removal_rule` says.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from icestream import errors
from icestream.catalog import catalog_keys, condemned_files
from icestream.catalog.cleanup.file_references import document_references, files_of, lists_of, manifests_of
from icestream.catalog.cleanup.files_in_use import FilesInUse
from icestream.catalog.condemned_files import CondemnedState
from icestream.catalog.plans.commit_plans import erased_record
from icestream.catalog.topic_rules.snapshot_progress import lineage
from icestream.catalogs.table_catalog import TableCatalog
from icestream.iceberg import table_metadata as tables
from icestream.iceberg.identifier import Identifier, Namespace
from icestream.iceberg.location import normalize, normalize_or_none, object_identity
from icestream.iceberg.manifest_reader import ManifestReader
from icestream.iceberg.table_metadata import TableMetadata
from icestream.metadata.store import MetadataStore
from icestream.model.pipeline_file_name import parse_pipeline_file
from icestream.pipeline.tables.foreign_ledger import EPOCH
from icestream.runtime.clock import Clock

# What engines write into the folder of a table. Metadata files are the catalog's, and anything else is not the table's.
SUFFIXES_OF_OTHERS: Final = (".parquet", ".orc", ".avro", ".puffin", ".stats")


class UnnamedFiles(NamedTuple):
    """The files of a folder that no table names."""

    folder: str
    names: list[str]  # below the folder, sorted
    epoch: int  # of the pipeline's last commit to the table; 0: not known


class RemovedFiles(NamedTuple):
    """What a request has removed, and what waits for a later one."""

    files: int
    bytes: int
    waiting: int


class FolderSurvey:
    """Looks through the folders of tables, on request."""

    def __init__(
        self, store: MetadataStore, catalog: TableCatalog, reader: ManifestReader, clock: Clock, delay_ms: int
    ) -> None:
        """`delay_ms`: the least time between two requests of which the second one removes a file."""
        self._store = store
        self._catalog = catalog
        self._reader = reader
        self._clock = clock
        self._delay_ms = delay_ms

    async def unnamed(self, table: TableMetadata) -> UnnamedFiles:
        """Raises what reading a table raises: it might name any file."""
        folder = normalize(table.location)
        names = [
            name
            for name in await self._reader.table_files.files_below(folder)
            if parse_pipeline_file(name) is not None or name.endswith(SUFFIXES_OF_OTHERS)
        ]
        # Listed first: what a commit brings meanwhile is in the tables that are read, or not in the list.
        in_use = FilesInUse([folder])
        async for identifier in self._all_tables():
            await self._add_table(identifier, in_use)
        entries = await self._store.list_all(catalog_keys.ERASED)
        in_use.add(
            [
                record.offsets
                for key, entry in entries
                if (record := erased_record(int(key.removeprefix(catalog_keys.ERASED)), entry)) is not None
            ]
        )
        unnamed = [
            name
            for name in names
            if (location := normalize_or_none(f"{folder}/{name}")) is not None
            and object_identity(location) not in in_use.files
        ]
        return UnnamedFiles(folder, sorted(unnamed), _last_epoch(table))

    async def bytes_of(self, unnamed: UnnamedFiles) -> int:
        return sum([await self._reader.table_files.size(f"{unnamed.folder}/{name}") for name in unnamed.names])

    async def remove(self, table: TableMetadata) -> RemovedFiles:
        """Removes what an earlier request has found, too; writes down the rest for a later one."""
        unnamed, uuid, now_ms = await self.unnamed(table), table.uuid or "", self._clock.wall_us() // 1000
        names = {name for name in unnamed.names if _has_ended(name, unnamed.epoch)}
        removed, total_bytes, waiting = 0, 0, 0
        known: set[str] = set()
        for stored in await condemned_files.read_records(self._store, uuid):
            still_unnamed = [name for name in stored.record.names if name in names]
            known.update(still_unnamed)
            if now_ms - stored.record.since_ms < self._delay_ms:
                waiting += len(still_unnamed)
                continue
            for name in still_unnamed:
                location = f"{unnamed.folder}/{name}"
                total_bytes += await self._reader.table_files.size(location)
                await self._reader.table_files.remove(location)
                removed += 1
            await condemned_files.forget(self._store, stored)
        new = names - known
        await condemned_files.add_records(self._store, uuid, unnamed.folder, new, CondemnedState.UNNAMED, now_ms)
        return RemovedFiles(removed, total_bytes, waiting + len(new))

    async def _all_tables(self) -> AsyncIterator[Identifier]:
        namespaces: list[Namespace] = [*await self._catalog.list_namespaces()]
        while namespaces:
            namespace = namespaces.pop()
            namespaces += await self._catalog.list_namespaces(namespace)
            for identifier in await self._catalog.list_tables(namespace):
                yield identifier

    async def _add_table(self, identifier: Identifier, in_use: FilesInUse) -> None:
        try:
            table = tables.load((await self._catalog.load(identifier)).metadata)
        except errors.UnknownTable:  # dropped meanwhile
            return

        def on_damaged(_file: str, error: errors.IcestreamError) -> None:
            raise error

        in_use.add([*document_references(table), *lists_of(table)])
        async for manifest in manifests_of(table, self._reader, on_damaged):
            in_use.add([manifest, *await files_of(manifest, self._reader, on_damaged)])


def _has_ended(name: str, epoch: int) -> bool:
    file_name = parse_pipeline_file(name)
    return file_name is None or file_name.epoch < epoch


def _last_epoch(table: TableMetadata) -> int:
    """The highest epoch in the history of main: the pipeline commits nothing of a lower one (catalogs elsewhere)."""
    texts = [(snapshot.get("summary") or {}).get(EPOCH, "") for snapshot in lineage(table, table.current_snapshot_id)]
    return max((int(text) for text in texts if text.isascii() and text.isdigit()), default=0)
