"""How the batches of a producer reach the broker, whatever happens to the connection or to a batch.

A refusal (hazard 37): the lane drains, then its cause decides.
    the broker may take it later      wait, reset the shard, send again in order, until the time of each message is over
    the topic has a publish rate      the same, and that wait does not count: the broker asks for it
    the batch itself is wrong         two halves of it go on, or its only message fails; the others follow, and have
                                      their whole time again
    the numbers are not known         the producer opens anew, as after a lost connection
    the topic was deleted             the same: it goes on where somebody made the topic again, and has failed otherwise
    another one took the name         the producer has failed

A lost connection: every lane stops. The producer opens anew with the same `instance`, so the broker knows that it is
the same one, and learns what is stored of what it had sent (hazard 7).
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from icestream import errors, limits
from icestream.client.backoff import Backoff
from icestream.client.batch import Batch
from icestream.client.connection import Connection
from icestream.client.endpoint import Endpoint
from icestream.client.lane import Flow, Lane
from icestream.client.questions import Document
from icestream.client.session import Session
from icestream.model import envelope
from icestream.model.block import Constant, Numbering
from icestream.rpc import document
from icestream.rpc.frame import Done, Outcome

_SEQUENCE_MAX: Final = 2**63 - 1
_REOPEN: Final = (errors.UnknownProducer, errors.OutOfOrderSequence, errors.UnknownHandle, errors.UnknownTopic)


class Sender(Endpoint, Protocol):
    """The producer whose batches these are."""

    def plan(self) -> None:
        """Something can go out."""

    def released(self, batch: Batch) -> None:
        """It takes no room any more."""

    def lanes_changed(self) -> None:
        """What it collects in may be gone."""


class Publishing:
    def __init__(self, session: Session, sender: Sender, topic: str, name: str, create: bool, shards: int) -> None:
        self.topic = topic
        self.name = name
        self._session = session
        self._sender = sender
        self._asked: dict[str, Any] = {"topic": topic, "producer": name, "create": create, "shards": shards}
        self._asked["instance"] = session.randomness.token(16).hex()
        self.was_open = False
        self.connection: Connection | None = None
        self._handle = self._id = self._epoch = 0
        self._reopens = False
        self._was_deleted = False  # the topic, under it
        self.lanes: list[Lane] = []
        self._backoffs: dict[int, Backoff] = {}  # of shards that were refused
        self.batch_bytes_max = limits.CLIENT_BATCH_BYTES_MAX
        names = {envelope.PRODUCER_NAME: name, envelope.TOPIC_NAME: topic}
        self._constants = {column: Constant(text) for column, text in names.items()}

    def move_to(self, session: Session) -> None:
        self._session = session

    # --- out ---

    def flush_on(self, connection: Connection | None) -> None:
        """Sends what the lanes let go."""
        if connection is None or connection is not self.connection or connection.is_full:
            return
        batches: list[Batch] = []
        for lane in self.lanes:
            while (batch := lane.next_batch()) is not None:
                if self._number(lane, batch, connection):
                    lane.sent(batch)
                    batches.append(batch)
        if batches:
            connection.publish(self._handle, self, batches)

    def _number(self, lane: Lane, batch: Batch, connection: Connection) -> bool:
        """Whether it can be sent; its futures have failed otherwise."""
        numbering = Numbering(self._id, self._epoch, lane.next_sequence)
        try:
            if batch.is_sealed:
                batch.number(numbering)
            else:
                batch.seal(self._constants, numbering)
            if len(batch.block) > connection.send_bytes_max:
                raise errors.MessageTooLarge(  # of one message: batches of several are far smaller
                    f"a message of {len(batch.block)} bytes",
                    hint=f"the broker takes {connection.send_bytes_max} bytes in a frame",
                )
        except errors.IcestreamError as error:
            self._drop(batch, error)
            return False
        return True

    def _drop(self, batch: Batch, error: errors.IcestreamError) -> None:
        batch.fail(error)
        self._sender.released(batch)

    # --- answers ---

    def answered(self, batch: Batch, done: Done) -> None:
        lane = self.lanes[batch.shard]
        if done.outcome <= Outcome.DUPLICATE_FORGOTTEN:
            lane.stored(batch)
            self._succeed(batch, done.base_offset)
            if self._backoffs:
                self._backoffs.pop(batch.shard, None)
        else:
            is_certain = done.outcome != Outcome.UNKNOWN
            lane.refused(batch, document.decode_error(done.text), is_certain=is_certain)
        if lane.flow is Flow.STOPPED:
            self._drained(lane)
        elif lane.has_more:
            self._sender.plan()

    def _succeed(self, batch: Batch, base_offset: int) -> None:
        self._sender.released(batch)
        batch.succeed(self.topic, base_offset)

    def _drained(self, lane: Lane) -> None:
        """Nothing of the lane is in flight any more, after a refusal or because the producer opens anew."""
        cause, connection = lane.cause, self.connection
        if isinstance(cause, errors.ProducerFenced):
            self._sender.fail(cause)
        elif self._reopens or isinstance(cause, _REOPEN):
            self._reopen(lane)
        elif cause is not None and connection is not None:
            delay_seconds = 0.0
            may_pass = cause.retryable or isinstance(cause, errors.PersistentStorageError)
            if may_pass:
                delay_seconds = self._backoff(lane.shard).next_seconds()
            else:
                self._isolate(lane, cause)
            if not may_pass or isinstance(cause, errors.RateReached):
                lane.wait_until(self._session.clock.monotonic_ns() + int(self._session.options.send_seconds * 1e9))
            self._session.tasks.start(self._reset(lane, connection, delay_seconds), f"producer-{self.name}-reset")

    def _backoff(self, shard: int) -> Backoff:
        """Within the time of a message there are many tries."""
        if shard not in self._backoffs:
            last_seconds = min(limits.CLIENT_RETRY_SECONDS_MAX, self._session.options.send_seconds / 10)
            first_seconds = min(limits.CLIENT_RETRY_SECONDS_MIN, last_seconds)
            self._backoffs[shard] = Backoff(self._session.randomness, first_seconds, last_seconds)
        return self._backoffs[shard]

    def _isolate(self, lane: Lane, cause: errors.IcestreamError) -> None:
        """Finds the message that is wrong, by halves."""
        culprit = lane.take_culprit()
        if culprit is None:
            return
        if culprit.rows > 1 and culprit.futures:
            lane.put_back(*culprit.split())
        else:
            self._drop(culprit, cause)

    async def _reset(self, lane: Lane, connection: Connection, delay_seconds: float) -> None:
        """The shard goes on from what is stored."""
        if delay_seconds:
            await self._session.clock.sleep(delay_seconds)
        if not self._is_stopped(lane, connection):
            return
        arguments = {"handle": self._handle, "shard": lane.shard}
        try:
            found = await self._session.ask(connection, "reset_producer", arguments)
            if self._is_stopped(lane, connection):
                self._resume(lane, _last_of(found.get("last_sequence")), _recent_of(found.get("recent")))
                self._sender.plan()
        except errors.ConnectionLost:
            pass  # it opens anew on the next connection
        except errors.IcestreamError as error:
            if self._is_stopped(lane, connection):
                lane.cause = error
                self._reopen(lane)

    def _is_stopped(self, lane: Lane, connection: Connection) -> bool:
        return connection is self.connection and lane.flow is Flow.STOPPED and not self._reopens

    def _resume(self, lane: Lane, last_sequence: int | None, recent: list[int]) -> None:
        stored, dropped = lane.resume(last_sequence, recent)
        for batch, base_offset in stored:
            self._succeed(batch, base_offset)
        for batch in dropped:
            self._sender.released(batch)

    # --- connections ---

    async def open_on(self, connection: Connection) -> None:
        arguments = {**self._asked, "resumes": self.was_open}
        if self._was_deleted:  # and whoever did it meant it
            arguments["create"] = False
        try:
            found = await self._session.ask(connection, "open_producer", arguments, undo="close_producer")
        except errors.UnknownTopic as error:
            if not self._was_deleted:
                raise
            raise errors.UnknownTopic(f"topic {self.topic} was deleted", hint="open another producer") from error
        if not connection.is_lost:
            self._take_over(connection, found)
            self._sender.plan()

    def _take_over(self, connection: Connection, found: Document) -> None:
        shards = document.number_of(found, "shards", 1, limits.SHARDS_PER_TOPIC_MAX)
        last, recent = found.get("last_sequences"), found.get("recent") or [[]] * shards
        if not isinstance(last, list) or not isinstance(recent, list) or len(last) != shards or len(recent) != shards:
            raise errors.DecodeError("the answer to open_producer does not add up")
        self._handle = document.number_of(found, "handle", 1, 2**32 - 1)
        self._id = document.number_of(found, "producer_id", 0, _SEQUENCE_MAX)
        self._epoch = document.number_of(found, "producer_epoch", 0, 2**31 - 1)
        allowed = document.number_of(found, "max_batch_bytes", 1, _SEQUENCE_MAX, limits.CLIENT_BATCH_BYTES_MAX)
        self.batch_bytes_max = min(allowed, limits.CLIENT_BATCH_BYTES_MAX)
        self.connection = connection
        self.was_open, self._reopens, self._was_deleted = True, False, False
        self._fit_lanes(shards)
        for lane in self.lanes:
            self._resume(lane, _last_of(last[lane.shard]), _recent_of(recent[lane.shard]))

    def _fit_lanes(self, shards: int) -> None:
        """The topic may have been made anew, with another number of shards."""
        self.lanes += [Lane(shard) for shard in range(len(self.lanes), shards)]
        gone = errors.UnknownTopic(f"topic {self.topic} has {shards} shards now", hint="send the message again")
        for lane in self.lanes[shards:]:
            for batch in lane.clear():
                self._drop(batch, gone)
        del self.lanes[shards:]
        self._sender.lanes_changed()

    def detach(self) -> None:
        """The connection is lost: what had no answer waits until the producer is open again."""
        self.connection = None
        self._reopens = False
        for lane in self.lanes:
            lane.lose()

    def _reopen(self, lane: Lane) -> None:
        """On the same connection, when nothing is in flight in any shard."""
        cause, lane.cause = lane.cause, None
        self._was_deleted |= isinstance(cause, errors.UnknownTopic)
        if cause is not None and lane.waiting:
            lane.waiting[0].reopens += 1
            if lane.waiting[0].reopens > limits.CLIENT_REOPENS_MAX:
                self._drop(lane.waiting.popleft(), cause)
        self._reopens = True
        for one in self.lanes:
            one.hold()
        if self.connection is not None and all(one.flow is Flow.STOPPED for one in self.lanes):
            connection, self.connection = self.connection, None
            self._session.tasks.start(self._open_again(connection), f"producer-{self.name}-reopen")

    async def _open_again(self, connection: Connection) -> None:
        await self._session.tell(connection, "close_producer", {"handle": self._handle})
        await self._session.open_again(self._sender, connection)

    async def leave(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            await self._session.tell(connection, "close_producer", {"handle": self._handle})

    # --- time, and the end ---

    async def watch(self, send_seconds: float) -> None:
        """Fails what could not be stored in time. Sleeps most of the time, and ends when nothing is pending."""
        clock = self._session.clock
        while (deadline_ns := self._deadline_ns()) is not None:
            await clock.sleep(max(deadline_ns - clock.monotonic_ns(), 1_000_000) / 1e9)
            now_ns = clock.monotonic_ns()
            for lane in self.lanes:
                staying, leaving = lane.expire(now_ns)
                for batch in staying:
                    batch.fail(_late(lane, batch, send_seconds, self._session.away_because))
                for batch in leaving:
                    self._drop(batch, _late(lane, batch, send_seconds, self._session.away_because))
            self._sender.lanes_changed()

    def _deadline_ns(self) -> int | None:
        return min((at for lane in self.lanes if (at := lane.deadline_ns) is not None), default=None)

    def fail_pending(self, error: errors.IcestreamError) -> None:
        self.connection = None
        unknown = errors.OutcomeUnknown(f"the message may or may not be stored: {error.message}", hint=error.hint)
        for lane in self.lanes:
            for batch in lane.clear():
                self._drop(batch, unknown if batch.is_sent else error)


def _late(lane: Lane, batch: Batch, send_seconds: float, away_because: str) -> errors.IcestreamError:
    if batch.is_sent:
        return errors.OutcomeUnknown(
            f"no answer in {send_seconds:g} s: the message may or may not be stored",
            hint="look for it before it is sent again, or send it again and let consumers tell",
        )
    if lane.cause is not None:
        return lane.cause
    return errors.ConnectionLost(f"not sent in {send_seconds:g} s: {away_because}", hint="send it again")


def _last_of(found: object) -> int | None:
    if found is None or (isinstance(found, int) and 0 <= found <= _SEQUENCE_MAX):
        return found
    raise errors.DecodeError("a last sequence is not a number")


def _recent_of(found: object) -> list[int]:
    if isinstance(found, list) and len(found) % 3 == 0 and all(type(number) is int for number in found):
        return found
    raise errors.DecodeError("recent batches are not numbers")
