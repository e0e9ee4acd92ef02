"""Producer: batches messages per shard, sends them in order, and resends them after refusals and reconnects.

State of a producer

    opening   not registered at the broker yet
    open      batches leave as their queues (send_queue.py) allow; a lost connection only pauses the producer
    failed    fenced by another producer of its name, or the topic was deleted: pending and later sends fail
    closed

`send` adds a message to the open batch of its shard. At the end of the loop tick the session calls `_flush`, which
sends the batches of all shards together: `send` → `_schedule_flush` → Session → `_flush` → ClientConnection.publish;
the answer comes back as ClientConnection → `_on_published` → SendQueue → the futures of the batch.

A refused batch (hazard 37): its queue drains, then the cause of the refusal decides.

    retryable                     wait (backoff), reset the shard, resend in order until the deadline of each message
    publish rate reached          the same, and the wait does not count against the deadline: the broker asked for it
    the batch itself is invalid   split the batch in two halves and resend; a batch of one message fails; the other
                                  messages get a new deadline
    unknown sequence numbers      register again, as after a lost connection
    topic deleted                 register again without creating the topic; fails if the topic was not recreated
    producer fenced               the producer has failed

A lost connection stops every queue. The producer registers again with the same `instance`, so that the broker knows it
is the same producer and reports which batches it had stored (hazard 7).
"""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections.abc import Generator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Final

from icestream import errors, limits
from icestream.client.batch import Batch, MessageId, checked_headers
from icestream.client.client_connection import ClientConnection
from icestream.client.send_queue import Flow, SendQueue
from icestream.client.session import Session
from icestream.client.timestamps import to_microseconds
from icestream.model import envelope
from icestream.model.block import ConstantColumn, Numbering
from icestream.model.topic_name import TopicName, check_name
from icestream.rpc import document
from icestream.rpc.backoff import RetryBackoff
from icestream.rpc.document import Document
from icestream.rpc.frame import Outcome, PartResult
from icestream.runtime.waiters import Waiters

Payload = bytes | bytearray | memoryview
_Future: Final = asyncio.Future
_MESSAGE_OVERHEAD_BYTES: Final = limits.CLIENT_MESSAGE_BYTES
_BLOCK_OVERHEAD_BYTES: Final = 256  # head, directory and padding of a block
# A batch that has used up more than a tenth of the send timeout takes no further messages.
_DEADLINE_SHARE_MIN: Final = 0.9
_SEQUENCE_MAX: Final = 2**63 - 1
# Refusals after which the broker's view of the producer is asked for again, by registering again.
_REOPENING_ERRORS: Final = (
    errors.UnknownProducer,
    errors.OutOfOrderSequence,
    errors.UnknownHandle,
    errors.UnknownTopic,
)


