"""Columns as the client reads them: the same values as the block's own decoder, and no trust in what came."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.client.delivered_rows import DeliveredRows, block_extents, check_delivery, column_values
from icestream.model import envelope
from icestream.model.block import Block, decode_block_head, encode_block
from icestream.model.envelope import COLUMNS
from icestream.rpc.frame import Delivery
from tests.support.blocks import blocks, bodies, forged_blocks


def delivered(body: bytes, first_row: int, rows: int) -> DeliveredRows:
    delivery = Delivery(1, 0, 0, 0, 100, 0, first_row, rows, body)
    check_delivery(delivery)
    no_consumer: Any = None
    return DeliveredRows(no_consumer, None, None, delivery, 0)


@given(blocks(), st.data())
def test_values_equal_those_of_the_block(data: bytes, draw: st.DataObject) -> None:
    block = Block(data)
    first = draw.draw(st.integers(0, block.rows - 1))
    end = draw.draw(st.integers(first + 1, block.rows))
    for column in COLUMNS:
        assert list(column_values(block, column, first, end)) == block.values(column)[first:end]


@given(forged_blocks())
def test_forged_columns_are_decoded_or_refused_as_the_block_does(data: bytes) -> None:
    try:
        block = Block(data)
    except errors.DecodeError:
        return
    for column in COLUMNS:
        try:
            expected = block.values(column)
        except errors.DecodeError:
            with pytest.raises(errors.DecodeError):
                column_values(block, column, 0, block.rows)
        else:
            assert list(column_values(block, column, 0, block.rows)) == expected


@pytest.mark.parametrize("ends", [[0, 1, 65535, 3], [0, 2, 1, 3], [1, 1, 2, 3], [0, 1, 2, 2], [0, 1, 2, 4]])
def test_ends_that_do_not_rise_to_the_size_are_refused(ends: list[int]) -> None:
    good = encode_block(3, {envelope.PAYLOAD: [b"a", b"b", b"c"]})
    at = good.index(struct.pack("<4I", 0, 1, 2, 3))
    block = Block(good[:at] + struct.pack("<4I", *ends) + good[at + 16 :])
    with pytest.raises(errors.DecodeError, match="payload"):
        column_values(block, envelope.PAYLOAD, 0, 3)


@given(bodies(), st.data())
def test_rows_over_several_blocks_are_the_selected_rows(body: bytes, draw: st.DataObject) -> None:
    total = sum(rows for rows, _ in block_extents(body))
    first = draw.draw(st.integers(0, total - 1))
    rows = draw.draw(st.integers(1, total - first))
    delivery = delivered(body, first, rows)
    low = draw.draw(st.integers(0, rows - 1))
    part = delivery.parts([(delivery.start + low, delivery.end)])[0]
    for column in COLUMNS:
        expected = whole(body, column)[first : first + rows]
        assert list(delivery.values(column)) == expected
        assert list(part.values(column)) == expected[low:]
    assert part.end == delivery.end == 100 + first + rows


def whole(body: bytes, column: Any) -> list[Any]:
    values: list[Any] = []
    while body:
        values += Block(body).values(column)
        body = body[decode_block_head(body).block_bytes :]
    return values


@given(bodies(), st.integers(1, 5))
def test_rows_that_the_blocks_do_not_have_are_refused(body: bytes, beyond: int) -> None:
    total = sum(rows for rows, _ in block_extents(body))
    with pytest.raises(errors.DecodeError, match="blocks have"):
        delivered(body, 0, total + beyond)
