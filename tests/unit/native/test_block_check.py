"""The door for blocks, in Rust and in Python: the same verdict, the same words, the same bytes (hazard 9)."""

from __future__ import annotations

import mmap
import random
import struct
from collections.abc import Callable
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.model import envelope
from icestream.model.block import (
    COLUMN,
    CONSTANT,
    HEAD,
    VARIABLE,
    Block,
    ConstantColumn,
    Numbering,
    encode_block,
    iter_blocks,
)
from icestream.model.envelope import COLUMN_BY_ID, COLUMNS, ColumnKind, EnvelopeColumn
from icestream.rpc import blocks as block_check
from icestream.runtime.native import native
from tests.support.blocks import blocks, bodies, forged_blocks
from tests.support.mutations import bit_flips, mutated, truncations

python = SimpleNamespace(
    check_block=block_check.check_block_python,
    select_rows=block_check.select_rows_python,
    pick_rows=block_check.pick_rows_python,
    row_keys=block_check.row_keys_python,
)
needs_native = pytest.mark.skipif(native is None, reason="the native extension is not built (make native)")
both = pytest.mark.parametrize(
    "twin", [pytest.param(python, id="python"), pytest.param(native, id="native", marks=needs_native)]
)
Twin = SimpleNamespace | ModuleType

SMALL = encode_block(
    3,
    {
        envelope.PUBLISH_TIME: [1, None, 3],
        envelope.KEY: [b"k", None, b""],
        envelope.PAYLOAD: [b"a", b"", b"ccc"],
        envelope.HEADERS: [{"k": "v"}, {}, {"a": "1", "b": "2"}],
        envelope.PRODUCER_NAME: ConstantColumn("me"),
        envelope.TOPIC_NAME: ["ü", None, "x"],
        envelope.RETAIN: [True, False, True],
    },
    Numbering(7, 1, 40),
)


def verdict(call: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    """The outcome of a call: a value or the text of a refusal. Any other exception fails the test."""
    try:
        return "value", call(*arguments)
    except (errors.DecodeError, ValueError) as error:
        return "refused", str(error)


def check_same_verdict(data: bytes) -> str:
    assert native is not None
    outcome, words = verdict(native.check_block, data)
    assert (outcome, words) == verdict(python.check_block, data)
    return outcome


# --- check_block ------------------------------------------------------------------------------------------------------


def test_validation_returns_the_content_of_a_block() -> None:
    head, columns = block_check.check_block(SMALL)
    assert head == (3, len(SMALL), Numbering(7, 1, 40))
    there = [column.id for column in Block(SMALL).columns()]
    assert columns == block_check.column_bits(there) == sum(1 << id_ for id_ in there)
    inner = encode_block(1, {envelope.PAYLOAD: [b"x"], envelope.ORIGIN_EPOCH: [1], envelope.ORIGIN_OFFSET: [1]})
    assert block_check.check_block(inner) == ((1, len(inner), None), 1 << 63 | 1 << envelope.PAYLOAD.id)


@needs_native
@given(blocks())
def test_good_blocks_pass(data: bytes) -> None:
    assert check_same_verdict(data) == "value"


@needs_native
def test_every_flip_of_a_small_block() -> None:
    verdicts = [check_same_verdict(flipped) for _, flipped in bit_flips(SMALL)]
    assert {"value", "refused"} == set(verdicts)


@needs_native
def test_every_truncation_of_a_small_block() -> None:
    assert {check_same_verdict(cut) for cut in truncations(SMALL)} == {"refused"}


@needs_native
@given(mutated(SMALL))
def test_mutated_blocks(data: bytes) -> None:
    assert check_same_verdict(data) in {"value", "refused"}


@needs_native
@given(blocks().flatmap(mutated))
def test_any_block_mutated(data: bytes) -> None:
    assert check_same_verdict(data) in {"value", "refused"}


@needs_native
@given(forged_blocks())
def test_forged_directories(data: bytes) -> None:
    assert check_same_verdict(data) in {"value", "refused"}


@needs_native
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda data: data + bytes(-len(data) % 8))))
def test_random_bytes(data: bytes) -> None:
    assert check_same_verdict(data) in {"value", "refused"}