class Producer:
    """Sends messages to a topic. What one producer sends to a shard is stored in the order in which it was sent.

    `Client.producer` makes one; it is opened by `async with` or `await`. A lost connection only pauses it: messages
    without an answer are sent again, and nothing is stored twice.
    """

    def __init__(
        self, session: Session, topic: str, name: str | None, create: bool, shards: int, pending_bytes: int
    ) -> None:
        self._topic = str(TopicName.parse(topic))
        unique_name = f"{socket.gethostname()}-{session.randomness.token(8).hex()}" if name is None else name
        self._name = check_name("producer", unique_name)
        self._error: errors.IcestreamError | None = None
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._send_timeout_ns = int(session.options.send_seconds * 1e9)
        self._is_closing = False
        # collecting
        # The batch of each shard that takes messages in this tick: always the one that its queue collects in. Messages
        # with and without keys share it, so that no message overtakes another one of its shard.
        self._open_batches: dict[int, Batch] = {}
        self._keyless_shard = 0  # gets the messages without a key of this tick
        self._is_flush_scheduled = False
        self._is_deadline_task_running = False
        self._pending_bytes_max = pending_bytes
        self._pending_bytes = 0
        self._room_waiters = Waiters()
        self._batch_bytes = limits.CLIENT_BATCH_BYTES_MAX
        self._fixed_bytes = _BLOCK_OVERHEAD_BYTES + len(self._name.encode()) + len(self._topic.encode())
        # publishing
        self._open_arguments: Document = {
            "topic": self._topic,
            "producer": self._name,
            "create": create,
            "shards": shards,
            "instance": session.randomness.token(16).hex(),
        }
        self._was_open = False
        self._connection: ClientConnection | None = None  # on which the producer is registered
        self._handle = self._producer_id = self._producer_epoch = 0
        self._is_reopening = False
        self._was_topic_deleted = False
        self._queues: list[SendQueue] = []  # by shard
        self._backoffs: dict[int, RetryBackoff] = {}  # of shards with a refused batch
        names = {envelope.PRODUCER_NAME: self._name, envelope.TOPIC_NAME: self._topic}
        self._constants = {column: ConstantColumn(text) for column, text in names.items()}

    # --- public methods ---

    def send(
        self,
        payload: Payload,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        publish_time: datetime | int | None = None,
    ) -> asyncio.Future[MessageId]:
        """Sends a message at the end of this loop tick; the future's result is where the message is stored.

        Messages with the same key go to the same shard, by CRC-32 of the key. Messages without a key go to one shard
        after the other, all of a tick to the same. `publish_time` defaults to now; pass a datetime with a time zone or
        microseconds since 1970. Raises InFlightFull when `pending_bytes` is reached: `await ready()` first.
        """
        # Raises instead of waiting: `send` is not a coroutine, so that a message costs no task switch. `ready` waits.
        if self._pending_bytes >= self._pending_bytes_max:
            raise self._pending_bytes_error()
        if type(payload) is not bytes:
            payload = payload_bytes(payload)
        size = len(payload) + _MESSAGE_OVERHEAD_BYTES
        if key is not None or headers or publish_time is not None:
            return self._send_with_attributes(payload, size, key, headers, publish_time)
        batch = self._open_batches.get(self._keyless_shard)
        if batch is None or batch.bytes + size > self._batch_bytes:
            batch = self._batch_for(self._keyless_shard, size)
        # `Batch.add`, inlined: these lines run for every message.
        self._pending_bytes += size
        batch.bytes += size
        future: asyncio.Future[MessageId] = _Future(loop=self._loop)
        batch.payloads.append(payload)
        batch.futures.append(future)
        if not self._is_flush_scheduled:
            self._schedule_flush()
        return future

    async def ready(self) -> None:
        """Waits until there is room for another message. Raises if the producer is closed or has failed."""
        while self._pending_bytes >= self._pending_bytes_max:
            self._check_open()
            await self._room_waiters.wait()
        self._check_open()

    async def flush(self) -> None:
        """Waits until every message sent so far is stored or has failed; its future says which."""
        settled: list[asyncio.Future[None]] = []
        # By batch, not by message: waiting for a million futures would cost more than sending the messages.
        for batch in [batch for queue in self._queues for batch in queue if batch.futures]:
            settled.append(self._loop.create_future())
            batch.settled.append(settled[-1])
        if settled:
            await asyncio.wait(settled)

    @property
    def topic(self) -> str:
        """The topic that it sends to."""
        return self._topic

    @property
    def name(self) -> str:
        """Its name: another producer of the same name fences it."""
        return self._name

    @property
    def error(self) -> errors.IcestreamError | None:
        """Why the producer has failed permanently; None if it has not."""
        return self._error

    @property
    def pending_bytes(self) -> int:
        """Bytes of messages that were sent and have no answer, with the memory needed to track them."""
        return self._pending_bytes

    @property
    def shards(self) -> int:
        """How many shards the topic has."""
        return len(self._queues)

    async def close(self) -> None:
        """Waits until everything is stored or has failed, then closes the producer at the broker."""
        if self._is_closing:
            return
        self._is_closing = True
        self._open_batches.clear()  # so that the next `send` goes through `_batch_for`, which refuses it
        try:
            await self.flush()
        finally:
            self._session.remove_endpoint(self)
            connection, self._connection = self._connection, None
            if connection is not None:
                await self._session.notify(connection, "close_producer", {"handle": self._handle})
            self._fail_pending(errors.ClientClosed(f"producer {self.name} was closed"))

    async def __aenter__(self) -> Producer:
        if not self._was_open and not self._is_closing:
            await self._session.open_endpoint(self)
        self._check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Producer]:
        return self.__aenter__().__await__()

    # --- collecting messages ---

    def _send_with_attributes(
        self,
        payload: bytes,
        size: int,
        key: bytes | str | None,
        headers: Mapping[str, str] | None,
        publish_time: datetime | int | None,
    ) -> asyncio.Future[MessageId]:
        """`send` for a message with a key, headers or a publish time."""
        key_bytes = key if type(key) is bytes else _encode_key(key)
        text_headers = checked_headers(headers) if headers else None
        time_us = None if publish_time is None else to_microseconds(publish_time)
        shard, queues = self._keyless_shard, self._queues
        if key_bytes is not None and queues:
            size += len(key_bytes)
            shard = zlib.crc32(key_bytes) % len(queues)
        if text_headers:
            size += sum(len(name.encode()) + len(value.encode()) + 8 for name, value in text_headers.items())
        batch = self._open_batches.get(shard)
        if batch is None or batch.bytes + size > self._batch_bytes:
            batch = self._batch_for(shard, size)
        self._pending_bytes += size
        future: asyncio.Future[MessageId] = _Future(loop=self._loop)
        batch.add(payload, future, size)
        batch.add_attributes(key_bytes, text_headers, time_us)
        if not self._is_flush_scheduled:
            self._schedule_flush()
        return future

    def _batch_for(self, shard: int, size: int) -> Batch:
        """Returns the open batch of a shard with room for `size` bytes: the one that its queue collects in, or a new
        one behind it. Raises ClientClosed, MessageTooLarge, or the error that made the producer fail."""
        self._check_open()
        # Only the protocol's bound is checked here: the topic's own bound is policy, which the broker enforces.
        if (message_bytes := size - _MESSAGE_OVERHEAD_BYTES) > limits.MESSAGE_BYTES_MAX:
            raise errors.MessageTooLarge(
                f"message too large: {message_bytes:,} bytes, limit {limits.MESSAGE_BYTES_MAX:,}",
                hint="store large payloads elsewhere and send a reference",
            )
        queue = self._queues[shard]
        batch, now_ns = queue.collecting, self._session.clock.monotonic_ns()
        is_full = batch is None or batch.bytes + size > self._batch_bytes
        # A deadline belongs to a batch: a message must not expire early because it joined a batch that has been
        # waiting for a connection.
        if batch is None or is_full or batch.deadline_ns - now_ns < _DEADLINE_SHARE_MIN * self._send_timeout_ns:
            batch = Batch(shard, self._session.clock.wall_us(), now_ns + self._send_timeout_ns)
            queue.begin(batch)
            if not self._is_deadline_task_running:
                self._is_deadline_task_running = True
                self._session.tasks.start(self._fail_expired(), f"producer-{self.name}-deadlines")
        self._open_batches[shard] = batch
        return batch

    def _check_open(self) -> None:
        """Raises ClientClosed, the error that made the producer fail, or InvalidInput on another event loop."""
        self._session.check_loop()
        if self._error is not None:
            raise self._error
        if self._is_closing or not self._was_open:
            state = "closed" if self._is_closing else "not open yet"
            raise errors.ClientClosed(f"producer {self.name} is {state}", hint="use a producer inside its `async with`")

    def _pending_bytes_error(self) -> errors.InFlightFull:
        return errors.InFlightFull(
            f"{self._pending_bytes} bytes of producer {self.name} wait for an answer",
            hint="await producer.ready() before send(), or raise pending_bytes",
        )

    # --- sending batches ---

    def _schedule_flush(self) -> None:
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._session.schedule_flush(self)

    def _flush(self, connection: ClientConnection | None) -> None:
        """Sends the batches that their queues allow; called by the session at the end of a tick."""
        self._is_flush_scheduled = False
        self._open_batches.clear()
        # The next tick goes to the next shard: within a tick one shard gets all messages without a key, in one batch.
        if self._queues:
            self._keyless_shard = (self._keyless_shard + 1) % len(self._queues)
        # While the socket is full nothing is queued behind it: `on_writable` of the session flushes again.
        if connection is None or connection is not self._connection or connection.is_write_paused:
            return
        batches: list[Batch] = []
        for queue in self._queues:
            while (batch := queue.next_batch()) is not None:
                if self._seal(queue, batch, connection):
                    queue.sent(batch)
                    batches.append(batch)
        if batches:
            connection.publish(self._handle, self, batches)

    def _seal(self, queue: SendQueue, batch: Batch, connection: ClientConnection) -> bool:
        """Encodes the batch with its next sequence numbers. False if it cannot be sent: its futures have failed.

        Numbered here and not when it is collected: a batch that fails before it is sent leaves no hole in the sequence.
        """
        numbering = Numbering(self._producer_id, self._producer_epoch, queue.next_sequence)
        try:
            if batch.is_sealed:  # it was sent before, perhaps under another epoch
                batch.renumber(numbering)
            else:
                batch.seal(self._constants, numbering)
            if len(batch.block) > connection.block_bytes_max:
                # Only a batch of a single message can be that large: CLIENT_BATCH_BYTES_MAX is far below.
                raise errors.MessageTooLarge(
                    f"message too large: {len(batch.block):,} bytes, limit {connection.block_bytes_max:,}",
                    hint="the broker's frame size limit applies to a message with its columns",
                )
        except errors.IcestreamError as error:
            self._fail_batch(batch, error)
            return False
        return True

    def _fail_batch(self, batch: Batch, error: errors.IcestreamError) -> None:
        """Fails the futures of a batch that has left its queue."""
        batch.fail(error)
        self._release(batch)

    def _complete_batch(self, batch: Batch, base_offset: int) -> None:
        """Resolves the futures of a stored batch that has left its queue."""
        self._release(batch)
        batch.succeed(self._topic, base_offset)

    def _release(self, batch: Batch) -> None:
        """Frees the batch's share of `pending_bytes`."""
        self._pending_bytes -= batch.bytes
        if self._room_waiters and self._pending_bytes < self._pending_bytes_max:
            self._room_waiters.wake()

    # --- answers of the broker ---

    def _on_published(self, batch: Batch, result: PartResult) -> None:
        """Handles the broker's answer to one batch; called by the connection in the order of sending."""
        queue = self._queues[batch.shard]
        if result.outcome <= Outcome.DUPLICATE_FORGOTTEN:  # stored now, or by an earlier attempt
            queue.stored(batch)
            self._complete_batch(batch, result.base_offset)
            if self._backoffs:
                self._backoffs.pop(batch.shard, None)
        else:
            is_certain = result.outcome != Outcome.UNKNOWN
            queue.refused(batch, document.decode_error(result.text), is_certain=is_certain)
        if queue.flow is Flow.STOPPED:
            self._recover_queue(queue)
        elif queue.has_more:
            self._schedule_flush()

    def _recover_queue(self, queue: SendQueue) -> None:
        """Decides how a drained queue continues: after a refusal, or because the producer registers again."""
        cause, connection = queue.cause, self._connection
        if isinstance(cause, errors.ProducerFenced):
            self._fail(cause)
        elif self._is_reopening or isinstance(cause, _REOPENING_ERRORS):
            self._reopen(queue)
        elif cause is not None and connection is not None:
            delay_seconds = 0.0
            # A storage error is reported as not retryable because its outcome is uncertain; a producer may retry it,
            # because its sequence numbers make the broker drop duplicates.
            is_transient = cause.retryable or isinstance(cause, errors.PersistentStorageError)
            if is_transient:
                delay_seconds = self._backoff_of(queue.shard).next_seconds()
            else:
                self._isolate_invalid_message(queue, cause)
            if not is_transient or isinstance(cause, errors.RateReached):
                queue.extend_deadlines(self._session.clock.monotonic_ns() + self._send_timeout_ns)
            self._session.tasks.start(
                self._reset_queue(queue, connection, delay_seconds), f"producer-{self.name}-reset"
            )

    def _backoff_of(self, shard: int) -> RetryBackoff:
        """The backoff of a shard with a refused batch; it is dropped with the next stored batch."""
        if shard not in self._backoffs:
            # At most a tenth of the send timeout, so that a message is retried several times before its deadline.
            last_seconds = min(limits.CLIENT_RETRY_SECONDS_MAX, self._session.options.send_seconds / 10)
            first_seconds = min(limits.CLIENT_RETRY_SECONDS_MIN, last_seconds)
            self._backoffs[shard] = RetryBackoff(self._session.randomness, first_seconds, last_seconds)
        return self._backoffs[shard]

    def _isolate_invalid_message(self, queue: SendQueue, cause: errors.IcestreamError) -> None:
        """Splits the refused batch in halves, so that in the end only the invalid message fails."""
        batch = queue.take_refused()
        if batch is None:
            return
        # The broker refuses a batch as a whole and does not say which message is invalid: halving finds it in a few
        # round trips.
        if batch.rows > 1 and batch.futures:
            queue.put_back(*batch.split())
        else:
            self._fail_batch(batch, cause)

    async def _reset_queue(self, queue: SendQueue, connection: ClientConnection, delay_seconds: float) -> None:
        """Asks the broker which sequence number it stored last, and resumes the queue behind it."""
        if delay_seconds:
            await self._session.clock.sleep(delay_seconds)
        if not self._can_resume(queue, connection):
            return
        arguments = {"handle": self._handle, "shard": queue.shard}
        try:
            reply = await self._session.call_on(connection, "reset_producer", arguments)
            if self._can_resume(queue, connection):
                self._resume_queue(
                    queue, _check_sequence(reply.get("last_sequence")), _check_recent(reply.get("recent"))
                )
                self._schedule_flush()
        except errors.ConnectionLost:
            pass  # the producer registers again on the next connection
        except errors.IcestreamError as error:
            if self._can_resume(queue, connection):
                queue.cause = error
                self._reopen(queue)

    def _can_resume(self, queue: SendQueue, connection: ClientConnection) -> bool:
        """True unless the connection was lost, the queue went on, or the producer registers again meanwhile."""
        return connection is self._connection and queue.flow is Flow.STOPPED and not self._is_reopening

    def _resume_queue(self, queue: SendQueue, last_sequence: int | None, recent: list[int]) -> None:
        """Resumes a queue behind what the broker has stored, and completes the batches that turned out to be stored."""
        stored, abandoned = queue.resume(last_sequence, recent)
        for batch, base_offset in stored:
            self._complete_batch(batch, base_offset)
        for batch in abandoned:
            self._release(batch)

    # --- connections (the session calls these: session.Endpoint) ---

    async def _open_on(self, connection: ClientConnection) -> None:
        """Registers the producer at the broker, with a new epoch. Raises the broker's refusal."""
        arguments = {**self._open_arguments, "resumes": self._was_open}
        if self._was_topic_deleted:
            arguments["create"] = False  # the deletion was intended: do not undo it
        try:
            reply = await self._session.call_on(connection, "open_producer", arguments, undo="close_producer")
        except errors.UnknownTopic as error:
            if not self._was_topic_deleted:
                raise
            raise errors.UnknownTopic(f"topic {self._topic} was deleted", hint="open another producer") from error
        if not connection.is_lost:  # else the session opens the producer again on the next connection
            self._use_registration(connection, reply)
            self._schedule_flush()

    def _use_registration(self, connection: ClientConnection, reply: Document) -> None:
        """Continues on `connection` with the broker's reply to open_producer. Raises DecodeError."""
        shards = document.number_of(reply, "shards", 1, limits.SHARDS_PER_TOPIC_MAX)
        sequences, recent = reply.get("last_sequences"), reply.get("recent") or [[]] * shards
        if not (isinstance(sequences, list) and isinstance(recent, list) and len(sequences) == len(recent) == shards):
            raise errors.DecodeError(f"open_producer reply: last_sequences or recent do not have {shards} shards")
        self._handle = document.number_of(reply, "handle", 1, 2**32 - 1)
        self._producer_id = document.number_of(reply, "producer_id", 0, _SEQUENCE_MAX)
        self._producer_epoch = document.number_of(reply, "producer_epoch", 0, 2**31 - 1)
        batch_bytes = document.number_of(reply, "max_batch_bytes", 1, _SEQUENCE_MAX, limits.CLIENT_BATCH_BYTES_MAX)
        self._batch_bytes = min(batch_bytes, limits.CLIENT_BATCH_BYTES_MAX) - self._fixed_bytes
        self._connection = connection
        self._was_open, self._is_reopening, self._was_topic_deleted = True, False, False
        self._set_queue_count(shards)
        for queue in self._queues:
            self._resume_queue(queue, _check_sequence(sequences[queue.shard]), _check_recent(recent[queue.shard]))

    def _set_queue_count(self, shards: int) -> None:
        """Adds or removes queues: a topic that was deleted and created again may have another number of shards."""
        self._queues += [SendQueue(shard) for shard in range(len(self._queues), shards)]
        error = errors.UnknownTopic(f"topic {self._topic} has {shards} shards now", hint="send the message again")
        for queue in self._queues[shards:]:
            for batch in queue.clear():
                self._fail_batch(batch, error)
        del self._queues[shards:]
        self._open_batches.clear()  # they may belong to a queue that was removed
        self._keyless_shard %= shards

    def _use_session(self, session: Session) -> None:
        self._session = session

    def _detach(self, error: errors.IcestreamError) -> None:
        """Leaves a lost connection: batches without an answer wait until the producer is registered again."""
        self._connection = None
        self._is_reopening = False
        for queue in self._queues:
            queue.lose_connection()

    def _reopen(self, queue: SendQueue) -> None:
        """Registers again on the same connection, as soon as nothing is in flight in any shard."""
        cause, queue.cause = queue.cause, None
        self._was_topic_deleted |= isinstance(cause, errors.UnknownTopic)
        if cause is not None and queue.waiting:
            # A batch that is refused again and again would otherwise make the producer register for ever.
            queue.waiting[0].reopens += 1
            if queue.waiting[0].reopens > limits.CLIENT_REOPENS_MAX:
                self._fail_batch(queue.waiting.popleft(), cause)
        self._is_reopening = True
        # All shards, although one has the problem: registering gives the producer a new epoch, and batches of the old
        # one that are still in flight would be refused.
        for other_queue in self._queues:
            other_queue.drain()
        if self._connection is not None and all(queue.flow is Flow.STOPPED for queue in self._queues):
            connection, self._connection = self._connection, None
            self._session.tasks.start(self._register_again(connection), f"producer-{self.name}-reopen")

    async def _register_again(self, connection: ClientConnection) -> None:
        """Closes the producer at the broker and opens it again on the same connection."""
        await self._session.notify(connection, "close_producer", {"handle": self._handle})
        await self._session.reopen_endpoint(self, connection)

    # --- deadlines and the end ---

    async def _fail_expired(self) -> None:
        """Fails messages past their deadline. Runs while messages are pending; sleeps to the next deadline."""
        try:
            clock = self._session.clock
            while (deadline_ns := self._next_deadline_ns()) is not None:
                await clock.sleep(max(deadline_ns - clock.monotonic_ns(), 1_000_000) / 1e9)
                now_ns = clock.monotonic_ns()
                # One task for all messages, which looks at batches: a timer for each message would be far too much.
                for queue in self._queues:
                    unanswered, unsent = queue.expire(now_ns)
                    for batch in unanswered:  # keeps its place in the queue until the broker answers
                        batch.fail(self._deadline_error(queue, batch))
                    for batch in unsent:
                        self._fail_batch(batch, self._deadline_error(queue, batch))
                self._open_batches.clear()  # a batch that expired takes no more messages
        finally:
            self._is_deadline_task_running = False

    def _next_deadline_ns(self) -> int | None:
        """The earliest deadline of all queues; None if nothing is pending."""
        return min((at_ns for queue in self._queues if (at_ns := queue.deadline_ns) is not None), default=None)

    def _deadline_error(self, queue: SendQueue, batch: Batch) -> errors.IcestreamError:
        """The error for messages past their deadline: what is known about their outcome, and why they waited."""
        seconds = self._session.options.send_seconds
        if batch.is_sent:
            return errors.OutcomeUnknown(
                f"no reply from the broker within {seconds:g} s: the message may or may not have been stored",
                hint="read the topic before sending it again, or send it again and let consumers deduplicate",
            )
        if queue.cause is not None:
            return queue.cause
        return errors.ConnectionLost(
            f"not sent within {seconds:g} s: {self._session.disconnect_reason}", hint="send it again"
        )

    def _fail(self, error: errors.IcestreamError) -> None:
        """Ends the producer permanently."""
        if self._error is None:
            self._error = error
        self._session.remove_endpoint(self)
        self._fail_pending(error)

    def _fail_pending(self, error: errors.IcestreamError) -> None:
        """Fails all pending messages: with the error, or with OutcomeUnknown if the broker may have stored them."""
        self._open_batches.clear()
        self._connection = None
        unknown = errors.OutcomeUnknown(
            f"the message may or may not have been stored: {error.message}", hint=error.hint
        )
        for queue in self._queues:
            for batch in queue.clear():
                self._fail_batch(batch, unknown if batch.is_sent else error)
        self._room_waiters.wake()


