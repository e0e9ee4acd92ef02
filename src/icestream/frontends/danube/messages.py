"""Messages between the wire and the columns of a block.

in     every value is checked here against its column (hazard 9): what passes can become a row. Danube's numbers are
       unsigned and have 64 bits; ids and times here are signed.
out    the message is built once for all who get it, without the name of the subscription. Protobuf takes fields in any
       order, so each consumer has its own few bytes behind it (`subscription_field`).

    wire                      column
    request_id                request_id
    msg_id.producer_id        producer_id
    msg_id.topic_name         topic_name, as sent; on the way out the exact name of the shard
    msg_id.broker_addr        broker_addr, as sent; on the way out this broker
    msg_id.topic_offset       the offset; ignored on the way in
    payload, attributes       payload, headers
    publish_time (ms)         publish_time (us)
    producer_name             producer_name
    subscription_name         subscription_name; on the way out the consumer's
    schema_id, _version       schema_id, schema_version
    routing_key               key. One that is not UTF-8 (from other front ends) travels as attribute
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
from icestream.model.block import Block, Value, blocks_of
from icestream.model.envelope import Column
from icestream.rpc.blocks import column_bits, select_rows
from icestream.wal.tail import SectionRead

KEY_BYTES: Final = "x-icestream-key"
SIGNED_MAX: Final = 2**63 - 1
# Columns that this front end sets beside those of any client.
OWN_COLUMNS: Final = column_bits(
    column.id for column in (envelope.PRODUCER_ID, envelope.BROKER_ADDR, envelope.SUBSCRIPTION_NAME)
)

Row = dict[Column, Value]


class Fields(NamedTuple):
    """A message as it came in; None: an optional field that is not there."""

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
    size: int = 0  # of a row of a batch: its bytes but for numbers, tags and lengths


def fields_of(message: pb.StreamMessage) -> Fields:
    where = message.msg_id
    return Fields(
        message.request_id,
        where.producer_id,
        where.topic_name,
        where.broker_addr,
        message.payload,
        message.publish_time,
        message.producer_name,
        message.subscription_name,
        message.attributes,
        message.schema_id if message.HasField("schema_id") else None,
        message.schema_version if message.HasField("schema_version") else None,
        message.routing_key if message.HasField("routing_key") else None,
    )


# The same fields as columns of a batch (batch.py), in the order of Fields.
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
    """Row by row; None for one whose attributes are no text."""
    columns: list[Sequence[Any]] = [
        batch.integers(index) if kind == INTEGER else batch.texts(index) if kind == TEXT else batch.values(index)
        for index, (_, _, kind) in enumerate(COLUMNS)
    ]
    for present, row in zip(batch.present, zip(*columns, strict=True), strict=True):
        attributes: Mapping[str, str] = {}
        if row[ATTRIBUTES]:
            try:
                attributes = pb.StreamMessage.FromString(row[ATTRIBUTES]).attributes
            except DecodeError:
                yield None
                continue
        schema_id, schema_version, key = (
            row[index] if present & 1 << index else None for index in (SCHEMA_ID, SCHEMA_VERSION, ROUTING_KEY)
        )
        size = len(row[PAYLOAD]) + len(row[ATTRIBUTES]) + sum(_bytes(row[index]) for index in _TEXTS)
        yield Fields._make((*row[:ATTRIBUTES], attributes, schema_id, schema_version, key, size))


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def row_of(fields: Fields) -> Row:
    """The message as a row. Raises InvalidInput for what fits no column."""
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


def _signed(name: str, value: int, most: int = SIGNED_MAX) -> int:
    if value > most:
        raise errors.InvalidInput(f"{name} {value} does not fit its column", hint=f"{most} is the most")
    return value


def _attributes(found: dict[str, str]) -> dict[str, str]:
    if len(found) > limits.HEADERS_MAX:
        raise errors.InvalidInput(f"a message with {len(found)} attributes", hint=f"{limits.HEADERS_MAX} are possible")
    return found


# --- out --------------------------------------------------------------------------------------------------------------


def subscription_field(name: str) -> bytes:
    """The bytes behind a message for one consumer."""
    return pb.StreamMessage(subscription_name=name).SerializeToString()


def messages_of(
    section: SectionRead, first_row: int, rows: int, topic_name: str, address: str
) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of the messages from `first_row` on."""
    offset = section.base_offset + first_row
    body = section.body if not first_row and rows == section.rows else select_rows(section.body, first_row, rows)
    form = _Form(topic_name, address)
    for block in blocks_of(body):
        for row in _rows(block):
            yield offset, form.encode(row, offset)
            offset += 1


_READ: Final = (
    envelope.PAYLOAD, envelope.REQUEST_ID, envelope.PRODUCER_ID, envelope.PUBLISH_TIME, envelope.PRODUCER_NAME,
    envelope.KEY, envelope.SCHEMA_ID, envelope.SCHEMA_VERSION, envelope.HEADERS,
)  # fmt: skip


def _rows(block: Block) -> Iterator[tuple[Value, ...]]:
    columns = [block.values(column) for column in _READ]
    if block.numbering is not None:
        columns[2] = [block.numbering.producer_id if id_ is None else id_ for id_ in columns[2]]
    return zip(*columns, strict=True)


class _Form:
    """The message that is filled in anew for each row: what it says again is not set again."""

    def __init__(self, topic_name: str, address: str) -> None:
        self._message = pb.StreamMessage(msg_id=pb.MsgID(topic_name=topic_name, broker_addr=address))
        self._where = self._message.msg_id
        self._producer: tuple[int | None, str | None] = (None, None)
        self._is_plain = True

    def encode(self, row: tuple[Any, ...], offset: int) -> bytes:
        payload, request_id, producer_id, publish_us, producer_name, key, schema_id, schema_version, headers = row
        message = self._message
        message.request_id = max(request_id or 0, 0)
        message.payload = payload or b""
        message.publish_time = max((publish_us or 0) // 1000, 0)
        self._where.topic_offset = offset
        if self._producer != (producer_id, producer_name):
            self._producer = (producer_id, producer_name)
            self._where.producer_id = max(producer_id or 0, 0)
            message.producer_name = producer_name or ""
        is_plain = key is None and schema_id is None and schema_version is None and not headers
        if not (is_plain and self._is_plain):
            self._put_rest(key, schema_id, schema_version, headers or {})
            self._is_plain = is_plain
        return message.SerializeToString()

    def _put_rest(
        self, key: bytes | None, schema_id: int | None, schema_version: int | None, headers: Mapping[str, str]
    ) -> None:
        """What few messages have; and who has nothing of it must not have that of the one before."""
        message = self._message
        for name in ("routing_key", "schema_id", "schema_version", "attributes"):
            message.ClearField(name)
        message.attributes.update(headers)
        if key is not None:
            _put_key(message, key)
        if schema_id is not None and schema_id >= 0:
            message.schema_id = schema_id
        if schema_version is not None and schema_version >= 0:
            message.schema_version = schema_version


def _put_key(message: pb.StreamMessage, key: bytes) -> None:
    try:
        message.routing_key = key.decode()
    except UnicodeDecodeError:
        message.attributes[KEY_BYTES] = b64encode(key).decode()
