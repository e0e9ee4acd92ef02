"""The topics that the metadata store of a backup has (broker/records.py), as far as a backup needs them, and which of
them have erased offsets. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeVar

import msgspec

from icestream import errors
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.topic_rules.erased_record import ErasedRecord
from icestream.metadata.state_machine import StateMachine
from icestream.model.topic_origin import TopicOrigin

PREFIX: Final = "/topics/"
Record = TypeVar("Record")
_TOMBSTONES: Final = "/tombstones/"
_NODE_LOGS: Final = "/node_logs/"


class RecordedTopic(msgspec.Struct, frozen=True):
    """A topic. `node`: the name of the node that serves it."""

    id: int
    shards: int
    node: str
    name: str = ""
    restored_from: list[TopicOrigin] = []


class _DeletedTopic(msgspec.Struct, frozen=True):
    """A topic that can come back (broker/records.py, TombstoneRecord)."""

    topic: RecordedTopic
    namespace: str
    name: str


class _NodeLog(msgspec.Struct, frozen=True):
    """The log of a node (broker/records.py, NodeLogRecord)."""

    log: str = ""


class RecordedErasure(NamedTuple):
    """A topic with erased offsets. `is_deleted`: it has no table any more, and may come back."""

    topic: RecordedTopic
    record: ErasedRecord
    is_deleted: bool


def recorded_topics(state: StateMachine) -> dict[int, RecordedTopic]:
    """The topics by their ids. Raises MetadataDamaged for a record that cannot be read."""
    topics = {}
    for key, topic in _decoded(state, PREFIX, RecordedTopic):
        topics[topic.id] = msgspec.structs.replace(topic, name=f"/{key.removeprefix(PREFIX)}")
    return topics


def recorded_logs(state: StateMachine) -> set[str]:
    """The ids of the logs of the nodes that share this metadata store, and so its topic ids. Raises MetadataDamaged."""
    return {node.log for _, node in _decoded(state, _NODE_LOGS, _NodeLog) if node.log}


def erased_topics(state: StateMachine) -> list[RecordedErasure]:
    """The topics with erased offsets, deleted ones included that can come back. Raises MetadataDamaged."""
    ids = [key for key in state.keys(catalog_keys.ERASED, len(state.entries)) if _is_id(key)]
    if not ids:
        return []
    present, deleted = recorded_topics(state), {}
    for _, tombstone in _decoded(state, _TOMBSTONES, _DeletedTopic):
        name = f"/{tombstone.namespace}/{tombstone.name}"
        deleted[tombstone.topic.id] = msgspec.structs.replace(tombstone.topic, name=name)
    erased = []
    for key in ids:
        topic_id = int(key.removeprefix(catalog_keys.ERASED))
        topic = present.get(topic_id) or deleted.get(topic_id) or RecordedTopic(topic_id, 0, "")
        record = catalog_records.decode(ErasedRecord, key, state.entries[key])
        erased.append(RecordedErasure(topic, record, topic_id not in present))
    return erased


def _is_id(key: str) -> bool:
    return key.removeprefix(catalog_keys.ERASED).isdigit()


def _decoded(state: StateMachine, prefix: str, kind: type[Record]) -> Iterator[tuple[str, Record]]:
    for key in state.keys(prefix, len(state.entries)):
        try:
            yield key, msgspec.json.decode(state.entries[key].value, type=kind)
        except msgspec.MsgspecError as error:
            raise errors.MetadataDamaged(f"the record {key} cannot be read: {error}") from None
