"""Binding a table to a topic, and parting them again. Pure: the rules; where they are stored is planned elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

from icestream import errors
from icestream.catalog.table import commit
from icestream.catalog.topic import envelope, properties
from icestream.catalog.topic.binding import new_binding
from icestream.catalog.topic.commit import Outcome, State
from icestream.catalog.topic.guard import INGEST_FORMAT_VERSION_MAX


def bind(state: State, topic: str, topic_id: int, shards: Mapping[int, tuple[int, int]], now_ms: int) -> Outcome:
    """`shards`: the epoch of each, and the offset from which the table gets its messages."""
    if state.binding is not None:
        raise errors.AlreadyExists(f"the table belongs to topic {state.binding.topic} (id {state.binding.topic_id})")
    if state.table.format_version > INGEST_FORMAT_VERSION_MAX:
        raise errors.InvalidInput(f"the pipeline cannot write format version {state.table.format_version}")
    envelope.check_bindable(state.table.current_schema)
    binding = new_binding(topic, topic_id, shards)
    written = properties.set_written(state.table.properties, binding)
    return Outcome(commit.apply_updates(state.table, state.location, written, now_ms), binding, ())


def detach(state: State, now_ms: int) -> Outcome:
    """The table as any other. A table that is not bound stays as it is."""
    written = properties.set_written(state.table.properties, None)
    return Outcome(commit.apply_updates(state.table, state.location, written, now_ms), None, ())
