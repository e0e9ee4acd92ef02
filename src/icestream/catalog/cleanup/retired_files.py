"""Removes metadata files that a commit retired, once they are old enough (hazards 13, 23, 27).

A table may say that its old metadata files go (`write.metadata.delete-after-commit.enabled`). A commit that drops some
from the metadata log records them in its own transaction (plans/commit_plans.py), whichever process commits. An engine
that loaded the table, or a node with an older view of the pointer, may still read them: they are removed an hour later.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from icestream import errors, limits
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import RetiredFilesRecord
from icestream.catalog.cleanup.files_in_use import current_metadata_files
from icestream.catalog.documents import Documents
from icestream.iceberg.location import normalize
from icestream.metadata import command as cmd
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger

_log = get_logger("catalog.retired")


class RetiredFiles:
    """Removes the files of retirement records that are due."""

    def __init__(self, store: MetadataStore, documents: Documents) -> None:
        self._store = store
        self._documents = documents
        self.next_due_ms: int | None = None  # of what the last pass left; None: there was nothing

    async def remove_due(self, now_ms: int) -> AsyncGenerator[None]:
        """Removes what is due, a file at a time."""
        in_use: set[str] | None = None
        self.next_due_ms = None
        after = ""
        while page := await self._store.list(catalog_keys.RETIRED, after):
            after = page[-1][0]
            removed: list[tuple[str, int]] = []
            for key, entry in page:
                record = catalog_records.decode(RetiredFilesRecord, key, entry)
                due_ms = record.time_ms + limits.CATALOG_FILE_GRACE_MS
                if due_ms > now_ms:
                    self.next_due_ms = min(due_ms, self.next_due_ms or due_ms)
                    continue
                # Read once, and only if something is due: it lists all tables of the catalog.
                if in_use is None:
                    in_use = await current_metadata_files(self._store)
                for location in record.locations:
                    await self._remove(location, in_use)
                    yield
                removed.append((key, entry.mod_revision))
            await self._delete_records(removed)

    async def _remove(self, location: str, in_use: set[str]) -> None:
        try:
            # A file may be registered under a second name: then it is the metadata file of that table.
            if normalize(location) not in in_use:
                await self._documents.remove(location)
        except errors.InvalidInput as error:  # a document from elsewhere may name any location in its metadata log
            _log.warning("metadata file outside the warehouse is not removed", file=location, reason=str(error))

    async def _delete_records(self, removed: list[tuple[str, int]]) -> None:
        """A record that was overwritten by a newer commit stays, with the others of its batch: the next pass finds
        their files gone."""
        for index in range(0, len(removed), limits.CATALOG_RETIRED_BATCH):
            batch = removed[index : index + limits.CATALOG_RETIRED_BATCH]
            await self._store.txn(
                [cmd.AtRevision(key, revision) for key, revision in batch], [cmd.Delete(key) for key, _ in batch]
            )
