"""Converts the columns of a data file to the columns of the envelope, whichever engine wrote the file.

which     by Iceberg's field ids; in files without ids by name, and by the names in the table's name mapping
types     those of the envelope: large, dictionary-encoded, narrower or unzoned columns are converted. A timestamp
          in nanoseconds is truncated to microseconds
absent    a column that the file does not have is absent from the rows; when rows of several files are combined, it is
          null there. A row without `shard` or `offset` is not a message, so a file without these columns has no rows
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from icestream.readers.data_files import TableColumns
from icestream.readers.file_format import FileShape
from icestream.readers.sections import OFFSET, SHARD, TYPES

REQUIRED_COLUMNS: Final = (SHARD, OFFSET)


def match_columns(shape: FileShape, table: TableColumns, columns: Iterable[str] = TYPES) -> dict[str, str]:
    """Returns those of `columns` that a file has: the name in the table, and the name in the file."""
    by_id = {id_: name for name, id_ in shape.ids.items() if id_ is not None}
    # Ids or names for the whole file, as Iceberg specifies it. A file with ids is never matched by name: after a column
    # was renamed, another column may have its old name.
    if by_id:
        return {name: by_id[id_] for name in columns if (id_ := table.ids.get(name)) in by_id}
    names = {
        name: next((alias for alias in table.names.get(name, (name,)) if alias in shape.ids), None) for name in columns
    }
    return {name: alias for name, alias in names.items() if alias is not None}


def to_envelope_columns(rows: Any, columns: dict[str, str], names: Iterable[str]) -> Any:
    """Returns decoded rows with the envelope's names and types. `columns`: as `match_columns` returns them. Those of
    `names` that the file lacks are absent."""
    return pa.table({name: _convert(rows[columns[name]], TYPES[name]) for name in names if name in columns})


def _convert(column: Any, type_: Any) -> Any:
    """Returns a column with the envelope's type. Raises an Arrow error for values that do not fit it."""
    if column.type == type_:
        return column
    if pa.types.is_timestamp(type_):
        return _convert_timestamps(column, type_)
    if pa.types.is_map(type_):
        return pa.chunked_array([_convert_maps(chunk, type_) for chunk in column.chunks], type_)
    # Arrow has no direct cast for these two; both go over the plain type.
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_string(type_) and pa.types.is_large_binary(column.type):
        column = column.cast(pa.binary())
    return column.cast(type_)


def _convert_timestamps(column: Any, type_: Any) -> Any:
    if pa.types.is_timestamp(column.type) and column.type.tz is None:
        # An engine that wrote no zone means UTC, as Iceberg stores timestamps.
        column = pc.assume_timezone(column, "UTC") if column.type.unit == type_.unit else column
    return column.cast(type_, safe=False)  # unsafe: nanoseconds are truncated instead of refused


def _convert_maps(chunk: Any, type_: Any) -> Any:
    """Returns a map array with the key and item types of `type_`.

    Arrow refuses to cast maps whose field names or nullability differ, so the array is built anew from its parts.
    """
    if chunk.type == type_:
        return chunk
    offsets = chunk.offsets
    # A slice shares the keys and items of its parent array: only those from `low` on belong to it.
    low = offsets[0].as_py() if len(offsets) else 0
    count = (offsets[len(offsets) - 1].as_py() if len(offsets) else 0) - low
    keys = _convert(pa.chunked_array([chunk.keys.slice(low, count)]), type_.key_type).combine_chunks()
    items = _convert(pa.chunked_array([chunk.items.slice(low, count)]), type_.item_type).combine_chunks()
    own_offsets = pc.subtract(offsets, low).cast(pa.int32())
    null_mask = pc.is_null(chunk) if chunk.null_count else None
    return pa.MapArray.from_arrays(own_offsets, keys, items, type_, mask=null_mask)
