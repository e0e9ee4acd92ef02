"""The calls of a running backup on the local socket (broker/backup_service.py). `id` is that of the backup.

method            arguments                         result
backup_node                                         node, cluster, log_id
backup_hold       id                                revision, node, cluster, log_id: the log is held
backup_cut        id                                log_id, lsn, cut_ms, checkpoint_bytes,
                                                    earliest: [[topic, shard, offset]]
backup_tail       id, topic, shard, offset, end     sections: [[base, rows, append time, epoch, body]], next
backup_tables     after                             tables: [[topic id, topic, namespace, name, uuid]], next or nil
backup_pin        id, uuid, snapshot                nothing: the hold on a snapshot is written
backup_unpin      id, uuid                          nothing: it is removed
backup_unpin_all  id                                nothing: all holds of the backup are removed
backup_numbers    count                             first: of so many numbers for manifests
backup_freeze     id, ends: [topic, shard, end]     revision, metadata_bytes
backup_part       id, name, start                   data: of `checkpoint` or `metadata`
backup_end        id                                nothing: the log is released
backup_options                                      the section `backup.iceberg` of the settings in force
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from icestream import errors, limits
from icestream.broker.backup_service import BackupService
from icestream.broker.online_settings import OnlineSettings
from icestream.frontends.native.public_calls import Call, Caller, Document, decode_arguments
from icestream.model.shard import ShardKey

BACKUP_METHODS: Final = (
    "backup_node",
    "backup_hold",
    "backup_cut",
    "backup_tail",
    "backup_tables",
    "backup_pin",
    "backup_unpin",
    "backup_unpin_all",
    "backup_numbers",
    "backup_freeze",
    "backup_part",
    "backup_end",
    "backup_options",
)
BackupId = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.BACKUP_ID_CHARACTERS_MAX)]


class OfBackup(msgspec.Struct):
    id: BackupId


class ReadTail(msgspec.Struct):
    id: BackupId
    topic: int
    shard: int
    offset: int
    end: int


class PageTables(msgspec.Struct):
    after: str = ""


class PinTable(msgspec.Struct):
    id: BackupId
    uuid: str
    snapshot: int


class UnpinTable(msgspec.Struct):
    id: BackupId
    uuid: str


class AllocateNumbers(msgspec.Struct):
    count: Annotated[int, msgspec.Meta(ge=1, le=limits.METADATA_IDS_PER_COMMAND_MAX)]


class FreezeMetadata(msgspec.Struct):
    id: BackupId
    ends: list[tuple[int, int, int]] = []


class ReadPart(msgspec.Struct):
    id: BackupId
    name: str
    start: Annotated[int, msgspec.Meta(ge=0)]


class BackupCalls:
    """`service` is None for a broker in memory. Its methods are those of BACKUP_METHODS."""

    def __init__(self, service: BackupService | None, online: OnlineSettings, node: str, cluster: str = "") -> None:
        self._backup_service = service
        self._online = online
        self._node = node
        self._cluster = cluster

    def calls(self) -> dict[str, Call]:
        return {name: getattr(self, name) for name in BACKUP_METHODS}

    @property
    def _service(self) -> BackupService:
        if self._backup_service is None:
            raise errors.InvalidInput(
                "this broker keeps its messages in memory: there is nothing to back up",
                hint="set `storage.type: iceberg`",
            )
        return self._backup_service

    async def backup_hold(self, caller: Caller, arguments: Document) -> Document:
        revision = await self._service.hold(decode_arguments(OfBackup, arguments).id)
        return {"revision": revision, **await self.backup_node(caller, {})}

    async def backup_node(self, caller: Caller, arguments: Document) -> Document:
        return {"node": self._node, "cluster": self._cluster, "log_id": self._service.log_id}

    async def backup_cut(self, caller: Caller, arguments: Document) -> Document:
        return (await self._service.cut(decode_arguments(OfBackup, arguments).id))._asdict()

    async def backup_tail(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(ReadTail, arguments)
        key = ShardKey(request.topic, request.shard)
        tail = await self._service.tail(request.id, key, request.offset, request.end)
        return {"sections": [list(section) for section in tail.sections], "next": tail.next_offset}

    async def backup_tables(self, caller: Caller, arguments: Document) -> Document:
        tables, after = await self._service.tables(decode_arguments(PageTables, arguments).after)
        return {"tables": [list(table) for table in tables], "next": after}

    async def backup_pin(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(PinTable, arguments)
        await self._service.hold_table(request.id, request.uuid, request.snapshot)
        return {}

    async def backup_unpin(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(UnpinTable, arguments)
        await self._service.release_table(request.id, request.uuid)
        return {}

    async def backup_unpin_all(self, caller: Caller, arguments: Document) -> Document:
        await self._service.release_all_tables(decode_arguments(OfBackup, arguments).id)
        return {}

    async def backup_numbers(self, caller: Caller, arguments: Document) -> Document:
        return {"first": await self._service.allocate_numbers(decode_arguments(AllocateNumbers, arguments).count)}

    async def backup_freeze(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(FreezeMetadata, arguments)
        revision, size = await self._service.freeze(request.id, request.ends)
        return {"revision": revision, "metadata_bytes": size}

    async def backup_part(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(ReadPart, arguments)
        return {"data": self._service.part(request.id, request.name, request.start)}

    async def backup_end(self, caller: Caller, arguments: Document) -> Document:
        self._service.end(decode_arguments(OfBackup, arguments).id)
        return {}

    async def backup_options(self, caller: Caller, arguments: Document) -> Document:
        options: dict[str, Any] = self._online.current.backup.iceberg.model_dump()
        return options
