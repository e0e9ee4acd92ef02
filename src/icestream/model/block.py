"""A block: the messages of one batch of a producer, as columns. Front ends build it; log and tail store it unchanged.

The body of a MESSAGES section is a sequence of blocks; the messages of the section are their rows, in order.

    0   u32  rows
    4   u32  block_bytes: everything, padding included; a multiple of 8
    8   i64  producer_id, -1 when the batch is not numbered
    16  i32  producer_epoch
    20  u16  column_count
    22  u16  flags, 0
    24  i64  first_sequence: row i of a numbered batch has sequence first_sequence + i; -1 when not numbered
    32  column directory: column_count entries of 8 bytes, rising by id
             u16 column id (envelope.py) | u8 encoding | u8 flags: bit 0 NULLS | u32 bytes of its data, without padding
    ..  column data, in directory order, each starting at a multiple of 8

Encodings, for a column of `rows` values:
    1 CONSTANT   one value that every row has
    2 FIXED      rows values of 4 (INT32), 8 (INT64, TIMESTAMP_US) or 1 (BOOLEAN) bytes
    3 VARIABLE   u32 ends[rows + 1], the first 0, then the bytes: value i is bytes [ends[i], ends[i + 1])
With NULLS (not for CONSTANT) the data starts with a bitmap of rows bits, lowest bit first, padded to 8 bytes: a clear
bit is a null, whose value is 0 or empty. A column that is not in the directory is null in every row.

Headers: u16 count, then for each u16 key bytes, key, u32 value bytes, value; UTF-8, keys rising and distinct.

`check_block` validates hostile input: a block that passes can be read without further checks, and every value fits the
type of its column (hazard 9: what is acked can always become a row).
"""

from __future__ import annotations

import reprlib
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Final, NamedTuple, cast

from icestream import errors, limits
from icestream.model.envelope import COLUMN_BY_ID, ColumnKind, EnvelopeColumn

Value = int | bool | bytes | str | dict[str, str] | None

HEAD: Final = struct.Struct("<IIqiHHq")
COLUMN: Final = struct.Struct("<HBBI")
CONSTANT, FIXED, VARIABLE = 1, 2, 3
NULLS: Final = 1
NOT_NUMBERED: Final = -1
assert HEAD.size == 32

_WIDTH: Final = {ColumnKind.INT32: 4, ColumnKind.INT64: 8, ColumnKind.TIMESTAMP_US: 8, ColumnKind.BOOLEAN: 1}
_TYPECODE: Final = {4: "i", 8: "q", 1: "B"}
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")


def padded(size: int) -> int:
    """Returns the next multiple of 8. Column data is aligned so that readers can view it as an array of integers."""
    return (size + 7) & ~7


class ConstantColumn(NamedTuple):
    """A column in which every row has this value."""

    value: Value


class EncodedColumn(NamedTuple):
    """A column without nulls whose data is already in the form of the block, such as a batch of equal gRPC requests."""

    encoding: int  # FIXED or VARIABLE
    data: bytes


Values = Sequence[Value] | ConstantColumn | EncodedColumn


class Numbering(NamedTuple):
    """Producer, epoch and first sequence of a numbered batch, by which duplicates are recognised (hazard 7)."""

    producer_id: int
    producer_epoch: int
    first_sequence: int


_BINARY: Final = ColumnKind.BINARY
_unpack_head: Final = HEAD.unpack_from
# Creates a NamedTuple without its Python-level __new__, which costs more than the rest of decoding a head: this runs
# for every batch.
new_tuple: Final = tuple.__new__
_NO_NUMBERING: Final = Numbering(NOT_NUMBERED, 0, NOT_NUMBERED)
_ONLY_BYTES: Final = {bytes}
_ZEROS: Final = bytes(8)
_column_id = attrgetter("id")


