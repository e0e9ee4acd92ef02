"""Batches: what goes in comes out of the block, whatever only some messages have; halves and new numbers keep it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.client.batch import Batch, MessageId, checked_headers
from icestream.model import envelope
from icestream.model.block import Block, ConstantColumn, Numbering, check_block
from tests.support.blocks import TEXT

LOOP = asyncio.new_event_loop()
MESSAGES = st.lists(
    st.tuples(
        st.binary(max_size=20),
        st.none() | st.binary(max_size=8),
        st.none() | st.dictionaries(TEXT, TEXT, min_size=1, max_size=3),
        st.none() | st.integers(-(2**63), 2**63 - 1),
    ),
    min_size=1,
    max_size=20,
)


def filled(messages: list[Any]) -> Batch:
    batch = Batch(0, 77, 0)
    for payload, key, headers, time_us in messages:
        batch.add(payload, asyncio.Future(loop=LOOP), len(payload))
        if key is not None or headers or time_us is not None:
            batch.add_attributes(key, headers, time_us)
    return batch


def rows(data: bytes) -> list[Any]:
    block = check_block(data)
    columns = (envelope.PAYLOAD, envelope.KEY, envelope.HEADERS, envelope.PUBLISH_TIME)
    return list(zip(*(block.values(column) for column in columns), strict=True))


def expected(messages: list[Any]) -> list[Any]:
    return [(payload, key, headers, 77 if time is None else time) for payload, key, headers, time in messages]


@given(MESSAGES)
def test_a_block_contains_every_message_as_sent(messages: list[Any]) -> None:
    batch = filled(messages)
    batch.seal({envelope.PRODUCER_NAME: ConstantColumn("p")}, Numbering(5, 6, 7))
    assert rows(batch.block) == expected(messages)
    assert Block(batch.block).numbering == Numbering(5, 6, 7)
    assert batch.last_sequence == 7 + len(messages) - 1
    assert len(batch.block) % 8 == 0


@given(MESSAGES)
def test_renumbering_changes_nothing_else(messages: list[Any]) -> None:
    batch = filled(messages)
    batch.seal({}, Numbering(5, 6, 7))
    batch.renumber(Numbering(5, 9, 100))
    assert rows(batch.block) == expected(messages)
    assert Block(batch.block).numbering == Numbering(5, 9, 100)


@given(MESSAGES.filter(lambda messages: len(messages) > 1))
def test_halves_keep_messages_and_futures_in_order(messages: list[Any]) -> None:
    batch = filled(messages)
    futures = batch.futures
    batch.seal({}, Numbering(5, 6, 7))
    first, second = batch.split()
    assert rows(first.block) + rows(second.block) == expected(messages)
    assert first.futures + second.futures == futures
    assert (first.first_sequence, second.first_sequence) == (7, 7 + first.rows)
    assert first.bytes + second.bytes == batch.bytes


def test_success_gives_each_message_its_offset_and_skips_cancelled_futures() -> None:
    batch = filled([(b"a", None, None, None), (b"b", None, None, None), (b"c", None, None, None)])
    a, b, c = batch.futures
    b.cancel()
    batch.succeed("/default/t", 40)
    assert (a.result(), c.result()) == (MessageId("/default/t", 0, 40), MessageId("/default/t", 0, 42))


def test_a_batch_with_a_forgotten_offset_is_stored() -> None:
    batch = filled([(b"a", None, None, None)])
    (future,) = batch.futures
    batch.succeed("/default/t", -1)
    assert future.result().offset == -1


def test_waiters_of_a_batch_wait_for_its_second_half() -> None:
    batch = filled([(b"a", None, None, None), (b"b", None, None, None)])
    waiting: asyncio.Future[None] = asyncio.Future(loop=LOOP)
    batch.settled.append(waiting)
    batch.seal({}, Numbering(1, 1, 0))
    first, second = batch.split()
    first.succeed("/default/t", 0)
    assert not waiting.done()
    second.fail(errors.Refused("no"))
    assert waiting.done()


@pytest.mark.parametrize(
    "headers", [{"a": 1}, {1: "a"}, {"a": None}, {"\ud800": "a"}, {"a": "\udc00"}, {"a" * 65536: ""}, {b"a": b"b"}]
)
def test_invalid_headers_are_refused_when_they_are_given(headers: Any) -> None:
    with pytest.raises(errors.InvalidInput, match="header"):
        checked_headers(headers)
