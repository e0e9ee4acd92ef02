"""What a restore brings back beside topics (ADR 83): schemas, windows of producers, MQTT, and a cluster as a whole.

begin       an empty broker takes the whole backup: nothing that a client made is there. Counters are raised, so that
            ids which rows, clients and files of the source may hold are not given out again (hazard 79)
schemas     subjects under their own ids, because messages name them
producers   names of producers of one topic, each with its windows under a new id: what the backup has is recognised as
            a repeat
sessions    blocks of the session log and of retained messages, while MQTT of this node is not open
end         the marker of the whole restore goes

Every step can be repeated. Records below /restores/ have a time to live: a restore that was given up is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from icestream import errors, limits
from icestream.broker import records
from icestream.broker.mqtt.mqtt_service import MqttService
from icestream.broker.name_registry import put_name
from icestream.broker.schema_registry_records import (
    SUBJECTS,
    Subject,
    SubjectName,
    definition_key,
    id_key,
    subject_key,
)
from icestream.broker.storage import PersistentStorage
from icestream.broker.topic_restore import RESTORES, RestoreRecord, restore_key, staged_names_prefix
from icestream.broker.topic_tombstones import chunks
from icestream.metadata.command import Absent, Operation, Put, PutWithTtl
from icestream.metadata.store import MetadataStore
from icestream.model.shard import ShardKey
from icestream.model.topic_name import TopicName
from icestream.runtime.clock import Clock
from icestream.wal.producer_sequences import SequenceWindow, StoredBatch

_SYSTEM: Final = "system"
# Counters whose numbers rows, messages and files of the source refer to. Topics, subscriptions and producers get new
# ids.
RAISED_COUNTERS: Final = ("schema", "mqtt-session", "backup_manifest")


class RestoredWindow(NamedTuple):
    """The sequence window of a producer in one shard; batches are (first sequence, messages, base offset)."""

    shard: int
    epoch: int
    expected: int
    start: int
    batches: list[tuple[int, int, int]]


class RestoredProducer(NamedTuple):
    name: str
    record: records.ProducerRecord
    windows: list[RestoredWindow]


class RestoredSubject(NamedTuple):
    """A subject of the schema registry with the bytes of versions; of all, if it is the last part of the subject."""

    name: str
    subject: Subject
    definitions: list[tuple[int, bytes]]
    is_last: bool = True


class LeftOutSubject(NamedTuple):
    subject: str
    reason: str


class ClusterRestore:
    """What a restore asks of this broker beside topic_restore.py."""

    def __init__(self, store: MetadataStore, storage: PersistentStorage, mqtt: MqttService, clock: Clock) -> None:
        self._store = store
        self._storage = storage
        self._mqtt = mqtt
        self._clock = clock

    # --- a whole cluster ---

    async def begin(self, backup_id: str, counters: Mapping[str, int], *, is_required: bool) -> bool:
        """Begins or continues the restore of a whole backup; False if this broker is not empty.

        `counters`: those of the backup. Raises Refused instead of False if `is_required`.
        """
        key = _whole_key(backup_id)
        if await self._store.get(key) is None:
            if (existing := await self._first_of_clients()) is not None:
                if is_required:
                    raise errors.Refused(
                        f"this broker is not empty: it has {existing}",
                        hint="restore a whole backup into a new broker, or name topics with --topics",
                    )
                return False
            await self._store.txn([], [PutWithTtl(key, b"{}", limits.RESTORE_AGE_MS)])
        for name in RAISED_COUNTERS:
            if name in counters:
                await self._store.raise_counter(name, counters[name])
        return True

    async def _first_of_clients(self) -> str | None:
        """Something that a client has made in this broker; None in an empty one."""
        for key, _ in await self._store.list_all(records.TOPICS):
            name = key.removeprefix(records.TOPICS)
            if name.partition("/")[0] != _SYSTEM:
                return f"topic /{name}"
        subjects = await self._store.list(SUBJECTS, "", 1)
        return f"schema subject {subjects[0][0].removeprefix(SUBJECTS)}" if subjects else None

    async def end(self, backup_id: str) -> None:
        """Ends the restore of a whole backup."""
        await self._store.delete(_whole_key(backup_id))

    # --- schemas ---

    async def restore_schemas(self, subjects: Iterable[RestoredSubject]) -> list[LeftOutSubject]:
        """Creates subjects under the ids of the backup; returns those that this broker has otherwise."""
        return [
            LeftOutSubject(restored.name, reason)
            for restored in subjects
            if (reason := await self._restore_subject(restored)) is not None
        ]

    async def _restore_subject(self, restored: RestoredSubject) -> str | None:
        """Why a subject is left out; None if it is there now, with at least the versions of the backup."""
        name, subject = restored.name, restored.subject
        key = subject_key(name)
        entry = await self._store.get(key)
        if entry is not None:
            existing = records.decode(Subject, key, entry.value)
            if existing.id != subject.id:
                return f"it exists with id {existing.id}, the backup has {subject.id}"
            present = {version.version: version.fingerprint for version in existing.versions}
            if any(present.get(version.version) != version.fingerprint for version in subject.versions):
                return "it exists with other versions"
            return None
        await self._store.raise_counter("schema", subject.id)
        is_free = Absent(id_key(subject.id))
        definitions: list[Operation] = [
            Put(definition_key(subject.id, number), definition) for number, definition in restored.definitions
        ]
        # Definitions first: a subject whose definition is missing could not be used or repaired.
        for definition in definitions:
            await self._store.txn([is_free], [definition])
        if not restored.is_last:
            return None
        name_record = Put(id_key(subject.id), records.encode(SubjectName(name)))
        reply = await self._store.txn([Absent(key), is_free], [Put(key, records.encode(subject)), name_record])
        return None if reply.held else f"schema id {subject.id} belongs to another subject here"

    # --- producers ---

    async def restore_producers(self, backup_id: str, topic: TopicName, producers: Sequence[RestoredProducer]) -> None:
        """Restores names of producers of a topic, which is not created yet, and what they have stored.

        Raises LeaseLost if the restore of the topic was not begun.
        """
        key = restore_key(backup_id, topic)
        entry = await self._store.get(key)
        if entry is None:
            raise errors.LeaseLost(f"the restore of {topic} was not begun, or it is over", hint="restore again")
        restore = records.decode(RestoreRecord, key, entry.value)
        topic_id = restore.topic_id
        if not producers:
            return
        first_id = await self._store.allocate_id("producer", len(producers))
        now_us = self._clock.wall_us()
        windows: list[tuple[ShardKey, int, SequenceWindow]] = []
        names: list[Operation] = []
        for producer_id, producer in enumerate(producers, first_id):
            for window in producer.windows:
                # LSN 0: the batches are older than everything that this log has.
                restored = SequenceWindow(window.epoch, window.expected, now_us, window.start)
                restored.sent.extend(StoredBatch(*batch, 0) for batch in window.batches)
                windows.append((ShardKey(topic_id, window.shard), producer_id, restored))
            record = msgspec.structs.replace(producer.record, id=producer_id)
            name = records.producer_key(topic, producer.name)
            if restore.replaces:  # the name is the live topic's until it is replaced
                staged = staged_names_prefix(backup_id, topic) + name
                names.append(PutWithTtl(staged, records.encode(record), limits.RESTORE_AGE_MS))
            else:
                names.append(put_name(name, records.encode(record)))
        # Windows before names: a name whose windows were lost would let a repeat be stored again.
        await self._storage.restore_windows(windows)
        for chunk in chunks(names):
            await self._store.txn([], chunk)

    # --- MQTT ---

    async def restore_sessions(self, backup_id: str, shard: int, blocks: Sequence[bytes]) -> None:
        """Appends transactions of the session log (shard 0) or of retained messages (shard 1)."""
        await self._mqtt.restore_state(backup_id, shard, blocks)

    async def end_sessions(self, backup_id: str) -> None:
        """Opens the sessions that were restored."""
        await self._mqtt.end_restore(backup_id)


def _whole_key(backup_id: str) -> str:
    return f"{RESTORES}{backup_id}/everything"