def encode_block(rows: int, columns: Mapping[EnvelopeColumn, Values], numbering: Numbering | None = None) -> bytes:
    """Returns the block of a batch of `rows` messages. Raises InvalidInput for values that do not fit their column."""
    if not 0 < rows <= limits.BLOCK_ROWS_MAX:
        raise errors.InvalidInput(
            f"batch of {rows} messages", hint=f"a batch has 1 to {limits.BLOCK_ROWS_MAX} messages"
        )
    if numbering is not None and not _fits(numbering, rows):
        raise errors.InvalidInput(
            f"{numbering} is out of range for a batch of {rows} messages",
            hint="ids and sequences are signed 64-bit numbers",
        )
    if rows == 1 and not any(isinstance(values, EncodedColumn) for values in columns.values()):
        return _encode_message(columns, numbering or _NO_NUMBERING)
    directory: list[bytes] = []
    data: list[bytes] = []
    for column in columns if len(columns) == 1 else sorted(columns, key=_column_id):
        encoding, flags, content = _encode_column(column, columns[column], rows)
        if encoding:
            directory.append(COLUMN.pack(column.id, encoding, flags, len(content)))
            data.append(content)
            if padding := -len(content) % 8:
                data.append(_ZEROS[:padding])
    size = HEAD.size + COLUMN.size * len(directory) + sum(map(len, data))
    producer_id, epoch, first_sequence = numbering or _NO_NUMBERING
    head = HEAD.pack(rows, size, producer_id, epoch, len(directory), 0, first_sequence)
    return b"".join((head, *directory, *data))


def _encode_message(columns: Mapping[EnvelopeColumn, Values], numbering: Numbering) -> bytes:
    """Returns the block of one message, which is the common batch of some front ends: every column is a constant."""
    count = 0
    directory = data = b""
    for column in columns if len(columns) == 1 else sorted(columns, key=_column_id):
        values = columns[column]
        if type(values) is not ConstantColumn and len(values) != 1:
            raise errors.InvalidInput(f"column {column.name} has {len(values)} values for 1 message")
        value = values[0]  # also of a ConstantColumn, which is a tuple of one value
        if value is None:
            continue
        content = value if type(value) is bytes and column.kind is _BINARY else _encode_value(column, value)
        count += 1
        directory += COLUMN.pack(column.id, CONSTANT, 0, len(content))
        data += content + _ZEROS[: -len(content) % 8]
    size = HEAD.size + len(directory) + len(data)
    head = HEAD.pack(1, size, numbering.producer_id, numbering.producer_epoch, count, 0, numbering.first_sequence)

    return head + directory + data


def _fits(numbering: Numbering, rows: int) -> bool:
    return (
        0 <= numbering.producer_id < 2**63
        and 0 <= numbering.producer_epoch < 2**31
        and 0 <= numbering.first_sequence <= 2**63 - 1 - rows
    )


def _encode_column(column: EnvelopeColumn, values: Values, rows: int) -> tuple[int, int, bytes]:
    """Returns encoding, flags and data of a column; encoding 0: null in every row, to be left out of the block."""
    if isinstance(values, ConstantColumn):
        return (0, 0, b"") if values.value is None else (CONSTANT, 0, _encode_value(column, values.value))
    if isinstance(values, EncodedColumn):
        return values.encoding, 0, values.data
    if len(values) != rows:
        raise errors.InvalidInput(f"column {column.name} has {len(values)} values for {rows} messages")
    if column.kind is ColumnKind.BINARY and set(map(type, values)) == _ONLY_BYTES:
        return VARIABLE, 0, _encode_bytes(cast("Sequence[bytes]", values))
    missing = any(value is None for value in values)
    if missing and all(value is None for value in values):
        return 0, 0, b""
    bitmap = _bitmap(values) if missing else b""
    encoded = [b"" if value is None else _encode_value(column, value) for value in values]
    if width := _WIDTH.get(column.kind):
        content = b"".join(value or bytes(width) for value in encoded)
        return FIXED, int(missing), bitmap + content
    ends = array("I", [0])
    end = 0
    for value in encoded:
        end += len(value)
        ends.append(end)
    return VARIABLE, int(missing), b"".join((bitmap, ends.tobytes(), *encoded))


def _encode_bytes(values: Sequence[bytes]) -> bytes:
    """Encodes keys and payloads without nulls, the common case, without Python code for each value."""
    return b"".join((array("I", accumulate(map(len, values), initial=0)).tobytes(), *values))


