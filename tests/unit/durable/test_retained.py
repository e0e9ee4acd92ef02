"""The retained set is a fold of the log, whatever crashes between (hazard 62)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from icestream.durable.retained import RetainedSet
from icestream.durable.session_records import (
    AnyRecord,
    RetainedApplied,
    RetainedCleared,
    RetainedValue,
    decode_transaction,
    encode_transaction,
)
from icestream.model.block import Block
from icestream.model.shard import ShardKey

TOPICS = ["a", "a/b", "$SYS/x"]


def value(topic: str, offset: int, payload: bytes, shard: int = 0) -> RetainedValue:
    return RetainedValue(0, 0, topic, 5, shard, offset, payload, 1)


@given(
    rows=st.lists(st.tuples(st.sampled_from(TOPICS), st.sampled_from([b"", b"1", b"22"])), max_size=30),
    stored_after=st.sets(st.integers(0, 30)),
    crash_after=st.integers(0, 30),
)
def test_hazard_62_after_a_crash_the_last_value_is_the_last_in_the_log(
    rows: list[tuple[str, bytes]], stored_after: set[int], crash_after: int
) -> None:
    log = [value(topic, offset, payload) for offset, (topic, payload) in enumerate(rows)]
    transactions: list[list[AnyRecord]] = []
    retained = RetainedSet()
    for row in log[:crash_after]:
        retained.fold(row)
        if row.offset in stored_after:
            transactions.append(retained.take_changes())
    restarted = RetainedSet()
    for records in transactions:
        restarted.apply(decode_transaction(Block(encode_transaction(records))))
    applied = restarted.applied.get(ShardKey(5, 0), 0)
    for row in [*log[applied:], *log[:crash_after]]:  # rows that are folded again change nothing
        restarted.fold(row)
    last = dict(rows)
    stored = {item.topic: item.payload for topic in TOPICS for item in restarted.matching(topic)}
    assert stored == {topic: payload for topic, payload in last.items() if payload}
    assert restarted.held_bytes == sum(len(topic) + len(payload) for topic, payload in stored.items())


def test_filters_match_topics_in_the_order_of_rows_and_not_dollar_topics() -> None:
    retained = RetainedSet()
    for offset, topic in enumerate(["a/b", "a", "$SYS/x"]):
        retained.fold(value(topic, offset, b"x"))
    assert [item.topic for item in retained.matching("#")] == ["a/b", "a"]
    assert [item.topic for item in retained.matching("$SYS/#")] == ["$SYS/x"]
    assert dict(retained.applied) == {ShardKey(5, 0): 3}


def test_a_full_set_takes_no_new_topic_and_tells_no_old_value() -> None:
    retained = RetainedSet(values_max=1, bytes_max=10)
    assert retained.fold(value("a", 0, b"1"))
    assert not retained.fold(value("b", 1, b"1"))
    assert not retained.fold(value("a", 2, bytes(20)))
    assert len(retained) == 0
    assert retained.fold(value("b", 3, b"1"))


def test_values_of_erased_rows_are_forgotten_without_a_record() -> None:
    """A record would have the name of their topic."""
    retained = RetainedSet()
    for offset, topic in enumerate(TOPICS):
        retained.fold(value(topic, offset, b"1", shard=offset % 2))
    retained.take_changes()
    retained.fold(value("a", 5, b"2"))
    assert retained.places(5) == [(0, 2), (0, 5), (1, 1)]
    assert retained.places(6) == []
    assert retained.forget(6, {(0, 5)}) == []
    assert [item.topic for item in retained.forget(5, {(0, 5), (1, 1), (1, 7)})] == ["a/b", "a"]
    assert retained.topics() == ["$SYS/x"]
    assert [type(record) for record in retained.take_changes()] == [RetainedApplied]
    assert retained.held_bytes == len("$SYS/x1")


def test_forgotten_values_are_put_back_unless_their_topic_changed() -> None:
    retained = RetainedSet()
    for offset, topic in enumerate(["kept", "newer", "cleared"]):
        retained.fold(value(topic, offset, b"old"))
    values = retained.forget(5, {(0, 0), (0, 1), (0, 2)})
    retained.take_changes()
    retained.fold(value("newer", 3, b"new"))
    retained.fold(value("cleared", 4, b""))
    retained.put_back(values)
    assert {item.topic: item.payload for item in retained.latest(9)} == {"kept": b"old", "newer": b"new"}
    records = retained.take_changes()
    assert [(type(record), record.topic) for record in records if not isinstance(record, RetainedApplied)] == [
        (RetainedCleared, "cleared"),
        (RetainedValue, "kept"),
        (RetainedValue, "newer"),
    ]
    assert retained.held_bytes == len("keptold") + len("newernew")
