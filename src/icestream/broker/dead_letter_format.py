"""Dead letters: messages that failed too often go to another topic, once, with a note of where they came from.

The message is kept as it is; its headers get Danube's notes. burial.py stores it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.broker.dispatch.instruction import DeadLetter
from icestream.broker.storage import ShardStream
from icestream.model import envelope
from icestream.model.block import Numbering, Value, encode_block, iter_blocks
from icestream.rpc.blocks import select_rows
from icestream.wal.tail import SectionRead


class LetterSource(NamedTuple):
    """Where letters come from: what their headers say."""

    topic: str
    subscription: str
    broker: str
    policy: str


class MessageRow(NamedTuple):
    """One message as it is stored."""

    offset: int
    producer_id: int
    values: dict[envelope.EnvelopeColumn, Value]

    @property
    def size(self) -> int:
        """Bytes that its block needs for it, about."""
        return limits.DEAD_LETTER_NOTE_BYTES + sum(map(_size_of, self.values.values()))


def _size_of(value: Value) -> int:
    if isinstance(value, dict):
        return sum(4 * (len(key) + len(text)) + 8 for key, text in value.items())
    return 4 * len(value) if isinstance(value, str) else len(value) if isinstance(value, bytes) else 8


async def read_rows(stream: ShardStream, start: int, end: int) -> list[MessageRow]:
    """The first of the messages [start, end), at least one, not many more bytes than one read has."""
    sections = stream.read_hot(start, limits.READ_BYTES_DEFAULT)
    if not sections:
        found = await stream.read(start, limits.READ_BYTES_DEFAULT)
        if found.gaps:
            raise errors.PositionGone(f"offset {start} of {stream.key} lies in a declared gap")
        sections = found.sections
    rows: list[MessageRow] = []
    size = 0
    for row in (row for section in sections for row in _rows(section, start, min(end, start + _GROUP_ROWS_MAX))):
        size += row.size
        is_next = row.offset == start + len(rows)
        if not is_next or (rows and size > limits.DEAD_LETTER_GROUP_BYTES):
            break
        rows.append(row)
    if not rows:
        raise errors.LogError(f"offset {start} of {stream.key} cannot be read")
    return rows


# Each has a note. Of a batch with a million messages no more than these are looked at.
_GROUP_ROWS_MAX: Final = limits.DEAD_LETTER_GROUP_BYTES // limits.DEAD_LETTER_NOTE_BYTES


def _rows(section: SectionRead, start: int, end: int) -> Iterator[MessageRow]:
    """The messages of the section that lie in [start, end)."""
    offset = max(start, section.base_offset)
    count = min(end, section.base_offset + section.rows) - offset
    if count <= 0:
        return
    for block in iter_blocks(select_rows(section.body, offset - section.base_offset, count)):
        producer_id = block.numbering.producer_id if block.numbering else 0
        columns = {column: block.values(column) for column in block.columns() if column.in_table}
        for row in range(block.rows):
            yield MessageRow(offset + row, producer_id, {column: values[row] for column, values in columns.items()})
        offset += block.rows


def encode_letters(rows: Sequence[MessageRow], source: LetterSource, letter: DeadLetter, numbering: Numbering) -> bytes:
    """One block with these messages: every column, the headers with the note added."""
    columns: dict[envelope.EnvelopeColumn, list[Value]] = {}
    for at, row in enumerate(rows):
        headers = _headers(row, source, letter)
        values = {**row.values, envelope.HEADERS: headers, envelope.SUBSCRIPTION_NAME: source.subscription}
        for column, value in values.items():
            columns.setdefault(column, [None] * len(rows))[at] = value
    return encode_block(len(rows), columns, numbering)


def encode_without_note(row: MessageRow, numbering: Numbering) -> bytes:
    """For a message that is so large that the note does not fit beside it: better without the note than not at all."""
    return encode_block(1, {column: [value] for column, value in row.values.items()}, numbering)


def _headers(row: MessageRow, source: LetterSource, letter: DeadLetter) -> dict[str, str]:
    given = row.values.get(envelope.HEADERS)
    headers = {
        **(given if isinstance(given, dict) else {}),
        "x-original-topic": source.topic,
        "x-original-subscription": source.subscription,
        "x-original-topic-offset": str(row.offset),
        "x-original-producer-id": str(row.values.get(envelope.PRODUCER_ID) or row.producer_id),
        "x-original-broker-addr": source.broker,
        "x-poison-policy": source.policy,
        "x-delivery-attempt": str(letter.attempt),
        "x-failure-reason": letter.reason,
    }
    if len(headers) > limits.HEADERS_MAX:
        raise errors.MessageTooLarge(f"message {row.offset} has {len(headers)} headers with the note")
    return headers