HEADS = st.tuples(
    st.one_of(st.integers(0, 3), st.sampled_from([2**20, 2**20 + 1, 2**31, 2**32 - 1])),
    st.sampled_from([0, 8, 24, 32, 33, 40, 48, 2**31, 2**32 - 8]),
    st.sampled_from([-(2**63), -2, -1, 0, 2**63 - 1]),
    st.sampled_from([-(2**31), -1, 0, 2**31 - 1]),
    st.sampled_from([0, 1, 2, 2**16 - 1]),
    st.sampled_from([0, 0, 1, 2**15]),
    st.sampled_from([-(2**63), -2, -1, 0, 2**63 - 2**20 - 1, 2**63 - 3, 2**63 - 2, 2**63 - 1]),
)


@needs_native
@given(HEADS, st.integers(0, 3))
def test_heads_at_the_edges(head: tuple[int, ...], words: int) -> None:
    assert check_same_verdict(HEAD.pack(*head) + bytes(8 * words)) in {"value", "refused"}


@needs_native
def test_every_numbering_at_the_edges() -> None:
    verdicts = set()
    for rows in (1, 2, 2**20):
        ends = (-(2**63), -2, -1, 0, 1, *(2**63 - 1 - rows + step for step in (-1, 0, 1)), 2**63 - 1)
        for producer, epoch, sequence in product(ends, (-(2**31), -1, 0, 2**31 - 1), ends):
            verdicts.add(check_same_verdict(HEAD.pack(rows, HEAD.size, producer, epoch, 0, 0, sequence)))
    assert verdicts == {"value", "refused"}


def one_column(column_id: int, encoding: int, flags: int, content: bytes, rows: int = 2) -> bytes:
    data = COLUMN.pack(column_id, encoding, flags, len(content)) + content + bytes(-len(content) % 8)
    return HEAD.pack(rows, HEAD.size + len(data), -1, 0, 1, 0, -1) + data


@needs_native
def test_every_id_means_the_same_column_in_both() -> None:
    """Unknown ids too: name and kind show in the error texts and in the accepted values."""
    contents = [b"", b"\xff", bytes(1), bytes(2), bytes(4), bytes(8), bytes(16), bytes(12), b"\x02" * 2]
    accepted = set()
    for column_id in range(2**8):
        for encoding in range(5):
            for flags in range(3):
                for content in contents:
                    if check_same_verdict(one_column(column_id, encoding, flags, content)) == "value":
                        accepted.add(column_id)
    assert accepted == set(COLUMN_BY_ID)


HEADERS_BYTES = st.one_of(
    st.binary(max_size=40),
    st.lists(
        st.tuples(st.binary(max_size=3), st.binary(max_size=3), st.sampled_from([0, 0, 0, 1, 2**16])), max_size=4
    ).map(
        lambda pairs: (
            struct.pack("<H", len(pairs))
            + b"".join(
                struct.pack("<H", len(key)) + key + struct.pack("<I", len(value) + lie) + value
                for key, value, lie in pairs
            )
        )
    ),
)


@needs_native
@given(HEADERS_BYTES, st.integers(0, 3))
@example(struct.pack("<H", 2) + 2 * (struct.pack("<H", 1) + b"a" + struct.pack("<I", 0)), 0)
@example(struct.pack("<HH", 1, 65_535), 0)
def test_headers(content: bytes, cut: int) -> None:
    content = content[: len(content) - cut]
    assert check_same_verdict(one_column(envelope.HEADERS.id, CONSTANT, 0, content)) in {"value", "refused"}


@needs_native
@given(st.lists(st.binary(max_size=3), min_size=1, max_size=6), st.booleans())
def test_texts_that_end_inside_a_letter(parts: list[bytes], has_nulls: bool) -> None:
    """Together they may be UTF-8 where each alone is not."""
    whole = "aü€𝄞".encode()
    for texts in (parts, [whole[start : start + 2] for start in range(0, len(whole), 2)]):
        ends = [sum(map(len, texts[:count])) for count in range(len(texts) + 1)]
        bitmap = (0b10101).to_bytes(8, "little") if has_nulls else b""
        content = bitmap + struct.pack(f"<{len(ends)}I", *ends) + b"".join(texts)
        data = one_column(envelope.TOPIC_NAME.id, VARIABLE, int(has_nulls), content, len(texts))
        assert check_same_verdict(data) in {"value", "refused"}


