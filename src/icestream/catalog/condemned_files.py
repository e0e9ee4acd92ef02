"""Condemned files: records in the metadata store of files that are about to be removed, so that no commit names a file
that goes, and no restart forgets one (hazards 82, 99).

    /condemned/generation                    written again with each change of the records: its revision orders them
    /condemned/files/{table uuid}/{number}   CondemnedRecord: some files below the location of a table

    state       meaning                                                           a commit that adds such a file
    unnamed     a full listing found it in no snapshot; a file of another writer  is accepted
    condemned   nothing needs it: the delay is over, or a second listing, at      is accepted, and takes it off the
                least the delay after the first one, found it in none either      record in the same transaction
    removing    all tables were read after it was condemned, and none names it    is refused: the file may be gone
    removed     the same, afterwards: a file of another writer, for 30 days       is refused

Every commit that adds files which the pipeline did not write compares the generation in its transaction. So a commit
that was judged before a file was condemned is judged again, however long its writer took, and a file that a commit took
off is not removed: the step to `removing` compares the revision of the record. Files of the pipeline need none of that:
their names carry an epoch, and the catalog refuses those of epochs that have ended (hazard 75).

Nothing is ever moved: for a writer that is about to commit, a move is a removal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from icestream import errors, limits
from icestream.catalog import catalog_records
from icestream.catalog.catalog_keys import CONDEMNED_FILES, CONDEMNED_GENERATION
from icestream.iceberg.location import object_identity
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry
from icestream.metadata.store import MetadataStore

_NEW_GENERATION: Final = cmd.Put(CONDEMNED_GENERATION, b"{}")


class CondemnedState(StrEnum):
    UNNAMED = "unnamed"
    CONDEMNED = "condemned"
    REMOVING = "removing"
    REMOVED = "removed"


_GOING: Final = (CondemnedState.REMOVING, CondemnedState.REMOVED)


class CondemnedRecord(msgspec.Struct, frozen=True):
    """Some files of a table in one state."""

    state: CondemnedState
    since_ms: int  # when they came into it, by the wall clock
    folder: str  # the location of the table
    names: list[str]  # below the folder

    def locations(self) -> list[str]:
        return [f"{self.folder}/{name}" for name in self.names]


class StoredRecord(NamedTuple):
    """A record as it is in the store."""

    key: str
    revision: int
    record: CondemnedRecord

    def unchanged(self) -> cmd.Compare:
        return cmd.AtRevision(self.key, self.revision)


class RecordChanges(NamedTuple):
    """What a commit compares, and what it takes off."""

    comparisons: list[cmd.Compare]
    operations: list[cmd.Operation]


def records_prefix(uuid: str) -> str:
    return f"{CONDEMNED_FILES}{uuid.lower()}/"


async def read_records(store: MetadataStore, uuid: str) -> list[StoredRecord]:
    """The records of a table."""
    return [_stored(key, entry) for key, entry in await store.list_all(records_prefix(uuid))]


async def read_all_records(store: MetadataStore) -> list[StoredRecord]:
    return [_stored(key, entry) for key, entry in await store.list_all(CONDEMNED_FILES)]


def _stored(key: str, entry: Entry) -> StoredRecord:
    return StoredRecord(key, entry.mod_revision, catalog_records.decode(CondemnedRecord, key, entry))


# --- changes by the clean-up ------------------------------------------------------------------------------------------


async def add_records(
    store: MetadataStore, uuid: str, folder: str, names: Iterable[str], state: CondemnedState, now_ms: int
) -> set[str]:
    """Records files of a table. Returns the names that are recorded: all of them, or as many as the records of a table
    hold; the others are found again by the next listing."""
    stored = await read_records(store, uuid)
    free = iter(_free_places(uuid, stored))
    recorded: set[str] = set()
    for batch in _batches(sorted(names)):
        free_place = next(free, None)
        if free_place is None:
            break
        key, unchanged = free_place
        put = cmd.Put(key, catalog_records.encode(CondemnedRecord(state, now_ms, folder, batch)))
        reply = await store.txn([unchanged], [put, _NEW_GENERATION])
        if reply.held:
            recorded.update(batch)
    return recorded


def _free_places(uuid: str, stored: Sequence[StoredRecord]) -> list[tuple[str, cmd.Compare]]:
    """Keys for new records, with what must hold of them. When all are taken, those of removed files, the oldest first:
    they are only remembered."""
    prefix, taken = records_prefix(uuid), {entry.key for entry in stored}
    keys = (f"{prefix}{number}" for number in range(limits.CONDEMNED_RECORDS_MAX))
    removed = sorted(
        (entry for entry in stored if entry.record.state is CondemnedState.REMOVED),
        key=lambda entry: entry.record.since_ms,
    )
    unused: list[tuple[str, cmd.Compare]] = [(key, cmd.Absent(key)) for key in keys if key not in taken]
    return unused + [(entry.key, entry.unchanged()) for entry in removed]


def _batches(names: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for name in names:
        size += len(name.encode()) + 4
        if batch and (size > limits.CONDEMNED_RECORD_BYTES or len(batch) >= limits.CONDEMNED_RECORD_FILES):
            yield batch
            batch, size = [], len(name.encode()) + 4
        batch.append(name)
    if batch:
        yield batch


async def change_record(
    store: MetadataStore, stored: StoredRecord, state: CondemnedState, names: Sequence[str], now_ms: int
) -> StoredRecord | None:
    """Moves the files of a record to a state, and forgets those that are not among `names`. None if it has no names any
    more, or if a commit has changed it meanwhile: then it is read again with the next look."""
    if not names:
        await store.txn([stored.unchanged()], [cmd.Delete(stored.key), _NEW_GENERATION])
        return None
    record = msgspec.structs.replace(stored.record, state=state, names=[*names], since_ms=now_ms)
    operations = [cmd.Put(stored.key, catalog_records.encode(record)), _NEW_GENERATION]
    reply = await store.txn([stored.unchanged()], operations)
    if not reply.held:
        return None
    entry = await store.get(stored.key)
    if entry is None:
        return None
    current = _stored(stored.key, entry)
    return current if current.record == record else None


async def forget(store: MetadataStore, stored: StoredRecord) -> None:
    """The files of a record are removed, or do not matter any more."""
    await store.txn([stored.unchanged()], [cmd.Delete(stored.key), _NEW_GENERATION])


# --- commits ----------------------------------------------------------------------------------------------------------


def take_off(records: Sequence[StoredRecord], added: Collection[str] | None) -> RecordChanges:
    """What a commit does to the records. `added`: the locations of the files that it adds; None: unknown.

    Raises CommitConflict for a file that is being removed.
    """
    identities = None if added is None else {object_identity(location) for location in added}
    comparisons: list[cmd.Compare] = []
    operations: list[cmd.Operation] = []
    for stored in records:
        record = stored.record
        hits = [
            name
            for name, location in zip(record.names, record.locations(), strict=True)
            if identities is None or object_identity(location) in identities
        ]
        if not hits or record.state is CondemnedState.UNNAMED:
            continue
        if record.state in _GOING:
            raise errors.CommitConflict(
                f"file {record.folder}/{hits[0]} was removed by the clean-up: it was in no snapshot for too long",
                hint="write its rows into a new file and commit that; docs/table-care.md says how long files stay",
            )
        remaining = [name for name in record.names if name not in set(hits)]
        comparisons.append(stored.unchanged())
        operations.append(
            cmd.Put(stored.key, catalog_records.encode(msgspec.structs.replace(record, names=remaining)))
            if remaining
            else cmd.Delete(stored.key)
        )
    return RecordChanges(comparisons, [*operations, _NEW_GENERATION] if operations else [])
