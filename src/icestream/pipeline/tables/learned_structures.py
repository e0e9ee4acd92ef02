"""The learned structures of MQTT topics (mqtt/learned_structure.py) as the driver keeps them, one for each table.

    record      `/pipeline/structures/{topic id}` in the metadata store: the bytes of the newest version
    load        before the first round with the topic; a topic without a record has version 0, which knows no topic
    target      what the tasks of a round get: the version that is stored
    learn       after a round, with the topics that its tasks had no stream for: the next version is stored, and used by
                the next round. No row refers to a version that is not stored, so streams are the same after any crash
    deletion    with the topic, in the transaction that releases its table (catalog/topic_bindings.py)

A version is written over the one that it was made from, and only while the topic has a table. Another driver that was
faster wins: its version is loaded, and what was not learned is reported by a later round again. Ingest never waits for
learning or fails by it: a structure that cannot be read or written only leaves rows without a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from icestream import errors
from icestream.catalog import catalog_keys
from icestream.metadata import command as cmd
from icestream.metadata.store import MetadataStore
from icestream.mqtt.learned_structure import LearnedStructure
from icestream.mqtt.topics import native_topic
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.pipeline.round_plan import MqttTarget

_log = get_logger("pipeline")


class _StoredStructure(NamedTuple):
    """A version as it is stored; empty bytes: the record cannot be read."""

    data: bytes
    comparison: cmd.Compare  # under which the next version may be written


class LearnedStructures:
    """The structures that this driver has loaded or stored."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._stored: dict[int, _StoredStructure] = {}

    def clear(self) -> None:
        """Drops all of them: another driver was at work."""
        self._stored.clear()

    async def load(self, topic_id: int) -> None:
        """Reads the structure of a topic, unless it is known. Raises what the metadata store raises."""
        if topic_id in self._stored:
            return
        key = catalog_keys.structure_key(topic_id)
        entry = await self._store.get(key)
        if entry is None:
            self._stored[topic_id] = _StoredStructure(LearnedStructure().encode(), cmd.Absent(key))
            return
        data = entry.value
        try:
            LearnedStructure.decode(data)
        except errors.DecodeError as error:
            _log.error(
                "learned structure unreadable, rows get no stream",
                topic_id=topic_id,
                error=str(error),
                hint="a newer release may have written it; rows and readers do not depend on it",
            )
            data = b""
        self._stored[topic_id] = _StoredStructure(data, cmd.AtRevision(key, entry.mod_revision))

    def target(self, topic_id: int, topic: str) -> MqttTarget:
        """What tasks need for a topic whose structure is loaded."""
        return MqttTarget(native_topic(topic), self._stored[topic_id].data)

    async def learn(self, topic_id: int, topics: Sequence[str]) -> None:
        """Stores the next version of a structure, if these topics change it."""
        stored = self._stored.get(topic_id)
        if stored is None or not stored.data:
            return
        structure = LearnedStructure.decode(stored.data)
        if not sum(structure.learn(topic) for topic in topics):
            return
        structure.next_version()
        # Whatever happens, the record is read again if this version is not known to be stored.
        del self._stored[topic_id]
        try:
            revision = await self._write(topic_id, structure.encode(), stored.comparison)
        except errors.IcestreamError as error:
            _log.warning("learned structure not stored, learning goes on", topic_id=topic_id, error=str(error))
            return
        if revision is not None:
            key = catalog_keys.structure_key(topic_id)
            self._stored[topic_id] = _StoredStructure(structure.encode(), cmd.AtRevision(key, revision))
            metrics.PIPELINE_LEARNED_STRUCTURES.inc()
            _log.info(
                "learned structure of a topic grew",
                topic_id=topic_id,
                version=structure.version,
                nodes=structure.node_count,
                is_full=structure.is_full,
            )

    async def _write(self, topic_id: int, data: bytes, comparison: cmd.Compare) -> int | None:
        """Returns the revision of the record; None if another driver was faster, or the topic has no table."""
        for key in (catalog_keys.topic_key(topic_id), catalog_keys.foreign_table_key(topic_id)):
            entry = await self._store.get(key)
            if entry is not None:
                # The table may be released meanwhile, with all records of the topic: nothing may be left behind then.
                has_table = cmd.AtRevision(key, entry.mod_revision)
                operations = [cmd.Put(catalog_keys.structure_key(topic_id), data)]
                done = await self._store.txn([comparison, has_table], operations)
                return done.revision if done.held else None
        return None
