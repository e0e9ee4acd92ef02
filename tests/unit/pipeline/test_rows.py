"""Sections of the log as Arrow columns: every value as the slow way reads it, and nothing outside of the bytes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.model import envelope
from icestream.model.block import ConstantColumn, encode_block
from icestream.pipeline.round_plan import OffsetRange
from icestream.pipeline.rows.log_sections import Sections, pack, sections_of, select_offsets, unpack
from icestream.pipeline.rows.topic_rows import Span, TopicRows, topic_rows
from icestream.wal.format import RecordSection, SectionKind
from icestream.wal.record_scan import scan_records
from tests.support.blocks import bodies, forged_blocks
from tests.support.hypothesis_effort import QUARTER
from tests.support.log_bytes import LogBytes


def found_in(log: LogBytes) -> Sections:
    data = bytes(log.data)
    records, end, _, reason = scan_records(data, log.start, log.generation, log.first_lsn)
    assert (end, reason) == (log.end, "end")
    return sections_of(data, log.start, records)


def spans_of(log: LogBytes) -> list[Span]:
    return [Span(topic, shard, 0, end) for (topic, shard), end in sorted(log.ends.items())]


def as_rows(topic: TopicRows) -> list[dict[str, Any]]:
    """The rows as dictionaries, without null values."""
    columns = {name: values_of(column) for name, column in topic.columns.items()}
    assert all(len(values) == topic.rows for values in columns.values())
    rows = [{name: values[row] for name, values in columns.items()} for row in range(topic.rows)]
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def values_of(column: Any) -> list[Any]:
    column.validate(full=True)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return [dict(value) if isinstance(value, list) else value for value in column.to_pylist()]


def check(log: LogBytes, sections: Sections) -> None:
    rows_by_topic = {row.topic_id: as_rows(row) for row in topic_rows(sections, spans_of(log))}
    assert rows_by_topic == {topic: log.expected(topic) for topic in log.rows}


SECTIONS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 1), bodies(rows_max=3)), min_size=1, max_size=3)


@QUARTER
@given(st.lists(st.tuples(SECTIONS, st.integers(-(2**40), 2**60)), min_size=1, max_size=4))
def test_rows_match_the_blocks(records: list[tuple[list[tuple[int, int, bytes]], int]]) -> None:
    log = LogBytes()
    for content, time_us in records:
        log.append(*content, time_us=time_us)
    sections = found_in(log)
    check(log, sections)
    check(log, unpack(pack(sections)))


def test_an_empty_text_after_the_last_byte_is_not_null() -> None:
    """A column without nulls has no bitmap; here it has not even a byte."""
    log = LogBytes()
    log.append((1, 0, encode_block(2, {envelope.TOPIC_NAME: ["a", None]})), time_us=1)
    log.append((1, 0, encode_block(1, {envelope.TOPIC_NAME: [""]})), time_us=2)
    check(log, found_in(log))


@QUARTER
@given(st.lists(SECTIONS, min_size=1, max_size=4), st.data())
def test_only_requested_offsets_become_rows(records: list[list[tuple[int, int, bytes]]], data: st.DataObject) -> None:
    log = LogBytes()
    for content in records:
        log.append(*content)
    spans = []
    for span in spans_of(log):
        start = data.draw(st.integers(0, span.end - 1))
        spans.append(span._replace(start=start, end=data.draw(st.integers(start + 1, span.end))))
    spans = data.draw(st.lists(st.sampled_from(spans), min_size=1, unique=True).map(sorted))
    ranges = [OffsetRange(span.topic_id, span.shard, 1, span.start, span.end) for span in spans]
    rows_by_topic = {
        topic.topic_id: as_rows(topic) for topic in topic_rows(select_offsets(found_in(log), ranges), spans)
    }
    bounds = {(span.topic_id, span.shard): range(span.start, span.end) for span in spans}
    assert rows_by_topic == {
        topic: [row for row in log.expected(topic) if row["offset"] in bounds.get((topic, row["shard"]), ())]
        for topic in {span.topic_id for span in spans}
    }


def test_sections_of_another_epoch_are_excluded() -> None:
    log = LogBytes()
    body = encode_block(2, {envelope.PAYLOAD: [b"a", b"b"]})
    log.append((1, 0, body), epoch=1)
    log.append((1, 0, body), epoch=2)
    assert len(select_offsets(found_in(log), [OffsetRange(1, 0, 1, 0, 4)])) == 1
    assert len(select_offsets(found_in(log), [])) == 0


def test_many_small_blocks_and_one_large() -> None:
    log = LogBytes()
    for number in range(300):
        name = ConstantColumn("someone" if number % 3 else None)
        body = encode_block(1, {envelope.PAYLOAD: [b"%d" % number], envelope.PRODUCER_NAME: name})
        log.append((1, 0, body * (number % 4 + 1)), (2, 0, body))
    large = {
        envelope.KEY: [b"k" * (row % 7) for row in range(5000)],
        envelope.HEADERS: ConstantColumn({"a": "b", "c": "d"}),
    }
    log.append((1, 0, encode_block(5000, large)))
    check(log, found_in(log))


def test_a_value_of_another_topic_is_not_in_the_dictionary() -> None:
    log = LogBytes()
    for topic in (1, 2, 3, 1):
        log.append((topic, 0, encode_block(2, {envelope.TOPIC_NAME: ConstantColumn(f"secret-{topic}")})))
    for row in topic_rows(found_in(log), spans_of(log)):
        assert row.columns["topic_name"].dictionary.to_pylist() == [f"secret-{row.topic_id}"]
        assert pc.unique(row.columns["topic_name"]).to_pylist() == [f"secret-{row.topic_id}"]


def test_columns_of_the_log_alone_never_become_rows() -> None:
    log = LogBytes()
    log.append((1, 0, encode_block(1, {envelope.PAYLOAD: [b"x"], envelope.QOS2_CLIENT: ["me"]})))
    (topic,) = topic_rows(found_in(log), spans_of(log))
    assert set(topic.columns) == {"shard", "offset", "append_time", "payload"}


@given(st.lists(forged_blocks(), min_size=1, max_size=3))
def test_inconsistent_blocks_are_refused_or_read_within_their_bytes(forged: list[bytes]) -> None:
    """A CRC does not find this fault: Arrow must not follow an offset out of the buffer."""
    body = b"".join(forged)
    rows = sum(int.from_bytes(block[:4], "little") for block in forged)
    log = LogBytes()
    log.add([RecordSection(1, 0, SectionKind.MESSAGES, 0, 1, 0, 0, rows, 0, body)])
    try:
        (topic,) = topic_rows(found_in(log), [Span(1, 0, 0, rows)])
    except errors.DecodeError:
        return
    for column in topic.columns.values():
        plain = column.cast(pa.binary()) if pa.types.is_dictionary(column.type) else column
        if not pa.types.is_map(plain.type):
            plain.validate(full=True)
            assert len(plain) == rows


@pytest.mark.parametrize("rows", [1, 3])
def test_a_section_that_counts_otherwise_than_its_blocks_is_refused(rows: int) -> None:
    log = LogBytes()
    body = encode_block(2, {envelope.PAYLOAD: [b"a", b"b"]})
    log.add([RecordSection(1, 0, SectionKind.MESSAGES, 0, 1, 0, 0, rows, 0, body)])
    with pytest.raises(errors.DecodeError, match="another number of messages"):
        topic_rows(found_in(log), [Span(1, 0, 0, rows)])
