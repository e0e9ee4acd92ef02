"""The footer of a Parquet file as a tree, for files that are put together from parts of others (copied_chunks.py).

Footers are structs of Thrift's compact protocol. A struct is a dict: field id -> (type, value), in the order of the
ids. Values are int, bool, bytes, a struct, or a list: (type of its elements, elements).

    file              header "PAR1", row groups, footer, its length (4 bytes, little-endian), "PAR1"
    FileMetaData      1 version, 2 schema, 3 num_rows, 4 row_groups, 5 key_value_metadata, 6 created_by, 7 column_orders
    RowGroup          1 columns, 2 total_byte_size, 3 num_rows, 5 file_offset, 6 total_compressed_size, 7 ordinal
    ColumnChunk       2 file_offset, 3 meta_data
    ColumnMetaData    1 type, 2 encodings, 3 path_in_schema, 4 codec, 5 num_values, 6 total_uncompressed_size,
                      7 total_compressed_size, 9 data_page_offset, 11 dictionary_page_offset, 12 statistics
    Statistics        3 null_count, 5 max_value, 6 min_value, 7 is_max_value_exact, 8 is_min_value_exact
    KeyValue          1 key, 2 value

It reads footers that this process has just had written by Arrow: one with another type of field is a mistake of the
program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Struct = dict[int, tuple[int, Any]]
Elements = tuple[int, list[Any]]

MAGIC: Final = b"PAR1"
BOOLEAN: Final = 1  # as an element, and for both of its types as a field
_FALSE: Final = 2
I16: Final = 4
I32: Final = 5
I64: Final = 6
BINARY: Final = 8
LIST: Final = 9
STRUCT: Final = 12
_INTEGERS: Final = (3, I16, I32, I64)


def read_footer(file: bytes | memoryview) -> Struct:
    """Returns the FileMetaData of a file."""
    view = memoryview(file).cast("B")  # a buffer of Arrow has signed bytes
    length = int.from_bytes(view[-8:-4], "little")
    return _CompactReader(view[-8 - length : -8]).struct()


def encode_footer(metadata: Struct) -> bytes:
    """Returns the end of a file: the footer, its length, and the magic bytes."""
    out = bytearray()
    _write_struct(out, metadata)
    return bytes(out + len(out).to_bytes(4, "little") + MAGIC)


def key_values(entries: Mapping[bytes, bytes]) -> Elements:
    return STRUCT, [{1: (BINARY, key), 2: (BINARY, value)} for key, value in entries.items()]


class _CompactReader:
    """Reads values one after another."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._place = 0

    def struct(self) -> Struct:
        fields: Struct = {}
        field_id = 0
        while header := self._byte():
            kind = header & 15
            # The high half is the distance to the last field id, or zero in front of an id of its own.
            field_id = field_id + (header >> 4) if header >> 4 else self._integer()
            fields[field_id] = (BOOLEAN, kind == BOOLEAN) if kind in (BOOLEAN, _FALSE) else (kind, self._value(kind))
        return fields

    def _value(self, kind: int) -> Any:
        if kind in _INTEGERS:
            return self._byte() if kind == 3 else self._integer()
        match kind:
            case 1:
                return self._byte() == BOOLEAN
            case 8:
                length = self._varint()
                self._place += length
                return bytes(self._data[self._place - length : self._place])
            case 9:
                header = self._byte()
                count = header >> 4 if header >> 4 < 15 else self._varint()
                return header & 15, [self._value(header & 15) for _ in range(count)]
            case 12:
                return self.struct()
        raise ValueError(f"a field of type {kind} in a Parquet footer")

    def _byte(self) -> int:
        self._place += 1
        return self._data[self._place - 1]

    def _varint(self) -> int:
        value = shift = 0
        while (octet := self._byte()) > 127:
            value |= (octet & 127) << shift
            shift += 7
        return value | octet << shift

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)


def _write_struct(out: bytearray, fields: Struct) -> None:
    last = 0
    for field_id, (kind, value) in sorted(fields.items()):
        stored = _FALSE if kind == BOOLEAN and not value else kind
        if field_id - last < 16:
            out.append((field_id - last) << 4 | stored)
        else:
            out.append(stored)
            _write_varint(out, field_id << 1)
        last = field_id
        if kind != BOOLEAN:
            _write_value(out, kind, value)
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    match kind:
        case 1:
            out.append(BOOLEAN if value else _FALSE)
        case 3:
            out.append(value)
        case 4 | 5 | 6:
            _write_varint(out, value << 1 ^ value >> 63)
        case 8:
            _write_varint(out, len(value))
            out += value
        case 9:
            _write_list(out, *value)
        case 12:
            _write_struct(out, value)
        case _:
            raise ValueError(f"a field of type {kind} in a Parquet footer")


def _write_list(out: bytearray, kind: int, elements: Sequence[Any]) -> None:
    if len(elements) < 15:
        out.append(len(elements) << 4 | kind)
    else:
        out.append(15 << 4 | kind)
        _write_varint(out, len(elements))
    for element in elements:
        _write_value(out, kind, element)


def _write_varint(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
