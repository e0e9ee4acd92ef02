"""The fields of a message, once: the log's columns and the table's columns are this list.

A message in the log is a row of its topic's Iceberg table. `shard`, `offset` and `append_time` are not columns of a
block: they follow from the section that holds it. `segment_id` and `segment_offset` of the older seed are superseded
by shard and offset. Columns with `in_table=False` are the log's own notes about a message and never reach the table.

Ids are part of the log format: never renumber, never reuse.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class ColumnKind(IntEnum):
    """How values of a column are stored, and what they may be."""

    INT32 = 1
    INT64 = 2
    TIMESTAMP_US = 3  # signed microseconds since 1970, UTC
    BOOLEAN = 4
    BINARY = 5
    STRING = 6  # UTF-8
    HEADERS = 7  # map<string, string>: see block.py


@dataclass(frozen=True, slots=True, eq=False)
class EnvelopeColumn:
    """A column of the envelope. Each has one instance, below, and is compared by identity."""

    id: int
    name: str
    kind: ColumnKind
    in_table: bool = True


PUBLISH_TIME: Final = EnvelopeColumn(1, "publish_time", ColumnKind.TIMESTAMP_US)
KEY: Final = EnvelopeColumn(2, "key", ColumnKind.BINARY)
PAYLOAD: Final = EnvelopeColumn(3, "payload", ColumnKind.BINARY)
HEADERS: Final = EnvelopeColumn(4, "headers", ColumnKind.HEADERS)
PRODUCER_NAME: Final = EnvelopeColumn(5, "producer_name", ColumnKind.STRING)
PRODUCER_ID: Final = EnvelopeColumn(6, "producer_id", ColumnKind.INT64)
REQUEST_ID: Final = EnvelopeColumn(7, "request_id", ColumnKind.INT64)
SEQUENCE: Final = EnvelopeColumn(8, "sequence", ColumnKind.INT64)
TOPIC_NAME: Final = EnvelopeColumn(9, "topic_name", ColumnKind.STRING)
BROKER_ADDR: Final = EnvelopeColumn(10, "broker_addr", ColumnKind.STRING)
SUBSCRIPTION_NAME: Final = EnvelopeColumn(11, "subscription_name", ColumnKind.STRING)
SCHEMA_ID: Final = EnvelopeColumn(12, "schema_id", ColumnKind.INT64)
SCHEMA_VERSION: Final = EnvelopeColumn(13, "schema_version", ColumnKind.INT32)
SCHEMA_ERROR: Final = EnvelopeColumn(14, "schema_error", ColumnKind.STRING)
WIRE: Final = EnvelopeColumn(15, "wire", ColumnKind.BINARY)
QOS: Final = EnvelopeColumn(16, "qos", ColumnKind.INT32)
RETAIN: Final = EnvelopeColumn(17, "retain", ColumnKind.BOOLEAN)
CONTENT_TYPE: Final = EnvelopeColumn(18, "content_type", ColumnKind.STRING)
# The log's own: an MQTT QoS 2 message between PUBREC and PUBREL (hazard 34), and where a re-appended message came
# from (hazard 2).
QOS2_CLIENT: Final = EnvelopeColumn(64, "qos2_client", ColumnKind.STRING, in_table=False)
QOS2_PACKET_ID: Final = EnvelopeColumn(65, "qos2_packet_id", ColumnKind.INT32, in_table=False)
ORIGIN_EPOCH: Final = EnvelopeColumn(66, "origin_epoch", ColumnKind.INT64, in_table=False)
ORIGIN_OFFSET: Final = EnvelopeColumn(67, "origin_offset", ColumnKind.INT64, in_table=False)

COLUMNS: Final[tuple[EnvelopeColumn, ...]] = (
    PUBLISH_TIME, KEY, PAYLOAD, HEADERS, PRODUCER_NAME, PRODUCER_ID, REQUEST_ID, SEQUENCE, TOPIC_NAME, BROKER_ADDR,
    SUBSCRIPTION_NAME, SCHEMA_ID, SCHEMA_VERSION, SCHEMA_ERROR, WIRE, QOS, RETAIN, CONTENT_TYPE,
    QOS2_CLIENT, QOS2_PACKET_ID, ORIGIN_EPOCH, ORIGIN_OFFSET,
)  # fmt: skip
COLUMN_BY_ID: Final = {column.id: column for column in COLUMNS}
assert len(COLUMN_BY_ID) == len(COLUMNS)
