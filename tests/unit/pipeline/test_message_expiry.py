"""The expiry interval of messages, from their properties: for all rows at once as for each of them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.mqtt.packet_type import PacketType
from icestream.mqtt.properties import Properties, PropertyId, PropertyValue, decode_properties, encode_properties
from icestream.mqtt.wire_values import Cursor
from icestream.pipeline.rows.message_expiry import message_expiry

TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=300), max_size=5)
ENTRY = st.one_of(
    st.tuples(st.just(PropertyId.USER_PROPERTY), st.tuples(TEXT, TEXT)),
    st.tuples(st.just(PropertyId.CORRELATION_DATA), st.binary(max_size=300)),
    st.tuples(st.just(PropertyId.CONTENT_TYPE), TEXT),
    st.tuples(st.just(PropertyId.RESPONSE_TOPIC), TEXT.filter(lambda text: not set(text) & {"+", "#"})),
    st.tuples(st.just(PropertyId.PAYLOAD_FORMAT_INDICATOR), st.integers(0, 1)),
    st.tuples(st.just(PropertyId.SUBSCRIPTION_IDENTIFIER), st.integers(1, 268_435_455)),
)


@st.composite
def properties(draw: st.DrawFn) -> bytes:
    entries: list[tuple[int, PropertyValue]] = []
    for identifier, value in draw(st.lists(ENTRY, max_size=6)):
        is_repeatable = identifier in (PropertyId.USER_PROPERTY, PropertyId.SUBSCRIPTION_IDENTIFIER)
        if is_repeatable or identifier not in [other for other, _ in entries]:
            entries.append((identifier, value))
    interval = draw(st.none() | st.integers(0, 2**32 - 1))
    if interval is not None:
        entries.insert(draw(st.integers(0, len(entries))), (PropertyId.MESSAGE_EXPIRY_INTERVAL, interval))
    return encode_properties(Properties(entries))


def expected(wire: bytes | None) -> int | None:
    if not wire:
        return None
    return decode_properties(Cursor(wire), PacketType.PUBLISH).number(PropertyId.MESSAGE_EXPIRY_INTERVAL)


@given(st.lists(st.none() | properties(), max_size=6), st.integers(0, 3))
def test_all_rows_at_once_are_each_row_by_itself(rows: list[bytes | None], start: int) -> None:
    column = pa.chunked_array([pa.array(rows[:2], pa.binary()), pa.array(rows[2:], pa.binary())]).slice(start)
    seconds = message_expiry(column)
    intervals = [expected(wire) for wire in rows[start:]]
    assert (seconds.to_pylist() if seconds is not None else [None] * len(intervals)) == intervals


@given(st.lists(st.binary(max_size=12), min_size=1, max_size=4))
def test_bytes_that_are_no_properties_are_no_error(rows: list[bytes]) -> None:
    seconds = message_expiry(pa.array([*rows, encode_properties(Properties([(2, 77)]))])).to_pylist()
    assert seconds[-1] == 77
    for wire, interval in zip(rows, seconds, strict=False):
        try:
            decoded = expected(wire)
        except errors.PacketRefused:
            continue  # such bytes may have an interval in front of what is wrong with them
        assert len(wire) != 1 + (wire[:1] or b"\0")[0] or interval == decoded


@pytest.mark.parametrize("count", [10, 100])
def test_the_interval_is_read_behind_many_properties(count: int) -> None:
    entries: list[tuple[int, PropertyValue]] = [(PropertyId.USER_PROPERTY, ("a", "b"))] * count
    lists = [[*entries, (PropertyId.MESSAGE_EXPIRY_INTERVAL, 5)], entries]
    seconds = message_expiry(pa.array([encode_properties(Properties(properties)) for properties in lists]))
    assert seconds.to_pylist() == [5, None]


def test_no_properties_at_all_are_no_column() -> None:
    assert message_expiry(None) is None
    assert message_expiry(pa.array([None, b"\0"], pa.binary())) is None
    assert message_expiry(pa.array([], pa.binary())) is None
