"""The door: everything that a block from outside must fulfil before it gets offsets (hazard 9).

What passes can always become a row of the topic's table: the block is sound and every value fits its column's type
(`check_block`), it has only columns that a client may set, its numbering is the producer's own, and no message is
larger than its topic allows. A producer numbers all of its batches or none: else a refusal would not hold back those
behind it (hazard 37).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from operator import add, sub
from typing import Final

from icestream import errors
from icestream.broker.topic import Producer
from icestream.model import envelope
from icestream.model.block import COLUMN, CONSTANT, HEAD, NULLS, VARIABLE, Block, BlockHead, Numbering, padded
from icestream.model.envelope import COLUMN_BY_ID
from icestream.rpc.blocks import check_block, column_bits

# The others are set by the broker, or by the front end whose protocol has them.
CLIENT_COLUMNS: Final = frozenset(
    column.id
    for column in (
        envelope.PUBLISH_TIME, envelope.KEY, envelope.PAYLOAD, envelope.HEADERS, envelope.PRODUCER_NAME,
        envelope.REQUEST_ID, envelope.TOPIC_NAME, envelope.SCHEMA_ID, envelope.SCHEMA_VERSION, envelope.WIRE,
        envelope.QOS, envelope.RETAIN, envelope.CONTENT_TYPE,
    )
)  # fmt: skip
# What makes a message large. The names of topic and producer stand beside every message; nobody sent them.
_SENT: Final = frozenset(
    column.id for column in (envelope.KEY, envelope.PAYLOAD, envelope.HEADERS, envelope.WIRE, envelope.CONTENT_TYPE)
)
_FORBIDDEN_BITS: Final = column_bits(COLUMN_BY_ID.keys() - CLIENT_COLUMNS)
assert not _FORBIDDEN_BITS & column_bits(CLIENT_COLUMNS)


def validate_block(block: bytes, producer: Producer, message_bytes_max: int | None) -> BlockHead:
    """What the block is. Raises InvalidInput."""
    head, columns = check_block(block)
    _check_numbering(head.numbering, producer)
    if columns & _FORBIDDEN_BITS & ~producer.columns:
        raise _not_a_clients(block, producer)
    if message_bytes_max and len(block) > message_bytes_max:
        largest = largest_row(block, message_bytes_max)
        if largest is not None:
            raise errors.MessageTooLarge(
                f"a message of {largest} bytes" if head.rows == 1 else f"a batch with a message of {largest} bytes",
                hint=f"topic {producer.topic.name} allows {message_bytes_max} bytes each",
            )
    if producer.is_numbered is None:  # by its first batch that passes
        producer.is_numbered = head.numbering is not None
    return head


def _not_a_clients(block: bytes, producer: Producer) -> errors.InvalidInput:
    forbidden = _FORBIDDEN_BITS & ~producer.columns
    found = [column.name for column in Block(block).columns() if column_bits([column.id]) & forbidden]
    return errors.InvalidInput(f"column {found[0]} is not a client's to set", hint="leave it out")


def _check_numbering(numbering: Numbering | None, producer: Producer) -> None:
    if producer.is_numbered is not None and producer.is_numbered is not (numbering is not None):
        raise errors.InvalidInput(
            f"producer {producer.name} sent batches with and without numbers", hint="number all of them, or none"
        )
    if numbering is not None and (numbering[0] != producer.id or numbering[1] != producer.epoch):
        raise errors.InvalidInput(
            f"a batch of producer {numbering.producer_id} epoch {numbering.producer_epoch} came from producer "
            f"{producer.id} epoch {producer.epoch}",
            hint="number batches with what open_producer returned",
        )


def largest_row(block: bytes, bytes_max: int) -> int | None:
    """The bytes of the largest message, when that is above `bytes_max`: what its key, payload, headers and wire take.

    A block that was checked. Nothing is done for each message unless the longest values of all columns together are
    too large.
    """
    repeated, lengths = 0, []
    for encoding, size_or_lengths in _sizes(block):
        if encoding == CONSTANT:
            repeated += sum(size_or_lengths)
        else:
            lengths.append(list(size_or_lengths))
    if repeated + sum(map(max, lengths)) <= bytes_max:
        return None
    summed: Iterable[int] = lengths.pop() if lengths else [0]
    for more in lengths:
        summed = map(add, summed, more)
    found = repeated + max(summed)
    return found if found > bytes_max else None


def _sizes(block: bytes) -> Iterator[tuple[int, Iterable[int]]]:
    """Of each column that counts the length of its value, or of every row's."""
    rows, _, _, _, columns, _, _ = HEAD.unpack_from(block)
    at = HEAD.size + COLUMN.size * columns
    for column, encoding, flags, size in COLUMN.iter_unpack(block[HEAD.size : at]):
        if column not in _SENT:
            pass
        elif encoding == CONSTANT:
            yield encoding, (size,)
        elif encoding == VARIABLE:
            start = at + (padded((rows + 7) // 8) if flags & NULLS else 0)
            ends = array("I", block[start : start + 4 * (rows + 1)])
            yield encoding, map(sub, ends[1:], ends)
        at += padded(size)
