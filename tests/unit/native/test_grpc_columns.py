"""Requests into columns: the same values that protobuf finds, and nothing of a request that it refuses."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from icestream.frontends.danube.messages import COLUMNS, INTEGER, REPEATED
from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.runtime.native import native

texts = st.text(max_size=20)
numbers = st.integers(min_value=0, max_value=2**64 - 1)


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


messages = st.builds(
    pb.StreamMessage,
    request_id=numbers,
    msg_id=optional(
        st.builds(pb.MsgID, producer_id=numbers, topic_name=texts, broker_addr=texts, topic_offset=numbers)
    ),
    payload=st.binary(max_size=300),
    publish_time=numbers,
    producer_name=texts,
    subscription_name=texts,
    attributes=st.dictionaries(texts, texts, max_size=4),
    schema_id=optional(numbers),
    schema_version=optional(st.integers(min_value=0, max_value=2**32 - 1)),
    routing_key=optional(texts),
)


def decoded(requests: list[bytes]) -> tuple[list[bool], list[list[Any]]]:
    """Which were taken, and the rows of those."""
    assert native is not None
    accepted, _, columns = native.decode_columns(COLUMNS, requests)
    values: list[list[Any]] = []
    for (_, _, kind), column in zip(COLUMNS, columns, strict=True):
        if kind == INTEGER:
            values.append(list(memoryview(column).cast("Q")))
        else:
            joined, ends = column
            stops = list(memoryview(ends).cast("I"))
            values.append([joined[begin:end] for begin, end in zip([0, *stops], stops, strict=False)])
    return accepted, [list(row) for row in zip(*values, strict=True)]


def expected(message: pb.StreamMessage) -> list[Any]:
    where = message.msg_id
    return [
        message.request_id, where.producer_id, where.topic_name.encode(), where.broker_addr.encode(), message.payload,
        message.publish_time, message.producer_name.encode(), message.subscription_name.encode(),
        dict(message.attributes), message.schema_id, message.schema_version, message.routing_key.encode(),
    ]  # fmt: skip


def comparable(row: list[Any]) -> list[Any]:
    """Attributes as protobuf reads what the column kept of them."""
    at = [kind for _, _, kind in COLUMNS].index(REPEATED)
    return [*row[:at], dict(pb.StreamMessage.FromString(row[at]).attributes), *row[at + 1 :]]


@given(st.lists(messages, max_size=5))
def test_columns_match_protobuf(batch: list[pb.StreamMessage]) -> None:
    accepted, rows = decoded([message.SerializeToString() for message in batch])
    assert all(accepted)
    assert [comparable(row) for row in rows] == [expected(message) for message in batch]


@given(messages, messages)
def test_of_repeated_fields_the_last_one_counts(first: pb.StreamMessage, second: pb.StreamMessage) -> None:
    """Two messages behind each other are one, merged."""
    raw = first.SerializeToString() + second.SerializeToString()
    _, (row,) = decoded([raw])
    assert comparable(row) == expected(pb.StreamMessage.FromString(raw))


@given(messages, st.data())
def test_a_refused_request_leaves_no_values(message: pb.StreamMessage, data: st.DataObject) -> None:
    whole = message.SerializeToString()
    raw = bytearray(whole or b"\x00")
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    broken = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    accepted, rows = decoded([whole, broken, whole])
    assert (accepted[0], accepted[2]) == (True, True)
    assert len(rows) == sum(accepted)
    assert rows[0] == rows[-1]


@given(st.binary(max_size=60))
@example(b"\x0a" + b"\xff" * 9 + b"\x01")
@example(b"\x0a\xff\xff\xff\xff\x0f")
@example(b"\x12\x05\x0a\x7f\x00\x00\x00")
def test_any_bytes_are_accepted_or_refused_like_protobuf(raw: bytes) -> None:
    """Only faults in a field that is no column, or inside an attribute, may pass although protobuf refuses them."""
    accepted, rows = decoded([raw])
    assert len(rows) == sum(accepted)
    try:
        message = pb.StreamMessage.FromString(raw)
    except Exception:  # noqa: BLE001 (its own kind of error)
        return
    assert accepted == [True] or has_group(raw), "protobuf takes it"
    if accepted == [True]:
        assert comparable(rows[0]) == expected(message)


def has_group(raw: bytes) -> bool:
    """Groups are a form that no client of this protocol writes; they are refused as a whole."""
    return any(byte & 7 in (3, 4) for byte in raw)
