"""What came and was not taken: each message once, credit that is never lost, generations that are over."""

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
from icestream.client.delivered import Delivered
from icestream.client.inbox import Inbox
from icestream.model import envelope
from icestream.model.block import encode_block
from icestream.protocol.frame import Delivery

NOBODY: Any = None


def delivered(start: int, rows: int, shard: int = 0, generation: int = 0) -> Delivered:
    body = encode_block(rows, {envelope.PAYLOAD: [b"x"] * rows})
    return Delivered(NOBODY, None, Delivery(1, shard, generation, 0, start, 0, 0, rows, body), 0)


def opened(shards: int = 1, prefetch: int = 64, *, deduplicates: bool = False) -> Inbox:
    inbox = Inbox(prefetch, 2**20, deduplicates=deduplicates)
    inbox.begin([0] * shards, is_same=False)
    inbox.credit.grant()
    return inbox


def taken(inbox: Inbox) -> list[tuple[int, int]]:
    """Shard and offset of everything that can be taken."""
    found: list[tuple[int, int]] = []
    while (chunk := inbox.take(3, 0)) is not None:
        start = chunk.delivered.start
        found += [(chunk.delivered.shard, start + row) for row in range(chunk.first, chunk.end)]
        inbox.finish(chunk, chunk.end)
    return found


def test_what_came_is_taken_in_order_and_in_portions() -> None:
    inbox = opened()
    inbox.arrive(delivered(10, 7))
    inbox.arrive(delivered(17, 2))
    assert taken(inbox) == [(0, offset) for offset in range(10, 19)]
    assert (inbox.credit.held, inbox.credit.held_bytes) == (0, 0)


def test_what_comes_again_while_it_waits_is_not_put_in_twice() -> None:
    inbox = opened()
    inbox.arrive(delivered(0, 5))
    inbox.arrive(delivered(3, 5))
    assert taken(inbox) == [(0, offset) for offset in range(8)]


def test_what_was_acked_is_acked_again_and_not_handed_out() -> None:
    inbox = opened()
    inbox.arrive(delivered(0, 5))
    taken(inbox)
    inbox.acked(0, 0, [(1, 3)])
    assert inbox.arrive(delivered(0, 5)) == [(1, 3)]
    assert taken(inbox) == [(0, 0), (0, 3), (0, 4)]


def test_a_newer_generation_forgets_what_waits_of_its_shard_only() -> None:
    inbox = opened(shards=2)
    inbox.arrive(delivered(0, 4, shard=0))
    inbox.arrive(delivered(0, 4, shard=1))
    chunk = inbox.take(2, 0)
    assert chunk is not None
    inbox.arrive(delivered(1, 1, shard=0, generation=1))
    inbox.finish(chunk, 2)
    assert taken(inbox) == [(1, 0), (1, 1), (1, 2), (1, 3), (0, 1)]
    assert (inbox.credit.held, inbox.credit.held_bytes) == (0, 0)


def test_a_seek_forgets_what_was_acked_and_what_is_still_on_its_way() -> None:
    inbox = opened(deduplicates=True)
    inbox.arrive(delivered(0, 4))
    taken(inbox)
    inbox.acked(0, 0, [(0, 4)])
    inbox.sought([1])
    inbox.arrive(delivered(4, 2))
    assert taken(inbox) == []
    assert (inbox.credit.held, inbox.credit.held_bytes) == (0, 0)
    assert inbox.arrive(delivered(0, 4, generation=1)) == []
    assert taken(inbox) == [(0, offset) for offset in range(4)]


def test_an_answer_to_a_seek_that_was_overtaken_changes_nothing() -> None:
    inbox = opened()
    inbox.arrive(delivered(0, 2, generation=2))
    inbox.sought([1])
    assert taken(inbox) == [(0, 0), (0, 1)]


def test_another_subscription_of_the_same_name_is_begun_anew() -> None:
    inbox = opened(deduplicates=True)
    inbox.arrive(delivered(0, 2))
    taken(inbox)
    inbox.acked(0, 0, [(0, 2)])
    inbox.begin([0], is_same=True)
    inbox.credit.grant()
    assert inbox.arrive(delivered(0, 2)) == [(0, 2)]
    inbox.begin([0], is_same=False)
    inbox.credit.grant()
    inbox.arrive(delivered(0, 2))
    assert taken(inbox) == [(0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("came", "says"), [(delivered(0, 65), "asked for"), (delivered(0, 1, shard=1), "shard 1")], ids=["credit", "shard"]
)
def test_what_nobody_asked_for_is_refused(came: Delivered, says: str) -> None:
    with pytest.raises(errors.DecodeError, match=says):
        opened().arrive(came)


class InboxModel(RuleBasedStateMachine):
    """Two shards, deliveries that come again, connections that are lost: credit and what is held always add up."""

    @initialize(deduplicates=st.booleans())
    def begin(self, deduplicates: bool) -> None:
        self.inbox = opened(shards=2, prefetch=20, deduplicates=deduplicates)
        self.deduplicates = deduplicates
        self.handed: list[tuple[int, int]] = []
        self.acked: set[tuple[int, int]] = set()
        self.waited: set[tuple[int, int]] = set()

    @rule(shard=st.integers(0, 1), start=st.integers(0, 30), rows=st.integers(1, 6))
    def arrive(self, shard: int, start: int, rows: int) -> None:
        rows = min(rows, self.inbox.credit.credit)
        if rows:
            self.inbox.arrive(delivered(start, rows, shard))

    @rule(rows=st.integers(1, 5), kept=st.integers(0, 5))
    def take(self, rows: int, kept: int) -> None:
        """Some of what is taken may be dropped before it is handed out."""
        chunk = self.inbox.take(rows, 0)
        if chunk is None:
            return
        middle = min(chunk.end, chunk.first + kept)
        self.inbox.finish(chunk, middle)
        shard, start = chunk.delivered.shard, chunk.delivered.start
        for row in range(chunk.first, middle):
            place = (shard, start + row)
            assert place not in self.acked or place in self.waited
            self.waited.discard(place)
            assert not self.deduplicates or place not in self.handed
            self.handed.append(place)

    @rule(count=st.integers(1, 4))
    def ack(self, count: int) -> None:
        for shard, offset in self.handed[-count:]:
            self.inbox.acked(shard, 0, [(offset, offset + 1)])
            self.acked.add((shard, offset))
            copies = [one for one in self.inbox._queue if one.shard == shard and one.start <= offset < one.end]
            if copies:  # it came again before this ack, and is handed out once more
                self.waited.add((shard, offset))

    @rule()
    def grant(self) -> None:
        self.inbox.credit.grant()

    @rule()
    def lose(self) -> None:
        self.inbox.begin([0, 0], is_same=True)

    @invariant()
    def it_adds_up(self) -> None:
        credit = self.inbox.credit
        assert 0 <= credit.held + credit.credit <= 20
        assert credit.held_bytes >= 0
        assert bool(self.inbox) == (credit.held > 0)


def test_each_message_is_handed_out_as_often_as_it_may_and_credit_adds_up() -> None:
    check_state_machine(InboxModel)
