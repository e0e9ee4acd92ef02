"""The records of the session log (ADR 60), and blocks of them: a block is a transaction.

A record is a msgpack array [kind, session id, epoch, …], in the fields and bounds of its class below; the kind is the
class's tag. Fields are only added at the end, with a default: an older reader ignores them, a newer one fills them in.
Kinds are never reused; 19 and 20 are reserved for shared groups. An unknown kind, a missing field, a value of another
type or out of its bound is a DecodeError.

    SESSION begins a session, or replaces all that came before of the same session id
    every other record of a session changes one entry of it, by its key:

    key                         set by                        removed by
    (session)                   SESSION                       ENDED
    generation number           GENERATION                    GENERATION_ENDED
    generation, shard           BOUND                         with its generation
    packet id, outbound         IN_FLIGHT, IN_FLIGHT_RUN      CLOSED
                                (RELEASE: state)
    reader, shard               POSITION                      with its generation (reader 0: with the session)
    packet id, inbound QoS 2    RECEIVED                      RECEIVED_CLOSED
    (will)                      WILL                          WILL_CLOSED

A block (model/block.py) has one record in the column `payload` of each row. The log stores a block whole or not at all,
so its records apply together. Records of the node (BEAT, MARK) have session id 0 and epoch 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from icestream import errors, limits
from icestream.model import envelope
from icestream.model.block import Block, encode_block
from icestream.model.shard import ShardKey

_INT64_MAX: Final = 2**63 - 1
_PACKET_ID_MAX: Final = 65_535
_Positive = Annotated[int, Meta(ge=1, le=_INT64_MAX)]
_Number = Annotated[int, Meta(ge=0, le=_INT64_MAX)]
_OffsetOrNone = Annotated[int, Meta(ge=-1, le=_INT64_MAX)]
_Uint32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_PacketId = Annotated[int, Meta(ge=1, le=65_535)]
_Qos = Annotated[int, Meta(ge=0, le=2)]
_Text = Annotated[str, Meta(max_length=limits.MQTT_TEXT_BYTES_MAX)]
Span: TypeAlias = tuple[int, int]  # a first offset and a number of rows
_Spans = Annotated[
    tuple[tuple[_Number, Annotated[int, Meta(ge=1, le=65_535)]], ...], Meta(min_length=1, max_length=65_535)
]
_PacketIds = Annotated[tuple[_PacketId, ...], Meta(min_length=1, max_length=65_535)]

NO_OFFSET: Final = -1  # nothing owed, or a bound that is open
EXPIRY_NEVER: Final = 2**32 - 1  # as MQTT 5.0 writes it


class InFlightState(IntEnum):
    """SENT: PUBLISH is or was sent. RELEASED: its PUBREC came; PUBREL is sent, PUBLISH never again (hazard 54)."""

    SENT = 0
    RELEASED = 1


class ClosedReason(IntEnum):
    """How an outbound message ended: the client has it, refused it, or its row is gone (hazard 52)."""

    ACKED = 0
    REFUSED = 1
    LOST = 2


class WillEnd(IntEnum):
    """How a will ended: removed by DISCONNECT 0x00, published, or cancelled by a resume within its delay."""

    REMOVED = 0
    FIRED = 1
    CANCELLED = 2


class SessionOwner(msgspec.Struct, frozen=True, array_like=True):
    """Whose session it is: the principal of its last connection, with what its credential said (hazard 115)."""

    principal: _Text
    roles: tuple[_Text, ...] = ()
    claims: dict[_Text, _Text] = {}


class SessionLogRecord(msgspec.Struct, frozen=True, array_like=True):
    """What every record has."""

    session_id: _Number
    epoch: _Number


class SessionRecord(SessionLogRecord, frozen=True, array_like=True, tag=1):
    """SESSION. `disconnected_ms`: elapsed node time from which it expires; None while connected."""

    client_id: _Text
    expiry_s: _Uint32
    disconnected_ms: _Number | None = None
    last_packet_id: Annotated[int, Meta(ge=0, le=65_535)] = 0
    is_ending: bool = False
    owner: SessionOwner | None = None  # None: its connections were from before there were accounts


class SessionConnected(SessionLogRecord, frozen=True, array_like=True, tag=2):
    """CONNECTED: `epoch` is the new one, above the last. `owner`: from now on; None: as before."""

    expiry_s: _Uint32
    owner: SessionOwner | None = None


class SessionDisconnected(SessionLogRecord, frozen=True, array_like=True, tag=3):
    """DISCONNECTED at an elapsed node time."""

    at_ms: _Number
    expiry_s: _Uint32


class SubscriptionGeneration(SessionLogRecord, frozen=True, array_like=True, tag=4):
    """GENERATION: a filter with options that never change (hazard 58). `reader`: 0, or its own number for a replay."""

    number: Annotated[int, Meta(ge=1, le=2**32 - 1)]
    filter: _Text
    qos: _Qos
    identifier: Annotated[int, Meta(ge=0, le=268_435_455)] = 0  # 0: none
    is_no_local: bool = False
    is_retain_as_published: bool = False
    reader: _Uint32 = 0
    replay_from: _Text = ""  # as the client asked for history; the same value again changes nothing


class GenerationBound(SessionLogRecord, frozen=True, array_like=True, tag=5):
    """BOUND: the generation matches offsets [start, end) of the shard; `end` NO_OFFSET: all from `start` on."""

    number: Annotated[int, Meta(ge=1, le=2**32 - 1)]
    topic_id: _Positive
    shard: _Uint32
    start: _Number
    end: _OffsetOrNone = NO_OFFSET


class GenerationEnded(SessionLogRecord, frozen=True, array_like=True, tag=6):
    """GENERATION_ENDED: every position has passed its bounds."""

    number: Annotated[int, Meta(ge=1, le=2**32 - 1)]


class InFlightEntry(SessionLogRecord, frozen=True, array_like=True, tag=7):
    """IN_FLIGHT: all that an identical resend needs beside the row itself. Durable before the first byte is sent."""

    packet_id: _PacketId
    topic_id: _Positive
    shard: _Uint32
    offset: _Number
    qos: Annotated[int, Meta(ge=1, le=2)]
    generation: _Uint32  # the one whose options decided; 0 for a will or a retained copy
    state: InFlightState = InFlightState.SENT
    is_retained: bool = False
    identifiers: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=268_435_455)], ...], Meta(max_length=limits.MQTT_IDENTIFIERS_MAX)
    ] = ()


class InFlightRun(SessionLogRecord, frozen=True, array_like=True, tag=24):
    """IN_FLIGHT_RUN: an IN_FLIGHT entry, not retained, for each row of the spans, with consecutive packet ids from
    `packet_id` on (ADR 80). A span is the offset of its first row and its number of rows; spans rise."""

    packet_id: _PacketId
    topic_id: _Positive
    shard: _Uint32
    spans: _Spans
    qos: Annotated[int, Meta(ge=1, le=2)]
    generation: _Uint32
    identifiers: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=268_435_455)], ...], Meta(max_length=limits.MQTT_IDENTIFIERS_MAX)
    ] = ()

    def __post_init__(self) -> None:
        if self.packet_id + self.rows - 1 > _PACKET_ID_MAX:
            raise ValueError("the packet ids of a run end at 65535")

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.spans)

    @property
    def packet_ids(self) -> range:
        return range(self.packet_id, self.packet_id + self.rows)

    def entry(self, packet_id: int) -> InFlightEntry:
        """The entry of one of its packet ids."""
        index = packet_id - self.packet_id
        for offset, rows in self.spans:
            if index < rows:
                return InFlightEntry(
                    self.session_id, self.epoch, packet_id, self.topic_id, self.shard, offset + index, self.qos,
                    self.generation, identifiers=self.identifiers,
                )  # fmt: skip
            index -= rows
        raise IndexError(packet_id)

    def part(self, start: int, end: int) -> InFlightRun:
        """The run of its packet ids from `start` to `end`, that one excluded."""
        spans = tuple(cut_spans(self.spans, start - self.packet_id, end - self.packet_id))
        return msgspec.structs.replace(self, packet_id=start, spans=spans)


def cut_spans(spans: Sequence[Span], start: int, end: int) -> Iterator[Span]:
    """The rows of `spans` from number `start` to number `end`, that one excluded."""
    for first, rows in spans:
        low, high = max(start, 0), min(end, rows)
        if low < high:
            yield first + low, high - low
        start, end = start - rows, end - rows


class InFlightReleased(SessionLogRecord, frozen=True, array_like=True, tag=8):
    """RELEASE: the PUBREC of an outbound QoS 2 message came. Durable before PUBREL leaves."""

    packet_id: _PacketId


class InFlightClosed(SessionLogRecord, frozen=True, array_like=True, tag=9):
    """CLOSED: outbound messages that ended."""

    packet_ids: _PacketIds
    reason: ClosedReason = ClosedReason.ACKED


class ReaderPosition(SessionLogRecord, frozen=True, array_like=True, tag=10):
    """POSITION: everything below is sent, in flight or does not match. `owed`: matches may wait from this offset on."""

    topic_id: _Positive
    shard: _Uint32
    position: _Number
    owed: _OffsetOrNone = NO_OFFSET
    reader: _Uint32 = 0


class ReceivedId(SessionLogRecord, frozen=True, array_like=True, tag=11):
    """RECEIVED: an inbound QoS 2 id between PUBREC and PUBREL (hazard 53). `topic_id` 0: nothing was stored for it."""

    packet_id: _PacketId
    topic_id: _Number = 0
    shard: _Uint32 = 0


class ReceivedClosed(SessionLogRecord, frozen=True, array_like=True, tag=12):
    """RECEIVED_CLOSED: PUBREL came. Durable before PUBCOMP leaves."""

    packet_ids: _PacketIds


class WillSet(SessionLogRecord, frozen=True, array_like=True, tag=13):
    """WILL: durable before CONNACK (hazard 65). `properties`: as they stood in CONNECT."""

    topic: _Text
    payload: Annotated[bytes, Meta(max_length=limits.MQTT_TEXT_BYTES_MAX)]
    qos: _Qos
    is_retained: bool = False
    delay_s: _Uint32 = 0
    properties: Annotated[bytes, Meta(max_length=limits.MQTT_TEXT_BYTES_MAX)] = b""


class WillClosed(SessionLogRecord, frozen=True, array_like=True, tag=14):
    """WILL_CLOSED. A will that fires is closed in the record that stores its message."""

    end: WillEnd


class SessionEnding(SessionLogRecord, frozen=True, array_like=True, tag=15):
    """ENDING: the session serves no client any more; its will and its clean-up are due (hazard 69)."""


class SessionEnded(SessionLogRecord, frozen=True, array_like=True, tag=16):
    """ENDED: nothing of the session is left."""


class NodeBeat(SessionLogRecord, frozen=True, array_like=True, tag=17):
    """BEAT: the elapsed time of the node, outages left out, and the wall clock beside it."""

    elapsed_ms: _Number
    wall_us: _Number


class ShardMark(SessionLogRecord, frozen=True, array_like=True, tag=18):
    """MARK: C of a shard. What is not listed as owed owes nothing below it (hazard 61)."""

    topic_id: _Positive
    shard: _Uint32
    mark: _Number


class RetainedValue(SessionLogRecord, frozen=True, array_like=True, tag=21):
    """RETAINED: the last value of a topic, from this row of the log."""

    topic: _Text
    topic_id: _Positive
    shard: _Uint32
    offset: _Number
    payload: bytes
    qos: _Qos
    properties: bytes = b""
    publisher: _Text = ""
    append_time_us: _Number = 0


class RetainedCleared(SessionLogRecord, frozen=True, array_like=True, tag=22):
    """RETAINED_CLEARED: the topic has no value."""

    topic: _Text


class RetainedApplied(SessionLogRecord, frozen=True, array_like=True, tag=23):
    """APPLIED: the values are those of all rows of the shard below this offset."""

    topic_id: _Positive
    shard: _Uint32
    offset: _Number


AnyRecord = (
    SessionRecord
    | SessionConnected
    | SessionDisconnected
    | SubscriptionGeneration
    | GenerationBound
    | GenerationEnded
    | InFlightEntry
    | InFlightRun
    | InFlightReleased
    | InFlightClosed
    | ReaderPosition
    | ReceivedId
    | ReceivedClosed
    | WillSet
    | WillClosed
    | SessionEnding
    | SessionEnded
    | NodeBeat
    | ShardMark
    | RetainedValue
    | RetainedCleared
    | RetainedApplied
)
_KeyedByShard = (
    GenerationBound
    | InFlightEntry
    | InFlightRun
    | ReaderPosition
    | ReceivedId
    | ShardMark
    | RetainedValue
    | RetainedApplied
)

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(AnyRecord)


def shard_of(record: _KeyedByShard) -> ShardKey:
    """The shard that a record is about."""
    return ShardKey(record.topic_id, record.shard)


def encode_transaction(records: Sequence[AnyRecord]) -> bytes:
    """Returns the block of a transaction. Raises InvalidInput for an empty one, and for a value out of its bound."""
    payloads = []
    for record in records:
        # Decoded again: a record that cannot be read would stop the next start, so it must not be stored.
        try:
            payloads.append(_encoder.encode(record))
            _decoder.decode(payloads[-1])
        except (msgspec.MsgspecError, UnicodeEncodeError, OverflowError) as error:
            raise errors.InvalidInput(f"{type(record).__name__} is out of bounds: {error}") from None
    return encode_block(len(payloads), {envelope.PAYLOAD: payloads})


def decode_transaction(block: Block) -> list[AnyRecord]:
    """Returns the records of a block. Raises DecodeError for bytes that are not a transaction."""
    records = []
    for row, payload in enumerate(block.values(envelope.PAYLOAD)):
        if not isinstance(payload, bytes):
            raise errors.DecodeError(f"row {row} of a block of the session log has no record")
        try:
            records.append(_decoder.decode(payload))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise errors.DecodeError(f"row {row} of a block of the session log is not a record: {error}") from None
    return records
