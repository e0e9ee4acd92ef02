"""The calls of the archive on the local socket (broker/archive_service.py), by the pipeline process of the node.

method            arguments            result
archive_mark      next_lsn, revision   log_id, now_us, first_lsn, synced_lsn, revision, changes_after, unarchived_bytes
archive_read      lsn, end_lsn         file, start, first_lsn, end_lsn, records: their count, data
archive_changes   after                changes: msgpack of MetadataChange; is_all
archive_freeze                         revision, state_bytes
archive_part      start                data: of the frozen state
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from icestream import errors
from icestream.broker.archive_service import ArchiveService
from icestream.frontends.native.public_calls import Call, Caller, Document, decode_arguments

ARCHIVE_METHODS: Final = ("archive_mark", "archive_read", "archive_changes", "archive_freeze", "archive_part")
_Number = Annotated[int, msgspec.Meta(ge=0)]


class MarkArchive(msgspec.Struct):
    next_lsn: _Number
    revision: _Number


class ReadRecords(msgspec.Struct):
    lsn: _Number
    end_lsn: _Number


class ReadChanges(msgspec.Struct):
    after: _Number


class ReadStatePart(msgspec.Struct):
    start: _Number


class ArchiveCalls:
    """`service` is None for a broker in memory. Its methods are those of ARCHIVE_METHODS."""

    def __init__(self, service: ArchiveService | None) -> None:
        self._archive_service = service

    def calls(self) -> dict[str, Call]:
        return {name: getattr(self, name) for name in ARCHIVE_METHODS}

    @property
    def _service(self) -> ArchiveService:
        if self._archive_service is None:
            raise errors.InvalidInput(
                "this broker keeps its messages in memory: there is nothing to archive",
                hint="set `storage.type: iceberg`",
            )
        return self._archive_service

    async def archive_mark(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(MarkArchive, arguments)
        return (await self._service.mark(request.next_lsn, request.revision))._asdict()

    async def archive_read(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(ReadRecords, arguments)
        chunk = await self._service.read(request.lsn, request.end_lsn)
        return {
            "file": chunk.number,
            "start": chunk.start,
            "first_lsn": chunk.records[0][1],
            "end_lsn": chunk.records[-1][1] + 1,
            "records": len(chunk.records),
            "data": chunk.data,
        }

    async def archive_changes(self, caller: Caller, arguments: Document) -> Document:
        changes, is_all = await self._service.changes(decode_arguments(ReadChanges, arguments).after)
        return {"changes": msgspec.msgpack.encode(changes), "is_all": is_all}

    async def archive_freeze(self, caller: Caller, arguments: Document) -> Document:
        revision, size = await self._service.freeze()
        return {"revision": revision, "state_bytes": size}

    async def archive_part(self, caller: Caller, arguments: Document) -> Document:
        return {"data": self._service.part(decode_arguments(ReadStatePart, arguments).start)}