def _bitmap(values: Sequence[Value]) -> bytes:
    bits = bytearray(padded((len(values) + 7) // 8))
    for row, value in enumerate(values):
        if value is not None:
            bits[row >> 3] |= 1 << (row & 7)
    return bytes(bits)


def _encode_value(column: EnvelopeColumn, value: Value) -> bytes:
    try:
        match column.kind, value:
            case ColumnKind.BOOLEAN, bool():
                return b"\x01" if value else b"\x00"
            case ColumnKind.INT32, int():
                return struct.pack("<i", value)
            case ((ColumnKind.INT64 | ColumnKind.TIMESTAMP_US), int()):
                return struct.pack("<q", value)
            case ColumnKind.BINARY, bytes():
                return value
            case ColumnKind.STRING, str():
                return value.encode()
            case ColumnKind.HEADERS, dict():
                return _encode_headers(value)
    except (struct.error, UnicodeEncodeError, TypeError):
        value_text = reprlib.repr(value)
        raise errors.InvalidInput(f"column {column.name}: {value_text} does not fit {column.kind.name}") from None
    raise errors.InvalidInput(f"column {column.name}: {type(value).__name__} is not {column.kind.name}")


def _encode_headers(headers: Mapping[str, str]) -> bytes:
    pairs = sorted((str.encode(key), str.encode(value)) for key, value in headers.items())
    parts = [_U16.pack(len(pairs))]
    for key, value in pairs:
        parts += (_U16.pack(len(key)), key, _U32.pack(len(value)), value)
    return b"".join(parts)


class BlockHead(NamedTuple):
    rows: int
    block_bytes: int
    numbering: Numbering | None


def decode_block_head(data: bytes | memoryview) -> BlockHead:
    """Decodes the first 32 bytes of a block; does not check its columns. Raises DecodeError."""
    try:
        rows, size, producer, epoch, _, flags, sequence = _unpack_head(data)
    except struct.error:
        raise errors.DecodeError("block header cut off") from None
    if not 0 < rows <= limits.BLOCK_ROWS_MAX or not HEAD.size <= size <= len(data) or size % 8 or flags:
        raise errors.DecodeError("block header does not add up")
    if producer == sequence == NOT_NUMBERED:
        return new_tuple(BlockHead, (rows, size, None))
    if producer < 0 or epoch < 0 or sequence < 0 or sequence > 2**63 - 1 - rows:
        raise errors.DecodeError("block numbering does not add up")
    return new_tuple(BlockHead, (rows, size, new_tuple(Numbering, (producer, epoch, sequence))))


class _ColumnEntry(NamedTuple):
    """Where the data of a column lies in the block."""

    encoding: int
    flags: int
    start: int
    size: int


class Block:
    """A view of one block whose header and directory are checked. Columns are decoded on request; no object is created
    for a message."""

    __slots__ = ("_columns", "_data", "block_bytes", "numbering", "rows")

    def __init__(self, data: bytes | memoryview) -> None:
        self.rows, self.block_bytes, self.numbering = decode_block_head(data)
        count = HEAD.unpack_from(data)[4]
        self._data = memoryview(data)[: self.block_bytes]
        self._columns = self._directory(count)

    def _directory(self, count: int) -> dict[int, _ColumnEntry]:
        at = HEAD.size + COLUMN.size * count
        if at > self.block_bytes:
            raise errors.DecodeError("column directory cut off")
        entries: dict[int, _ColumnEntry] = {}
        last = 0
        for number in range(count):
            id_, encoding, flags, size = COLUMN.unpack_from(self._data, HEAD.size + COLUMN.size * number)
            is_known = id_ in COLUMN_BY_ID and encoding in (CONSTANT, FIXED, VARIABLE)
            if id_ <= last or not is_known or flags > (0 if encoding == CONSTANT else NULLS):
                raise errors.DecodeError(f"column entry {id_} does not add up")
            if at + size > self.block_bytes:
                raise errors.DecodeError(f"column {id_} cut off")
            last = id_
            entries[id_] = _ColumnEntry(encoding, flags, at, size)
            at += padded(size)
        if at != self.block_bytes:
            raise errors.DecodeError("columns do not fill the block")
        return entries

    def columns(self) -> list[EnvelopeColumn]:
        return [COLUMN_BY_ID[id_] for id_ in self._columns]

    def stored(self, column: EnvelopeColumn) -> tuple[int, int, memoryview] | None:
        """Returns encoding, flags and data of a column as stored, without checking its values; None if it is absent."""
        entry = self._columns.get(column.id)
        if entry is None:
            return None
        return entry.encoding, entry.flags, self._data[entry.start : entry.start + entry.size]

    def values(self, column: EnvelopeColumn) -> list[Value]:
        """Returns the value of every row. Raises DecodeError for values that do not fit the column."""
        entry = self._columns.get(column.id)
        if entry is None:
            return [None] * self.rows
        data = self._data[entry.start : entry.start + entry.size]
        if entry.encoding == CONSTANT:
            return [_decode_value(column, data)] * self.rows
        valid: memoryview | None = None
        if entry.flags & NULLS:
            head = padded((self.rows + 7) // 8)
            valid, data = data[:head], data[head:]
            if len(valid) < head:
                raise errors.DecodeError(f"column {column.name}: bitmap cut off")
        parts = self._fixed(column, data) if entry.encoding == FIXED else self._variable(column, data, valid)
        if valid is None:
            return list(parts)
        return [part if valid[row >> 3] >> (row & 7) & 1 else None for row, part in enumerate(parts)]

    def _fixed(self, column: EnvelopeColumn, data: memoryview) -> Sequence[Value]:
        width = _WIDTH.get(column.kind)
        if width is None or len(data) != width * self.rows:
            raise errors.DecodeError(f"column {column.name}: {len(data)} bytes for {self.rows} fixed values")
        numbers = array(_TYPECODE[width], bytes(data))
        if column.kind is not ColumnKind.BOOLEAN:
            return numbers
        if any(number > 1 for number in numbers):
            raise errors.DecodeError(f"column {column.name}: not a boolean")
        return [bool(number) for number in numbers]

    def _variable(self, column: EnvelopeColumn, data: memoryview, valid: memoryview | None) -> Iterator[Value]:
        head = 4 * (self.rows + 1)
        if column.kind in _WIDTH or len(data) < head:
            raise errors.DecodeError(f"column {column.name}: ends cut off")
        ends = array("I", bytes(data[:head]))
        body = data[head:]
        if ends[0] or ends[-1] != len(body) or any(start > end for start, end in pairwise(ends)):
            raise errors.DecodeError(f"column {column.name}: ends do not rise to {len(body)}")
        return (
            None
            if valid is not None and not valid[row >> 3] >> (row & 7) & 1
            else _decode_value(column, body[start:end])
            for row, (start, end) in enumerate(pairwise(ends))
        )


def _decode_value(column: EnvelopeColumn, data: memoryview) -> Value:
    width = _WIDTH.get(column.kind)
    if width is not None and len(data) != width:
        raise errors.DecodeError(f"column {column.name}: {len(data)} bytes for a value of {width}")
    if column.kind is ColumnKind.BOOLEAN:
        if data[0] > 1:
            raise errors.DecodeError(f"column {column.name}: not a boolean")
        return bool(data[0])
    if width is not None:
        return int.from_bytes(data, "little", signed=True)
    if column.kind is ColumnKind.BINARY:
        return bytes(data)
    if column.kind is ColumnKind.STRING:
        return _text(column, bytes(data))
    return _decode_headers(column, bytes(data))


def _text(column: EnvelopeColumn, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise errors.DecodeError(f"column {column.name}: not UTF-8") from None


def _decode_headers(column: EnvelopeColumn, data: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    try:
        (count,) = _U16.unpack_from(data)
        at, last = 2, b""
        for number in range(count):
            (size,) = _U16.unpack_from(data, at)
            key = data[at + 2 : at + 2 + size]
            at += 2 + size
            (length,) = _U32.unpack_from(data, at)
            value = data[at + 4 : at + 4 + length]
            at += 4 + length
            if number and key <= last:
                raise errors.DecodeError(f"column {column.name}: keys do not rise")
            last = key
            headers[_text(column, key)] = _text(column, value)
    except struct.error:
        raise errors.DecodeError(f"column {column.name}: headers cut off") from None
    if at != len(data):
        raise errors.DecodeError(f"column {column.name}: headers do not end where they should")
    return headers


def check_block(data: bytes) -> Block:
    """Validates a block from outside: structure, types and every value. Raises DecodeError.

    The reference for the native twin (rpc/blocks.py), which checks the same rules without decoding values.
    """
    block = Block(data)
    if block.block_bytes != len(data):
        raise errors.DecodeError(f"block header declares {block.block_bytes} bytes, received {len(data)}")
    for column in block.columns():
        block.values(column)
    return block


def iter_block_heads(body: bytes | memoryview) -> Iterator[BlockHead]:
    """Yields the heads of the blocks in a MESSAGES section body, all that recovery needs. Raises DecodeError."""
    view = memoryview(body)
    while view:
        head = decode_block_head(view)
        yield head
        view = view[head.block_bytes :]


def iter_blocks(body: bytes | memoryview) -> Iterator[Block]:
    """Yields the blocks in a MESSAGES section body. Raises DecodeError."""
    view = memoryview(body)
    while view:
        block = Block(view)
        yield block
        view = view[block.block_bytes :]
