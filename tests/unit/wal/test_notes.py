"""Notes: what a record says of a topic or a shard comes back as it was said, or is refused."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors, limits
from icestream.model.shard import DeclaredGap, GapState, ShardKey, TopicIdentity
from icestream.wal import format as wire
from icestream.wal import notes
from tests.support.mutations import bit_flips, decoded_or_refused, mutated, truncations

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
TOPICS = st.builds(TopicIdentity, st.integers(1, 2**63 - 1), TEXT.filter(bool), st.integers(0, 2**63 - 1))
KEYS = st.builds(ShardKey, st.integers(1, 2**63 - 1), st.integers(0, 2**31 - 1))
RANGES = st.lists(st.integers(0, limits.OFFSET_MAX), min_size=2, max_size=2, unique=True).map(sorted)
GAPS = st.builds(
    lambda key, ends, epoch, reason, state: DeclaredGap(key, *ends, epoch, reason, state),
    KEYS, RANGES, st.integers(0, 2**64 - 1), TEXT, st.sampled_from(GapState),
)  # fmt: skip
GAP = DeclaredGap(ShardKey(17, 3), 100, 250, 4, "unclean stop", GapState.UNUSED)
TOPIC = TopicIdentity(17, "/default/ü", 5)


def through_a_record(section: wire.RecordSection) -> tuple[wire.SectionEntry, bytes]:
    """Entry and body as a reader gets them."""
    record = wire.encode_record(wire.RecordKind.DATA, 1, 1, 0, 0, 4096, 8, [section])
    header = wire.decode_header(record, 0, 4096)
    (entry,) = wire.decode_entries(record, 0, header)
    assert wire.check_section(record, 0, header, entry)
    return entry, record[entry.body_position - 4096 :][: entry.body_bytes]


@given(TOPICS)
def test_topics_round_trip(topic: TopicIdentity) -> None:
    assert notes.decode_topic(*through_a_record(notes.topic_section(topic))) == topic


@given(GAPS)
def test_gaps_round_trip(gap: DeclaredGap) -> None:
    assert notes.decode_gap(*through_a_record(notes.gap_section(gap))) == gap


@given(KEYS, st.integers(0, 2**64 - 1), st.integers(0, limits.OFFSET_MAX))
def test_a_reserve_note_is_its_entry(key: ShardKey, epoch: int, reserved: int) -> None:
    entry, body = through_a_record(notes.reserve_section(key, epoch, reserved))
    assert (entry.topic_id, entry.shard, entry.kind) == (*key, wire.SectionKind.RESERVE)
    assert (entry.epoch, entry.base_offset, body) == (epoch, reserved, b"")


def test_the_bodies_match_the_documented_bytes() -> None:
    assert notes.topic_section(TOPIC).body == struct.pack("<q", 5) + "/default/ü".encode()
    assert notes.gap_section(GAP).body == struct.pack("<qB7x", 250, 1) + b"unclean stop"
    assert {state.name: state.value for state in GapState} == {
        "UNUSED": 1, "LOST": 2, "PENDING": 3, "MERGED": 4, "DROPPED": 5,
    }  # fmt: skip


def entry_of(topic_id: int = 17, shard: int = 3, base_offset: int = 100) -> wire.SectionEntry:
    return wire.SectionEntry(topic_id, shard, 0, 0, 4, base_offset, 0, 0, 0, 0, 0, 0, 0)


def test_truncations_are_read_or_refused() -> None:
    for cut in truncations(notes.topic_section(TOPIC).body):
        topic = decoded_or_refused(lambda body: notes.decode_topic(entry_of(), body), cut)
        assert (topic is None) == (len(cut) <= 8 or cut.endswith("ü".encode()[:1]))
    for cut in truncations(notes.gap_section(GAP).body):
        found_gap = decoded_or_refused(lambda body: notes.decode_gap(entry_of(), body), cut)
        assert (found_gap is None) == (len(cut) < 16)


@pytest.mark.parametrize("decode", [notes.decode_topic, notes.decode_gap])
def test_flips_are_read_or_refused(decode: Any) -> None:
    body = (notes.topic_section(TOPIC) if decode is notes.decode_topic else notes.gap_section(GAP)).body
    outcomes = {decoded_or_refused(lambda data: decode(entry_of(), data), data) is None for _, data in bit_flips(body)}
    assert outcomes == {True, False}


@given(
    st.one_of(st.binary(max_size=60), mutated(notes.topic_section(TOPIC).body), mutated(notes.gap_section(GAP).body)),
    st.sampled_from([0, 1, 2**63, 2**64 - 1]),
    st.sampled_from([-(2**63), -1, 0, 100, limits.OFFSET_MAX, 2**63 - 1]),
)
def test_hostile_notes_are_read_or_refused(body: bytes, topic_id: int, base: int) -> None:
    entry = entry_of(topic_id, 2**32 - 1, base)
    topic = decoded_or_refused(lambda data: notes.decode_topic(entry, data), body)
    assert topic is None or (topic.id == topic_id and 0 < len(topic.name.encode()) <= limits.TOPIC_NAME_BYTES_MAX)
    gap = decoded_or_refused(lambda data: notes.decode_gap(entry, data), body)
    assert gap is None or 0 <= gap.start < gap.end <= limits.OFFSET_MAX


@pytest.mark.parametrize("state", [0, 6, 255])
def test_an_unknown_state_is_refused(state: int) -> None:
    with pytest.raises(errors.DecodeError):
        notes.decode_gap(entry_of(), struct.pack("<qB7x", 250, state))


@pytest.mark.parametrize(
    ("id_", "name", "incarnation"),
    [
        (0, "n", 1),
        (2**63, "n", 1),
        (-1, "n", 1),
        (1, "", 1),
        (1, "x" * 513, 1),
        (1, "\ud800", 1),
        (1, "n", -1),
        (1, "n", 2**63),
    ],
)
def test_hazard_09_a_topic_that_cannot_be_stored_is_refused(id_: int, name: str, incarnation: int) -> None:
    with pytest.raises(errors.InvalidInput):
        TopicIdentity(id_, name, incarnation)


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 5), (6, 5), (0, limits.OFFSET_MAX + 1)])
def test_a_gap_is_a_range_of_offsets(start: int, end: int) -> None:
    with pytest.raises(errors.InvalidInput):
        DeclaredGap(ShardKey(1, 0), start, end, 0, "", GapState.LOST)
