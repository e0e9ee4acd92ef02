"""The ack ledger of a consumer's shard against a model that tracks each message."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
)
from hypothesis.stateful import (
    run_state_machine_as_test as check_state_machine,
)

from icestream import limits
from icestream.client.ack_ledger import AckLedger

STARTS, ROWS = st.integers(0, 40), st.integers(1, 6)


class AckLedgerModel(RuleBasedStateMachine):
    deduplicates = True

    @initialize()
    def begin(self) -> None:
        self.ledger = AckLedger(0, deduplicates=self.deduplicates)
        self.waiting: set[int] = set()
        self.handed: set[int] = set()
        self.acked: set[int] = set()

    @rule(start=STARTS, rows=ROWS)
    def arrive(self, start: int, rows: int) -> None:
        arrived = set(range(start, start + rows))
        copies = self.waiting | self.acked | (self.handed if self.deduplicates else set())
        arrival = self.ledger.arrive(start, start + rows)
        assert [offset for low, high in arrival.fresh for offset in range(low, high)] == sorted(arrived - copies)
        assert [offset for low, high in arrival.acked for offset in range(low, high)] == sorted(arrived & self.acked)
        self.waiting |= arrived - copies

    @rule(offsets=st.sets(st.integers(0, 45), min_size=1, max_size=12))
    def arrive_picked(self, offsets: set[int]) -> None:
        copies = self.waiting | self.acked | (self.handed if self.deduplicates else set())
        arrival = self.ledger.arrive_singles(sorted(offsets))
        if arrival is None:
            assert not offsets & (copies | self.handed - self.acked)
        else:
            assert [offset for low, high in arrival.fresh for offset in range(low, high)] == sorted(offsets - copies)
            assert [offset for low, high in arrival.acked for offset in range(low, high)] == sorted(
                offsets & self.acked
            )
            assert arrival.may_be_copies or not offsets & self.handed
        self.waiting |= offsets - copies

    @rule(number=st.integers(1, 12))
    def hand_out_picked(self, number: int) -> None:
        if offsets := sorted(self.waiting)[::2][:number]:
            self.ledger.hand_out_singles(offsets)
            self.waiting -= set(offsets)
            self.handed |= set(offsets)

    @rule(number=st.integers(1, 12))
    def give_up_picked(self, number: int) -> None:
        if offsets := sorted(self.waiting)[::2][:number]:
            self.ledger.drop_singles(offsets)
            self.waiting -= set(offsets)

    @rule(number=st.integers(1, 12))
    def ack_narrow(self, number: int) -> None:
        if offsets := sorted(self.handed)[::2][:number]:
            self.ledger.ack_narrow([(offset, offset + 1) for offset in offsets])
            for states in (self.handed, self.waiting):
                states -= set(offsets)
            self.acked |= set(offsets)

    def pick(self, start: int, rows: int, of: set[int]) -> tuple[int, int] | None:
        """A stretch that is in the set, from `start` on."""
        first = next((offset for offset in sorted(of) if offset >= start), None)
        if first is None:
            return None
        end = first
        while end in of and end < first + rows:
            end += 1
        return first, end

    @rule(start=STARTS, rows=ROWS)
    def hand_out(self, start: int, rows: int) -> None:
        if stretch := self.pick(start, rows, self.waiting):
            self.ledger.hand_out(*stretch)
            self.waiting -= set(range(*stretch))
            self.handed |= set(range(*stretch))

    @rule(start=STARTS, rows=ROWS)
    def give_up(self, start: int, rows: int) -> None:
        if stretch := self.pick(start, rows, self.waiting):
            self.ledger.drop(*stretch)
            self.waiting -= set(range(*stretch))

    @rule(start=STARTS, rows=ROWS)
    def ack(self, start: int, rows: int) -> None:
        if stretch := self.pick(start, rows, self.handed):
            self.ledger.ack(*stretch)
            for states in (self.handed, self.waiting):
                states -= set(range(*stretch))
            self.acked |= set(range(*stretch))

    @rule(start=STARTS, rows=ROWS)
    def nack(self, start: int, rows: int) -> None:
        if stretch := self.pick(start, rows, self.handed):
            self.ledger.nack(*stretch)
            self.handed -= set(range(*stretch))


class ForgetfulModel(AckLedgerModel):
    deduplicates = False


def test_with_deduplication_no_delivered_message_is_delivered_again() -> None:
    check_state_machine(AckLedgerModel)


def test_without_deduplication_only_acked_messages_are_not_delivered_again() -> None:
    check_state_machine(ForgetfulModel)


def test_the_ledger_is_bounded_and_forgets_the_lowest_first() -> None:
    ledger = AckLedger(0, deduplicates=True)
    for number in range(limits.CLIENT_HANDLED_RANGES_MAX + 3):
        ledger.ack(2 * number, 2 * number + 1)
    assert ledger.ranges == limits.CLIENT_HANDLED_RANGES_MAX
    assert ledger.arrive(0, 1).fresh == [(0, 1)]
    assert ledger.arrive(6, 7).acked == [(6, 7)]


def test_a_cumulative_ack_covers_everything_below() -> None:
    ledger = AckLedger(0, deduplicates=False)
    ledger.ack(7, 9)
    ledger.ack(0, 5)
    assert ledger.arrive(0, 10)[:2] == ([(5, 7), (9, 10)], [(0, 5), (7, 9)])
