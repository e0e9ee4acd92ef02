"""The columns of a file as the columns of the envelope, whichever engine wrote the file.

which     by Iceberg's field ids; in files without ids by name, also by those of the table's name mapping
types     those of the envelope: large, dictionary-encoded, narrower or unzoned columns are converted. A timestamp
          of nanoseconds loses what is below a microsecond
absent    a column that the file does not have is absent from the rows; rows of several files are put together with
          nulls there. Without `shard` or `offset` a row has no place, so it is none: such a file has no rows
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from icestream.readers.data_files import TableColumns
from icestream.readers.file_format import FileShape
from icestream.readers.sections import OFFSET, SHARD, TYPES

PLACE = (SHARD, OFFSET)


def columns_in(shape: FileShape, table: TableColumns) -> dict[str, str]:
    """Of the envelope's columns that a file has: the name in the envelope, and the name in the file."""
    by_id = {id_: name for name, id_ in shape.ids.items() if id_ is not None}
    if by_id:
        return {name: by_id[id_] for name in TYPES if (id_ := table.ids.get(name)) in by_id}
    names = {
        name: next((alias for alias in table.names.get(name, (name,)) if alias in shape.ids), None) for name in TYPES
    }
    return {name: alias for name, alias in names.items() if alias is not None}


def conformed(rows: Any, columns: dict[str, str], names: Iterable[str]) -> Any:
    """Decoded rows with the envelope's names and types."""
    return pa.table({name: _converted(rows[columns[name]], TYPES[name]) for name in names if name in columns})


def _converted(column: Any, kind: Any) -> Any:
    if column.type == kind:
        return column
    if pa.types.is_timestamp(kind):
        return _timestamps(column, kind)
    if pa.types.is_map(kind):
        return pa.chunked_array([_maps(chunk, kind) for chunk in column.chunks], kind)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_string(kind) and pa.types.is_large_binary(column.type):
        column = column.cast(pa.binary())
    return column.cast(kind)


def _timestamps(column: Any, kind: Any) -> Any:
    if pa.types.is_timestamp(column.type) and column.type.tz is None:
        column = pc.assume_timezone(column, "UTC") if column.type.unit == kind.unit else column
    return column.cast(kind, safe=False)


def _maps(chunk: Any, kind: Any) -> Any:
    """Arrow converts maps only as a whole, with the names and nullability of their fields: they are made anew."""
    if chunk.type == kind:
        return chunk
    offsets = chunk.offsets
    low = offsets[0].as_py() if len(offsets) else 0
    count = (offsets[len(offsets) - 1].as_py() if len(offsets) else 0) - low
    keys = _converted(pa.chunked_array([chunk.keys.slice(low, count)]), kind.key_type).combine_chunks()
    items = _converted(pa.chunked_array([chunk.items.slice(low, count)]), kind.item_type).combine_chunks()
    places = pc.subtract(offsets, low).cast(pa.int32())
    mask = pc.is_null(chunk) if chunk.null_count else None
    return pa.MapArray.from_arrays(places, keys, items, kind, mask=mask)
