"""The bytes of the native protocol. This page is the contract; docs/protocol.md shows it to people.

All integers are little-endian. A connection is a stream of frames, in both directions, on TCP or on a local socket.

A FRAME
    0   u32  size: bytes behind this field, 12 to the bound that the other side announced
    4   u8   kind (FrameKind)
    5   u8   flags: bit 0 COMPRESSED, the body is one zstd frame (only where both sides said so in the handshake)
    6   u16  zero
    8   u64  number: chosen by the side that asks, repeated by the side that answers
    16  body

THE HANDSHAKE       The client speaks first, and then waits. Anything else, no version in common, or a bound that cannot
                    be kept is answered with ERROR, and the connection is closed.
    HELLO    ->     body: MAGIC (8 bytes), then a document {version, version_min, client, frame_bytes_max, compression}
    WELCOME  <-     a document {version, node, frame_bytes_max, compression, time_us}
A document is msgpack: a map with text keys. Keys that are not known are ignored: they come with later versions.

RARE THINGS         one answer each, in any order; the number tells which
    CALL     ->     a document {method, arguments}
    RESULT   <-     a document: what the method returns
    ERROR    <-     a document {code, message, hint, retryable}; `code` as in errors.py
    PING     ->     PONG <- with the same number and body

PUBLISHING          Frames of one connection have rising numbers. Their acks come back in this order, each once.
    PUBLISH    ->   parts, one behind the other, each at a multiple of 8:
                        u32 producer (the handle that `open_producer` gave) | u32 shard | u32 block bytes | u32 zero |
                        block (model/block.py), padded to 8
    PUBLISHED  <-   number: of the frame it answers. For each of its parts:
                        u16 outcome (Outcome) | u16 text bytes | u32 zero | i64 base offset, -1 for none | text,
                        padded to 8
                    An outcome that is not STORED or a duplicate is a refusal: nothing of the part was stored, and later
                    parts of that producer and shard are refused with AFTER_REFUSED until it is opened again or reset
                    (hazard 37). The text is a document as in ERROR.

CONSUMING           A consumer gets as many messages as it gave credit for. Acks have no answer of their own; a PING
                    behind them is answered when they count.
    CREDIT     ->   u32 consumer (the handle that `subscribe` gave) | u32 messages: so many more
    DELIVER    <-   u32 consumer | u32 shard | u32 generation | u32 attempt | i64 base offset | i64 append time (us) |
                    u32 first row | u32 rows | blocks (model/block.py), one behind the other
                    The blocks hold rows from `base offset` on; the rows [first row, first row + rows) are meant.
                    `attempt`: how many deliveries of them failed before
    PICK       <-   u32 consumer | u32 shard | u32 generation | u32 attempt | i64 base offset | i64 append time (us) |
                    u32 ranges | u32 rows | (u32 start | u32 count) … | blocks, one behind the other
                    Messages that do not follow one another, only to a consumer whose `subscribe` said `picks`. Each
                    range is `count` messages from offset `base offset + start` on; ranges rise and do not touch, and
                    the blocks hold exactly their rows, in this order
    ACK        ->   u32 consumer | u32 shard | u32 generation | u32 flags: bit 0 CUMULATIVE | (i64 start | i64 end) …
                    CUMULATIVE: one range, and everything below its end that was delivered
    NACK       ->   u32 consumer | u32 shard | u32 generation | u32 delay ms | (i64 start | i64 end) …
    GAP        <-   u32 consumer | u32 shard | u32 generation | u32 state (GapState) | i64 start | i64 end | reason text
                    offsets that hold no message: they count as acked
    EVENT      <-   number: of the consumer or watch. A document {event, …}: what happened to it

WHAT IS VALID       Sizes, counts and ranges fit, fields called zero are zero, flags, kinds, outcomes are known, text is
                    UTF-8, offsets are 0 to OFFSET_MAX. Padding is not looked at. Anything else is a DecodeError:
                    nothing of the frame was done, and the connection ends. Whether handles, shards and blocks make
                    sense is judged behind the codec.
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
PICK_RANGE: Final = struct.Struct("<II")
RANGES: Final = struct.Struct("<IIII")
RANGE: Final = struct.Struct("<qq")
GAP: Final = struct.Struct("<IIIIqq")
assert HEAD.size == 16
assert DELIVER.size % 8 == 0
SIZE_FIELD_BYTES: Final = 4
SIZE_MIN: Final = HEAD.size - SIZE_FIELD_BYTES


class FrameKind(IntEnum):
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


# What each side may say after the handshake; anything else is refused before its body is read.
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
    """What became of one part of a PUBLISH."""

    STORED = 0
    DUPLICATE = 1  # stored before; the base offset is the one it got then
    DUPLICATE_FORGOTTEN = 2  # stored before; its offset is no longer known
    REFUSED = 3  # the text says why; nothing was stored
    AFTER_REFUSED = 4  # an earlier part of the same producer and shard was refused
    UNKNOWN = 5  # the disk failed in between: it may or may not be stored


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
    """The answer to one part."""

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
    ranges: Pairs | None = None  # the offsets of a PICK, [start, end) each; of a DELIVER they follow one another


class AckRanges(NamedTuple):
    """An ACK or a NACK. `extra`: the flags of an ACK, the delay of a NACK in milliseconds."""

    consumer: int
    shard: int
    generation: int
    extra: int
    ranges: list[tuple[int, int]]


class GapNotice(NamedTuple):
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
    """For a body that is sent from where it stands."""
    return HEAD.pack(SIZE_MIN + body_bytes, kind, flags, 0, number)


def check_ping(body: bytes) -> None:
    if len(body) > limits.PING_BYTES_MAX:
        raise errors.DecodeError(f"a PING of {len(body)} bytes; {limits.PING_BYTES_MAX} are allowed")


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
            raise errors.DecodeError(f"part {len(parts)} of a PUBLISH is cut off, or one too many")
        producer, shard, block_bytes, zero = PART.unpack_from(body, at)
        at += PART.size
        end = at + padded(block_bytes)
        if zero or not block_bytes or end > size:
            raise errors.DecodeError(f"part {len(parts)} of a PUBLISH does not add up")
        parts.append(PublishPart(producer, shard, body[at : at + block_bytes]))
        at = end
    if not parts:
        raise errors.DecodeError("a PUBLISH without a part")
    return parts


def encode_stored(base_offset: int) -> bytes:
    """`encode_part_results` of one part that was stored: what most answers are."""
    return PART_RESULT.pack(Outcome.STORED, 0, 0, base_offset)


def encode_part_results(done: Iterable[PartResult]) -> bytes:
    pieces: list[bytes] = []
    for outcome, base_offset, text in done:
        pieces.append(PART_RESULT.pack(outcome, len(text), 0, base_offset))
        if text:
            pieces.append(text.ljust(padded(len(text)), b"\0"))
    return b"".join(pieces)


def decode_part_results(body: bytes) -> list[PartResult]:
    found: list[PartResult] = []
    at, size = 0, len(body)
    while at < size:
        if at + PART_RESULT.size > size or len(found) == limits.PUBLISH_PARTS_MAX:
            raise errors.DecodeError(f"answer {len(found)} of a PUBLISHED is cut off, or one too many")
        outcome, text_bytes, zero, base_offset = PART_RESULT.unpack_from(body, at)
        at += PART_RESULT.size
        end = at + padded(text_bytes)
        if zero or end > size or not _is_outcome(outcome, base_offset):
            raise errors.DecodeError(f"answer {len(found)} of a PUBLISHED does not add up")
        found.append(PartResult(outcome, base_offset, body[at : at + text_bytes]))
        at = end
    if not found:
        raise errors.DecodeError("a PUBLISHED without an answer")
    return found


def _is_outcome(outcome: int, base_offset: int) -> bool:
    if outcome in _WITH_OFFSET:
        return 0 <= base_offset <= limits.OFFSET_MAX
    return outcome in _OUTCOMES and base_offset == -1


# --- consuming --------------------------------------------------------------------------------------------------------


def encode_credit(consumer: int, messages: int) -> bytes:
    return CREDIT.pack(consumer, messages)


def decode_credit(body: bytes) -> tuple[int, int]:
    if len(body) != CREDIT.size:
        raise errors.DecodeError(f"a CREDIT of {len(body)} bytes")
    consumer, messages = CREDIT.unpack(body)
    return consumer, messages


def encode_delivery_head(delivery: Delivery) -> bytes:
    """All of it but the blocks, which are sent from where they stand."""
    return DELIVER.pack(*delivery[:8])


def encode_delivery(delivery: Delivery) -> bytes:
    return encode_delivery_head(delivery) + delivery.body


def decode_delivery(body: bytes) -> Delivery:
    """The blocks are not looked at, so neither is whether they hold the rows."""
    if len(body) <= DELIVER.size:
        raise errors.DecodeError("a DELIVER is cut off")
    found = Delivery._make((*DELIVER.unpack_from(body), body[DELIVER.size :], None))
    if not found.rows or not 0 <= found.base_offset <= limits.OFFSET_MAX - found.first_row - found.rows:
        raise errors.DecodeError("a DELIVER names rows that are none")
    return found


def encode_pick_head(
    consumer: int, shard: int, generation: int, attempt: int, append_time_us: int, rows: int, ranges: Pairs
) -> bytes:
    """All of a PICK but the blocks. `ranges`: [start, end) each, rising, with a hole between them."""
    base = ranges[0][0]
    steps = array("I", [number for start, end in ranges for number in (start - base, end - start)])
    if sys.byteorder == "big":
        steps.byteswap()
    head = DELIVER.pack(consumer, shard, generation, attempt, base, append_time_us, len(ranges), rows)
    return head + steps.tobytes()


def encode_pick(delivery: Delivery) -> bytes:
    assert delivery.ranges is not None
    named = delivery.ranges
    head = encode_pick_head(*delivery[:4], delivery.append_time_us, delivery.rows, named)
    return head + delivery.body


def decode_pick(body: bytes) -> Delivery:
    """The blocks are not looked at, so neither is whether they hold the rows."""
    if len(body) <= DELIVER.size:
        raise errors.DecodeError("a PICK is cut off")
    found = Delivery._make((*DELIVER.unpack_from(body), b"", None))
    base, count = found.base_offset, found.first_row
    at = DELIVER.size + PICK_RANGE.size * count
    if not count or len(body) <= at or not 0 <= base <= limits.OFFSET_MAX:
        raise errors.DecodeError(f"a PICK of {count} ranges does not add up")
    steps = PICK_RANGE.iter_unpack(memoryview(body)[DELIVER.size : at])
    ranges = [(base + start, base + start + rows) for start, rows in steps]
    rises = all(start < end for start, end in ranges) and all(one[1] < two[0] for one, two in pairwise(ranges))
    rows = sum([end - start for start, end in ranges])
    if not rises or ranges[0][0] != base or ranges[-1][1] > limits.OFFSET_MAX or rows != found.rows:
        raise errors.DecodeError("the ranges of a PICK do not rise, or are not those of its rows")
    return found._replace(first_row=0, body=body[at:], ranges=ranges)


def encode_ranges(message: AckRanges) -> bytes:
    head = RANGES.pack(message.consumer, message.shard, message.generation, message.extra)
    return head + b"".join([RANGE.pack(*one) for one in message.ranges])


def decode_ranges(body: bytes) -> AckRanges:
    """What an ACK and a NACK have in common; `extra` is not looked at."""
    count, rest = divmod(len(body) - RANGES.size, RANGE.size)
    if rest or not 0 < count <= limits.ACK_RANGES_MAX:
        raise errors.DecodeError(f"an ACK or NACK of {len(body)} bytes does not add up")
    ranges: list[tuple[int, int]] = list(RANGE.iter_unpack(body[RANGES.size :]))
    for start, end in ranges:
        if not 0 <= start < end <= limits.OFFSET_MAX:
            raise errors.DecodeError(f"an ACK or NACK names offsets [{start}, {end})")
    consumer, shard, generation, extra = RANGES.unpack_from(body)
    return AckRanges(consumer, shard, generation, extra, ranges)


def decode_ack(body: bytes) -> AckRanges:
    found = decode_ranges(body)
    if found.extra & ~CUMULATIVE or (found.extra and len(found.ranges) > 1):
        raise errors.DecodeError(f"an ACK of {len(found.ranges)} ranges with flags {found.extra:#x}")
    return found


def decode_nack(body: bytes) -> AckRanges:
    found = decode_ranges(body)
    if found.extra > limits.FAILURE_POLICY_VALUE_MAX:
        raise errors.DecodeError(f"a NACK with a delay of {found.extra} ms")
    return found


def encode_gap(gap: GapNotice) -> bytes:
    return GAP.pack(*gap[:6]) + gap.reason.encode()


def decode_gap(body: bytes) -> GapNotice:
    if len(body) < GAP.size:
        raise errors.DecodeError("a GAP is cut off")
    try:
        found = GapNotice._make((*GAP.unpack_from(body), body[GAP.size :].decode()))
    except UnicodeDecodeError:
        raise errors.DecodeError("the reason of a GAP is not UTF-8") from None
    if not 0 <= found.start < found.end <= limits.OFFSET_MAX:
        raise errors.DecodeError(f"a GAP names offsets [{found.start}, {found.end})")
    return found
