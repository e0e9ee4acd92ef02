"""Reads messages that become dead letters, and encodes them: the message as it is, with a note of its origin.

The note consists of Danube's headers. dead_letter_writer.py stores the letters.
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
    """The origin of letters, for their headers."""

    topic: str
    subscription: str
    broker: str
    policy: str


class MessageRow(NamedTuple):
    """One stored message."""

    offset: int
    producer_id: int
    values: dict[envelope.EnvelopeColumn, Value]

    @property
    def size(self) -> int:
        """An estimate of its bytes in a block, with the note."""
        return limits.DEAD_LETTER_NOTE_BYTES + sum(map(_size_of, self.values.values()))


def _size_of(value: Value) -> int:
    """An upper estimate of the bytes of a value: a character takes at most 4 bytes in UTF-8."""
    if isinstance(value, dict):
        return sum(4 * (len(key) + len(text)) + 8 for key, text in value.items())
    return 4 * len(value) if isinstance(value, str) else len(value) if isinstance(value, bytes) else 8


async def read_rows(stream: ShardStream, start: int, end: int) -> list[MessageRow]:
    """The first messages of [start, end): at least one, as many as fit one group.

    Raises PositionGone if `start` lies in a gap, and the errors of reads.
    """
    sections = stream.read_hot(start, limits.READ_BYTES_DEFAULT)
    if not sections:
        read = await stream.read(start, limits.READ_BYTES_DEFAULT)
        if read.gaps:  # gaps come in front of the sections: the offset itself has no message
            raise errors.PositionGone(f"offset {start} of {stream.key} lies in a declared gap")
        sections = read.sections
    rows: list[MessageRow] = []
    size = 0
    for row in (row for section in sections for row in _rows(section, start, min(end, start + _GROUP_ROWS_MAX))):
        size += row.size
        # Sequence numbers of a batch rise by one, and are offsets here: a group ends at a hole.
        is_next = row.offset == start + len(rows)
        if not is_next or (rows and size > limits.DEAD_LETTER_GROUP_BYTES):
            break
        rows.append(row)
    if not rows:
        raise errors.LogError(
            f"offset {start} of {stream.key} cannot be read",
            hint="`icestream wal inspect` shows the offsets and gaps of the shard",
        )
    return rows


# Each message gets a note. Bounds how many messages of a large batch are decoded.
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
    """Encodes messages as one block: all of their columns, with the note added to the headers."""
    columns: dict[envelope.EnvelopeColumn, list[Value]] = {}
    # Column by column, with None where a message lacks the column: messages of one group may have different ones.
    for index, row in enumerate(rows):
        headers = _headers(row, source, letter)
        values = {**row.values, envelope.HEADERS: headers, envelope.SUBSCRIPTION_NAME: source.subscription}
        for column, value in values.items():
            columns.setdefault(column, [None] * len(rows))[index] = value
    return encode_block(len(rows), columns, numbering)


def encode_without_note(row: MessageRow, numbering: Numbering) -> bytes:
    """Encodes a message that is too large for the note: a letter without a note is better than none."""
    return encode_block(1, {column: [value] for column, value in row.values.items()}, numbering)


def _headers(row: MessageRow, source: LetterSource, letter: DeadLetter) -> dict[str, str]:
    """The headers of a letter: those of the message, and the note. Raises MessageTooLarge."""
    own_headers = row.values.get(envelope.HEADERS)
    headers = {
        **(own_headers if isinstance(own_headers, dict) else {}),
        "x-original-topic": source.topic,
        "x-original-subscription": source.subscription,
        "x-original-topic-offset": str(row.offset),
        # The column has it for Danube's producers, the head of the block for native ones.
        "x-original-producer-id": str(row.values.get(envelope.PRODUCER_ID) or row.producer_id),
        "x-original-broker-addr": source.broker,
        "x-poison-policy": source.policy,
        "x-delivery-attempt": str(letter.attempt),
        "x-failure-reason": letter.reason,
    }
    if len(headers) > limits.HEADERS_MAX:
        raise errors.MessageTooLarge(
            f"message {row.offset} has {len(headers)} headers with the note, limit {limits.HEADERS_MAX}"
        )
    return headers