def payload_bytes(payload: object) -> bytes:
    """Returns a copy of the payload as bytes. Raises InvalidInput for anything that is not bytes-like."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise errors.InvalidInput(f"payload must be bytes, got {type(payload).__name__}", hint="use text.encode()")


def _encode_key(key: bytes | str | None) -> bytes | None:
    """The key as bytes. Raises InvalidInput."""
    if key is None or type(key) is bytes:
        return key
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError:
            raise errors.InvalidInput(
                f"key {key!a:.40} is not valid Unicode", hint="pass it as bytes, or remove lone surrogates"
            ) from None
    if isinstance(key, bytes):
        return bytes(key)
    raise errors.InvalidInput(f"key must be bytes or str, got {type(key).__name__}", hint="use str(key)")


def _check_sequence(value: object) -> int | None:
    """The last stored sequence number of a reply; None if there is none. Raises DecodeError."""
    if value is None or (isinstance(value, int) and 0 <= value <= _SEQUENCE_MAX):
        return value
    raise errors.DecodeError(f"last_sequence is not a sequence number: {value!r:.40}")


def _check_recent(value: object) -> list[int]:
    """The latest batches of a reply, as a flat list of triples. Raises DecodeError."""
    if isinstance(value, list) and len(value) % 3 == 0 and all(type(number) is int for number in value):
        return value
    raise errors.DecodeError("recent is not a list of (first sequence, rows, base offset) triples")
