"""The columns that ingest derives for MQTT topics (docs/adr/0061), from columns of the envelope, for all rows at once.

    level_1 … level_8   levels of the row's topic; null where it has fewer. level_1 is null in no row: a file where that
                        is absent or has nulls was written without these columns, or by another engine
    expiry_s            message expiry interval in seconds, from the properties in `wire`
    structure           version of the learned structure (mqtt/learned_structure.py) of the round
    stream              the topic's stream by that version; null: it had none yet

The log has none of them: they follow from `key` and `wire`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from icestream import limits
from icestream.catalog.topic_rules.topic_schema import EXPIRY, LEVELS, STREAM, STRUCTURE
from icestream.model import envelope
from icestream.mqtt.learned_structure import LearnedStructure
from icestream.mqtt.topic_arrays import level_counts, row_topics, topic_levels
from icestream.pipeline.round_plan import MqttTarget
from icestream.pipeline.rows.message_expiry import message_expiry
from icestream.pipeline.rows.topic_streams import (
    NO_STREAM,
    DistinctTopics,
    TopicStreams,
    order_of_topics,
    resolve_topics,
)

STREAM_SHIFT = 32


class MqttColumns(NamedTuple):
    """The derived columns of rows, and how to cluster the rows."""

    columns: dict[str, Any]  # Arrow arrays by name; without those that are null in every row
    order: NDArray[np.int64]  # of each row: its place by stream, then by topic
    new_topics: list[str]  # that the structure should learn


def stream_place(order: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of the stream alone, of rows with this `MqttColumns.order`."""
    return order >> STREAM_SHIFT


def mqtt_columns(values: Mapping[str, Any], rows: int, target: MqttTarget) -> MqttColumns:
    """Derives the columns of rows with these columns of the envelope. Raises DecodeError for a damaged structure."""
    topics, codes = row_topics(values.get(envelope.KEY.name), rows, target.native_topic)
    distinct = DistinctTopics(topics, topic_levels(topics, limits.MQTT_LEVEL_COLUMNS), level_counts(topics))
    structure = LearnedStructure.decode(target.structure) if target.structure else LearnedStructure()
    columns = {
        name: _of_rows(level, codes)
        for name, level in zip(LEVELS, distinct.levels, strict=True)
        if level.null_count < len(level)
    }
    streams = resolve_topics(structure, distinct)
    columns |= _stream_columns(structure.version, streams, codes) if target.structure else {}
    seconds = message_expiry(values.get(envelope.WIRE.name))
    if seconds is not None:
        columns[EXPIRY] = seconds
    order = order_of_topics(structure, distinct, streams)
    places = order.streams << STREAM_SHIFT | order.topics
    return MqttColumns(columns, places[codes], order.new_topics if target.structure else [])


def _of_rows(values: Any, codes: NDArray[np.int64]) -> Any:
    """A column of rows whose values are those of topics, dictionary-encoded: levels repeat."""
    encoded = pc.dictionary_encode(values)
    indices = encoded.indices.take(pa.array(codes))
    return pa.DictionaryArray.from_arrays(indices, encoded.dictionary)


def _stream_columns(version: int, streams: TopicStreams, codes: NDArray[np.int64]) -> dict[str, Any]:
    row_streams = streams.codes[codes]
    columns = {STRUCTURE: pa.repeat(pa.scalar(version, pa.int32()), len(codes))}
    if streams.keys:
        indices = pa.array(row_streams, pa.int32(), mask=row_streams == NO_STREAM)
        columns[STREAM] = pa.DictionaryArray.from_arrays(indices, pa.array(streams.keys, pa.utf8()))
    return columns
