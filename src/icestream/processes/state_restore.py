"""Hands a broker what a backup has beside the messages of topics (ADR 83): schemas, producers, MQTT sessions.

Every step can be repeated: the broker leaves alone what is there already.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from icestream import errors, limits
from icestream.backup import backed_up_state
from icestream.backup.backed_up_state import ProducerWindows, TailSections
from icestream.backup.backup_root import BackupRoot, ShardCut, TopicCut
from icestream.backup.stored_backups import StoredBackups
from icestream.backup.tail_object import decode_tail
from icestream.broker import records
from icestream.broker import schema_registry_records as schemas
from icestream.broker.cluster_restore import RAISED_COUNTERS
from icestream.broker.mqtt.retained_log import transactions
from icestream.durable.session_records import encode_transaction
from icestream.metadata.command import COUNTERS
from icestream.metadata.state_machine import StateMachine
from icestream.model.shard import STATE_TOPIC_ID, ShardKey
from icestream.model.topic_name import TopicName
from icestream.security.security_records import SECURITY
from icestream.wal.checkpoint import decode_checkpoint

Call = Callable[..., Awaitable[Mapping[str, Any]]]
_SESSIONS: Final = 0
_RETAINED: Final = 1


class RestoreScope(StrEnum):
    """TOPICS: these topics and their schemas. EMPTY: everything if the broker is empty. EVERYTHING: all or an error."""

    TOPICS = "topics"
    EMPTY = "empty"
    EVERYTHING = "everything"


class RestoredPart(NamedTuple):
    """A part of the state: how many of it were restored, and what was left out with its reason."""

    part: str
    restored: int
    left_out: list[str]


class StateRestore:
    """The state of one backup on its way into one broker."""

    def __init__(self, call: Call, stored: StoredBackups, root: BackupRoot, state: StateMachine) -> None:
        """`state`: the metadata store of the backup."""
        self._call = call
        self._stored = stored
        self._root = root
        self._state = state
        self._windows: ProducerWindows | None = None

    async def begin(self, scope: RestoreScope) -> bool:
        """Whether the broker takes everything. Raises Refused if it has to and is not empty."""
        if scope is RestoreScope.TOPICS:
            return False
        counters = {
            name: int(value)
            for name, value in backed_up_state.values_below(self._state, COUNTERS)
            if name in RAISED_COUNTERS and value.isdigit()
        }
        is_required = scope is RestoreScope.EVERYTHING
        answer = await self._call("restore_begin", backup=self._root.id, counters=counters, is_required=is_required)
        return bool(answer["is_everything"])

    # --- schemas ---

    def topic_schema(self, topic: TopicName) -> bytes:
        """The record of the schema of a topic; empty if it has none."""
        entry = self._state.get(schemas.topic_schema_key(topic))
        return b"" if entry is None else entry.value

    async def restore_schemas(self, topics: Sequence[TopicName] | None) -> RestoredPart:
        """Restores the subjects of these topics; None: all subjects."""
        names: set[str] | None = None
        if topics is not None:
            keys = ((schemas.topic_schema_key(topic), self.topic_schema(topic)) for topic in topics)
            names = {records.decode(schemas.TopicSchema, key, value).subject for key, value in keys if value}
        left_out: list[str] = []
        count = 0
        for name, value in backed_up_state.values_below(self._state, schemas.SUBJECTS):
            if names is not None and name not in names:
                continue
            subject = records.decode(schemas.Subject, name, value)
            definitions = []
            for version in subject.versions:
                definition = self._state.get(schemas.definition_key(subject.id, version.version))
                if definition is not None:
                    definitions.append((version.version, definition.value))
            reasons: list[str] = []
            # In parts: each definition may have the largest size of a value.
            for start in range(0, max(len(definitions), 1), limits.RESTORE_DEFINITIONS_AT_ONCE):
                part = definitions[start : start + limits.RESTORE_DEFINITIONS_AT_ONCE]
                is_last = start + len(part) >= len(definitions)
                answer = await self._call("restore_schemas", subjects=[(name, value, part, is_last)])
                reasons += [f"{subject_name}: {reason}" for subject_name, reason in answer["left_out"]]
            left_out += reasons[:1]
            count += not reasons
        return RestoredPart("schema subjects", count, left_out)

    # --- producers ---

    async def restore_producers(self, cut: TopicCut, source: TopicName, name: TopicName) -> int:
        """Restores the producers of a topic, before it is created under its new name; returns their number."""
        if self._windows is None:
            nodes = [await self._stored.content(node.checkpoint, "checkpoint") for node in self._root.nodes]
            self._windows = ProducerWindows(decode_checkpoint(data).state for data in nodes)
        ends = {shard.shard: shard.end for shard in cut.shards}
        producers: list[tuple[str, bytes, list[Any]]] = []
        count = windows = 0
        for producer, value in backed_up_state.values_below(self._state, records.producer_key(source, "")):
            record = records.decode(records.ProducerRecord, producer, value)
            of_producer = self._windows.of(cut.id, record.id, ends)
            windows += len(of_producer) + 1
            if producers and windows > limits.RESTORE_WINDOWS_AT_ONCE:
                await self._call("restore_producers", backup=self._root.id, topic=str(name), producers=producers)
                producers, windows = [], len(of_producer) + 1
            producers.append((producer, value, of_producer))
            count += 1
        if producers:
            await self._call("restore_producers", backup=self._root.id, topic=str(name), producers=producers)
        return count

    def records_about(self, topic_id: int, prefixes: Iterable[str]) -> dict[str, bytes]:
        """The records of a topic by its id, by their prefixes."""
        entries = ((prefix, self._state.get(f"{prefix}{topic_id}")) for prefix in prefixes)
        return {prefix: entry.value for prefix, entry in entries if entry is not None}

    # --- MQTT ---

    async def restore_sessions(self, topics: Mapping[int, int], *, keeps_owners: bool) -> RestoredPart | None:
        """Restores sessions and retained messages; None if the backup has none. `topics`: new ids by old ones."""
        try:
            return await self._restore_sessions(topics, keeps_owners=keeps_owners)
        except errors.AlreadyExists as error:  # a repeat behind the last step, or clients were faster
            return RestoredPart("MQTT sessions", 0, [str(error)])

    async def _restore_sessions(self, topics: Mapping[int, int], *, keeps_owners: bool) -> RestoredPart | None:
        shards = [shard for topic in self._root.topics if topic.id == STATE_TOPIC_ID for shard in topic.shards]
        tails = {shard.shard: [tail async for tail in self._tails(shard)] for shard in shards}
        if not any(tails.values()):
            return None
        count = 0
        blocks: list[bytes] = []
        for transaction in backed_up_state.restored_sessions(
            tails.get(_SESSIONS, []), topics, keeps_owners=keeps_owners
        ):
            blocks.append(encode_transaction(transaction))
            count += bool(transaction[0].session_id)
            blocks = await self._append(_SESSIONS, blocks)
        await self._append(_SESSIONS, blocks, is_last=True)
        retained = backed_up_state.restored_retained(tails.get(_RETAINED, []), topics)
        blocks = []
        for transaction in transactions(retained):
            blocks = await self._append(_RETAINED, [*blocks, encode_transaction(transaction)])
        await self._append(_RETAINED, blocks, is_last=True)
        return RestoredPart("MQTT sessions", count, [])

    async def _tails(self, shard: ShardCut) -> AsyncIterator[TailSections]:
        for tail in shard.tails:
            data = await self._stored.content(tail.object, "tail")
            key = ShardKey(STATE_TOPIC_ID, shard.shard)
            yield TailSections(tail.start, tail.end, decode_tail(tail.object.path, data, key))

    async def _append(self, shard: int, blocks: list[bytes], *, is_last: bool = False) -> list[bytes]:
        """Hands blocks to the broker when there are enough of them; returns those that wait."""
        if not blocks or (not is_last and sum(map(len, blocks)) < limits.RETAINED_BLOCK_BYTES):
            return blocks
        await self._call("restore_sessions", backup=self._root.id, shard=shard, blocks=blocks)
        return []

    # --- accounts ---

    async def restore_accounts(self, topics: Sequence[TopicName]) -> RestoredPart:
        """Restores accounts, roles and grants by the rule of ADR 78. `topics`: those under their own names."""
        entries = [
            (key, self._state.entries[key].value, self._state.entries[key].mod_revision)
            for key in self._state.keys(SECURITY, len(self._state.entries))
        ]
        answer = await self._call(
            "restore_accounts", backup=self._root.id, entries=entries, topics=[str(topic) for topic in topics]
        )
        parked = [
            f"grant {grant}: parked, `icestream security grants unpark` confirms it" for grant in answer["parked"]
        ]
        return RestoredPart("accounts", len(answer["accounts"]), parked)

    async def finish(self) -> None:
        """Ends the restore of everything: MQTT opens what it got."""
        await self._call("restore_finish", backup=self._root.id)
