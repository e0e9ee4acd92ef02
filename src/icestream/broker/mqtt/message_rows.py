"""MQTT messages as rows of a block, and rows as messages.

    column          of a message
    --------------  --------------------------------------------------------------------------------------------------
    key             the topic
    payload         the payload
    qos, retain     as published
    producer_name   the client id of the publisher (for no-local)
    wire            the properties of 5.0 as received, in their order, without the topic alias
    headers         user properties, for queries; of equal names the last
    content_type    the property
    publish_time    when the broker decided about it

A *plain* block has nothing but topics, payloads, one QoS and publishers: none of its rows is retained, has properties
or expires. So what is decided about rows of it with the same matches is decided once (PlainMessages), and its rows can
be delivered as a run (DeliveryRun): the native wire writes their packets from the columns of the block.

A row without `qos` is a native or Danube message: its topic is its key if that is a topic name, its QoS is 1, and its
headers are user properties. Properties are decoded only when a message is delivered.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain, groupby, pairwise
from typing import Final, NamedTuple, TypeAlias

from icestream import errors
from icestream.model import envelope
from icestream.model.block import VARIABLE, Block, ConstantColumn, Value, Values, encode_block
from icestream.mqtt.packet_type import PacketType
from icestream.mqtt.packets import PublishPacket
from icestream.mqtt.properties import (
    NO_PROPERTIES,
    Properties,
    PropertyId,
    PropertyValue,
    decode_properties,
    encode_properties,
)
from icestream.mqtt.topics import row_topic
from icestream.mqtt.wire_values import Cursor

NATIVE_QOS: Final = 1
# The columns of a plain block.
_PLAIN_COLUMNS: Final = frozenset(
    (envelope.PUBLISH_TIME, envelope.KEY, envelope.PAYLOAD, envelope.QOS, envelope.PRODUCER_NAME)
)
# First byte, length, length of the topic, packet id, and the length of properties.
_PACKET_HEAD_BYTES_MAX: Final = 13
_Stored: TypeAlias = tuple[int, int, memoryview]


class MqttMessage(NamedTuple):
    """A stored message. `properties`: their bytes as MQTT 5.0 writes them, or empty."""

    topic: str
    payload: bytes
    qos: int
    is_retained: bool
    publisher: str
    properties: bytes
    append_time_us: int


def encode_messages(messages: Sequence[PublishPacket], publisher: str, now_us: int) -> bytes:
    """Returns the block of messages of one client. Raises InvalidInput for values that do not fit a table."""
    columns: dict[envelope.EnvelopeColumn, Values] = {
        envelope.PUBLISH_TIME: ConstantColumn(now_us),
        envelope.KEY: [message.topic.encode() for message in messages],
        envelope.PAYLOAD: [message.payload for message in messages],
        envelope.QOS: [message.qos for message in messages],
        envelope.PRODUCER_NAME: ConstantColumn(publisher),
    }
    if any(message.is_retained for message in messages):
        columns[envelope.RETAIN] = [message.is_retained for message in messages]
    if any(message.properties for message in messages):
        properties = [message.properties.without(PropertyId.TOPIC_ALIAS) for message in messages]
        columns[envelope.WIRE] = [encode_properties(each) if each else None for each in properties]
        columns[envelope.HEADERS] = [dict(each.user_properties()) or None for each in properties]
        columns[envelope.CONTENT_TYPE] = [each.text(PropertyId.CONTENT_TYPE) for each in properties]
    return encode_block(len(messages), columns)


class BlockMessages:
    """The messages of one block. Columns beside the topics are decoded when the first row is asked for."""

    __slots__ = (
        "_append_times_us", "_block", "_columns", "_is_looked_at", "_native_topic", "_plain", "topic_spans", "topics",
    )  # fmt: skip

    def __init__(self, block: Block, append_times_us: Sequence[int], native_topic: str) -> None:
        """`append_times_us`: of each row."""
        self._block = block
        self._append_times_us = append_times_us
        self._native_topic = native_topic
        self._columns: list[list[Value]] | None = None
        self._plain: PlainMessages | None = None
        self._is_looked_at = False
        keys = block.values(envelope.KEY)
        # A key that repeats is looked at once: most blocks have few topics.
        names = {key: row_topic(key, native_topic) for key in set(keys) if isinstance(key, bytes)}
        self.topics = [names[key] if isinstance(key, bytes) else native_topic for key in keys]
        self.topic_spans = _spans_of(self.topics)

    @property
    def plain(self) -> PlainMessages | None:
        """What the rows share; None if one of them needs a look of its own."""
        if not self._is_looked_at:
            self._is_looked_at = True
            self._plain = PlainMessages.of(self._block, self.topics)
        return self._plain

    def retained_rows(self) -> list[int]:
        """The rows that are retained messages."""
        if self._block.stored(envelope.RETAIN) is None:
            return []
        return [row for row, is_retained in enumerate(self._block.values(envelope.RETAIN)) if is_retained]

    def row(self, index: int) -> MqttMessage:
        # A block of which no row is delivered costs its topics only.
        if self._columns is None:
            self._columns = [
                self._block.values(column)
                for column in (
                    envelope.PAYLOAD, envelope.QOS, envelope.RETAIN, envelope.PRODUCER_NAME, envelope.WIRE,
                    envelope.HEADERS, envelope.CONTENT_TYPE,
                )
            ]  # fmt: skip
        payload, qos, is_retained, publisher, wire, headers, content_type = (column[index] for column in self._columns)
        if isinstance(qos, int):
            properties = wire if isinstance(wire, bytes) else b""
        else:
            properties = _native_properties(headers, content_type)
        return MqttMessage(
            self.topics[index],
            payload if isinstance(payload, bytes) else b"",
            qos if isinstance(qos, int) and 0 <= qos <= 2 else NATIVE_QOS,
            bool(is_retained),
            publisher if isinstance(publisher, str) else "",
            properties,
            self._append_times_us[index],
        )


def _spans_of(topics: Sequence[str]) -> list[tuple[int, int, str]]:
    """Start, end and topic of rows with the same topic that follow one another."""
    if topics.count(topics[0]) == len(topics):  # of one client that publishes fast, nearly always
        return [(0, len(topics), topics[0])]
    spans, start = [], 0
    for topic, rows in groupby(topics):
        end = start + sum(1 for _ in rows)
        spans.append((start, end, topic))
        start = end
    return spans


class PlainMessages:
    """The rows of a plain block together."""

    __slots__ = ("_block", "_keys", "_payload", "_payload_ends", "_publishers", "_rows", "_topics", "qos", "wire_rows")

    def __init__(self, block: Block, topics: Sequence[str], qos: int, keys: _Stored, payload: _Stored) -> None:
        self._block = block
        self._topics = topics
        self._rows = block.rows
        self._keys = keys
        self._payload = payload
        self._payload_ends = array("I", bytes(payload[2][: 4 * (block.rows + 1)])) if payload[0] == VARIABLE else None
        self._publishers: frozenset[Value] | None = None
        self.qos = qos
        # For the native wire: made by its first use, and shared by all connections.
        self.wire_rows: object = None

    @classmethod
    def of(cls, block: Block, topics: Sequence[str]) -> PlainMessages | None:
        """None if the block has other columns, several QoS, or a key that is not the topic."""
        if not _PLAIN_COLUMNS.issuperset(block.columns()):
            return None
        keys, payload = block.stored(envelope.KEY), block.stored(envelope.PAYLOAD)
        if keys is None or payload is None or keys[1] or payload[1]:
            return None
        levels = set(block.values(envelope.QOS))
        qos = levels.pop()
        if levels or not isinstance(qos, int) or not 0 <= qos <= 2:
            return None
        texts = dict(zip(block.values(envelope.KEY), topics, strict=True))
        if any(not isinstance(key, bytes) or key != topic.encode() for key, topic in texts.items()):
            return None
        return cls(block, topics, qos, keys, payload)

    def has_publisher(self, client_id: str) -> bool:
        """True if the client published one of the messages."""
        if self._publishers is None:
            self._publishers = frozenset(self._block.values(envelope.PRODUCER_NAME))
        return client_id in self._publishers

    def size(self, start: int, end: int) -> int:
        """The bytes of the topics and payloads of rows."""
        ends = self._payload_ends
        payloads = len(self._payload[2]) * (end - start) if ends is None else ends[end] - ends[start]
        return payloads + sum(map(len, self._topics[start:end]))

    @property
    def packet_bytes_max(self) -> int:
        """The bytes of the largest packet of a row are at most so many, without properties."""
        ends = self._payload_ends
        payload = len(self._payload[2]) if ends is None else max(end - start for start, end in pairwise(ends))
        return payload + max(map(len, set(self._topics))) * 4 + _PACKET_HEAD_BYTES_MAX

    def columns(self) -> tuple[int, int, memoryview, int, memoryview]:
        """Number of rows; encoding and data of the topics, then of the payloads."""
        return self._rows, self._keys[0], self._keys[2], self._payload[0], self._payload[2]


class DeliveryRun(NamedTuple):
    """Rows of a plain block that are delivered to one client alike, in their order."""

    messages: BlockMessages
    plain: PlainMessages
    spans: Sequence[tuple[int, int]]  # rows of the block: start and end
    rows: int
    qos: int  # 0 or 1
    packet_ids: Sequence[range]  # together as many as rows; none for QoS 0
    identifiers: tuple[int, ...]

    def packets(self) -> Iterator[PublishPacket]:
        """The packets one by one: the meaning of a run."""
        packet_ids = chain.from_iterable(self.packet_ids)
        for index in chain.from_iterable(range(start, end) for start, end in self.spans):
            packet_id = next(packet_ids) if self.qos else 0
            yield delivery_packet(
                self.messages.row(index), self.qos, packet_id, is_retained=False, identifiers=self.identifiers, age_s=0
            )


def _native_properties(headers: Value, content_type: Value) -> bytes:
    entries: list[tuple[int, PropertyValue]] = []
    if isinstance(content_type, str):
        entries.append((PropertyId.CONTENT_TYPE, content_type))
    if isinstance(headers, dict):
        entries += [(PropertyId.USER_PROPERTY, pair) for pair in headers.items()]
    try:
        return encode_properties(Properties(entries)) if entries else b""
    except errors.IcestreamError:
        return b""  # a header that MQTT cannot carry: longer than 65,535 bytes, or with a null character


def decode_stored_properties(data: bytes) -> Properties:
    """The properties of a row; none if they cannot be read, which only a row of another writer can cause."""
    if not data:
        return NO_PROPERTIES
    try:
        return decode_properties(Cursor(data), PacketType.PUBLISH)
    except errors.IcestreamError:
        return NO_PROPERTIES


def expiry_seconds(row: MqttMessage) -> int | None:
    """The message expiry interval as published; None if it never expires."""
    if not row.properties:
        return None
    return decode_stored_properties(row.properties).number(PropertyId.MESSAGE_EXPIRY_INTERVAL)


def delivery_packet(
    row: MqttMessage,
    qos: int,
    packet_id: int,
    *,
    is_retained: bool,
    identifiers: Sequence[int],
    age_s: int,
    is_duplicate: bool = False,
) -> PublishPacket:
    """The packet of a delivery: the stored properties in their order, the rest of the expiry, and the identifiers."""
    properties = NO_PROPERTIES
    if row.properties or identifiers:
        entries: list[tuple[int, PropertyValue]] = []
        for identifier, value in decode_stored_properties(row.properties):
            if identifier == PropertyId.SUBSCRIPTION_IDENTIFIER:
                continue
            # At least 1: 0 would say that the message has expired already.
            is_expiry = identifier == PropertyId.MESSAGE_EXPIRY_INTERVAL and isinstance(value, int)
            entries.append((identifier, max(1, value - age_s) if is_expiry and isinstance(value, int) else value))
        entries += [(PropertyId.SUBSCRIPTION_IDENTIFIER, identifier) for identifier in identifiers]
        properties = Properties(entries)
    return PublishPacket(row.topic, row.payload, qos, packet_id, is_retained, is_duplicate, properties)
