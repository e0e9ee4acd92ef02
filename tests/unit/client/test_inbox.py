"""Messages that arrived and were not taken: each once, no credit is lost, old generations are dropped."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)
from hypothesis.stateful import (
    run_state_machine_as_test as check_state_machine,
)

from icestream import errors
from icestream.client.delivered_rows import DeliveredRows
from icestream.client.inbox import Chunk, Inbox
from icestream.model import envelope
from icestream.model.block import encode_block
from icestream.rpc.frame import Delivery

NO_CONSUMER: Any = None


def delivered(start: int, rows: int, shard: int = 0, generation: int = 0) -> DeliveredRows:
    body = encode_block(rows, {envelope.PAYLOAD: [b"x"] * rows})
    return DeliveredRows(NO_CONSUMER, None, None, Delivery(1, shard, generation, 0, start, 0, 0, rows, body), 0)


def picked(offsets: list[int], shard: int = 0) -> DeliveredRows:
    """Messages that do not follow one another; the payload of each is its offset."""
    body = encode_block(len(offsets), {envelope.PAYLOAD: [b"%d" % offset for offset in offsets]})
    ranges = [(offset, offset + 1) for offset in offsets]
    return DeliveredRows(
        NO_CONSUMER, None, None, Delivery(1, shard, 0, 0, offsets[0], 0, 0, len(offsets), body, ranges), 0
    )


def opened(shards: int = 1, prefetch: int = 64, *, deduplicates: bool = False) -> Inbox:
    inbox = Inbox(prefetch, 2**20, deduplicates=deduplicates)
    inbox.begin([0] * shards, is_same=False)
    inbox.credit.grant()
    return inbox


def take_all(inbox: Inbox) -> list[tuple[int, int]]:
    """Shard and offset of everything that can be taken."""
    positions: list[tuple[int, int]] = []
    while (chunk := inbox.take(3, 0)) is not None:
        positions += [(chunk.delivered.shard, chunk.delivered.offset(row)) for row in range(chunk.first, chunk.end)]
        inbox.finish(chunk, chunk.end)
    return positions


def test_messages_are_taken_in_order_and_in_portions() -> None:
    inbox = opened()
    inbox.arrive(delivered(10, 7))
    inbox.arrive(delivered(17, 2))
    assert take_all(inbox) == [(0, offset) for offset in range(10, 19)]
    assert (inbox.credit.buffered, inbox.credit.buffered_bytes) == (0, 0)


def test_a_redelivery_of_a_waiting_message_is_not_queued_twice() -> None:
    inbox = opened()
    inbox.arrive(delivered(0, 5))
    inbox.arrive(delivered(3, 5))
    assert take_all(inbox) == [(0, offset) for offset in range(8)]


def test_a_redelivery_of_an_acked_message_is_acked_and_not_delivered() -> None:
    inbox = opened()
    inbox.arrive(delivered(0, 5))
    take_all(inbox)
    inbox.ack(0, 0, [(1, 3)])
    assert inbox.arrive(delivered(0, 5)) == [(1, 3)]
    assert take_all(inbox) == [(0, 0), (0, 3), (0, 4)]


def test_a_copy_that_waits_is_dropped_when_the_message_is_acked() -> None:
    inbox = opened()
    inbox.arrive(delivered(0, 5))
    take_all(inbox)
    inbox.arrive(delivered(0, 5))
    inbox.arrive(delivered(5, 2))
    assert inbox.may_hold_copies
    inbox.ack(0, 0, [(1, 3), (4, 6)])
    assert take_all(inbox) == [(0, 0), (0, 3), (0, 6)]
    assert (inbox.credit.buffered, inbox.credit.buffered_bytes) == (0, 0)
    assert not inbox.may_hold_copies, "nothing is here any more"


def test_a_copy_inside_the_current_portion_is_dropped_too() -> None:
    inbox = opened()
    inbox.arrive(delivered(0, 6))
    take_all(inbox)
    inbox.arrive(delivered(0, 6))
    chunk = inbox.take(4, 0)
    assert chunk is not None
    inbox.put_back(chunk, 1)  # row 0 was handed out once more
    inbox.ack(0, 0, [(0, 3)])
    assert take_all(inbox) == [(0, 3), (0, 4), (0, 5)]
    assert (inbox.credit.buffered, inbox.credit.buffered_bytes) == (0, 0)


def test_without_redeliveries_copies_are_not_searched() -> None:
    inbox = opened(shards=2)
    for start in range(0, 30, 3):
        inbox.arrive(delivered(start, 3, shard=start % 2))
        assert not inbox.may_hold_copies
        if start % 4:
            take_all(inbox)


def test_a_newer_generation_drops_waiting_messages_of_its_shard_only() -> None:
    inbox = opened(shards=2)
    inbox.arrive(delivered(0, 4, shard=0))
    inbox.arrive(delivered(0, 4, shard=1))
    chunk = inbox.take(2, 0)
    assert chunk is not None
    inbox.arrive(delivered(1, 1, shard=0, generation=1))
    inbox.finish(chunk, 2)
    assert take_all(inbox) == [(1, 0), (1, 1), (1, 2), (1, 3), (0, 1)]
    assert (inbox.credit.buffered, inbox.credit.buffered_bytes) == (0, 0)


def test_a_seek_drops_acks_and_deliveries_in_flight() -> None:
    inbox = opened(deduplicates=True)
    inbox.arrive(delivered(0, 4))
    take_all(inbox)
    inbox.ack(0, 0, [(0, 4)])
    inbox.seek([1])
    inbox.arrive(delivered(4, 2))
    assert take_all(inbox) == []
    assert (inbox.credit.buffered, inbox.credit.buffered_bytes) == (0, 0)
    assert inbox.arrive(delivered(0, 4, generation=1)) == []
    assert take_all(inbox) == [(0, offset) for offset in range(4)]


def test_the_reply_to_an_overtaken_seek_is_ignored() -> None:
    inbox = opened()
    inbox.arrive(delivered(0, 2, generation=2))
    inbox.seek([1])
    assert take_all(inbox) == [(0, 0), (0, 1)]


def test_a_recreated_subscription_starts_fresh() -> None:
    inbox = opened(deduplicates=True)
    inbox.arrive(delivered(0, 2))
    take_all(inbox)
    inbox.ack(0, 0, [(0, 2)])
    inbox.begin([0], is_same=True)
    inbox.credit.grant()
    assert inbox.arrive(delivered(0, 2)) == [(0, 2)]
    inbox.begin([0], is_same=False)
    inbox.credit.grant()
    inbox.arrive(delivered(0, 2))
    assert take_all(inbox) == [(0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("delivery", "says"),
    [(delivered(0, 65), "64 requested"), (delivered(0, 1, shard=1), "shard 1")],
    ids=["credit", "shard"],
)
def test_unrequested_deliveries_are_refused(delivery: DeliveredRows, says: str) -> None:
    with pytest.raises(errors.DecodeError, match=says):
        opened().arrive(delivery)


def test_only_new_messages_of_a_picked_delivery_are_queued() -> None:
    inbox = opened()
    inbox.arrive(picked([0, 2, 4, 6, 8]))
    assert not inbox.may_hold_copies
    inbox.arrive(picked([1, 3, 5]))
    assert not inbox.may_hold_copies, "they are in front of others, and new"
    assert take_all(inbox) == [(0, offset) for offset in (0, 2, 4, 6, 8, 1, 3, 5)]
    inbox.ack(0, 0, [(offset, offset + 1) for offset in range(9)])
    inbox.credit.grant()
    assert inbox.arrive(picked([4, 6, 9, 10, 12])) == [(4, 5), (6, 7)]
    assert take_all(inbox) == [(0, 9), (0, 10), (0, 12)]


class InboxModel(RuleBasedStateMachine):
    """Two shards, repeated deliveries, lost connections: credit and queued messages always add up."""

    @initialize(deduplicates=st.booleans())
    def begin(self, deduplicates: bool) -> None:
        self.inbox = opened(shards=2, prefetch=20, deduplicates=deduplicates)
        self.deduplicates = deduplicates
        self.handed: list[tuple[int, int]] = []
        self.acked: set[tuple[int, int]] = set()
        self.chunk: Chunk | None = None  # taken, and perhaps not handed out to its end
        self.row = 0

    @rule(shard=st.integers(0, 1), start=st.integers(0, 9), rows=st.integers(1, 6))
    def arrive(self, shard: int, start: int, rows: int) -> None:
        rows = min(rows, self.inbox.credit.credit)
        if rows:
            self.inbox.arrive(delivered(start, rows, shard))

    @rule(shard=st.integers(0, 1), offsets=st.sets(st.integers(0, 15), min_size=2, max_size=6))
    def arrive_picked(self, shard: int, offsets: set[int]) -> None:
        if len(offsets) <= self.inbox.credit.credit:
            self.inbox.arrive(picked(sorted(offsets), shard))

    @rule(data=st.data(), rows=st.integers(1, 6))
    def come_again(self, data: st.DataObject, rows: int) -> None:
        if self.handed:
            shard, start = data.draw(st.sampled_from(self.handed))
            self.finish()
            self.inbox.credit.grant()
            self.arrive(shard, start, rows)

    def finish(self) -> None:
        """Finishes the current chunk; some of its messages may never be handed out."""
        if self.chunk is not None:
            self.inbox.finish(self.chunk, self.row)
        self.chunk = None

    @rule(rows=st.integers(1, 5), count=st.integers(0, 5))
    def take(self, rows: int, count: int) -> None:
        self.finish()
        self.chunk = self.inbox.take(rows, 0)
        self.row = self.chunk.first if self.chunk is not None else 0
        self.hand_out(count)

    @rule(count=st.integers(1, 4))
    def hand_out(self, count: int) -> None:
        while self.chunk is not None and self.row < self.chunk.end and count:
            place = (self.chunk.delivered.shard, self.chunk.delivered.offset(self.row))
            if self.chunk.delivered.offsets is not None:
                assert self.chunk.delivered.load_payloads()[self.row] == b"%d" % place[1]
            assert place not in self.acked
            assert not self.deduplicates or place not in self.handed
            self.handed.append(place)
            self.row += 1
            count -= 1

    @rule(data=st.data(), count=st.integers(1, 4))
    def ack(self, data: st.DataObject, count: int) -> None:
        """Acks messages, first those of which a copy is queued."""
        handed = [place for place in self.handed if place in self.waiting()] or self.handed
        at = data.draw(st.integers(0, max(0, len(handed) - 1)))
        for shard, offset in handed[at : at + count]:
            if self.inbox.may_hold_copies and self.chunk is not None:
                self.inbox.put_back(self.chunk, self.row)
                self.chunk = None
            self.inbox.ack(shard, 0, [(offset, offset + 1)])
            self.acked.add((shard, offset))

    @rule()
    def grant(self) -> None:
        self.inbox.credit.grant()

    @rule(is_lost=st.integers(0, 4))
    def lose(self, is_lost: int) -> None:
        if not is_lost:
            self.finish()
            self.inbox.begin([0, 0], is_same=True)

    @invariant()
    def it_adds_up(self) -> None:
        credit = self.inbox.credit
        assert 0 <= credit.buffered + credit.credit <= 20
        assert credit.buffered_bytes >= 0
        assert (bool(self.inbox) or self.chunk is not None) == (credit.buffered > 0)

    def waiting(self) -> set[tuple[int, int]]:
        positions: set[tuple[int, int]] = set()
        for number, delivery in enumerate(self.inbox._queue):
            first = self.inbox._first_row if number == 0 else 0
            positions |= {(delivery.shard, delivery.offset(row)) for row in range(first, delivery.rows)}
        return positions

    @invariant()
    def nothing_that_was_acked_waits(self) -> None:
        assert not self.waiting() & self.acked


def test_messages_are_delivered_as_often_as_allowed_and_credit_adds_up() -> None:
    check_state_machine(InboxModel)