@needs_native
def test_validation_takes_any_bytes_like_object_only() -> None:
    assert native is not None
    with mmap.mmap(-1, len(SMALL)) as mapped:
        mapped.write(SMALL)
        for data in (SMALL, bytearray(SMALL), memoryview(SMALL), mapped):
            assert native.check_block(data) == python.check_block(SMALL)
            assert native.select_rows(data, 1, 1) == native.select_rows(SMALL, 1, 1)
            assert native.row_keys(data) == [b"k", b"me", b""]
    for call in (native.check_block, native.row_keys):
        for odd in ("text", 7, None):
            with pytest.raises(TypeError):
                call(odd)
        with pytest.raises(BufferError):
            call(memoryview(SMALL)[::2])


# --- select_rows ------------------------------------------------------------------------------------------------------


def rows_of(body: bytes) -> list[dict[str, Any]]:
    """The rows of a block, each with all its values and its number."""
    records: list[dict[str, Any]] = []
    for block in iter_blocks(body):
        values = {column.name: block.values(column) for column in COLUMNS}
        for row in range(block.rows):
            numbering = block.numbering
            number = (
                (numbering.producer_id, numbering.producer_epoch, numbering.first_sequence + row) if numbering else None
            )
            records.append({"number": number, **{name: column[row] for name, column in values.items()}})
    return records


@both
@given(body=bodies(), data=st.data())
def test_selected_rows_are_the_same_rows(twin: Twin, body: bytes, data: st.DataObject) -> None:
    rows = rows_of(body)
    first = data.draw(st.integers(0, len(rows) - 1))
    count = data.draw(st.integers(1, len(rows) - first))
    selected = twin.select_rows(body, first, count)
    assert rows_of(selected) == rows[first : first + count]
    for block in iter_blocks(selected):
        python.check_block(selected[: block.block_bytes])
        selected = selected[block.block_bytes :]


