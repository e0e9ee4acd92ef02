"""What a backup has beside the messages of topics, in the form in which a restore hands it to a broker (ADR 83). Pure.

    subjects      of the schema registry, with the bytes of their versions
    producers     names of a topic, with the sequence windows that the logs had at their cuts
    sessions      the session log folded to one transaction for each session, then the records of the node
    retained      the last values of MQTT topics, and their applied offsets

Topics have new ids in a restore: records of MQTT name the new ones. What is about a topic that is not restored is left
out. Owners are accounts: they are kept only where accounts are restored, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from icestream.durable import session_records as rec
from icestream.durable.retained import RetainedSet
from icestream.durable.session_records import AnyRecord, decode_transaction
from icestream.durable.session_state import SessionState, SessionTable
from icestream.metadata.state_machine import StateMachine
from icestream.model.block import iter_blocks
from icestream.wal.producer_sequences import SequenceWindow
from icestream.wal.state import LogState
from icestream.wal.tail import SectionRead

_Keyed = (
    rec.GenerationBound | rec.InFlightEntry | rec.InFlightRun | rec.ReaderPosition | rec.ShardMark | rec.RetainedApplied
)


class TailSections(NamedTuple):
    """The sections of a tail; offsets outside of [start, end) do not count."""

    start: int
    end: int
    sections: list[SectionRead]


class ProducerWindows:
    """The sequence windows in the checkpoints of a backup, by topic and producer."""

    def __init__(self, logs: Iterable[LogState]) -> None:
        self._windows: dict[tuple[int, int], list[tuple[int, SequenceWindow]]] = {}
        for log in logs:
            for key, producer_id, window in log.producers.windows():
                self._windows.setdefault((key.topic_id, producer_id), []).append((key.shard, window))

    def of(
        self, topic_id: int, producer_id: int, ends: Mapping[int, int]
    ) -> list[tuple[int, int, int, int, list[list[int]]]]:
        """The windows of a producer as the call `restore_producers` has them. `ends`: of the shards; no batch lies
        beyond them."""
        windows = []
        for shard, window in self._windows.get((topic_id, producer_id), ()):
            batches = [
                [batch.first_sequence, batch.rows, batch.base_offset]
                for batch in window.sent
                if batch.base_offset + batch.rows <= ends.get(shard, 0)
            ]
            if batches:
                windows.append((shard, window.producer_epoch, window.expected, window.start, batches))
        return windows


def values_below(state: StateMachine, prefix: str) -> Iterator[tuple[str, bytes]]:
    """What follows the prefix in each key, and the value."""
    for key in state.keys(prefix, len(state.entries)):
        yield key.removeprefix(prefix), state.entries[key].value


def _records(tails: Iterable[TailSections]) -> Iterator[list[AnyRecord]]:
    for tail in tails:
        for section in tail.sections:
            offset = section.base_offset
            for block in iter_blocks(section.body):
                if tail.start <= offset < tail.end:
                    yield decode_transaction(block)
                offset += block.rows


def restored_sessions(
    tails: Iterable[TailSections], topics: Mapping[int, int], *, keeps_owners: bool
) -> Iterator[list[AnyRecord]]:
    """One transaction for each session of a session log, and one of the node. `topics`: new ids by old ones."""
    table = SessionTable()
    for transaction in _records(tails):
        table.apply(transaction)
    for session in table.sessions.values():
        yield [*_of_session(session, topics, keeps_owners=keeps_owners)]
    node: list[AnyRecord] = []
    for record in table.node_records():
        if isinstance(record, rec.ShardMark):
            node += _moved(record, topics)
        else:
            node.append(record)
    yield node


def _of_session(session: SessionState, topics: Mapping[int, int], *, keeps_owners: bool) -> Iterator[AnyRecord]:
    for record in session.records():
        match record:
            case rec.SessionRecord() if not keeps_owners:
                yield msgspec.structs.replace(record, owner=None)
            case rec.GenerationBound() | rec.InFlightEntry() | rec.InFlightRun() | rec.ReaderPosition():
                yield from _moved(record, topics)
            case rec.ReceivedId() if record.topic_id and record.topic_id not in topics:
                # The id is still between PUBREC and PUBREL: a repeat of it must not be stored again.
                yield msgspec.structs.replace(record, topic_id=0, shard=0)
            case rec.ReceivedId() if record.topic_id:
                yield msgspec.structs.replace(record, topic_id=topics[record.topic_id])
            case _:
                yield record


def _moved(record: _Keyed, topics: Mapping[int, int]) -> list[_Keyed]:
    """The record with the new id of its topic; none if that is not restored."""
    topic_id = topics.get(record.topic_id)
    return [] if topic_id is None else [msgspec.structs.replace(record, topic_id=topic_id)]


def restored_retained(tails: Iterable[TailSections], topics: Mapping[int, int]) -> Iterator[AnyRecord]:
    """The retained messages and then the applied offsets, as they follow each other in their log."""
    values = RetainedSet()
    for transaction in _records(tails):
        values.apply(transaction)
    for topic in values.topics():
        value = values.value(topic)
        if value is not None and value.topic_id in topics:
            yield msgspec.structs.replace(value, topic_id=topics[value.topic_id])
    for key, offset in values.applied.items():
        yield from _moved(rec.RetainedApplied(0, 0, *key, offset), topics)
