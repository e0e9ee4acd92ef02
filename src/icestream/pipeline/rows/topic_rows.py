"""The rows of sections: each column of the envelope as an Arrow array.

Rows are in the order of topic, shard and offset, whatever their order in the log, so that a topic is a slice. Columns
without a value in any row are left out: a file without a column means nulls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from icestream import errors
from icestream.model import envelope
from icestream.model.arrow_types import ARROW_TYPES
from icestream.model.block import FIXED, NOT_NUMBERED, VARIABLE
from icestream.model.envelope import COLUMN_BY_ID, ColumnKind, EnvelopeColumn
from icestream.pipeline.rows.arrow_columns import (
    Elements,
    bytes_copied,
    bytes_taken,
    header_maps,
    is_large,
    numbers_copied,
    numbers_taken,
)
from icestream.pipeline.rows.block_columns import Blocks, StoredColumn
from icestream.pipeline.rows.log_sections import Ints, Sections, indices_of

_WIDTHS: Final = {ColumnKind.INT32: 4, ColumnKind.INT64: 8, ColumnKind.TIMESTAMP_US: 8, ColumnKind.BOOLEAN: 1}
_NUMBERS: Final = (envelope.PRODUCER_ID, envelope.SEQUENCE)


class TopicRows(NamedTuple):
    """The rows of one topic."""

    topic_id: int
    columns: dict[str, Any]  # Arrow arrays by name; text that repeats is dictionary-encoded
    rows: int


class Span(NamedTuple):
    """Offsets [start, end) of one shard."""

    topic_id: int
    shard: int
    start: int
    end: int


def topic_rows(sections: Sections, spans: Sequence[Span]) -> list[TopicRows]:
    """Decodes the rows of the spans, which rise by topic and shard. Each span is completely in the sections, apart from
    declared gaps. Raises DecodeError."""
    blocks = Blocks(sections)
    order, ends = _order(sections, blocks, spans)
    columns = _columns(sections, blocks, order)
    topic_slices: list[TopicRows] = []
    start = 0
    topics = [span.topic_id for span in spans]
    for number, end in enumerate(ends):
        if number + 1 == len(topics) or topics[number + 1] != topics[number]:
            topic_slices.append(_slice(topics[number], columns, start, end))
            start = end
    return topic_slices


def _order(sections: Sections, blocks: Blocks, spans: Sequence[Span]) -> tuple[Ints | None, list[int]]:
    """Returns the row indices in their order (None: all rows as they are), and the end of each span in it."""
    keys = np.array([span[:2] for span in spans], np.int64).reshape(-1, 2)
    bounds = np.array([span[2:] for span in spans], np.int64).reshape(-1, 2)
    span = indices_of(keys, np.stack((sections.topic_id, sections.shard), axis=1))[blocks.section]
    # Blocks are sorted instead of rows: within a block offsets rise already.
    by = np.lexsort((blocks.base, span))
    by = by[span[by] >= 0]
    low = np.maximum(blocks.base, bounds[span, 0])[by]
    high = np.minimum(blocks.base + blocks.rows, bounds[span, 1])[by]
    count = np.maximum(high - low, 0)
    first = blocks.first_row[by] + low - blocks.base[by]
    ends = np.cumsum(np.bincount(span[by], count, minlength=len(spans))).astype(np.int64)
    return _ranges(first, count, blocks.row_count), ends.tolist()


def _ranges(first: Ints, count: Ints, row_count: int) -> Ints | None:
    total = int(count.sum())
    positions = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(total)
    # The usual case, one shard in the order of the log: columns are then used without a copy.
    is_plain = total == row_count and bool((positions == np.arange(total)).all())
    return None if is_plain else positions


def _columns(sections: Sections, blocks: Blocks, order: Ints | None) -> dict[str, Any]:
    """Returns the columns of all rows, in this order, with the columns that come from the section: shard, offset and
    append time."""

    def placed(values: Any) -> Any:
        return values if order is None else values[order]

    def repeated(values: Any) -> Any:
        return placed(np.repeat(values, blocks.rows))

    number = np.arange(blocks.row_count) - np.repeat(blocks.first_row, blocks.rows)
    columns: dict[str, Any] = {
        "shard": pa.array(repeated(sections.shard[blocks.section]).astype(np.int32)),
        "offset": pa.array(placed(np.repeat(blocks.base, blocks.rows) + number)),
        "append_time": pa.array(repeated(sections.time_us[blocks.section]), ARROW_TYPES[ColumnKind.TIMESTAMP_US]),
    }
    for column_id, stored in blocks.columns.items():
        column = COLUMN_BY_ID.get(column_id)
        if column is None:
            raise errors.DecodeError(f"column {column_id} is not known")
        if column.in_table:
            columns[column.name] = _column(blocks, column, stored, order)
    _add_numbering(columns, blocks, number, repeated, placed)
    return columns


def _column(blocks: Blocks, column: EnvelopeColumn, stored: StoredColumn, order: Ints | None) -> Any:
    """Returns one column of all rows as an Arrow array; text is dictionary-encoded. Raises DecodeError."""
    width = _WIDTHS.get(column.kind)
    if column.kind is not ColumnKind.HEADERS and is_large(blocks, stored, FIXED if width else VARIABLE):
        whole = _large_column(blocks, column, stored, width)
        if whole is not None:
            return whole if order is None else whole.take(pa.array(order))
    elements = Elements(blocks, stored, width)
    which = elements.row if order is None else elements.row[order]
    if width is not None:
        return _numbers(column, *numbers_taken(blocks, elements, which, width))
    if column.kind is ColumnKind.BINARY:
        return bytes_taken(blocks.data, elements.start, elements.end, which, pa.binary())
    if column.kind is ColumnKind.HEADERS:
        maps = header_maps(blocks, elements)
        return maps.take(pa.array(which, pa.int64(), mask=which < 0))
    # Text is dictionary-encoded once for all topics: names repeat, and the encoding costs less than writing each value.
    words = bytes_taken(blocks.data, elements.start, elements.end, None, pa.utf8()).dictionary_encode()
    codes = words.indices.to_numpy()[np.maximum(which, 0)] if len(words) else which.astype(np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32(), mask=which < 0), words.dictionary)


def _large_column(blocks: Blocks, column: EnvelopeColumn, stored: StoredColumn, width: int | None) -> Any:
    if width is not None:
        return _numbers(column, numbers_copied(blocks, stored, width))
    array = bytes_copied(blocks, stored, ARROW_TYPES[column.kind])
    return array if array is None or column.kind is ColumnKind.BINARY else array.dictionary_encode()


def _numbers(column: EnvelopeColumn, values: Any, is_null: Any = None) -> Any:
    return pa.array(
        values.astype(bool) if column.kind is ColumnKind.BOOLEAN else values, ARROW_TYPES[column.kind], mask=is_null
    )


def _add_numbering(columns: dict[str, Any], blocks: Blocks, number: Ints, repeated: Any, placed: Any) -> None:
    """Adds producer ids and sequence numbers, for blocks without columns of them."""
    is_numbered = blocks.first_sequence != NOT_NUMBERED
    if not is_numbered.any():
        return
    missing = repeated(~is_numbered)
    sequences = placed(np.repeat(blocks.first_sequence, blocks.rows) + number)
    for column, values in zip(_NUMBERS, (repeated(blocks.producer_id), sequences), strict=True):
        numbers = pa.array(values, pa.int64(), mask=missing)
        stored = columns.get(column.name)
        columns[column.name] = numbers if stored is None else pa.compute.coalesce(stored, numbers)


def _slice(topic_id: int, columns: dict[str, Any], start: int, end: int) -> TopicRows:
    sliced: dict[str, Any] = {}
    for name, column in columns.items():
        part = column.slice(start, end - start)
        if part.null_count < len(part):
            sliced[name] = _own_dictionary(part) if pa.types.is_dictionary(part.type) else part
    return TopicRows(topic_id, sliced, end - start)


def _own_dictionary(part: Any) -> Any:
    """Returns the column with a dictionary of its own values: those of other topics must not get into its file."""
    if len(part.dictionary) == 1:
        return part
    codes = part.indices
    used = np.bincount(codes.drop_null().to_numpy(), minlength=len(part.dictionary)) > 0
    if used.all():
        return part
    new_codes = np.cumsum(used, dtype=np.int32) - np.int32(1)
    indices = pa.array(new_codes).take(codes)
    return pa.DictionaryArray.from_arrays(indices, part.dictionary.filter(pa.array(used)))