def with_number_columns(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Numbers as columns, however a block has them; epochs are not kept."""
    records = []
    for row in rows:
        number = row["number"]
        producer = (row["producer_id"], row["sequence"]) if number is None else (number[0], number[2])
        records.append({**row, "number": None, "producer_id": producer[0], "sequence": producer[1]})
    return records


@both
@given(body=bodies(), data=st.data())
def test_picked_rows_are_the_same_rows(twin: Twin, body: bytes, data: st.DataObject) -> None:
    rows = rows_of(body)
    picked = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1)))
    picked_body = twin.pick_rows(body, picked)
    assert with_number_columns(rows_of(picked_body)) == with_number_columns([rows[row] for row in picked])
    assert picked_body == python.pick_rows(body, picked)
    for block in iter_blocks(picked_body):
        python.check_block(picked_body[: block.block_bytes])
        picked_body = picked_body[block.block_bytes :]


@both
@pytest.mark.parametrize("rows", [[], [-1], [1, 1], [2, 1], [0, 3], [3], [2**40]])
def test_invalid_rows_are_not_picked(twin: Twin, rows: list[int]) -> None:
    with pytest.raises((ValueError, errors.DecodeError)):
        twin.pick_rows(SMALL, rows)


@both
def test_every_selection_of_a_small_body(twin: Twin) -> None:
    body = SMALL + encode_block(1, {}) + SMALL
    rows = rows_of(body)
    for first in range(len(rows)):
        for count in range(1, len(rows) - first + 1):
            assert rows_of(twin.select_rows(body, first, count)) == rows[first : first + count]


@both
@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_nulls_keep_their_rows(twin: Twin, column: EnvelopeColumn) -> None:
    examples: dict[ColumnKind, Any] = {
        ColumnKind.BOOLEAN: True, ColumnKind.BINARY: b"value", ColumnKind.STRING: "text", ColumnKind.HEADERS: {"a": ""},
    }  # fmt: skip
    value = examples.get(column.kind, 7)
    values = [None if row % 3 == 0 or row > 140 else value for row in range(150)]
    body = encode_block(150, {column: values})
    for first, count in ((0, 149), (1, 1), (7, 9), (8, 64), (63, 66), (64, 64), (141, 9), (149, 1)):
        selected = twin.select_rows(body, first, count)
        assert Block(selected).values(column) == values[first : first + count]


@both
def test_a_cut_numbered_block_keeps_its_numbers(twin: Twin) -> None:
    body = encode_block(5, {envelope.PAYLOAD: [b"0", b"1", b"2", b"3", b"4"]}, Numbering(9, 2, 100))
    assert Block(twin.select_rows(body, 0, 2)).numbering == Numbering(9, 2, 100)
    assert Block(twin.select_rows(body, 3, 2)).numbering == Numbering(9, 2, 103)
    last = encode_block(5, {}, Numbering(2**63 - 1, 2**31 - 1, 2**63 - 6))
    assert Block(twin.select_rows(last, 4, 1)).numbering == Numbering(2**63 - 1, 2**31 - 1, 2**63 - 2)
    assert Block(twin.select_rows(encode_block(5, {}), 3, 2)).numbering is None


@both
def test_whole_blocks_are_copied_unchanged(twin: Twin) -> None:
    middle = encode_block(2, {envelope.PAYLOAD: [b"x", b"y"], envelope.KEY: ConstantColumn(b"k")}, Numbering(1, 0, 5))
    dirty = bytearray(middle)
    dirty[-1] = 0xFF  # padding: it is not checked
    body = SMALL + bytes(dirty) + SMALL
    assert twin.select_rows(body, 3, 2) == bytes(dirty)
    assert twin.select_rows(body, 0, 8) == body
    assert bytes(dirty) in twin.select_rows(body, 1, 6)


@both
@pytest.mark.parametrize(
    ("first", "count"), [(-1, 1), (0, 0), (0, -1), (3, 1), (0, 4), (2, 2), (2**62, 1), (0, 2**62), (2**62, 2**62)]
)
def test_missing_rows_are_refused(twin: Twin, first: int, count: int) -> None:
    outcome, words = verdict(twin.select_rows, SMALL, first, count)
    assert outcome == "refused"
    assert "row" in words


@needs_native
@given(
    st.one_of(bodies().flatmap(mutated), forged_blocks(), mutated(SMALL + SMALL), st.binary(max_size=100)),
    st.integers(0, 12),
    st.integers(1, 12),
)
def test_hostile_bodies_are_cut_or_refused_alike(body: bytes, first: int, count: int) -> None:
    assert native is not None
    assert verdict(native.select_rows, body, first, count) == verdict(python.select_rows, body, first, count)
    assert verdict(native.row_keys, body) == verdict(python.row_keys, body)


@needs_native
def test_every_flip_is_cut_or_refused_alike() -> None:
    assert native is not None
    for _, body in bit_flips(SMALL):
        for first, count in ((0, 1), (1, 1), (1, 2), (0, 3)):
            assert verdict(native.select_rows, body, first, count) == verdict(python.select_rows, body, first, count)
        assert verdict(native.row_keys, body) == verdict(python.row_keys, body)


def long_body(seed: int) -> bytes:
    """Two blocks of up to 200 rows, with and without nulls."""
    chance = random.Random(seed)
    body = b""
    for _ in range(2):
        rows = chance.randint(1, 200)
        columns: dict[EnvelopeColumn, Any] = {
            envelope.KEY: [chance.choice([None, b"", b"key"]) for _ in range(rows)],
            envelope.PAYLOAD: [chance.randbytes(chance.randint(0, 9)) for _ in range(rows)],
            envelope.QOS: [chance.choice([None, 0, 1, 2]) for _ in range(rows)],
            envelope.RETAIN: [chance.choice([True, False]) for _ in range(rows)],
        }
        body += encode_block(rows, columns, Numbering(seed, 0, chance.randint(0, 10**6)))
    return body


@needs_native
@given(st.integers(0, 10**6), st.data())
def test_both_implementations_give_the_same_bytes(seed: int, data: st.DataObject) -> None:
    assert native is not None
    body = long_body(seed)
    rows = sum(block.rows for block in iter_blocks(body))
    first = data.draw(st.integers(0, rows - 1))
    count = data.draw(st.integers(1, rows - first))
    assert native.select_rows(body, first, count) == python.select_rows(body, first, count)


@both
def test_only_selected_rows_are_read(twin: Twin) -> None:
    """Of a million rows a few are cut out again and again: that must not cost a million each time."""
    ends = struct.pack("<5I", 0, 1, 2, 2**31, 3)
    body = one_column(envelope.PAYLOAD.id, VARIABLE, 0, ends + b"abc", rows=4)
    assert Block(twin.select_rows(body, 0, 2)).values(envelope.PAYLOAD) == [b"a", b"b"]
    assert verdict(twin.select_rows, body, 1, 2)[0] == "refused"
    assert verdict(twin.select_rows, body, 3, 1)[0] == "refused"


# --- row_keys ---------------------------------------------------------------------------------------------------------


@both
@given(body=bodies(columns=(envelope.KEY, envelope.PRODUCER_NAME, envelope.PAYLOAD)))
def test_a_key_is_the_key_or_else_the_name_of_the_producer(twin: Twin, body: bytes) -> None:
    expected = []
    for row in rows_of(body):
        name = row["producer_name"]
        expected.append(row["key"] if row["key"] is not None else (name or "").encode())
    assert twin.row_keys(body) == expected


@both
def test_an_empty_key_is_a_key(twin: Twin) -> None:
    columns = {envelope.KEY: [b"", None, b"k"], envelope.PRODUCER_NAME: ConstantColumn("me")}
    assert twin.row_keys(encode_block(3, columns)) == [b"", b"me", b"k"]
    assert twin.row_keys(encode_block(2, {envelope.PRODUCER_NAME: [None, "you"]})) == [b"", b"you"]
    assert twin.row_keys(b"") == []


@both
def test_names_are_decoded_only_when_needed(twin: Twin) -> None:
    for key, expected in ((b"\x01", "value"), (b"\x00", "refused")):
        key_data = key.ljust(8, b"\0") + struct.pack("<2I", 0, 0)
        directory = COLUMN.pack(2, VARIABLE, 1, len(key_data)) + COLUMN.pack(5, CONSTANT, 0, 1)
        data = key_data + b"\xff".ljust(8, b"\0")
        body = HEAD.pack(1, 32 + len(directory) + len(data), -1, 0, 2, 0, -1) + directory + data
        assert verdict(twin.row_keys, body)[0] == expected


# --- the door itself --------------------------------------------------------------------------------------------------


def test_the_native_implementations_are_used_if_available() -> None:
    chosen = (block_check._check_block, block_check._select_rows, block_check._row_keys)
    source = python if native is None else native
    assert chosen == (source.check_block, source.select_rows, source.row_keys)


def test_refusals_are_invalid_input_with_a_reason() -> None:
    bad = one_column(envelope.PRODUCER_NAME.id, CONSTANT, 0, b"\xff")
    with pytest.raises(errors.InvalidInput, match="column producer_name: not UTF-8") as refused:
        block_check.check_block(bad)
    assert refused.value.hint
    with pytest.raises(errors.InvalidInput, match="rows too early"):
        block_check.select_rows(SMALL, 0, 9)
    with pytest.raises(errors.InvalidInput):
        block_check.select_rows(SMALL, 2**80, 1)
    with pytest.raises(errors.InvalidInput, match="cut off"):
        block_check.row_keys(SMALL + SMALL[:5])


@given(st.one_of(forged_blocks(), blocks().flatmap(mutated), st.binary(max_size=80)), st.integers(-2, 12))
def test_validation_raises_only_invalid_input(data: bytes, number: int) -> None:
    for call in (
        lambda: block_check.check_block(data),
        lambda: block_check.select_rows(data, number, number),
        lambda: block_check.row_keys(data),
    ):
        try:
            result = call()
        except errors.InvalidInput:
            continue
        assert isinstance(result, bytes | list | tuple)


def test_hazard_09_a_batch_may_not_expand_beyond_memory() -> None:
    """Small on the wire only because its value is written once: a row for each message could not be made."""
    rows = limits.BLOCK_ROWS_MAX
    most = limits.BLOCK_UNPACKED_BYTES_MAX // rows
    columns: dict[EnvelopeColumn, Any] = {
        envelope.PAYLOAD: ConstantColumn(bytes(most - 8)),
        envelope.PUBLISH_TIME: ConstantColumn(1),
    }
    block_check.check_block(encode_block(rows, columns))
    columns[envelope.PAYLOAD] = ConstantColumn(bytes(most - 7))
    with pytest.raises(errors.MessageTooLarge, match="repeat"):
        block_check.check_block(encode_block(rows, columns))
