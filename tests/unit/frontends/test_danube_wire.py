"""Danube's messages: the fields are the ones its clients have, and every message that is let in comes out unchanged."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from danube.proto import DanubeApi_pb2, SchemaRegistry_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream import errors
from icestream.frontends.danube.handlers import decode
from icestream.frontends.danube.messages import fields_of, messages_of, row_of, subscription_field
from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.frontends.danube.wire import registry_pb2
from icestream.model import envelope
from icestream.model.block import encode_block
from icestream.wal.tail import SectionRead

OURS_ALONE = {"ListSubjectsRequest", "SubjectInfo", "ListSubjectsResponse", "Outcome"}


@pytest.mark.parametrize(("ours", "theirs"), [(pb, DanubeApi_pb2), (registry_pb2, SchemaRegistry_pb2)])
def test_fields_match_those_of_danube(ours: ModuleType, theirs: ModuleType) -> None:
    """The package is our own: a process that also loads a client of Danube, as this one, would find each name twice."""
    assert ours.DESCRIPTOR.package.startswith("icestream.danube")
    danube_types = theirs.DESCRIPTOR.message_types_by_name
    for name, message in ours.DESCRIPTOR.message_types_by_name.items():
        if name not in OURS_ALONE:
            assert fields(message) == fields(danube_types[name]), name
    for name, enum in ours.DESCRIPTOR.enum_types_by_name.items():
        assert enum.values_by_name.keys() == theirs.DESCRIPTOR.enum_types_by_name[name].values_by_name.keys()


def fields(message: Any) -> list[tuple[Any, ...]]:
    return [(field.number, field.name, field.type, field.is_repeated, field.has_presence) for field in message.fields]


SMALL = st.text(max_size=20)
MESSAGES = st.builds(
    lambda optional, **fields: pb.StreamMessage(**fields, **{k: v for k, v in optional.items() if v is not None}),
    optional=st.fixed_dictionaries(
        {
            "schema_id": st.none() | st.integers(0, 2**63 - 1),
            "schema_version": st.none() | st.integers(0, 2**31 - 1),
            "routing_key": st.none() | SMALL,
        }
    ),
    request_id=st.integers(0, 2**63 - 1),
    msg_id=st.builds(pb.MsgID, producer_id=st.integers(0, 2**63 - 1), topic_name=SMALL, broker_addr=SMALL),
    payload=st.binary(max_size=50),
    publish_time=st.integers(0, 2**63 // 1000),
    producer_name=SMALL,
    attributes=st.dictionaries(SMALL, SMALL, max_size=4),
)


@settings(max_examples=30)
@given(st.lists(MESSAGES, min_size=1, max_size=5), st.data())
def test_hazard_09_every_accepted_message_is_delivered_unchanged(
    messages: list[pb.StreamMessage], data: st.DataObject
) -> None:
    rows = [row_of(fields_of(message)) for message in messages]
    columns = {column: [row.get(column) for row in rows] for column in envelope.COLUMNS}
    section = SectionRead(100, len(rows), 0, 1, encode_block(len(rows), columns))
    first = data.draw(st.integers(0, len(rows) - 1))
    delivered = list(messages_of(section, first, len(rows) - first, "/default/t-part-3", "here:1"))
    assert [offset for offset, _ in delivered] == list(range(100 + first, 100 + len(rows)))
    for (offset, raw), sent in zip(delivered, messages[first:], strict=True):
        message = pb.StreamMessage.FromString(raw + subscription_field("sub"))
        assert message.msg_id == pb.MsgID(
            producer_id=sent.msg_id.producer_id,
            topic_name="/default/t-part-3",
            broker_addr="here:1",
            topic_offset=offset,
        )
        assert message.subscription_name == "sub"
        sent.ClearField("msg_id")
        message.ClearField("msg_id")
        message.ClearField("subscription_name")
        assert message == sent


def test_a_key_that_is_not_utf_8_travels_as_an_attribute() -> None:
    section = SectionRead(0, 1, 0, 1, encode_block(1, {envelope.KEY: [b"\xff\x00"], envelope.PAYLOAD: [b"p"]}))
    ((_, raw),) = messages_of(section, 0, 1, "/default/t", "here:1")
    message = pb.StreamMessage.FromString(raw)
    assert not message.HasField("routing_key")
    assert dict(message.attributes) == {"x-icestream-key": "/wA="}


@given(st.binary(max_size=80))
def test_bytes_are_a_request_or_refused(raw: bytes) -> None:
    for kind in (pb.StreamMessage, pb.AckRequest, pb.ConsumerRequest, pb.ProducerRequest):
        try:
            request = decode(kind, raw)
        except errors.InvalidInput:
            continue
        assert kind.FromString(request.SerializeToString()) == request
