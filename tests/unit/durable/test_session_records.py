"""The codec of session records: every record round, hostile bytes refused, nothing stored that a start cannot read."""

from __future__ import annotations

import msgspec
import pytest

from icestream import errors
from icestream.durable import session_records as rec
from icestream.durable.session_records import AnyRecord, decode_transaction, encode_transaction
from icestream.model import envelope
from icestream.model.block import Block, encode_block

OWN = (7, 3)
RECORDS: list[AnyRecord] = [
    rec.SessionRecord(*OWN, "räume/+", 3600, 12, 65_535, True),
    rec.SessionConnected(7, 4, rec.EXPIRY_NEVER),
    rec.SessionConnected(7, 5, 60, rec.SessionOwner("oidc:corp:x", ("team",), {"device": "7"})),
    rec.SessionDisconnected(*OWN, 2**63 - 1, 0),
    rec.SubscriptionGeneration(*OWN, 1, "a/+/#", 2, 268_435_455, True, True, 1),
    rec.GenerationBound(*OWN, 1, 2**62, 7, 100, 900),
    rec.GenerationEnded(*OWN, 1),
    rec.InFlightEntry(*OWN, 65_535, 5, 1, 2**40, 2, 1, rec.InFlightState.RELEASED, True, (1, 268_435_455)),
    rec.InFlightRun(*OWN, 65_530, 5, 1, ((2**40, 5), (2**41, 1)), 1, 1, (1, 268_435_455)),
    rec.InFlightReleased(*OWN, 1),
    rec.InFlightClosed(*OWN, (1, 2, 65_535), rec.ClosedReason.LOST),
    rec.ReaderPosition(*OWN, 5, 1, 77, 80, 1),
    rec.ReceivedId(*OWN, 7, 5, 1),
    rec.ReceivedClosed(*OWN, (7,)),
    rec.WillSet(*OWN, "t", b"\x00bye", 1, True, 30, b"\x01\x00"),
    rec.WillClosed(*OWN, rec.WillEnd.FIRED),
    rec.SessionEnding(*OWN),
    rec.SessionEnded(*OWN),
    rec.NodeBeat(0, 0, 10_000, 1_700_000_000_000_000),
    rec.ShardMark(0, 0, 5, 1, 900),
    rec.RetainedValue(0, 0, "t", 5, 1, 42, b"21.5", 1, b"\x01\x00", "sensor", 1),
    rec.RetainedCleared(0, 0, "t"),
    rec.RetainedApplied(0, 0, 5, 1, 43),
]


def test_every_record_survives_its_block() -> None:
    assert {type(record) for record in RECORDS} == set(rec.AnyRecord.__args__)
    assert decode_transaction(Block(encode_transaction(RECORDS))) == RECORDS


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_every_cut_and_every_flipped_bit_is_a_record_or_a_decode_error(record: AnyRecord) -> None:
    encoded = msgspec.msgpack.encode(record)
    hostile = [encoded[:size] for size in range(len(encoded))]
    hostile += [
        encoded[: bit >> 3] + bytes([encoded[bit >> 3] ^ 1 << (bit & 7)]) + encoded[(bit >> 3) + 1 :]
        for bit in range(8 * min(len(encoded), 100))
    ]
    for payload in hostile:
        block = Block(encode_block(1, {envelope.PAYLOAD: [payload]}))
        try:
            (decoded,) = decode_transaction(block)
        except errors.DecodeError:
            continue
        # What was accepted is within every bound.
        assert decode_transaction(Block(encode_transaction([decoded]))) == [decoded]


@pytest.mark.parametrize(
    "payload", [[99, 7, 3], [1, 7, 3, "client"], [7, 7, 3, 0, 5, 1, 1, 1, 1], [10, 7, 3, 5, 1, "x"]]
)
def test_unknown_kinds_missing_fields_and_wrong_values_are_refused(payload: list[object]) -> None:
    block = Block(encode_block(1, {envelope.PAYLOAD: [msgspec.msgpack.encode(payload)]}))
    with pytest.raises(errors.DecodeError, match="row 0"):
        decode_transaction(block)


def test_a_run_stands_for_an_entry_of_each_of_its_packet_ids() -> None:
    run = rec.InFlightRun(*OWN, 65_530, 5, 1, ((10, 2), (20, 1), (30, 3)), 1, 4, (9,))
    offsets = [10, 11, 20, 30, 31, 32]
    assert [run.entry(packet_id) for packet_id in run.packet_ids] == [
        rec.InFlightEntry(*OWN, 65_530 + index, 5, 1, offset, 1, 4, identifiers=(9,))
        for index, offset in enumerate(offsets)
    ]
    for start in run.packet_ids:
        for end in range(start + 1, 65_536):
            part = run.part(start, end)
            assert [part.entry(each) for each in part.packet_ids] == [run.entry(each) for each in range(start, end)]


def test_a_run_beyond_the_ring_of_packet_ids_is_refused() -> None:
    with pytest.raises(ValueError, match="65535"):
        rec.InFlightRun(*OWN, 65_530, 5, 1, ((10, 7),), 1, 4)
    payload = msgspec.msgpack.encode([24, *OWN, 65_530, 5, 1, [[10, 7]], 1, 4])
    with pytest.raises(errors.DecodeError, match="row 0"):
        decode_transaction(Block(encode_block(1, {envelope.PAYLOAD: [payload]})))


def test_fields_added_by_a_later_version_are_skipped() -> None:
    payload = msgspec.msgpack.encode([2, 7, 4, 60, ["user:local:a"], "added later"])
    block = Block(encode_block(1, {envelope.PAYLOAD: [payload]}))
    assert decode_transaction(block) == [rec.SessionConnected(7, 4, 60, rec.SessionOwner("user:local:a"))]


@pytest.mark.parametrize(
    "record",
    [
        rec.InFlightEntry(*OWN, 0, 5, 1, 1, 1, 1),
        rec.SessionRecord(*OWN, "x" * 65_536, 1),
        rec.SessionRecord(*OWN, "\ud800", 1),
        rec.ReaderPosition(*OWN, 5, 1, 2**70),
        rec.InFlightClosed(*OWN, ()),
        rec.InFlightRun(*OWN, 1, 5, 1, (), 1, 1),
        rec.InFlightRun(*OWN, 1, 5, 1, ((7, 0),), 1, 1),
    ],
)
def test_a_record_that_a_start_could_not_read_is_not_encoded(record: AnyRecord) -> None:
    with pytest.raises(errors.InvalidInput, match="out of bounds"):
        encode_transaction([record])
