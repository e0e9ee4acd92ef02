"""Converts messages between Danube's wire format and the columns of a block.

in     every value is checked against its column here (hazard 9): an accepted message fits its row. Danube's numbers are
       unsigned 64-bit; ids and times here are signed
out    a message is encoded once for all its consumers, without the subscription name. Protobuf accepts fields in any
       order, so each consumer appends its own field (`subscription_field`)

    wire                      column
    request_id                request_id
    msg_id.producer_id        producer_id
    msg_id.topic_name         topic_name, as sent; when delivered, the name of the shard
    msg_id.broker_addr        broker_addr, as sent; when delivered, this broker
    msg_id.topic_offset       the offset; ignored when received
    payload, attributes       payload, headers
    publish_time (ms)         publish_time (us)
    producer_name             producer_name
    subscription_name         subscription_name; when delivered, the consumer's
    schema_id, _version       schema_id, schema_version
    routing_key               key. A key that is not UTF-8 (from other front ends) becomes the attribute
                              x-icestream-key, in base64
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from icestream import errors, limits
from icestream.frontends.danube.request_batch import RequestBatch
from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.model import envelope
from icestream.model.block import Block, Value, iter_blocks
from icestream.model.envelope import EnvelopeColumn
from icestream.rpc.blocks import column_bits, select_rows
from icestream.wal.tail import SectionRead

KEY_BYTES: Final = "x-icestream-key"
SIGNED_MAX: Final = 2**63 - 1
# Columns that this front end may set, unlike clients of the native protocol.
OWN_COLUMNS: Final = column_bits(
    column.id for column in (envelope.PRODUCER_ID, envelope.BROKER_ADDR, envelope.SUBSCRIPTION_NAME)
)

Row = dict[EnvelopeColumn, Value]


class Fields(NamedTuple):
    """The fields of a received message; None for an absent optional field."""

    request_id: int
    producer_id: int
    topic_name: str
    broker_addr: str
    payload: bytes
    publish_time: int
    producer_name: str
    subscription_name: str
    attributes: Mapping[str, str]
    schema_id: int | None
    schema_version: int | None
    routing_key: str | None
    size: int = 0  # of a batch row: its bytes without numbers, tags and lengths


def fields_of(message: pb.StreamMessage) -> Fields:
    """The fields of a decoded message."""
    message_id = message.msg_id
    return Fields(
        message.request_id,
        message_id.producer_id,
        message_id.topic_name,
        message_id.broker_addr,
        message.payload,
        message.publish_time,
        message.producer_name,
        message.subscription_name,
        message.attributes,
        message.schema_id if message.HasField("schema_id") else None,
        message.schema_version if message.HasField("schema_version") else None,
        message.routing_key if message.HasField("routing_key") else None,
    )


# The same fields as columns of a batch (request_batch.py), in the order of Fields.
INTEGER, BYTES, TEXT, REPEATED = range(4)
COLUMNS: Final = (
    (0, 1, INTEGER), (2, 1, INTEGER), (2, 2, TEXT), (2, 3, TEXT), (0, 3, BYTES), (0, 4, INTEGER), (0, 5, TEXT),
    (0, 6, TEXT), (0, 7, REPEATED), (0, 8, INTEGER), (0, 9, INTEGER), (0, 10, TEXT),
)  # fmt: skip
(
    REQUEST_ID, PRODUCER_ID, TOPIC_NAME, BROKER_ADDR, PAYLOAD, PUBLISH_TIME, PRODUCER_NAME, SUBSCRIPTION_NAME,
    ATTRIBUTES, SCHEMA_ID, SCHEMA_VERSION, ROUTING_KEY,
) = range(len(COLUMNS))  # fmt: skip
_TEXTS: Final = tuple(index for index, (_, _, kind) in enumerate(COLUMNS) if kind == TEXT)


def fields_of_batch(batch: RequestBatch) -> Iterator[Fields | None]:
    """The fields of each row; None for a row whose attributes are not valid UTF-8."""
    columns: list[Sequence[Any]] = [
        batch.integers(index) if kind == INTEGER else batch.texts(index) if kind == TEXT else batch.values(index)
        for index, (_, _, kind) in enumerate(COLUMNS)
    ]
    for present, row in zip(batch.present, zip(*columns, strict=True), strict=True):
        attributes: Mapping[str, str] = {}
        if row[ATTRIBUTES]:
            try:
                # The column has the encoded map entries as they came: read as a message, they are its only field.
                attributes = pb.StreamMessage.FromString(row[ATTRIBUTES]).attributes
            except DecodeError:
                yield None
                continue
        schema_id, schema_version, key = (
            row[index] if present & 1 << index else None for index in (SCHEMA_ID, SCHEMA_VERSION, ROUTING_KEY)
        )
        size = len(row[PAYLOAD]) + len(row[ATTRIBUTES]) + sum(_utf8_bytes(row[index]) for index in _TEXTS)
        yield Fields._make((*row[:ATTRIBUTES], attributes, schema_id, schema_version, key, size))


def _utf8_bytes(text: str) -> int:
    """The size of a text in UTF-8; without encoding it in the usual case."""
    return len(text) if text.isascii() else len(text.encode())


def row_of(fields: Fields) -> Row:
    """The message as a row. Raises InvalidInput for a value that does not fit its column."""
    row: Row = {
        envelope.PAYLOAD: fields.payload,
        envelope.REQUEST_ID: _signed("request_id", fields.request_id),
        envelope.PRODUCER_ID: _signed("producer_id", fields.producer_id),
        envelope.PUBLISH_TIME: _signed("publish_time", fields.publish_time, SIGNED_MAX // 1000) * 1000,
        envelope.PRODUCER_NAME: fields.producer_name,
        envelope.TOPIC_NAME: fields.topic_name,
    }
    if fields.broker_addr:
        row[envelope.BROKER_ADDR] = fields.broker_addr
    if fields.subscription_name:
        row[envelope.SUBSCRIPTION_NAME] = fields.subscription_name
    if fields.routing_key is not None:
        row[envelope.KEY] = fields.routing_key.encode()
    if fields.schema_id is not None:
        row[envelope.SCHEMA_ID] = _signed("schema_id", fields.schema_id)
    if fields.schema_version is not None:
        row[envelope.SCHEMA_VERSION] = _signed("schema_version", fields.schema_version, 2**31 - 1)
    if fields.attributes:
        row[envelope.HEADERS] = _attributes(dict(fields.attributes))
    return row


def _signed(name: str, value: int, maximum: int = SIGNED_MAX) -> int:
    """The value, which fits its signed column. Raises InvalidInput."""
    if value > maximum:
        raise errors.InvalidInput(f"{name} {value} does not fit its column", hint=f"maximum: {maximum}")
    return value


def _attributes(attributes: dict[str, str]) -> dict[str, str]:
    if len(attributes) > limits.HEADERS_MAX:
        raise errors.InvalidInput(
            f"message with {len(attributes)} attributes, limit {limits.HEADERS_MAX}", hint="send fewer attributes"
        )
    return attributes


# --- out --------------------------------------------------------------------------------------------------------------


def subscription_field(name: str) -> bytes:
    """The encoded field that a consumer appends to each message."""
    return pb.StreamMessage(subscription_name=name).SerializeToString()


def messages_of(
    section: SectionRead, first_row: int, rows: int, topic_name: str, address: str
) -> Iterator[tuple[int, bytes]]:
    """Offset and encoded bytes of `rows` messages from `first_row` on."""
    offset = section.base_offset + first_row
    # Blocks are decoded as a whole: of a large section only the rows that go to this consumer are copied first.
    body = section.body if not first_row and rows == section.rows else select_rows(section.body, first_row, rows)
    encoder = _MessageEncoder(topic_name, address)
    for block in iter_blocks(body):
        for row in _rows(block):
            yield offset, encoder.encode(row, offset)
            offset += 1


_DELIVERED_COLUMNS: Final = (
    envelope.PAYLOAD, envelope.REQUEST_ID, envelope.PRODUCER_ID, envelope.PUBLISH_TIME, envelope.PRODUCER_NAME,
    envelope.KEY, envelope.SCHEMA_ID, envelope.SCHEMA_VERSION, envelope.HEADERS,
)  # fmt: skip


def _rows(block: Block) -> Iterator[tuple[Value, ...]]:
    """The delivered columns of each row of a block."""
    columns = [block.values(column) for column in _DELIVERED_COLUMNS]
    if block.numbering is not None:  # of native producers: their id is in the head of the block, not in a column
        columns[2] = [block.numbering.producer_id if id_ is None else id_ for id_ in columns[2]]
    return zip(*columns, strict=True)


class _MessageEncoder:
    """Encodes rows with one protobuf message that is reused: fields that do not change are not set again."""

    def __init__(self, topic_name: str, address: str) -> None:
        self._message = pb.StreamMessage(msg_id=pb.MsgID(topic_name=topic_name, broker_addr=address))
        self._message_id = self._message.msg_id
        self._producer: tuple[int | None, str | None] = (None, None)
        self._was_plain = True

    def encode(self, row: tuple[Any, ...], offset: int) -> bytes:
        """The bytes of a message without its subscription name. Negative numbers, which Danube lacks, become 0."""
        payload, request_id, producer_id, publish_us, producer_name, key, schema_id, schema_version, headers = row
        message = self._message
        message.request_id = max(request_id or 0, 0)
        message.payload = payload or b""
        message.publish_time = max((publish_us or 0) // 1000, 0)
        self._message_id.topic_offset = offset
        if self._producer != (producer_id, producer_name):
            self._producer = (producer_id, producer_name)
            self._message_id.producer_id = max(producer_id or 0, 0)
            message.producer_name = producer_name or ""
        # Setting and clearing four optional fields costs more than the rest of a small message: skipped between two
        # messages that have none of them.
        is_plain = key is None and schema_id is None and schema_version is None and not headers
        if not (is_plain and self._was_plain):
            self._set_optional_fields(key, schema_id, schema_version, headers or {})
            self._was_plain = is_plain
        return message.SerializeToString()

    def _set_optional_fields(
        self, key: bytes | None, schema_id: int | None, schema_version: int | None, headers: Mapping[str, str]
    ) -> None:
        """Sets the fields that few messages have, and clears those of the message before."""
        message = self._message
        for name in ("routing_key", "schema_id", "schema_version", "attributes"):
            message.ClearField(name)
        message.attributes.update(headers)
        if key is not None:
            _set_key(message, key)
        if schema_id is not None and schema_id >= 0:
            message.schema_id = schema_id
        if schema_version is not None and schema_version >= 0:
            message.schema_version = schema_version


def _set_key(message: pb.StreamMessage, key: bytes) -> None:
    """Sets the routing key; a key that is not UTF-8 becomes an attribute."""
    try:
        message.routing_key = key.decode()
    except UnicodeDecodeError:
        message.attributes[KEY_BYTES] = b64encode(key).decode()
