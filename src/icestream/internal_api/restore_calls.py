"""The calls of a running restore on the local socket (broker/topic_restore.py). `backup` is the id of the backup.

method             arguments                              result
restore_begin      backup, counters, is_required          is_everything: the broker is empty and takes all
restore_schemas    subjects                               left_out: [[subject, reason]]
restore_producers  backup, topic, producers               nothing: before the topic is created
restore_sessions   backup, shard, blocks                  nothing: of the session log, or of retained messages
restore_accounts   backup, entries, topics                accounts, roles, grants, parked: what came back
restore_finish     backup                                 nothing: sessions are opened, the restore is over
restore_erased     log_id, topic_id                       erased: [[topic, record, ends]]: of the topic of a backup
restore_live       topic                                  topic: null, or the live topic of this name: id, shards,
                                                          subscriptions: what a restore in place would replace
restore_allocate   backup, topic, policies,               id, is_created: whether the topic was created already,
                   is_in_place, run                       metadata_file: of its table then, live_ends: of the topic
                                                          that it replaces
restore_topic      backup, topic, record, shards,         id
                   subscriptions, table, schema,
                   about, keeps_owners, is_in_place, run
restore_end        backup, topic                          nothing: the restore of the topic is completed

`record`, the records of subscriptions and cursors, and `table` are the JSON of broker/records.py and of the catalog's
DetachedRecord, as bytes. `shards`: [shard, end, resume at, [[start, end of a gap below the end]]]. `subscriptions`:
[name, record, [[shard, cursor]]]. `producers`: [name, record, [[shard, epoch, expected, start, [[first sequence,
messages, base offset]]]]]. `subjects`: [name, record, [[version, bytes]], is the last part of it]. `about`: records of
the topic by their prefixes. Blocks are transactions of durable/session_records.py. `entries`: [key, value, revision]
below /security/; `topics`: those that were restored under their own names. A live topic: `shards` are [shard, end,
[[start, end of a gap]]], `subscriptions` are {name: [[shard, offset]]}. Erased: the JSON of an ErasedRecord, and
[[shard, end]]: below its ends the messages are those of the topic of the backup; null: all of them.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from icestream import limits
from icestream.broker import records
from icestream.broker.cluster_restore import RestoredProducer, RestoredSubject, RestoredWindow
from icestream.broker.schema_registry_records import Subject, TopicSchema
from icestream.broker.topic_restore import BackedUpTopic, RestoredShard, RestoredSubscription
from icestream.catalog.catalog_records import DetachedRecord
from icestream.frontends.native.public_calls import Call, Caller, Document, decode_arguments
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from icestream.security.change_audit import ChangeAudit, cluster_change
from icestream.security.security_store import SecurityStore

RESTORE_METHODS: Final = (
    "restore_begin",
    "restore_schemas",
    "restore_producers",
    "restore_sessions",
    "restore_accounts",
    "restore_finish",
    "restore_erased",
    "restore_live",
    "restore_allocate",
    "restore_topic",
    "restore_end",
)
RestoredBackupId = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.BACKUP_ID_CHARACTERS_MAX)]


class OfRestore(msgspec.Struct):
    backup: RestoredBackupId
    topic: str


class AllocateTopic(msgspec.Struct):
    backup: RestoredBackupId
    topic: str
    policies: bytes = b"{}"
    is_in_place: bool = False
    run: Annotated[str, msgspec.Meta(max_length=limits.NAME_BYTES_MAX)] = ""


class OfBackedUpTopic(msgspec.Struct):
    log_id: Annotated[str, msgspec.Meta(max_length=limits.NAME_BYTES_MAX)]
    topic_id: int


class OfLiveTopic(msgspec.Struct):
    topic: str


class BeginRestore(msgspec.Struct):
    backup: RestoredBackupId
    counters: dict[str, int] = {}
    is_required: bool = False


class FinishRestore(msgspec.Struct):
    backup: RestoredBackupId


class RestoreSchemas(msgspec.Struct):
    subjects: list[tuple[str, bytes, list[tuple[int, bytes]], bool]]


class RestoreProducers(msgspec.Struct):
    backup: RestoredBackupId
    topic: str
    producers: list[tuple[str, bytes, list[tuple[int, int, int, int, list[tuple[int, int, int]]]]]]


class RestoreSessions(msgspec.Struct):
    backup: RestoredBackupId
    shard: Annotated[int, msgspec.Meta(ge=0, le=1)]
    blocks: Annotated[list[bytes], msgspec.Meta(min_length=1)]


class RestoreAccounts(msgspec.Struct):
    backup: RestoredBackupId
    entries: list[tuple[str, bytes, int]]
    topics: list[str] = []


class CreateRestoredTopic(msgspec.Struct):
    backup: RestoredBackupId
    topic: str
    record: bytes
    shards: list[tuple[int, int, int, list[tuple[int, int]]]]
    subscriptions: list[tuple[str, bytes, list[tuple[int, bytes]]]] = []
    table: bytes = b""
    schema: bytes = b""
    about: dict[str, bytes] = {}
    keeps_owners: bool = False
    is_in_place: bool = False
    run: str = ""


class RestoreCalls:
    """Its methods are those of RESTORE_METHODS."""

    def __init__(self, security: SecurityStore, audit: ChangeAudit | None) -> None:
        self._security = security
        self._audit = audit

    def calls(self) -> dict[str, Call]:
        return {name: getattr(self, name) for name in RESTORE_METHODS}

    async def restore_begin(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(BeginRestore, arguments)
        restore = await caller.broker.cluster_restore()
        begun = await restore.begin(request.backup, request.counters, is_required=request.is_required)
        return {"is_everything": begun}

    async def restore_schemas(self, caller: Caller, arguments: Document) -> Document:
        subjects = [
            RestoredSubject(name, records.decode(Subject, name, record), definitions, is_last)
            for name, record, definitions, is_last in decode_arguments(RestoreSchemas, arguments).subjects
        ]
        restore = await caller.broker.cluster_restore()
        return {"left_out": [list(subject) for subject in await restore.restore_schemas(subjects)]}

    async def restore_producers(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(RestoreProducers, arguments)
        producers = [
            RestoredProducer(
                name,
                records.decode(records.ProducerRecord, name, record),
                [RestoredWindow(*window) for window in windows],
            )
            for name, record, windows in request.producers
        ]
        restore = await caller.broker.cluster_restore()
        await restore.restore_producers(request.backup, TopicName.parse(request.topic), producers)
        return {}

    async def restore_sessions(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(RestoreSessions, arguments)
        restore = await caller.broker.cluster_restore()
        await restore.restore_sessions(request.backup, request.shard, request.blocks)
        return {}

    async def restore_accounts(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(RestoreAccounts, arguments)
        topics = {TopicName.parse(topic) for topic in request.topics}
        async with cluster_change(self._audit, caller.session, f"accounts of backup {request.backup}"):
            restored = await self._security.restore_accounts(request.entries, topics)
        return msgspec.structs.asdict(restored)

    async def restore_finish(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(FinishRestore, arguments)
        restore = await caller.broker.cluster_restore()
        await restore.end_sessions(request.backup)
        await restore.end(request.backup)
        return {}

    async def restore_erased(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(OfBackedUpTopic, arguments)
        topics = await caller.broker.erased_topics(request.log_id, request.topic_id)
        erased = [
            (topic.topic, topic.record, None if topic.ends is None else sorted(topic.ends.items())) for topic in topics
        ]
        return {"erased": erased}

    async def restore_live(self, caller: Caller, arguments: Document) -> Document:
        name = TopicName.parse(decode_arguments(OfLiveTopic, arguments).topic)
        topic = await caller.broker.live_topic(name)
        if topic is None:
            return {"topic": None}
        shards = [
            (shard, stream.visible, [(gap.start, gap.end) for gap in stream.gaps()])
            for shard, stream in enumerate(caller.broker.shard_streams(topic))
        ]
        subscriptions = {
            name: [(shard, delivery.cursor().offset) for shard, delivery in enumerate(subscription.deliveries)]
            for name, subscription in topic.subscriptions.items()
        }
        return {"topic": {"id": topic.record.id, "shards": shards, "subscriptions": subscriptions}}

    async def restore_allocate(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(AllocateTopic, arguments)
        policies = records.decode(PolicyValues, "policies", request.policies)
        name = TopicName.parse(request.topic)
        restore = await caller.broker.allocate_restore(
            request.backup, name, policies, is_in_place=request.is_in_place, run=request.run
        )
        return {
            "id": restore.topic_id,
            "is_created": restore.is_created,
            "metadata_file": restore.metadata_file,
            "live_ends": restore.live_ends,
        }

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
            records.decode(TopicSchema, "schema", request.schema) if request.schema else None,
            request.about,
            request.keeps_owners,
            request.is_in_place,
            request.run,
        )
        return {"id": (await caller.broker.restore_topic(topic)).record.id}

    async def restore_end(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(OfRestore, arguments)
        await caller.broker.end_restore(request.backup, TopicName.parse(request.topic))
        return {}
