"""The calls of a running restore on the local socket (broker/topic_restore.py). `backup` is the id of the backup.

method             arguments                              result
restore_allocate   backup, topic, policies                id, is_created: whether the topic was created already,
                                                          metadata_file: of its table then
restore_topic      backup, topic, record, shards,         id
                   subscriptions, table
restore_end        backup, topic                          nothing: the restore of the topic is completed

`record`, the records of subscriptions and cursors, and `table` are the JSON of broker/records.py and of the catalog's
DetachedRecord, as bytes. `shards`: [shard, end, resume at]. `subscriptions`: [name, record, [[shard, cursor]]].
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from icestream import limits
from icestream.broker import records
from icestream.broker.topic_restore import BackedUpTopic, RestoredShard, RestoredSubscription
from icestream.catalog.catalog_records import DetachedRecord
from icestream.frontends.native.public_calls import Call, Caller, Document, decode_arguments
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues

RESTORE_METHODS: Final = ("restore_allocate", "restore_topic", "restore_end")
RestoredBackupId = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.BACKUP_ID_CHARACTERS_MAX)]


class OfRestore(msgspec.Struct):
    backup: RestoredBackupId
    topic: str


class AllocateTopic(msgspec.Struct):
    backup: RestoredBackupId
    topic: str
    policies: bytes = b"{}"


class CreateRestoredTopic(msgspec.Struct):
    backup: RestoredBackupId
    topic: str
    record: bytes
    shards: list[tuple[int, int, int]]
    subscriptions: list[tuple[str, bytes, list[tuple[int, bytes]]]] = []
    table: bytes = b""


class RestoreCalls:
    """Its methods are those of RESTORE_METHODS."""

    def calls(self) -> dict[str, Call]:
        return {name: getattr(self, name) for name in RESTORE_METHODS}

    async def restore_allocate(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(AllocateTopic, arguments)
        policies = records.decode(PolicyValues, "policies", request.policies)
        name = TopicName.parse(request.topic)
        restore = await caller.broker.allocate_restore(request.backup, name, policies)
        return {"id": restore.topic_id, "is_created": restore.is_created, "metadata_file": restore.metadata_file}

    async def restore_topic(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(CreateRestoredTopic, arguments)
        subscriptions = [
            RestoredSubscription(
                name,
                records.decode(records.SubscriptionRecord, name, record),
                [(shard, records.decode(records.CursorRecord, name, cursor)) for shard, cursor in cursors],
            )
            for name, record, cursors in request.subscriptions
        ]
        topic = BackedUpTopic(
            request.backup,
            TopicName.parse(request.topic),
            records.decode(records.TopicRecord, "record", request.record),
            [RestoredShard(*shard) for shard in request.shards],
            subscriptions,
            records.decode(DetachedRecord, "table", request.table) if request.table else None,
        )
        return {"id": (await caller.broker.restore_topic(topic)).record.id}

    async def restore_end(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(OfRestore, arguments)
        await caller.broker.end_restore(request.backup, TopicName.parse(request.topic))
        return {}
