"""A batch that is stored without decoding each message equals its messages one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.frontends.danube.messages import COLUMNS, SIGNED_MAX, Row, fields_of_batch, row_of
from icestream.frontends.danube.request_batch import RequestBatch
from icestream.frontends.danube.uniform_batch import uniform_batch
from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.model.block import check_block, encode_block
from icestream.model.envelope import COLUMN_BY_ID
from icestream.runtime.native import native

pytestmark = pytest.mark.skipif(native is None, reason="only the native wire brings messages together")
NAMES = ("", "p", "pp", "gr\u00fc\u00df")


def message(**fields: object) -> pb.StreamMessage:
    where = {"producer_id": 7, "topic_name": "/default/t", "broker_addr": "h:1"}
    where |= {name: fields.pop(name) for name in tuple(where) if name in fields}  # type: ignore[misc]
    return pb.StreamMessage(
        **{"request_id": 1, "msg_id": pb.MsgID(**where), "payload": b"m", "producer_name": "p", **fields}
    )


def batch_of(messages: Sequence[pb.StreamMessage]) -> RequestBatch:
    assert native is not None
    accepted, present, columns = native.decode_columns(COLUMNS, [message.SerializeToString() for message in messages])
    assert all(accepted)
    return RequestBatch(len(messages), present, columns, lambda rows, failures: None)


def one_by_one(batch: RequestBatch) -> list[Row]:
    rows = []
    for fields in fields_of_batch(batch):
        assert fields is not None
        rows.append(row_of(fields))
    return rows


def stored(batch: RequestBatch) -> list[Row] | None:
    uniform = uniform_batch(batch)
    if uniform is None:
        return None
    block = check_block(encode_block(batch.count, uniform.columns))
    columns = {column: block.values(column) for column in COLUMN_BY_ID.values()}
    return [
        {column: values[row] for column, values in columns.items() if values[row] is not None}
        for row in range(batch.count)
    ]


messages = st.builds(
    message,
    request_id=st.sampled_from((0, 1, SIGNED_MAX)),
    producer_id=st.sampled_from((7, 7, 7, 8)),
    payload=st.binary(max_size=20),
    publish_time=st.sampled_from((0, 1, SIGNED_MAX // 1000)),
    producer_name=st.sampled_from(NAMES),
    routing_key=st.sampled_from((None, "", "k", "key")),
    attributes=st.sampled_from(({}, {}, {}, {"a": "b"})),
    schema_id=st.sampled_from((None, None, None, 3)),
)


@given(st.lists(messages, min_size=1, max_size=8))
def test_a_uniform_batch_equals_its_messages(sent: list[pb.StreamMessage]) -> None:
    batch = batch_of(sent)
    stored_rows = stored(batch)
    assert stored_rows is None or stored_rows == one_by_one(batch)


@given(st.data())
def test_messages_of_one_producer_are_stored_together(data: st.DataObject) -> None:
    name, has_key = data.draw(st.sampled_from(NAMES)), data.draw(st.booleans())
    values = st.tuples(st.integers(0, SIGNED_MAX), st.binary(max_size=300), st.text(max_size=9))
    rows = data.draw(st.lists(values, min_size=2, max_size=40))
    sent = [
        message(request_id=number, payload=payload, producer_name=name, **{"routing_key": key} if has_key else {})
        for number, payload, key in rows
    ]
    batch = batch_of(sent)
    assert stored(batch) == one_by_one(batch)
    uniform = uniform_batch(batch)
    assert uniform is not None
    assert uniform.message_bytes >= max(fields.size for fields in fields_of_batch(batch) if fields is not None)


@pytest.mark.parametrize(
    "other",
    [
        {"producer_id": 8},
        {"topic_name": "/default/u"},
        {"broker_addr": "h:2"},
        {"producer_name": "pppp"},
        {"subscription_name": "s"},
        {"routing_key": "k"},
        {"attributes": {"a": "b"}},
        {"schema_id": 0},
        {"schema_version": 1},
        {"request_id": 2**63},
        {"publish_time": SIGNED_MAX // 1000 + 1},
    ],
)
def test_one_different_message_makes_the_batch_non_uniform(other: dict[str, object]) -> None:
    assert uniform_batch(batch_of([message(), message(), message()])) is not None
    assert uniform_batch(batch_of([message(), message(**other), message()])) is None


def test_names_that_are_the_same_only_side_by_side_differ() -> None:
    assert uniform_batch(batch_of([message(producer_name=name) for name in ("pp", "p", "ppp")])) is None
