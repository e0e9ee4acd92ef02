"""The wire format of the native protocol. This docstring is the contract; docs/protocol.md explains it.

All integers are little-endian. A connection is a stream of frames, in both directions, on TCP or on a local socket.

A FRAME
    0   u32  size: bytes behind this field, 12 to the bound that the other side announced in the handshake
    4   u8   kind (FrameKind)
    5   u8   flags: bit 0 COMPRESSED, the body is one zstd frame (only if the handshake agreed on it)
    6   u16  zero
    8   u64  number: chosen by the requesting side, repeated in the answer
    16  body

THE HANDSHAKE       The client sends first, and then waits. Anything else, no common version, or an unacceptable bound
                    is answered with ERROR, and the connection is closed.
    HELLO    ->     body: MAGIC (8 bytes), then a document {version, version_min, client, frame_bytes_max, compression,
                    credential}
    WELCOME  <-     a document {version, node, frame_bytes_max, compression, time_us}
A document is msgpack: a map with text keys. Unknown keys are ignored: later versions may add some.

CALLS               one answer each, in any order; the number tells which
    CALL     ->     a document {method, arguments}
    RESULT   <-     a document: the result of the method
    ERROR    <-     a document {code, message, hint, retryable}; `code` as in errors.py
    PING     ->     PONG <- with the same number and body

PUBLISHING          Frames of a connection have rising numbers. They are answered in this order, each once.
    PUBLISH    ->   parts, one behind the other, each at a multiple of 8:
                        u32 producer (the handle that `open_producer` gave) | u32 shard | u32 block bytes | u32 zero |
                        block (model/block.py), padded to 8
    PUBLISHED  <-   number: of the frame it answers. For each of its parts:
                        u16 outcome (Outcome) | u16 text bytes | u32 zero | i64 base offset, -1 for none | text,
                        padded to 8
                    Any outcome but STORED and the duplicates is a refusal: nothing of the part was stored, and later
                    parts of that producer and shard are refused with AFTER_REFUSED until the producer is opened again
                    or the shard is reset (hazard 37). The text is a document as in ERROR.

CONSUMING           A consumer gets as many messages as it gave credit for. Acks have no answer; a PING behind them is
                    answered when they are applied.
    CREDIT     ->   u32 consumer (the handle that `subscribe` gave) | u32 messages: additional credit
    DELIVER    <-   u32 consumer | u32 shard | u32 generation | u32 attempt | i64 base offset | i64 append time (us) |
                    u32 first row | u32 rows | blocks (model/block.py), one behind the other
                    The blocks hold rows from `base offset` on; the rows [first row, first row + rows) are delivered.
                    `attempt`: how many earlier deliveries of them failed
    PICK       <-   u32 consumer | u32 shard | u32 generation | u32 attempt | i64 base offset | i64 append time (us) |
                    u32 ranges | u32 rows | (u32 start | u32 count) … | blocks, one behind the other
                    Messages with holes between their offsets, only to a consumer that subscribed with `picks`. Each
                    range is `count` messages from offset `base offset + start` on; ranges rise and do not touch, and
                    the blocks hold exactly their rows, in this order
    ACK        ->   u32 consumer | u32 shard | u32 generation | u32 flags: bit 0 CUMULATIVE | (i64 start | i64 end) …
                    CUMULATIVE: one range, and everything below its end that was delivered
    NACK       ->   u32 consumer | u32 shard | u32 generation | u32 delay ms | (i64 start | i64 end) …
    GAP        <-   u32 consumer | u32 shard | u32 generation | u32 state (GapState) | i64 start | i64 end | reason text
                    offsets without a message: they count as acked
    EVENT      <-   number: of the consumer or watch. A document {event, …}: what happened to it

VALIDATION          Sizes, counts and ranges fit, fields named zero are zero, flags, kinds and outcomes are known, text
                    is UTF-8, offsets are 0 to OFFSET_MAX. Padding is not checked. Anything else is a DecodeError:
                    nothing of the frame is applied, and the connection ends. Handles, shards and blocks are validated
                    behind the codec.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable
from enum import IntEnum
from itertools import pairwise
from typing import Final, NamedTuple

from icestream import errors, limits

MAGIC: Final = b"ICESTRM1"
VERSION: Final = 1
VERSION_MIN: Final = 1
COMPRESSED: Final = 1
CUMULATIVE: Final = 1

HEAD: Final = struct.Struct("<IBBHQ")
PART: Final = struct.Struct("<IIII")
PART_RESULT: Final = struct.Struct("<HHIq")
CREDIT: Final = struct.Struct("<II")
DELIVER: Final = struct.Struct("<IIIIqqII")
DELIVER_FRAME: Final = struct.Struct("<IBBHQIIIIqqII")  # a head, and a DELIVER before its blocks
PICK_RANGE: Final = struct.Struct("<II")
RANGES: Final = struct.Struct("<IIII")
RANGE: Final = struct.Struct("<qq")
GAP: Final = struct.Struct("<IIIIqq")
assert HEAD.size == 16
assert DELIVER.size % 8 == 0
assert DELIVER_FRAME.size == HEAD.size + DELIVER.size
SIZE_FIELD_BYTES: Final = 4
SIZE_MIN: Final = HEAD.size - SIZE_FIELD_BYTES


class FrameKind(IntEnum):
    """The kind of a frame: what its body is."""

    HELLO = 1
    WELCOME = 2
    CALL = 3
    RESULT = 4
    ERROR = 5
    PING = 6
    PONG = 7
    PUBLISH = 16
    PUBLISHED = 17
    CREDIT = 18
    DELIVER = 19
    ACK = 20
    NACK = 21
    GAP = 22
    EVENT = 23
    PICK = 24


# The frames that each side may send after the handshake; others are refused before their body is read.
FROM_CLIENT: Final = frozenset(
    {FrameKind.CALL, FrameKind.PING, FrameKind.PUBLISH, FrameKind.CREDIT, FrameKind.ACK, FrameKind.NACK}
)
FROM_BROKER: Final = frozenset(
    {
        FrameKind.RESULT,
        FrameKind.ERROR,
        FrameKind.PONG,
        FrameKind.PUBLISHED,
        FrameKind.DELIVER,
        FrameKind.GAP,
        FrameKind.EVENT,
        FrameKind.PICK,
    },
)
FIRST_FROM_CLIENT: Final = frozenset({FrameKind.HELLO})
FIRST_FROM_BROKER: Final = frozenset({FrameKind.WELCOME, FrameKind.ERROR})
ANY_KIND: Final = frozenset(FrameKind)


class Outcome(IntEnum):
    """The outcome of one part of a PUBLISH."""

    STORED = 0
    DUPLICATE = 1  # stored before, at the base offset of this answer
    DUPLICATE_FORGOTTEN = 2  # stored before; the broker no longer knows where
    REFUSED = 3  # nothing was stored; the text has the reason
    AFTER_REFUSED = 4  # an earlier part of the same producer and shard was refused
    UNKNOWN = 5  # the disk failed during the write: it may or may not be stored


_OUTCOMES: Final = frozenset(Outcome)
_WITH_OFFSET: Final = frozenset({Outcome.STORED, Outcome.DUPLICATE})


class Frame(NamedTuple):
    kind: int
    flags: int
    number: int
    body: bytes


class PublishPart(NamedTuple):
    """One batch of a PUBLISH."""

    producer: int
    shard: int
    block: bytes


class PartResult(NamedTuple):
    """The answer to one part of a PUBLISH."""

    outcome: int
    base_offset: int
    text: bytes = b""


Pairs = list[tuple[int, int]]


class Delivery(NamedTuple):
    """A DELIVER or a PICK."""

    consumer: int
    shard: int
    generation: int
    attempt: int
    base_offset: int
    append_time_us: int
    first_row: int
    rows: int
    body: bytes
    # The offsets of a PICK, [start, end) each; None for a DELIVER, which has consecutive offsets.
    ranges: Pairs | None = None


class AckRanges(NamedTuple):
    """An ACK or a NACK. `extra`: the flags of an ACK, the delay of a NACK in milliseconds."""

    consumer: int
    shard: int
    generation: int
    extra: int
    ranges: list[tuple[int, int]]


class GapNotice(NamedTuple):
    """A GAP."""

    consumer: int
    shard: int
    generation: int
    state: int
    start: int
    end: int
    reason: str


def padded(size: int) -> int:
    return (size + 7) & ~7


def encode_frame(kind: int, number: int, body: bytes = b"", flags: int = 0) -> bytes:
    return HEAD.pack(SIZE_MIN + len(body), kind, flags, 0, number) + body


def encode_head(kind: int, number: int, body_bytes: int, flags: int = 0) -> bytes:
    """Returns the head of a frame whose body is sent separately, without copying it."""
    return HEAD.pack(SIZE_MIN + body_bytes, kind, flags, 0, number)


def check_ping(body: bytes) -> None:
    if len(body) > limits.PING_BYTES_MAX:
        raise errors.DecodeError(f"PING too long: {len(body)} bytes, limit {limits.PING_BYTES_MAX}")


# --- publishing -------------------------------------------------------------------------------------------------------


def encode_parts(parts: Iterable[PublishPart]) -> bytes:
    pieces: list[bytes] = []
    for producer, shard, block in parts:
        pieces.append(PART.pack(producer, shard, len(block), 0))
        pieces.append(block)
        if padding := -len(block) % 8:
            pieces.append(bytes(padding))
    return b"".join(pieces)


def decode_parts(body: bytes) -> list[PublishPart]:
    parts: list[PublishPart] = []
    at, size = 0, len(body)
    while at < size:
        if at + PART.size > size or len(parts) == limits.PUBLISH_PARTS_MAX:
            raise errors.DecodeError(
                f"PUBLISH part {len(parts)} is cut off, or exceeds the limit of {limits.PUBLISH_PARTS_MAX} parts"
            )
        producer, shard, block_bytes, zero = PART.unpack_from(body, at)
        at += PART.size
        end = at + padded(block_bytes)
        if zero or not block_bytes or end > size:
            raise errors.DecodeError(f"PUBLISH part {len(parts)} declares {block_bytes} bytes, {size - at} are left")
        parts.append(PublishPart(producer, shard, body[at : at + block_bytes]))
        at = end
    if not parts:
        raise errors.DecodeError("PUBLISH without a part")
    return parts


def encode_stored(base_offset: int) -> bytes:
    """`encode_part_results` for one part that was stored: the most frequent answer."""
    return PART_RESULT.pack(Outcome.STORED, 0, 0, base_offset)


def encode_part_results(done: Iterable[PartResult]) -> bytes:
    pieces: list[bytes] = []
    for outcome, base_offset, text in done:
        pieces.append(PART_RESULT.pack(outcome, len(text), 0, base_offset))
        if text:
            pieces.append(text.ljust(padded(len(text)), b"\0"))
    return b"".join(pieces)


def decode_part_results(body: bytes) -> list[PartResult]:
    """Raises DecodeError."""
    results: list[PartResult] = []
    at, size = 0, len(body)
    while at < size:
        if at + PART_RESULT.size > size or len(results) == limits.PUBLISH_PARTS_MAX:
            raise errors.DecodeError(
                f"PUBLISHED result {len(results)} is cut off, or exceeds the limit of {limits.PUBLISH_PARTS_MAX}"
            )
        outcome, text_bytes, zero, base_offset = PART_RESULT.unpack_from(body, at)
        at += PART_RESULT.size
        end = at + padded(text_bytes)
        if zero or end > size or not _is_outcome(outcome, base_offset):
            raise errors.DecodeError(
                f"PUBLISHED result {len(results)} is invalid: outcome {outcome}, {text_bytes} bytes"
            )
        results.append(PartResult(outcome, base_offset, body[at : at + text_bytes]))
        at = end
    if not results:
        raise errors.DecodeError("PUBLISHED without a result")
    return results


def _is_outcome(outcome: int, base_offset: int) -> bool:
    if outcome in _WITH_OFFSET:
        return 0 <= base_offset <= limits.OFFSET_MAX
    return outcome in _OUTCOMES and base_offset == -1


# --- consuming --------------------------------------------------------------------------------------------------------


def encode_credit(consumer: int, messages: int) -> bytes:
    return CREDIT.pack(consumer, messages)


def decode_credit(body: bytes) -> tuple[int, int]:
    if len(body) != CREDIT.size:
        raise errors.DecodeError(f"CREDIT has {len(body)} bytes, expected {CREDIT.size}")
    consumer, messages = CREDIT.unpack(body)
    return consumer, messages


def encode_delivery_head(delivery: Delivery) -> bytes:
    """Returns a DELIVER without its blocks, which are sent separately, without copying them."""
    return DELIVER.pack(*delivery[:8])


def encode_delivery(delivery: Delivery) -> bytes:
    return encode_delivery_head(delivery) + delivery.body


def decode_delivery(body: bytes) -> Delivery:
    """Decodes a DELIVER; its blocks are not checked. Raises DecodeError."""
    if len(body) <= DELIVER.size:
        raise errors.DecodeError(f"DELIVER is cut off: {len(body)} bytes")
    delivery = Delivery._make((*DELIVER.unpack_from(body), body[DELIVER.size :], None))
    if not delivery.rows or not 0 <= delivery.base_offset <= limits.OFFSET_MAX - delivery.first_row - delivery.rows:
        raise errors.DecodeError(f"DELIVER has {delivery.rows} rows from offset {delivery.base_offset}: out of range")
    return delivery


def encode_pick_head(
    consumer: int, shard: int, generation: int, attempt: int, append_time_us: int, rows: int, ranges: Pairs
) -> bytes:
    """Returns a PICK without its blocks. `ranges`: [start, end) each, rising, with a hole between them."""
    base = ranges[0][0]
    steps = array("I", [number for start, end in ranges for number in (start - base, end - start)])
    if sys.byteorder == "big":
        steps.byteswap()
    head = DELIVER.pack(consumer, shard, generation, attempt, base, append_time_us, len(ranges), rows)
    return head + steps.tobytes()


def encode_pick(delivery: Delivery) -> bytes:
    assert delivery.ranges is not None
    head = encode_pick_head(*delivery[:4], delivery.append_time_us, delivery.rows, delivery.ranges)
    return head + delivery.body


def decode_pick(body: bytes) -> Delivery:
    """Decodes a PICK; its blocks are not checked. Raises DecodeError."""
    if len(body) <= DELIVER.size:
        raise errors.DecodeError(f"PICK is cut off: {len(body)} bytes")
    head = Delivery._make((*DELIVER.unpack_from(body), b"", None))
    base, count = head.base_offset, head.first_row  # a PICK has its number of ranges where a DELIVER has its first row
    at = DELIVER.size + PICK_RANGE.size * count
    if not count or len(body) <= at or not 0 <= base <= limits.OFFSET_MAX:
        raise errors.DecodeError(f"PICK declares {count} ranges from offset {base}, {len(body)} bytes received")
    steps = PICK_RANGE.iter_unpack(memoryview(body)[DELIVER.size : at])
    ranges = [(base + start, base + start + rows) for start, rows in steps]
    is_rising = all(start < end for start, end in ranges) and all(low[1] < high[0] for low, high in pairwise(ranges))
    rows = sum([end - start for start, end in ranges])
    if not is_rising or ranges[0][0] != base or ranges[-1][1] > limits.OFFSET_MAX or rows != head.rows:
        raise errors.DecodeError(f"PICK ranges do not rise, or do not have {head.rows} rows")
    return head._replace(first_row=0, body=body[at:], ranges=ranges)


def encode_ranges(message: AckRanges) -> bytes:
    head = RANGES.pack(message.consumer, message.shard, message.generation, message.extra)
    return head + b"".join([RANGE.pack(*offsets) for offsets in message.ranges])


def decode_ranges(body: bytes) -> AckRanges:
    """Decodes an ACK or a NACK; `extra` is not checked. Raises DecodeError."""
    count, rest = divmod(len(body) - RANGES.size, RANGE.size)
    if rest or not 0 < count <= limits.ACK_RANGES_MAX:
        raise errors.DecodeError(f"ACK or NACK has {len(body)} bytes, which is not 1 to {limits.ACK_RANGES_MAX} ranges")
    ranges: list[tuple[int, int]] = list(RANGE.iter_unpack(body[RANGES.size :]))
    for start, end in ranges:
        if not 0 <= start < end <= limits.OFFSET_MAX:
            raise errors.DecodeError(f"ACK or NACK has offsets [{start}, {end}): out of range")
    consumer, shard, generation, extra = RANGES.unpack_from(body)
    return AckRanges(consumer, shard, generation, extra, ranges)


def decode_ack(body: bytes) -> AckRanges:
    """Raises DecodeError."""
    ack = decode_ranges(body)
    if ack.extra & ~CUMULATIVE or (ack.extra and len(ack.ranges) > 1):
        raise errors.DecodeError(f"ACK of {len(ack.ranges)} ranges has flags {ack.extra:#x}")
    return ack


def decode_nack(body: bytes) -> AckRanges:
    """Raises DecodeError."""
    nack = decode_ranges(body)
    if nack.extra > limits.FAILURE_POLICY_VALUE_MAX:
        raise errors.DecodeError(
            f"NACK delay out of range: {nack.extra} ms, limit {limits.FAILURE_POLICY_VALUE_MAX} ms"
        )
    return nack


def encode_gap(gap: GapNotice) -> bytes:
    return GAP.pack(*gap[:6]) + gap.reason.encode()


def decode_gap(body: bytes) -> GapNotice:
    """Raises DecodeError."""
    if len(body) < GAP.size:
        raise errors.DecodeError(f"GAP is cut off: {len(body)} bytes")
    try:
        gap = GapNotice._make((*GAP.unpack_from(body), body[GAP.size :].decode()))
    except UnicodeDecodeError:
        raise errors.DecodeError("the reason of a GAP is not UTF-8") from None
    if not 0 <= gap.start < gap.end <= limits.OFFSET_MAX:
        raise errors.DecodeError(f"GAP has offsets [{gap.start}, {gap.end}): out of range")
    return gap
