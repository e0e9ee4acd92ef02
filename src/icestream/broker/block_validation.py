"""Validates blocks from clients before they get offsets (hazard 9).

A valid block can always become rows of the topic's table: it is well-formed and every value fits its column's type
(`check_block`), it has only columns that a client may set, its numbering is that of the producer, and no message is
larger than its topic allows. A producer numbers all of its batches or none: otherwise a refusal would not hold back the
batches behind it (hazard 37).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from operator import add, sub
from typing import Final

from icestream import errors
from icestream.broker.broker_topic import BrokerProducer
from icestream.model import envelope
from icestream.model.block import COLUMN, CONSTANT, HEAD, NULLS, VARIABLE, Block, BlockHead, Numbering, padded
from icestream.model.envelope import COLUMN_BY_ID
from icestream.model.topic_name import TopicName
from icestream.rpc.blocks import check_block, column_bits

# The other columns are set by the broker, or by the front end whose protocol has them.
CLIENT_COLUMNS: Final = frozenset(
    column.id
    for column in (
        envelope.PUBLISH_TIME, envelope.KEY, envelope.PAYLOAD, envelope.HEADERS, envelope.PRODUCER_NAME,
        envelope.REQUEST_ID, envelope.TOPIC_NAME, envelope.SCHEMA_ID, envelope.SCHEMA_VERSION, envelope.WIRE,
        envelope.QOS, envelope.RETAIN, envelope.CONTENT_TYPE,
    )
)  # fmt: skip
# The columns that count for the size of a message. The names of topic and producer are added by the broker.
_SIZED_COLUMNS: Final = frozenset(
    column.id for column in (envelope.KEY, envelope.PAYLOAD, envelope.HEADERS, envelope.WIRE, envelope.CONTENT_TYPE)
)
_FORBIDDEN_BITS: Final = column_bits(COLUMN_BY_ID.keys() - CLIENT_COLUMNS)
assert not _FORBIDDEN_BITS & column_bits(CLIENT_COLUMNS)


def validate_block(block: bytes, producer: BrokerProducer, message_bytes_max: int | None) -> BlockHead:
    """Returns the head of a valid block. Raises InvalidInput or MessageTooLarge."""
    head, columns = check_block(block)
    _check_numbering(head.numbering, producer)
    if columns & forbidden_columns(producer):
        raise _forbidden_column(block, producer)
    # A block that is not larger than the bound cannot hold a larger message: most blocks need no further look.
    if message_bytes_max and len(block) > message_bytes_max:
        check_message_sizes(block, producer.topic.name, message_bytes_max)
    if producer.is_numbered is None:  # decided by its first valid batch
        producer.is_numbered = head.numbering is not None
    return head


def forbidden_columns(producer: BrokerProducer) -> int:
    """The bits (`column_bits`) of the columns that blocks of this producer must not have."""
    return _FORBIDDEN_BITS & ~producer.columns


def _forbidden_column(block: bytes, producer: BrokerProducer) -> errors.InvalidInput:
    """The error that names the first column which the producer may not set."""
    forbidden = forbidden_columns(producer)
    names = [column.name for column in Block(block).columns() if column_bits([column.id]) & forbidden]
    return errors.InvalidInput(f"clients may not set the column {names[0]}", hint="leave it out")


def _check_numbering(numbering: Numbering | None, producer: BrokerProducer) -> None:
    """Raises InvalidInput if the numbering is not the producer's own.

    The log deduplicates by the numbers in the block: a foreign id or epoch would suppress another producer's batches.
    """
    if producer.is_numbered is not None and producer.is_numbered is not (numbering is not None):
        raise errors.InvalidInput(
            f"producer {producer.name} sent batches with and without sequence numbers",
            hint="number all of them, or none",
        )
    if numbering is not None and (numbering[0] != producer.id or numbering[1] != producer.epoch):
        raise errors.InvalidInput(
            f"batch is numbered by producer {numbering.producer_id} epoch {numbering.producer_epoch}, but was sent by "
            f"producer {producer.id} epoch {producer.epoch}",
            hint="number batches with the id and epoch that open_producer returned",
        )


def check_message_sizes(block: bytes, topic: TopicName, bytes_max: int) -> None:
    """Raises MessageTooLarge if a message of a valid block is larger than the topic allows."""
    largest = largest_row(block, bytes_max)
    if largest is not None:
        raise errors.MessageTooLarge(
            f"message of {largest} bytes exceeds the limit of topic {topic}: {bytes_max} bytes",
            hint="send smaller messages, or raise the policy max_message_bytes",
        )


def largest_row(block: bytes, bytes_max: int) -> int | None:
    """The size of the largest message of a valid block if it exceeds `bytes_max`, else None.

    The size of a message is that of its key, payload, headers, wire and content type. Nothing is computed per message
    unless the longest values of all columns together are too large.
    """
    constant_bytes, lengths = 0, []
    for encoding, sizes in _column_sizes(block):
        if encoding == CONSTANT:
            constant_bytes += sum(sizes)
        else:
            lengths.append(list(sizes))
    if constant_bytes + sum(map(max, lengths)) <= bytes_max:
        return None
    row_sizes: Iterable[int] = lengths.pop() if lengths else [0]
    for column_lengths in lengths:
        row_sizes = map(add, row_sizes, column_lengths)
    largest = constant_bytes + max(row_sizes)
    return largest if largest > bytes_max else None


def _column_sizes(block: bytes) -> Iterator[tuple[int, Iterable[int]]]:
    """(encoding, sizes) of each column that counts: the size of its constant value, or of the value of each row."""
    rows, _, _, _, columns, _, _ = HEAD.unpack_from(block)
    position = HEAD.size + COLUMN.size * columns
    for column, encoding, flags, size in COLUMN.iter_unpack(block[HEAD.size : position]):
        if column not in _SIZED_COLUMNS:
            pass
        elif encoding == CONSTANT:
            yield encoding, (size,)
        elif encoding == VARIABLE:
            start = position + (padded((rows + 7) // 8) if flags & NULLS else 0)
            ends = array("I", block[start : start + 4 * (rows + 1)])
            yield encoding, map(sub, ends[1:], ends)
        position += padded(size)
