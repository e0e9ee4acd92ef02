"""The frames of the native protocol round-trip, and everything else is a DecodeError."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.rpc import frame
from icestream.rpc.frame import AckRanges, Delivery, FrameKind, GapNotice, Outcome, PartResult, PublishPart
from tests.support.mutations import bit_flips, decoded_or_refused, mutated, truncations

U32 = st.integers(0, 2**32 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.integers(0, limits.OFFSET_MAX)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PARTS = st.lists(st.builds(PublishPart, U32, U32, st.binary(min_size=1, max_size=40)), min_size=1, max_size=5)
DONE = st.lists(
    st.one_of(
        st.builds(PartResult, st.sampled_from([Outcome.STORED, Outcome.DUPLICATE]), OFFSETS, st.binary(max_size=20)),
        st.builds(PartResult, st.sampled_from(list(Outcome)[2:]), st.just(-1), st.binary(max_size=20)),
    ),
    min_size=1,
    max_size=5,
)
DELIVERIES = st.builds(
    Delivery, U32, U32, U32, U32, st.integers(0, limits.OFFSET_MAX - 2**33), I64, U32, st.integers(1, 2**32 - 1),
    st.binary(min_size=1, max_size=40), st.none(),
)  # fmt: skip


@st.composite
def picks(draw: st.DrawFn) -> Delivery:
    start = base = draw(st.integers(0, limits.OFFSET_MAX - 2**33))
    ranges = []
    for rows, hole in draw(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 100)), min_size=1, max_size=20)):
        ranges.append((start, start + rows))
        start += rows + hole
    named = [draw(U32) for _ in range(4)]
    body = draw(st.binary(min_size=1, max_size=40))
    rows = sum(end - start for start, end in ranges)
    return Delivery(named[0], named[1], named[2], named[3], base, draw(I64), 0, rows, body, ranges)


PICKS = picks()


@st.composite
def some_ranges(draw: st.DrawFn) -> list[tuple[int, int]]:
    starts = draw(st.lists(st.integers(0, limits.OFFSET_MAX - 1), min_size=1, max_size=5))
    return [(start, draw(st.integers(start + 1, limits.OFFSET_MAX))) for start in starts]


ACKS = st.builds(AckRanges, U32, U32, U32, st.just(0), some_ranges())
NACKS = st.builds(AckRanges, U32, U32, U32, st.integers(0, limits.FAILURE_POLICY_VALUE_MAX), some_ranges())
GAPS = st.builds(
    lambda ids, range_, reason: GapNotice._make((*ids, *range_, reason)),
    st.tuples(U32, U32, U32, U32), some_ranges().map(lambda ranges: ranges[0]), TEXT,
)  # fmt: skip
CREDITS = st.tuples(U32, U32)

CODECS: dict[str, tuple[Callable[..., bytes], Callable[[bytes], Any], st.SearchStrategy[Any]]] = {
    "PUBLISH": (frame.encode_parts, frame.decode_parts, PARTS),
    "PUBLISHED": (frame.encode_part_results, frame.decode_part_results, DONE),
    "CREDIT": (lambda pair: frame.encode_credit(*pair), frame.decode_credit, CREDITS),
    "DELIVER": (frame.encode_delivery, frame.decode_delivery, DELIVERIES),
    "PICK": (frame.encode_pick, frame.decode_pick, PICKS),
    "ACK": (frame.encode_ranges, frame.decode_ack, ACKS),
    "NACK": (frame.encode_ranges, frame.decode_nack, NACKS),
    "GAP": (frame.encode_gap, frame.decode_gap, GAPS),
}
every_body = pytest.mark.parametrize("name", CODECS)

ONE_OF_EACH: dict[str, Any] = {
    "PUBLISH": [PublishPart(1, 0, b"block"), PublishPart(2, 3, bytes(8))],
    "PUBLISHED": [PartResult(Outcome.STORED, 41), PartResult(Outcome.REFUSED, -1, b"why")],
    "CREDIT": (7, 1000),
    "DELIVER": Delivery(7, 0, 1, 2, 40, 1_700_000_000_000_000, 3, 5, b"blocks"),
    "PICK": Delivery(7, 0, 1, 2, 40, 1_700_000_000_000_000, 0, 4, b"blocks", [(40, 41), (43, 46)]),
    "ACK": AckRanges(7, 0, 1, 0, [(40, 45), (50, 51)]),
    "NACK": AckRanges(7, 0, 1, 250, [(45, 46)]),
    "GAP": GapNotice(7, 0, 1, 2, 60, 70, "räumung"),
}


# --- round trips ------------------------------------------------------------------------------------------------------


@every_body
@given(data=st.data())
def test_a_body_round_trips(name: str, data: st.DataObject) -> None:
    encode, decode, values = CODECS[name]
    value = data.draw(values)
    assert decode(encode(value)) == value


@given(st.sampled_from(FrameKind), st.integers(0, 2**64 - 1), st.binary(max_size=50), st.integers(0, 1))
def test_a_frame_is_its_head_and_its_body(kind: FrameKind, number: int, body: bytes, flags: int) -> None:
    encoded = frame.encode_frame(kind, number, body, flags)
    assert encoded == frame.encode_head(kind, number, len(body), flags) + body
    assert struct.unpack("<IBBHQ", encoded[:16]) == (len(encoded) - 4, kind, flags, 0, number)


def test_a_delivery_can_be_sent_without_copying_its_blocks() -> None:
    delivery = ONE_OF_EACH["DELIVER"]
    assert frame.encode_delivery_head(delivery) + delivery.body == frame.encode_delivery(delivery)


def test_numbers_of_the_protocol_do_not_change() -> None:
    assert {kind.name: kind.value for kind in FrameKind} == {
        "HELLO": 1, "WELCOME": 2, "CALL": 3, "RESULT": 4, "ERROR": 5, "PING": 6, "PONG": 7, "PUBLISH": 16,
        "PUBLISHED": 17, "CREDIT": 18, "DELIVER": 19, "ACK": 20, "NACK": 21, "GAP": 22, "EVENT": 23,
        "PICK": 24,
    }  # fmt: skip
    assert [outcome.name for outcome in sorted(Outcome)] == [
        "STORED", "DUPLICATE", "DUPLICATE_FORGOTTEN", "REFUSED", "AFTER_REFUSED", "UNKNOWN",
    ]  # fmt: skip
    assert frame.MAGIC == b"ICESTRM1"


def test_every_kind_belongs_to_one_side() -> None:
    sides = (frame.FROM_CLIENT, frame.FROM_BROKER, frame.FIRST_FROM_CLIENT, {FrameKind.WELCOME})
    assert sorted(kind for side in sides for kind in side) == sorted(FrameKind)
    assert frozenset(FrameKind) == frame.ANY_KIND


@pytest.mark.parametrize(
    ("ranges", "rows"),
    [
        ([(0, 0), (2, 1)], 1),  # an empty one
        ([(0, 2), (1, 1)], 3),  # they overlap
        ([(0, 2), (2, 1)], 3),  # they touch
        ([(4, 1), (0, 1)], 2),  # they fall
        ([(1, 1), (3, 1)], 2),  # the first is not at the base
        ([(0, 1), (3, 1)], 3),  # fewer rows than said
        ([], 0),
        ([], 3),
        ([(0, 1), (2**32 - 1, 2**32 - 1)], 2**32 - 1),
    ],
)
def test_the_ranges_of_a_pick_rise_from_its_base_and_are_its_rows(ranges: list[tuple[int, int]], rows: int) -> None:
    head = frame.DELIVER.pack(1, 0, 0, 0, 10, 0, len(ranges), rows)
    with pytest.raises(errors.DecodeError):
        frame.decode_pick(head + b"".join(frame.PICK_RANGE.pack(*pair) for pair in ranges) + b"blocks")
    with pytest.raises(errors.DecodeError):
        frame.decode_pick(frame.DELIVER.pack(1, 0, 0, 0, -1, 0, 1, 1) + frame.PICK_RANGE.pack(0, 1) + b"blocks")


# --- hostile bytes ----------------------------------------------------------------------------------------------------


@every_body
def test_every_truncation_is_refused_or_is_a_shorter_list(name: str) -> None:
    encode, decode, _ = CODECS[name]
    whole = ONE_OF_EACH[name]
    assert decode(encode(whole)) == whole
    shorter = [
        decoded for cut in truncations(encode(whole)) if (decoded := decoded_or_refused(decode, cut)) is not None
    ]
    assert whole not in shorter
    match name:
        case "PUBLISH" | "PUBLISHED":
            assert shorter == [whole[:1]]
        case "ACK":
            assert shorter == [whole._replace(ranges=whole.ranges[:1])]
        case "DELIVER" | "PICK":
            assert all(decoded._replace(body=whole.body) == whole for decoded in shorter), "only blocks may be cut"
        case "GAP":
            assert all(decoded[:-1] == whole[:-1] for decoded in shorter), "only the text at the end may be cut"
        case _:
            assert shorter == []


@every_body
def test_every_flip_is_read_or_refused(name: str) -> None:
    encode, decode, _ = CODECS[name]
    for _, flipped in bit_flips(encode(ONE_OF_EACH[name])):
        decoded = decoded_or_refused(decode, flipped)
        assert decoded is None or encode(decoded) == flipped or name in {"PUBLISH", "PUBLISHED"}


@every_body
@given(data=st.data())
def test_mutated_bodies_are_read_or_refused(name: str, data: st.DataObject) -> None:
    encode, decode, _ = CODECS[name]
    body = data.draw(mutated(encode(ONE_OF_EACH[name])))
    decoded = decoded_or_refused(decode, body)
    assert decoded is None or decode(encode(decoded)) == decoded


@every_body
@given(body=st.binary(max_size=120))
def test_random_bytes_are_read_or_refused(name: str, body: bytes) -> None:
    encode, decode, _ = CODECS[name]
    decoded = decoded_or_refused(decode, body)
    assert decoded is None or decode(encode(decoded)) == decoded


def part(producer: int = 1, shard: int = 0, size: int = 8, zero: int = 0, block: bytes = bytes(8)) -> bytes:
    return struct.pack("<IIII", producer, shard, size, zero) + block


@pytest.mark.parametrize(
    ("decode", "body"),
    [
        pytest.param(frame.decode_parts, b"", id="no part"),
        pytest.param(frame.decode_parts, part(zero=1), id="a part's zero"),
        pytest.param(frame.decode_parts, part(size=0, block=b""), id="an empty block"),
        pytest.param(frame.decode_parts, part(size=9), id="a block cut off"),
        pytest.param(frame.decode_parts, part(size=7, block=bytes(7)), id="padding cut off"),
        pytest.param(frame.decode_parts, part(size=2**32 - 1), id="a huge block"),
        pytest.param(frame.decode_parts, part() + bytes(15), id="half a part behind"),
        pytest.param(frame.decode_part_results, b"", id="no answer"),
        pytest.param(frame.decode_part_results, struct.pack("<HHIq", 0, 0, 1, 5), id="an answer's zero"),
        pytest.param(frame.decode_part_results, struct.pack("<HHIq", 6, 0, 0, -1), id="unknown outcome"),
        pytest.param(frame.decode_part_results, struct.pack("<HHIq", 0, 0, 0, -1), id="stored nowhere"),
        pytest.param(
            frame.decode_part_results, struct.pack("<HHIq", 1, 0, 0, limits.OFFSET_MAX + 1), id="beyond all offsets"
        ),
        pytest.param(frame.decode_part_results, struct.pack("<HHIq", 3, 0, 0, 5), id="refused with an offset"),
        pytest.param(frame.decode_part_results, struct.pack("<HHIq", 2, 0, 0, 0), id="forgotten with an offset"),
        pytest.param(frame.decode_part_results, struct.pack("<HHIq", 3, 1, 0, -1), id="text cut off"),
        pytest.param(frame.decode_credit, bytes(7), id="short credit"),
        pytest.param(frame.decode_credit, bytes(9), id="long credit"),
        pytest.param(frame.decode_delivery, bytes(40), id="delivery without blocks"),
        pytest.param(frame.decode_delivery, struct.pack("<IIIIqqII", 1, 0, 0, 0, 5, 0, 0, 0) + b"b", id="no rows"),
        pytest.param(frame.decode_delivery, struct.pack("<IIIIqqII", 1, 0, 0, 0, -1, 0, 0, 1) + b"b", id="below 0"),
        pytest.param(frame.decode_ack, struct.pack("<IIII", 1, 0, 0, 0), id="ack of nothing"),
        pytest.param(frame.decode_ack, struct.pack("<IIIIqq", 1, 0, 0, 2, 0, 1), id="unknown ack flag"),
        pytest.param(frame.decode_ack, struct.pack("<IIIIqqqq", 1, 0, 0, 1, 0, 1, 2, 3), id="cumulative twice"),
        pytest.param(frame.decode_ack, struct.pack("<IIIIqq", 1, 0, 0, 0, 5, 5), id="empty range"),
        pytest.param(frame.decode_ack, struct.pack("<IIIIqq", 1, 0, 0, 0, -1, 5), id="negative range"),
        pytest.param(frame.decode_ack, struct.pack("<IIIIqq", 1, 0, 0, 0, 6, 5), id="range backwards"),
        pytest.param(frame.decode_ack, struct.pack("<IIIIq", 1, 0, 0, 0, 6), id="half a range"),
        pytest.param(frame.decode_gap, struct.pack("<IIIIqq", 1, 0, 0, 1, 5, 5), id="empty gap"),
        pytest.param(frame.decode_gap, struct.pack("<IIIIqq", 1, 0, 0, 1, 5, 6) + b"\xff", id="reason not UTF-8"),
        pytest.param(frame.decode_gap, bytes(31), id="gap cut off"),
    ],
)
def test_inconsistent_lengths_are_refused(decode: Callable[[bytes], Any], body: bytes) -> None:
    with pytest.raises(errors.DecodeError):
        decode(body)


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_the_number_of_parts_is_bounded() -> None:
    most = [PublishPart(1, shard, bytes(8)) for shard in range(limits.PUBLISH_PARTS_MAX)]
    assert frame.decode_parts(frame.encode_parts(most)) == most
    with pytest.raises(errors.DecodeError, match="limit of"):
        frame.decode_parts(frame.encode_parts([*most, most[0]]))
    done = [PartResult(Outcome.STORED, number) for number in range(limits.PUBLISH_PARTS_MAX)]
    assert frame.decode_part_results(frame.encode_part_results(done)) == done
    with pytest.raises(errors.DecodeError, match="limit of"):
        frame.decode_part_results(frame.encode_part_results([*done, done[0]]))


def test_the_number_of_ranges_is_bounded() -> None:
    most = AckRanges(1, 0, 0, 0, [(2 * number, 2 * number + 1) for number in range(limits.ACK_RANGES_MAX)])
    for decode in (frame.decode_ack, frame.decode_nack, frame.decode_ranges):
        assert decode(frame.encode_ranges(most)) == most
        with pytest.raises(errors.DecodeError):
            decode(frame.encode_ranges(most._replace(ranges=[*most.ranges, (1, 2)])))


def test_offsets_are_bounded() -> None:
    last = limits.OFFSET_MAX
    assert frame.decode_ack(frame.encode_ranges(AckRanges(1, 0, 0, 1, [(0, last)]))).ranges == [(0, last)]
    with pytest.raises(errors.DecodeError):
        frame.decode_ack(struct.pack("<IIIIqq", 1, 0, 0, 1, 0, last + 1))
    with pytest.raises(errors.DecodeError):
        frame.decode_gap(struct.pack("<IIIIqq", 1, 0, 0, 1, 0, last + 1))
    delivery = Delivery(1, 0, 0, 0, last - 5, 0, 2, 3, b"b")
    assert frame.decode_delivery(frame.encode_delivery(delivery)) == delivery
    with pytest.raises(errors.DecodeError):
        frame.decode_delivery(frame.encode_delivery(delivery._replace(rows=4)))


def test_the_delay_of_a_nack_is_bounded() -> None:
    most = AckRanges(1, 0, 0, limits.FAILURE_POLICY_VALUE_MAX, [(0, 1)])
    assert frame.decode_nack(frame.encode_ranges(most)) == most
    with pytest.raises(errors.DecodeError, match="delay"):
        frame.decode_nack(frame.encode_ranges(most._replace(extra=most.extra + 1)))


def test_a_ping_is_short() -> None:
    frame.check_ping(bytes(limits.PING_BYTES_MAX))
    with pytest.raises(errors.DecodeError, match="PING"):
        frame.check_ping(bytes(limits.PING_BYTES_MAX + 1))


def test_the_largest_answers_fit_the_smallest_bound() -> None:
    """FRAME_BYTES_MIN fits PUBLISHED with every part refused, a whole document, a message of the default size."""
    text = bytes(64 + limits.ERROR_MESSAGE_BYTES_MAX + limits.ERROR_HINT_BYTES_MAX)
    refused = frame.encode_part_results([PartResult(Outcome.REFUSED, -1, text)] * limits.PUBLISH_PARTS_MAX)
    assert frame.SIZE_MIN + len(refused) <= limits.FRAME_BYTES_MIN
    assert frame.SIZE_MIN + limits.DOCUMENT_BYTES_MAX <= limits.FRAME_BYTES_MIN
    delivery_bytes = frame.DELIVER.size + limits.MESSAGE_BYTES_MAX_DEFAULT + limits.RECORD_OVERHEAD_BYTES_MAX
    assert (
        frame.SIZE_MIN + delivery_bytes
        <= limits.FRAME_BYTES_MIN
        <= limits.FRAME_BYTES_MAX_DEFAULT
        <= limits.FRAME_BYTES_MAX
    )
    assert frame.SIZE_MIN + limits.RECORD_BYTES_MAX <= limits.FRAME_BYTES_MAX < 2**32
