"""The topics of this cluster from which messages were erased that another place may still have: a backup of the topic,
of one that it was restored from, or a deleted topic that can come back (ADR 124)."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from icestream.broker import records
from icestream.catalog import catalog_keys
from icestream.catalog.topic_rules.erased_record import ErasedRecord
from icestream.metadata.store import MetadataStore


class ErasedTopic(NamedTuple):
    """A topic with erased offsets, and its ErasedRecord as it is stored. `ends`: below them its messages are those of
    the topic that was asked for; None: it is that topic."""

    topic: str
    record: bytes
    ends: dict[int, int] | None


async def own_logs(store: MetadataStore) -> set[str]:
    """The ids of the logs whose topics this metadata store has the ids of."""
    logs = await store.list_all(records.NODE_LOGS)
    return {records.decode(records.NodeLogRecord, key, entry.value).log for key, entry in logs}


async def erased_topics(store: MetadataStore, log_id: str, topic_id: int) -> list[ErasedTopic]:
    """The topics with erased offsets that have messages of a topic of a log: itself, and those that were restored from
    it, deleted ones included that can come back."""
    entries = {
        int(key.removeprefix(catalog_keys.ERASED)): entry.value
        for key, entry in await store.list_all(catalog_keys.ERASED)
    }
    if not entries:
        return []
    is_own = log_id in await own_logs(store)
    topics: dict[int, tuple[str, records.TopicRecord]] = {}
    for key, entry in await store.list_all(records.TOMBSTONES):
        tombstone = records.decode(records.TombstoneRecord, key, entry.value)
        topics[tombstone.topic.id] = f"/{tombstone.namespace}/{tombstone.name}", tombstone.topic
    for key, entry in await store.list_all(records.TOPICS):
        record = records.decode(records.TopicRecord, key, entry.value)
        topics[record.id] = f"/{key.removeprefix(records.TOPICS)}", record
    erased = []
    for erased_id, value in entries.items():
        name, topic = topics.get(erased_id, (f"topic {erased_id}", None))
        if is_own and erased_id == topic_id:
            erased.append(ErasedTopic(name, value, None))
            continue
        erased += [
            ErasedTopic(name, value, origin.ends)
            for origin in (topic.restored_from if topic is not None else ())
            if (origin.log_id, origin.topic_id) == (log_id, topic_id)
        ]
    return erased


async def erased_since(store: MetadataStore, topic_id: int) -> str:
    """Where more messages of a topic of this cluster were erased than from itself, in words; empty: nowhere."""
    own, names = 0, []
    for log_id in await own_logs(store):
        for topic in await erased_topics(store, log_id, topic_id):
            count = msgspec.json.decode(topic.record, type=ErasedRecord).count
            if topic.ends is None:
                own = count
            else:
                names.append((count, topic.topic))
    return ", ".join(f"{count} from {name}" for count, name in sorted(names) if count > own)
