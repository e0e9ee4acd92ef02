"""A queue against a broker that judges numbers as the log does, over refusals, lost connections and lost answers.

once          no message is stored twice
order         what is stored stands in the order in which it was sent
truth         a future that says "stored" says where; one that says "not stored" is right
no end        in the end, with a willing broker, everything that was not given up is stored
"""

from __future__ import annotations

import asyncio
from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from hypothesis.stateful import (
    run_state_machine_as_test as check_state_machine,
)

from icestream import errors, limits
from icestream.client.batch import Batch, MessageId
from icestream.client.send_queue import Flow, SendQueue
from icestream.model import envelope
from icestream.model.block import Block, Numbering
from icestream.model.shard import ShardKey
from icestream.wal.producer_sequences import Duplicate, ProducerSequences

LOOP = asyncio.new_event_loop()
KEY = ShardKey(1, 0)
REFUSED = errors.NodeQuotaReached("full")
WRONG = errors.InvalidInput("wrong")
UNKNOWN = errors.OutcomeUnknown("who knows")


def batch_of(names: list[bytes], deadline_ns: int = 10**18) -> Batch:
    batch = Batch(0, 0, deadline_ns)
    for name in names:
        batch.add(name, asyncio.Future(loop=LOOP), len(name))
    return batch


class BrokerShard:
    """One shard of a broker: what is stored, and the numbers of one producer."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.producers = ProducerSequences()
        self.epoch = 0
        self.is_refusing = False

    def open(self) -> None:
        self.epoch += 1
        self.is_refusing = False
        self.producers.open(7, self.epoch)

    def take(self, block: bytes, refusal: errors.IcestreamError | None) -> int | errors.IcestreamError:
        """The base offset, or why not."""
        if self.is_refusing:
            return errors.AfterRefused("one before it was refused")
        outcome = self._judge(block, refusal)
        self.is_refusing = isinstance(outcome, errors.IcestreamError)
        return outcome

    def _judge(self, data: bytes, refusal: errors.IcestreamError | None) -> int | errors.IcestreamError:
        block = Block(data)
        assert block.numbering is not None
        if refusal is not None:
            return refusal
        try:
            verdict = self.producers.check(KEY, block.numbering, block.rows)
        except errors.IcestreamError as error:
            return error
        if isinstance(verdict, Duplicate):
            return -1 if verdict.base_offset is None else verdict.base_offset
        base = len(self.stored)
        self.stored += [bytes(value) for value in block.values(envelope.PAYLOAD) if isinstance(value, bytes)]
        lsn = len(self.stored)
        self.producers.record(KEY, block.numbering, block.rows, base, lsn, 0, lsn)
        return base

    @property
    def last_sequence(self) -> int | None:
        return self.producers.last_sequence(KEY, 7)

    @property
    def recent(self) -> list[int]:
        return [number for sent in self.producers.recent(KEY, 7)[-64:] for number in sent]


class SendQueueModel(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.broker = BrokerShard()
        self.queue = SendQueue(0)
        self.sent: deque[Batch] = deque()  # on their way to the broker
        self.answers: deque[tuple[Batch, int | errors.IcestreamError]] = deque()  # and back
        self.futures: list[tuple[bytes, asyncio.Future[MessageId]]] = []
        self.given_up: set[bytes] = set()
        self.now_ns = 0
        self.epoch = 0
        self.reopen()

    # --- the producer ---

    @rule(rows=st.integers(1, 3), patience=st.integers(1, 40), is_full=st.booleans())
    def send(self, rows: int, patience: int, is_full: bool) -> None:
        names = [b"%d" % (len(self.futures) + number) for number in range(rows)]
        if self.queue.collecting is None or is_full:
            deadline_ns = max([self.now_ns + patience, *(batch.deadline_ns for batch in self.queue)])  # they rise
            self.queue.begin(Batch(0, 0, deadline_ns))
        assert self.queue.collecting is not None
        for name in names:
            future: asyncio.Future[MessageId] = asyncio.Future(loop=LOOP)
            self.futures.append((name, future))
            self.queue.collecting.add(name, future, len(name))

    @rule()
    def flush(self) -> None:
        while (batch := self.queue.next_batch()) is not None:
            numbering = Numbering(7, self.epoch, self.queue.next_sequence)
            if batch.is_sealed:
                batch.renumber(numbering)
            else:
                batch.seal({}, numbering)
            self.queue.sent(batch)
            self.sent.append(batch)

    @precondition(lambda self: self.answers)
    @rule()
    def answer(self) -> None:
        batch, outcome = self.answers.popleft()
        if isinstance(outcome, int):
            self.queue.stored(batch)
            batch.succeed("t", outcome)
        else:
            self.queue.refused(batch, outcome, is_certain=not isinstance(outcome, errors.OutcomeUnknown))
        if self.queue.flow is Flow.STOPPED and self.queue.cause is WRONG:
            self.isolate()

    def isolate(self) -> None:
        culprit = self.queue.take_refused()
        assert culprit is not None
        if culprit.rows > 1 and culprit.futures:
            self.queue.put_back(*culprit.split())
        else:
            culprit.fail(WRONG)

    @precondition(lambda self: self.queue.flow is Flow.STOPPED and self.epoch)
    @rule()
    def reset(self) -> None:
        """All answers have arrived: the shard resumes."""
        self.broker.is_refusing = False
        self.resume()

    def resume(self) -> None:
        stored, _ = self.queue.resume(self.broker.last_sequence, self.broker.recent)
        for batch, base_offset in stored:
            batch.succeed("t", base_offset)

    @rule(passed=st.integers(1, 30))
    def wait(self, passed: int) -> None:
        self.now_ns += passed
        staying, leaving = self.queue.expire(self.now_ns)
        for batch in staying + leaving:
            batch.fail(UNKNOWN if batch.is_sent else REFUSED)

    # --- the broker and the connection ---

    @precondition(lambda self: self.sent)
    @rule(kind=st.sampled_from(["take", "take", "take", "refuse", "wrong", "unknown, taken back", "unknown, stored"]))
    def arrive(self, kind: str) -> None:
        batch = self.sent.popleft()
        refusal = {"refuse": REFUSED, "wrong": WRONG, "unknown, taken back": UNKNOWN}.get(kind)
        outcome = self.broker.take(batch.block, refusal)
        if kind == "unknown, stored" and isinstance(outcome, int):
            outcome, self.broker.is_refusing = UNKNOWN, True
        self.answers.append((batch, outcome))

    @rule()
    def lose(self) -> None:
        """Requests in flight to the broker are lost, and so are its answers."""
        self.sent.clear()
        self.answers.clear()
        self.queue.lose_connection()
        self.reopen()

    def reopen(self) -> None:
        self.broker.open()
        self.epoch = self.broker.epoch
        self.resume()

    # --- what must hold ---

    @invariant()
    def stored_once_and_in_order(self) -> None:
        numbers = [int(name) for name in self.broker.stored]
        assert numbers == sorted(set(numbers))

    @invariant()
    def futures_tell_the_truth(self) -> None:
        stored = {name: offset for offset, name in enumerate(self.broker.stored)}
        for name, future in self.futures:
            if not future.done():
                continue
            error = future.exception()
            if error is None:
                assert future.result().offset == stored[name]
            elif not isinstance(error, errors.OutcomeUnknown):
                assert name not in stored

    @invariant()
    def window_is_kept(self) -> None:
        assert len(self.queue.in_flight) <= limits.PRODUCER_WINDOW_BATCHES

    def teardown(self) -> None:
        """A willing broker: every message that was not given up is stored."""
        self.lose()
        while not self.queue.is_empty:
            self.flush()
            while self.sent:
                self.arrive("take")
            while self.answers:
                self.answer()
        assert all(future.done() for _, future in self.futures)
        self.stored_once_and_in_order()
        self.futures_tell_the_truth()
        for _, future in self.futures:
            future.exception()


def test_nothing_is_lost_duplicated_or_reordered_by_broker_and_connection_faults() -> None:
    check_state_machine(SendQueueModel, settings=settings(stateful_step_count=60))


def flowing() -> SendQueue:
    queue = SendQueue(0)
    queue.resume(None, [])
    return queue


def test_at_most_a_window_is_in_flight_and_the_rest_collects() -> None:
    queue = flowing()
    for number in range(limits.PRODUCER_WINDOW_BATCHES + 5):
        queue.begin(batch_of([b"%d" % number]))
    batches = 0
    while (batch := queue.next_batch()) is not None:
        batch.seal({}, Numbering(1, 1, queue.next_sequence))
        queue.sent(batch)
        batches += 1
    assert batches == limits.PRODUCER_WINDOW_BATCHES
    assert not queue.has_more
    queue.stored(queue.in_flight[0])
    assert queue.has_more


def test_an_answer_that_is_not_next_is_not_believed() -> None:
    queue = flowing()
    for number in range(2):
        queue.begin(batch_of([b"%d" % number]))
    first, second = queue.next_batch(), queue.next_batch()
    assert first is not None
    assert second is not None
    for batch in (first, second):
        batch.seal({}, Numbering(1, 1, queue.next_sequence))
        queue.sent(batch)
    with pytest.raises(errors.DecodeError, match="out of order"):
        queue.stored(second)


def test_a_stored_batch_is_found_by_its_numbers_although_its_offset_is_forgotten() -> None:
    queue = flowing()
    batches = [batch_of([b"a", b"b"]), batch_of([b"c"]), batch_of([b"d"])]
    for batch in batches:
        queue.begin(batch)
        next_batch = queue.next_batch()
        assert next_batch is batch
        next_batch.seal({}, Numbering(1, 1, queue.next_sequence))
        queue.sent(next_batch)
    queue.lose_connection()
    stored, dropped = queue.resume(2, [2, 1, 41])
    assert [(batch, offset) for batch, offset in stored] == [(batches[0], -1), (batches[1], 41)]
    assert not dropped
    assert queue.next_sequence == 3
    assert queue.next_batch() is batches[2]


def test_numbers_of_a_first_batch_that_was_refused_are_used_again() -> None:
    """A log that took it back expects exactly these (hazard 16), and has no last number to tell."""
    queue = flowing()
    queue.begin(batch_of([b"a", b"b"]))
    batch = queue.next_batch()
    assert batch is not None
    batch.seal({}, Numbering(1, 1, queue.next_sequence))
    queue.sent(batch)
    assert queue.next_sequence == 2
    queue.refused(batch, UNKNOWN, is_certain=False)
    queue.resume(None, [])
    assert queue.next_sequence == 0
    assert queue.next_batch() is batch
