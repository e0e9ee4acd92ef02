"""Validation of blocks that come from outside, and operations on encoded blocks without decoding them.

    check_block   validates a block; raises for everything that `model/block.py` does not allow, and for a batch that is
                  small only because its columns are CONSTANT: converting it to rows would need the memory of all of
                  them (hazard 9: what is acked can always become a row)
    select_rows   returns a body with a range of rows of a body; whole blocks are copied as they are, others are cut
    pick_rows     returns a body with rows that need not be consecutive
    row_keys      returns for each row the key that decides its order in a key-shared subscription

A body is one or more blocks, one behind the other. A block that is cut keeps its producer, and its first sequence is
increased by the rows left out in front of it, so that every row keeps its sequence number. If rows are not consecutive
their sequence numbers are stored in columns instead, like those of rows from a table.

Each function has a native twin with the same verdict, error text and result (tests compare them); `…_python` is the
oracle, and the fallback without a native build. Refusals are InvalidInput: nothing was changed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import accumulate, pairwise
from operator import or_
from typing import Final

from icestream import errors, limits
from icestream.model import block, envelope
from icestream.model.block import (
    COLUMN,
    CONSTANT,
    FIXED,
    HEAD,
    NOT_NUMBERED,
    NULLS,
    Block,
    BlockHead,
    Numbering,
    decode_block_head,
    iter_blocks,
    new_tuple,
)
from icestream.model.envelope import COLUMN_BY_ID, ColumnKind, EnvelopeColumn
from icestream.runtime.native import native

_WIDTH: Final = {ColumnKind.INT32: 4, ColumnKind.INT64: 8, ColumnKind.TIMESTAMP_US: 8, ColumnKind.BOOLEAN: 1}
_OTHER_COLUMNS: Final = 63
_HINT: Final = "docs/protocol.md describes blocks; docs/log-format.md their columns"


def column_bits(ids: Iterable[int]) -> int:
    """Returns a bit for each id below 63, and bit 63 for all others together."""
    return reduce(or_, (1 << min(column_id, _OTHER_COLUMNS) for column_id in ids), 0)


def check_block(data: bytes) -> tuple[BlockHead, int]:
    """Returns the head of a block and its columns (`column_bits`). A block that passes can be stored, and read without
    further checks. Raises InvalidInput, MessageTooLarge."""
    try:
        rows, producer, epoch, sequence, columns, repeated = _check_block(data)
    except (ValueError, errors.DecodeError) as error:
        raise _invalid(error) from None
    if repeated * rows > limits.BLOCK_UNPACKED_BYTES_MAX:
        raise errors.MessageTooLarge(
            f"{rows} messages repeat {repeated} bytes each",
            hint=f"constant columns of a batch may stand for {limits.BLOCK_UNPACKED_BYTES_MAX} bytes; make it smaller",
        )
    numbering = None if sequence == NOT_NUMBERED else new_tuple(Numbering, (producer, epoch, sequence))
    return new_tuple(BlockHead, (rows, len(data), numbering)), columns


def select_rows(body: bytes, first_row: int, rows: int) -> bytes:
    """Returns a body with the rows [first_row, first_row + rows), at least one. Raises InvalidInput."""
    try:
        return _select_rows(body, first_row, rows)
    except (ValueError, OverflowError, errors.DecodeError) as error:
        raise _invalid(error) from None


def pick_rows(body: bytes, rows: Sequence[int]) -> bytes:
    """Returns a body with these rows, which rise, at least one. Raises InvalidInput."""
    try:
        return _pick_rows(body, rows)
    except (ValueError, OverflowError, errors.DecodeError) as error:
        raise _invalid(error) from None


def row_keys(body: bytes) -> list[bytes]:
    """Returns the key of each row; if it is null the bytes of its producer's name; empty if that is null too. Raises
    InvalidInput."""
    try:
        return _row_keys(body)
    except (ValueError, errors.DecodeError) as error:
        raise _invalid(error) from None


def _invalid(error: ValueError | OverflowError | errors.DecodeError) -> errors.InvalidInput:
    return errors.InvalidInput(f"not a batch of messages: {error}", hint=_HINT)


# --- the oracle -------------------------------------------------------------------------------------------------------


def check_block_python(data: bytes) -> tuple[int, int, int, int, int, int]:
    """Returns rows, producer, epoch, first sequence, `column_bits` of the columns, and bytes that each row repeats."""
    block.check_block(data)
    rows, _, producer, epoch, count, _, sequence = HEAD.unpack_from(data)
    directory = list(COLUMN.iter_unpack(data[HEAD.size : HEAD.size + COLUMN.size * count]))
    repeated = sum(size for _, encoding, _, size in directory if encoding == CONSTANT)
    return rows, producer, epoch, sequence, column_bits(entry[0] for entry in directory), repeated


def select_rows_python(body: bytes, first_row: int, rows: int) -> bytes:
    if first_row < 0 or rows < 1:
        raise errors.DecodeError(f"{rows} rows from row {first_row} on are not a part of a body")
    view, skip, missing = memoryview(body), first_row, rows
    pieces: list[bytes | memoryview] = []
    while missing:
        if not view:
            raise errors.DecodeError(f"the body ends {missing} rows too early")
        head = decode_block_head(view)
        here, view = view[: head.block_bytes], view[head.block_bytes :]
        if skip >= head.rows:
            skip -= head.rows
            continue
        take = min(head.rows - skip, missing)
        pieces.append(here if take == head.rows else _cut(here, skip, take))
        missing -= take
        skip = 0
    return b"".join(pieces)


def _cut(data: memoryview, first: int, count: int) -> bytes:
    """Returns a block with the rows [first, first + count) of a block."""
    Block(data)  # raises DecodeError if head and directory are inconsistent
    rows, _, producer, epoch, column_count, flags, sequence = HEAD.unpack_from(data)
    at = HEAD.size + COLUMN.size * column_count
    directory: list[bytes] = []
    contents: list[bytes] = []
    for id_, encoding, column_flags, size in COLUMN.iter_unpack(data[HEAD.size : at]):
        content = bytes(data[at : at + size])
        if encoding != CONSTANT:
            content = _cut_column(COLUMN_BY_ID[id_], encoding, column_flags, content, rows, first, count)
        directory.append(COLUMN.pack(id_, encoding, column_flags, len(content)))
        contents.append(content + bytes(-len(content) % 8))
        at += size + -size % 8
    if decode_block_head(data).numbering is not None:
        sequence += first
    size = HEAD.size + COLUMN.size * column_count + sum(map(len, contents))
    head = HEAD.pack(count, size, producer, epoch, column_count, flags, sequence)
    return b"".join((head, *directory, *contents))


def _cut_column(
    column: EnvelopeColumn, encoding: int, flags: int, data: bytes, rows: int, first: int, count: int
) -> bytes:
    bitmap = b""
    if flags & NULLS:
        bitmap_bytes = _bitmap_bytes(rows)
        if len(data) < bitmap_bytes:
            raise errors.DecodeError(f"column {column.name}: bitmap cut off")
        bits = int.from_bytes(data[:bitmap_bytes], "little") >> first & (1 << count) - 1
        bitmap, data = bits.to_bytes(_bitmap_bytes(count), "little"), data[bitmap_bytes:]
    if encoding == FIXED:
        width = _WIDTH.get(column.kind)
        if width is None or len(data) != width * rows:
            raise errors.DecodeError(f"column {column.name}: {len(data)} bytes for {rows} fixed values")
        return bitmap + data[width * first : width * (first + count)]
    return bitmap + _cut_variable(column, data, rows, first, count)


def _cut_variable(column: EnvelopeColumn, data: bytes, rows: int, first: int, count: int) -> bytes:
    ends_bytes = 4 * (rows + 1)
    if column.kind in _WIDTH or len(data) < ends_bytes:
        raise errors.DecodeError(f"column {column.name}: ends cut off")
    ends = array("I", data[4 * first : 4 * (first + count + 1)])
    body_bytes = len(data) - ends_bytes
    if ends[-1] > body_bytes or any(before > after for before, after in pairwise(ends)):
        raise errors.DecodeError(f"column {column.name}: ends do not rise to {body_bytes}")
    moved = array("I", (end - ends[0] for end in ends))
    return moved.tobytes() + data[ends_bytes + ends[0] : ends_bytes + ends[-1]]


def pick_rows_python(body: bytes, rows: Sequence[int]) -> bytes:
    if not rows or rows[0] < 0 or any(before >= after for before, after in pairwise(rows)):
        raise errors.DecodeError(f"{len(rows)} rows that do not rise are not a part of a body")
    view, base, remaining = memoryview(body), 0, list(rows)
    pieces: list[bytes | memoryview] = []
    while remaining:
        if not view:
            raise errors.DecodeError(f"the body ends {len(remaining)} rows too early")
        head = decode_block_head(view)
        here, view = view[: head.block_bytes], view[head.block_bytes :]
        count = bisect_left(remaining, base + head.rows)
        picked, remaining = [row - base for row in remaining[:count]], remaining[count:]
        base += head.rows
        if count == head.rows:
            pieces.append(here)
        elif picked and picked[-1] - picked[0] + 1 == count:
            pieces.append(_cut(here, picked[0], count))
        elif picked:
            pieces.append(_gather(here, picked))
    return b"".join(pieces)


def _gather(data: memoryview, picked: list[int]) -> bytes:
    """Returns a block with some rows of a block, which are not consecutive."""
    Block(data)  # raises DecodeError if head and directory are inconsistent
    rows, _, _, _, column_count, flags, _ = HEAD.unpack_from(data)
    at = HEAD.size + COLUMN.size * column_count
    columns: dict[int, tuple[int, int, bytes]] = {}
    for id_, encoding, column_flags, size in COLUMN.iter_unpack(data[HEAD.size : at]):
        content = bytes(data[at : at + size])
        if encoding != CONSTANT:
            content = _gather_column(COLUMN_BY_ID[id_], encoding, column_flags, content, rows, picked)
        columns[id_] = (encoding, column_flags, content)
        at += size + -size % 8
    # The head numbers consecutive rows only: here each row gets its number, and its producer, as a value.
    numbering = decode_block_head(data).numbering
    if numbering is not None:
        columns[envelope.PRODUCER_ID.id] = (CONSTANT, 0, numbering.producer_id.to_bytes(8, "little"))
        numbers = array("q", [numbering.first_sequence + row for row in picked])
        columns[envelope.SEQUENCE.id] = (FIXED, 0, numbers.tobytes())
    directory, contents = b"", b""
    for id_, (encoding, column_flags, content) in sorted(columns.items()):
        directory += COLUMN.pack(id_, encoding, column_flags, len(content))
        contents += content + bytes(-len(content) % 8)
    size = HEAD.size + len(directory) + len(contents)
    return HEAD.pack(len(picked), size, -1, 0, len(columns), flags, NOT_NUMBERED) + directory + contents


def _gather_column(
    column: EnvelopeColumn, encoding: int, flags: int, data: bytes, rows: int, picked: list[int]
) -> bytes:
    bitmap = b""
    if flags & NULLS:
        bitmap_bytes = _bitmap_bytes(rows)
        if len(data) < bitmap_bytes:
            raise errors.DecodeError(f"column {column.name}: bitmap cut off")
        valid, data = int.from_bytes(data[:bitmap_bytes], "little"), data[bitmap_bytes:]
        bits = sum((valid >> row & 1) << number for number, row in enumerate(picked))
        bitmap = bits.to_bytes(_bitmap_bytes(len(picked)), "little")
    if encoding == FIXED:
        width = _WIDTH.get(column.kind)
        if width is None or len(data) != width * rows:
            raise errors.DecodeError(f"column {column.name}: {len(data)} bytes for {rows} fixed values")
        return bitmap + b"".join(data[width * row : width * (row + 1)] for row in picked)
    values = [_cut_variable(column, data, rows, row, 1)[8:] for row in picked]
    ends = array("I", accumulate(map(len, values), initial=0))
    return bitmap + ends.tobytes() + b"".join(values)


def _bitmap_bytes(rows: int) -> int:
    return (rows + 63) // 64 * 8


def row_keys_python(body: bytes) -> list[bytes]:
    row_keys: list[bytes] = []
    for body_block in iter_blocks(body):
        keys = body_block.values(envelope.KEY)
        if None in keys:
            names = body_block.values(envelope.PRODUCER_NAME)
            keys = [_key_or_name(key, name) for key, name in zip(keys, names, strict=True)]
        row_keys += keys  # type: ignore[arg-type]  # a column of bytes without nulls
    return row_keys


def _key_or_name(key: block.Value, name: block.Value) -> block.Value:
    if key is not None:
        return key
    return name.encode() if isinstance(name, str) else b""


_check_block: Final[Callable[[bytes], tuple[int, int, int, int, int, int]]] = (
    native.check_block if native else check_block_python
)
_select_rows: Final[Callable[[bytes, int, int], bytes]] = native.select_rows if native else select_rows_python
# Native builds before PICK frames do not have it.
_pick_rows: Final[Callable[[bytes, Sequence[int]], bytes]] = getattr(native, "pick_rows", pick_rows_python)
_row_keys: Final[Callable[[bytes], list[bytes]]] = native.row_keys if native else row_keys_python
