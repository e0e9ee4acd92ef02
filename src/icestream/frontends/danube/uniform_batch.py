"""A batch of one producer whose messages differ only in what each has of its own: payload, key, time, request id.

That is what comes when a client sends without waiting. Its columns become those of a block as they are, and nothing is
done for each message. Whatever is not so simple (attributes, several producers, a value that fits no column) is looked
at row by row (sending.py), which also knows what is wrong with each.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from icestream.frontends.danube import messages
from icestream.frontends.danube.messages import SIGNED_MAX
from icestream.frontends.danube.request_batch import RequestBatch
from icestream.model import envelope
from icestream.model.block import FIXED, VARIABLE, Constant, Encoded, Values
from icestream.model.envelope import Column

_KEY: Final = 1 << messages.ROUTING_KEY
_OPTIONAL: Final = _KEY | 1 << messages.ATTRIBUTES | 1 << messages.SCHEMA_ID | 1 << messages.SCHEMA_VERSION
_PUBLISH_TIME_MAX: Final = SIGNED_MAX // 1000
_BEGIN: Final = bytes(4)  # of the first value
# What a producer says of itself with every message; left out where it says nothing, if it may be.
_NAMES: Final = (
    (messages.TOPIC_NAME, envelope.TOPIC_NAME, True),
    (messages.PRODUCER_NAME, envelope.PRODUCER_NAME, True),
    (messages.BROKER_ADDR, envelope.BROKER_ADDR, False),
    (messages.SUBSCRIPTION_NAME, envelope.SUBSCRIPTION_NAME, False),
)


class UniformBatch(NamedTuple):
    producer_id: int
    topic_name: str
    message_bytes: int  # no message has more, but for numbers, tags and lengths
    columns: dict[Column, Values]


def uniform_batch(batch: RequestBatch) -> UniformBatch | None:
    """None: its rows have to be looked at one by one."""
    shape = batch.constant_shape(_OPTIONAL)
    if batch.count == 1 or shape not in (0, _KEY):
        return None
    columns: dict[Column, Values] = {}
    names_bytes = _put_names(columns, batch)
    producer_id = _put_numbers(columns, batch)
    if names_bytes is None or producer_id is None:
        return None
    topic_name = columns[envelope.TOPIC_NAME][0]
    assert isinstance(topic_name, str)
    own_bytes = _put_values(columns, batch)
    return UniformBatch(producer_id, topic_name, names_bytes + own_bytes, columns)


def _put_names(columns: dict[Column, Values], batch: RequestBatch) -> int | None:
    """How many bytes they have together; None where not every row has the same."""
    size = 0
    for index, column, is_always in _NAMES:
        name = batch.constant_value(index)
        if name is None:
            return None
        size += len(name)
        if name or is_always:
            columns[column] = Constant(str(name, "utf-8"))
    return size


def _put_numbers(columns: dict[Column, Values], batch: RequestBatch) -> int | None:
    """The id of the producer; None where it is not one and the same, or a number does not fit."""
    producer_id = batch.constant_integer(messages.PRODUCER_ID)
    request_ids = batch.integers(messages.REQUEST_ID)
    times = batch.integers(messages.PUBLISH_TIME).tolist()
    if producer_id is None or max(producer_id, *request_ids) > SIGNED_MAX or max(times) > _PUBLISH_TIME_MAX:
        return None
    columns[envelope.PRODUCER_ID] = Constant(producer_id)
    columns[envelope.REQUEST_ID] = Encoded(FIXED, request_ids.tobytes())
    columns[envelope.PUBLISH_TIME] = Encoded(FIXED, array("q", [time * 1000 for time in times]).tobytes())
    return producer_id


def _put_values(columns: dict[Column, Values], batch: RequestBatch) -> int:
    """How many bytes those of one row have at most."""
    joined, ends = batch.joined(messages.PAYLOAD)
    columns[envelope.PAYLOAD] = Encoded(VARIABLE, _BEGIN + ends + joined)
    size = batch.largest(messages.PAYLOAD)
    if batch.present[0] & _KEY:
        joined, ends = batch.joined(messages.ROUTING_KEY)
        columns[envelope.KEY] = Encoded(VARIABLE, _BEGIN + ends + joined)
        size += batch.largest(messages.ROUTING_KEY)
    return size
