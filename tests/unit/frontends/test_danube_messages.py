"""Messages on their way out, and acks on their way in: many at once say what each would say alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from icestream import limits
from icestream.frontends.danube.ack_handler import ranges_of
from icestream.frontends.danube.messages import messages_of
from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.model import envelope
from icestream.model.block import encode_block
from icestream.wal.tail import SectionRead

COLUMNS = {
    envelope.PAYLOAD: st.binary(max_size=9),
    envelope.REQUEST_ID: st.sampled_from((0, 5)),
    envelope.PRODUCER_ID: st.sampled_from((None, 1, 2)),
    envelope.PUBLISH_TIME: st.sampled_from((0, 7_000)),
    envelope.PRODUCER_NAME: st.sampled_from((None, "p", "q")),
    envelope.KEY: st.sampled_from((None, None, b"k", b"\xff")),
    envelope.SCHEMA_ID: st.sampled_from((None, None, 3)),
    envelope.SCHEMA_VERSION: st.sampled_from((None, None, 4)),
    envelope.HEADERS: st.sampled_from((None, None, {"a": "b"}, {"c": "d", "e": ""})),
}


def expected(row: dict[Any, Any], offset: int) -> pb.StreamMessage:
    """Built alone."""
    where = {"topic_name": "/default/t", "broker_addr": "h:1", "topic_offset": offset}
    message = pb.StreamMessage(
        request_id=row[envelope.REQUEST_ID],
        msg_id=pb.MsgID(producer_id=row[envelope.PRODUCER_ID] or 0, **where),
        payload=row[envelope.PAYLOAD],
        publish_time=row[envelope.PUBLISH_TIME] // 1000,
        producer_name=row[envelope.PRODUCER_NAME] or "",
        attributes=row[envelope.HEADERS] or {},
        schema_id=row[envelope.SCHEMA_ID],
        schema_version=row[envelope.SCHEMA_VERSION],
    )
    match row[envelope.KEY]:
        case b"k":
            message.routing_key = "k"
        case b"\xff":
            message.attributes["x-icestream-key"] = "/w=="
    return message


@given(st.lists(st.fixed_dictionaries(COLUMNS), min_size=1, max_size=12))
def test_a_message_has_no_fields_of_the_previous_one(rows: list[dict[Any, Any]]) -> None:
    body = encode_block(len(rows), {column: [row[column] for row in rows] for column in COLUMNS})
    section = SectionRead(100, len(rows), 0, 0, body)
    messages = list(messages_of(section, 0, len(rows), "/default/t", "h:1"))
    assert [offset for offset, _ in messages] == list(range(100, 100 + len(rows)))
    for (offset, raw), row in zip(messages, rows, strict=True):
        assert pb.StreamMessage.FromString(raw) == expected(row, offset)


@given(st.lists(st.integers(0, 30) | st.sampled_from((limits.OFFSET_MAX - 1, limits.OFFSET_MAX, 2**64 - 1))))
def test_ranges_are_limited_to_possible_offsets(offsets: list[int]) -> None:
    ranges = ranges_of(offsets)
    covered_offsets = {offset for start, end in ranges for offset in range(start, end)}
    assert covered_offsets == {offset for offset in offsets if offset < limits.OFFSET_MAX}
    assert all(earlier[1] < other[0] for earlier, other in pairwise(ranges)), "apart, and rising"
