"""Converts a batch of one producer whose messages differ only in payload, key, time and request id to block columns.

Such batches arrive when a client sends without waiting. Their columns become block columns as they are, without work
for each message. Any other batch (attributes, several producers, a value that does not fit its column) is processed row
by row (message_sender.py), which also finds the error of each row.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from icestream.frontends.danube import messages
from icestream.frontends.danube.messages import SIGNED_MAX
from icestream.frontends.danube.request_batch import RequestBatch
from icestream.model import envelope
from icestream.model.block import FIXED, VARIABLE, ConstantColumn, EncodedColumn, Values
from icestream.model.envelope import EnvelopeColumn

_KEY: Final = 1 << messages.ROUTING_KEY
_OPTIONAL: Final = _KEY | 1 << messages.ATTRIBUTES | 1 << messages.SCHEMA_ID | 1 << messages.SCHEMA_VERSION
_PUBLISH_TIME_MAX: Final = SIGNED_MAX // 1000
_FIRST_BEGIN: Final = bytes(4)  # a block column has the begin of its first value before the ends
# Names that a producer sends with every message: column of the batch, column of the block, whether it is required.
_NAMES: Final = (
    (messages.TOPIC_NAME, envelope.TOPIC_NAME, True),
    (messages.PRODUCER_NAME, envelope.PRODUCER_NAME, True),
    (messages.BROKER_ADDR, envelope.BROKER_ADDR, False),
    (messages.SUBSCRIPTION_NAME, envelope.SUBSCRIPTION_NAME, False),
)


class UniformBatch(NamedTuple):
    producer_id: int
    topic_name: str
    message_bytes: int  # the largest message, without numbers, tags and lengths
    columns: dict[EnvelopeColumn, Values]


def uniform_batch(batch: RequestBatch) -> UniformBatch | None:
    """None if the rows have to be processed one by one."""
    shape = batch.constant_shape(_OPTIONAL)
    if batch.count == 1 or shape not in (0, _KEY):
        return None
    columns: dict[EnvelopeColumn, Values] = {}
    names_bytes = _put_names(columns, batch)
    producer_id = _put_numbers(columns, batch)
    if names_bytes is None or producer_id is None:
        return None
    topic_name = columns[envelope.TOPIC_NAME][0]
    assert isinstance(topic_name, str)
    own_bytes = _put_values(columns, batch)
    return UniformBatch(producer_id, topic_name, names_bytes + own_bytes, columns)


def _put_names(columns: dict[EnvelopeColumn, Values], batch: RequestBatch) -> int | None:
    """Adds the name columns and returns the sum of their bytes; None if the rows differ in a name."""
    size = 0
    for index, column, is_required in _NAMES:
        name = batch.constant_value(index)
        if name is None:
            return None
        size += len(name)
        if name or is_required:
            columns[column] = ConstantColumn(str(name, "utf-8"))
    return size


def _put_numbers(columns: dict[EnvelopeColumn, Values], batch: RequestBatch) -> int | None:
    """Adds the number columns and returns the producer id; None if it differs between rows or a number is too large."""
    producer_id = batch.constant_integer(messages.PRODUCER_ID)
    request_ids = batch.integers(messages.REQUEST_ID)
    times = batch.integers(messages.PUBLISH_TIME).tolist()
    if producer_id is None or max(producer_id, *request_ids) > SIGNED_MAX or max(times) > _PUBLISH_TIME_MAX:
        return None
    columns[envelope.PRODUCER_ID] = ConstantColumn(producer_id)
    columns[envelope.REQUEST_ID] = EncodedColumn(FIXED, request_ids.tobytes())
    columns[envelope.PUBLISH_TIME] = EncodedColumn(FIXED, array("q", [time * 1000 for time in times]).tobytes())
    return producer_id


def _put_values(columns: dict[EnvelopeColumn, Values], batch: RequestBatch) -> int:
    """Adds payload and key columns and returns the largest sum of their bytes in a row."""
    joined, ends = batch.joined(messages.PAYLOAD)
    columns[envelope.PAYLOAD] = EncodedColumn(VARIABLE, _FIRST_BEGIN + ends + joined)
    size = batch.largest(messages.PAYLOAD)
    if batch.present[0] & _KEY:
        joined, ends = batch.joined(messages.ROUTING_KEY)
        columns[envelope.KEY] = EncodedColumn(VARIABLE, _FIRST_BEGIN + ends + joined)
        size += batch.largest(messages.ROUTING_KEY)
    return size
