"""SendMessage: the messages of one loop tick are stored together.

Each call is decoded and checked, and refused, by itself. Accepted messages wait for the end of the tick; then the
messages of one producer for one shard become one block. Batches of messages are stored directly by `store`.

A call is answered when its block is durable (according to the sync mode), later if its topic has a publish rate.
Concurrent calls of one client have no order; a client that waits for each response gets its messages in order.
A refusal does not block later calls: each call has its own outcome (compare hazard 37, which is about pipelining).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from icestream import errors, limits
from icestream.broker.broker_topic import BrokerProducer
from icestream.broker.guarded_broker import GuardedBroker, PublishPath
from icestream.broker.publish_result import PublishResult
from icestream.frontends.danube.extensions import SEQUENCE, parse_sequence
from icestream.frontends.danube.handlers import Call, decode, malformed_request, status_number
from icestream.frontends.danube.messages import Fields, Row, fields_of, fields_of_batch, row_of
from icestream.frontends.danube.partition_names import parse_partition, partition_of
from icestream.frontends.danube.producer_registry import DanubeProducer, ProducerRegistry
from icestream.frontends.danube.request_batch import RequestBatch, RowOutcome
from icestream.frontends.danube.uniform_batch import uniform_batch
from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.model.block import Numbering, Value, encode_block
from icestream.model.envelope import EnvelopeColumn
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks


class SendOutcome(Protocol):
    """Receives the outcome of one message. The result is the delay of the response, in milliseconds."""

    def done(self) -> bool: ...

    def set_result(self, result: int, /) -> None: ...

    def set_exception(self, exception: Exception, /) -> None: ...


class PendingMessage(NamedTuple):
    """A message that is not stored yet, and the outcome of its call."""

    producer: BrokerProducer
    shard: int
    row: Row
    number: int | None  # the sequence number that the client gave it
    outcome: SendOutcome


class MessageSender:
    def __init__(
        self, publishing: PublishPath, producers: ProducerRegistry, clock: Clock, tasks: Tasks, message_bytes_max: int
    ) -> None:
        self._publishing = publishing
        self._producers = producers
        self._clock = clock
        self._tasks = tasks
        self._message_bytes_max = message_bytes_max
        self._loop = asyncio.get_running_loop()
        self._pending: list[PendingMessage] = []
        self._bytes_in_flight = 0  # of all calls

    async def send(self, raw: bytes, call: Call) -> bytes:
        # A single message is always taken, however large: its own size is bounded below.
        if self._bytes_in_flight and self._bytes_in_flight + len(raw) > limits.DANUBE_IN_FLIGHT_BYTES_MAX:
            raise errors.InFlightFull(
                f"more than {limits.DANUBE_IN_FLIGHT_BYTES_MAX} bytes of messages wait to be stored",
                hint="send it again in a moment",
            )
        self._bytes_in_flight += len(raw)
        try:
            message = decode(pb.StreamMessage, raw)
            self._check_size(len(raw))
            wait_ms = await self._enqueue(fields_of(message), call.client)
        finally:
            self._bytes_in_flight -= len(raw)
        if wait_ms:
            await self._clock.sleep(wait_ms / 1000)
        return pb.MessageResponse(request_id=message.request_id).SerializeToString()

    def _check_size(self, size: int) -> None:
        """Raises MessageTooLarge for a message that could not be delivered: clients end a stream with a larger one."""
        if size > self._message_bytes_max:
            raise errors.MessageTooLarge(
                f"message too large: {size} bytes, limit {self._message_bytes_max}",
                hint="setting danube.max_message_bytes",
            )

    async def _enqueue(self, fields: Fields, client: GuardedBroker) -> int:
        outcome: asyncio.Future[int] = self._loop.create_future()
        message = self._pending_message(fields, client, outcome)
        if message is None:
            message = await self._recall_and_number(fields, client, outcome)
        self._add_pending(message)
        return await outcome

    def _pending_message(self, fields: Fields, client: GuardedBroker, outcome: SendOutcome) -> PendingMessage | None:
        """None if the metadata store must be read first: for an unconnected producer, or a numbered message."""
        producer = self._producers.find(fields.producer_id, client)
        if producer is None or SEQUENCE in fields.attributes:
            return None
        shard = self._shard_of(producer, fields.topic_name)
        return PendingMessage(producer.plain, shard, row_of(fields), None, outcome)

    async def _recall_and_number(
        self, fields: Fields, client: GuardedBroker, outcome: SendOutcome
    ) -> PendingMessage | None:
        """None for a duplicate of a message that was stored before a restart; its outcome is set here."""
        # May wait for the metadata store. Concurrent calls have no order, so that others may overtake this one.
        producer = await self._producers.recall(fields.producer_id, client)
        shard = self._shard_of(producer, fields.topic_name)
        row, text = row_of(fields), fields.attributes.get(SEQUENCE)
        if text is None:
            return PendingMessage(producer.plain, shard, row, None, outcome)
        sequence = parse_sequence(text)
        numbered = await self._producers.numbered(producer, sequence.incarnation, client)
        last = producer.stored_before.get(shard)
        if last is not None and sequence.number <= last:
            outcome.set_result(0)
            return None
        if last is not None and sequence.number > last + 1 and not numbered.is_numbered:
            raise errors.OutOfOrderSequence(
                f"out of order: message {sequence.number} after {last}",
                hint="number the messages of a shard without gaps",
            )
        return PendingMessage(numbered, shard, row, sequence.number, outcome)

    # --- many at once ---

    def send_batch(self, batch: RequestBatch) -> None:
        """Sends requests that arrived together: without a task for each, and without a loop over uniform ones."""
        if not self._send_uniform(batch):
            self._send_rows(batch)

    def _send_uniform(self, batch: RequestBatch) -> bool:
        """Stores the batch as it is; False if its rows have to be checked one by one, then nothing is stored."""
        uniform = uniform_batch(batch)
        if uniform is None or uniform.message_bytes > self._message_bytes_max:
            return False
        try:
            producer = self._producers.find(uniform.producer_id, batch.client)
            if producer is None:
                return False
            shard = self._shard_of(producer, uniform.topic_name)
            block = encode_block(batch.count, uniform.columns)
            if len(block) > self._publishing.batch_bytes_max or not self._publishing.has_room(len(block)):
                return False
            self._publish(producer.plain, shard, block, lambda result: _complete_batch(batch, result))
        except errors.IcestreamError:
            return False  # the error may belong to a single row: check row by row
        return True

    def _send_rows(self, batch: RequestBatch) -> None:
        ready = []
        for index, fields in enumerate(fields_of_batch(batch)):
            outcome = RowOutcome(batch, index, status_number)
            try:
                if fields is None:
                    raise malformed_request(pb.StreamMessage)
                self._check_size(fields.size)
                message = self._pending_message(fields, batch.client, outcome)
            except errors.IcestreamError as error:
                outcome.set_exception(error)
                continue
            if message is not None:
                ready.append(message)
            else:
                self._tasks.start(self._enqueue_row(fields, batch.client, outcome), "danube-send")
        self.store(ready)

    async def _enqueue_row(self, fields: Fields, client: GuardedBroker, outcome: SendOutcome) -> None:
        try:
            self._add_pending(await self._recall_and_number(fields, client, outcome))
        except Exception as error:  # noqa: BLE001 (whatever the error, the caller of the row waits for an outcome)
            outcome.set_exception(error)

    def _shard_of(self, producer: DanubeProducer, name: str) -> int:
        """By the topic that the producer has opened: nothing is looked up or decided for a message (hazard 124)."""
        topic_name, part = parse_partition(name)
        if topic_name != producer.topic:
            raise errors.InvalidInput(
                f"producer {producer.id} belongs to {producer.topic}, not to {topic_name}",
                hint="send with the producer of the topic",
            )
        return partition_of(producer.plain.topic, part).shard

    # --- the tick ---

    def _add_pending(self, message: PendingMessage | None) -> None:
        if message is None:
            return
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(message)

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        self.store(pending)

    def store(self, batch: Iterable[PendingMessage]) -> None:
        """Stores the messages in order and sets their outcomes. Numbered messages are stored one by one."""
        groups: dict[tuple[int, int], list[PendingMessage]] = {}
        for message in batch:
            # Each numbered message is judged by its own number: in one block, a duplicate would take new ones along.
            if message.number is not None:
                self._store([message])
            else:
                groups.setdefault((id(message.producer), message.shard), []).append(message)
        for group in groups.values():
            for part in _parts(group, self._publishing.batch_bytes_max):
                self._store(part)

    def _store(self, group: list[PendingMessage]) -> None:
        first = group[0]
        numbering = None
        if first.number is not None:
            numbering = Numbering(first.producer.id, first.producer.epoch, first.number)
        try:
            block = encode_block(len(group), _columns(group), numbering)
            if self._publishing.has_room(len(block)):
                self._publish(first.producer, first.shard, block, lambda result: _complete(group, result))
            else:
                self._tasks.start(self._publish_later(group, block), "danube-room")
        except errors.IcestreamError as error:
            self._refuse(group, error)

    async def _publish_later(self, group: list[PendingMessage], block: bytes) -> None:
        try:
            await self._publishing.wait_for_room(len(block))
            self._publish(group[0].producer, group[0].shard, block, lambda result: _complete(group, result))
        except errors.IcestreamError as error:
            self._refuse(group, error)

    def _publish(
        self, producer: BrokerProducer, shard: int, block: bytes, on_done: Callable[[PublishResult], None]
    ) -> None:
        if producer.window(shard).is_refused:
            self._publishing.reset_producer(producer, shard)
        self._publishing.publish(producer, shard, block).add_done_callback(on_done)

    def _refuse(self, group: list[PendingMessage], error: errors.IcestreamError) -> None:
        """Fails the group; where a single invalid message may be the reason, stores each message by itself instead."""
        # Callers are independent: the invalid message of one must not fail the calls of the others.
        if len(group) > 1 and isinstance(error, errors.InvalidInput):
            for message in group:
                self._store([message])
            return
        for message in group:
            if not message.outcome.done():
                message.outcome.set_exception(error)


def _complete_batch(batch: RequestBatch, result: PublishResult) -> None:
    if result.error is not None:
        batch.fail_all(status_number(result.error))
    elif result.pause_ms:
        asyncio.get_running_loop().call_later(result.pause_ms / 1000, batch.succeed_all)
    else:
        batch.succeed_all()


def _complete(group: list[PendingMessage], result: PublishResult) -> None:
    for message in group:
        if message.outcome.done():
            continue  # its client is gone
        if result.error is not None:
            message.outcome.set_exception(result.error)
        else:
            message.outcome.set_result(result.pause_ms)


def _columns(group: list[PendingMessage]) -> dict[EnvelopeColumn, list[Value]]:
    columns: dict[EnvelopeColumn, list[Value]] = {}
    for index, message in enumerate(group):
        for column, value in message.row.items():
            columns.setdefault(column, [None] * len(group))[index] = value
    return columns


def _parts(group: list[PendingMessage], bytes_max: int) -> Iterable[list[PendingMessage]]:
    """Splits the group so that each part surely fits a block."""
    part: list[PendingMessage] = []
    size = 0
    for message in group:
        row_bytes = _row_bytes(message.row)
        # Half of the bound, because sizes are estimates: columns add padding and directories.
        if part and (size + row_bytes > bytes_max // 2 or len(part) == limits.BLOCK_ROWS_MAX):
            yield part
            part, size = [], 0
        part.append(message)
        size += row_bytes
    if part:
        yield part


def _row_bytes(row: Row) -> int:
    return 64 + sum(len(value) for value in row.values() if isinstance(value, bytes | str)) + _headers_bytes(row)


def _headers_bytes(row: Row) -> int:
    return sum(
        len(key) + len(text) + 8 for value in row.values() if isinstance(value, dict) for key, text in value.items()
    )
