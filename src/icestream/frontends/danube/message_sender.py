"""SendMessage: what came in one turn of the loop is stored together.

Each call is decoded and checked alone, and refused alone. What passes waits for the end of the turn; then the messages
of one producer for one shard become one block. Whoever hands over whole batches calls `store` directly.

A call is answered when its block is durable (as the sync mode says), later where its topic has a publish rate. Calls of
one client that are under way at the same time have no order among each other; one that waits for each answer has.
A refusal holds nobody back: each call knows its own outcome (compare hazard 37, which is about pipelines).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from icestream import errors, limits
from icestream.broker.service import Broker
from icestream.broker.topic import Producer
from icestream.frontends.danube.extensions import SEQUENCE, parse_sequence
from icestream.frontends.danube.handlers import Call, decode, malformed_request, status_number
from icestream.frontends.danube.messages import Fields, Row, fields_of, fields_of_batch, row_of
from icestream.frontends.danube.partition_names import resolve_partition
from icestream.frontends.danube.producer_registry import DanubeProducer, ProducerRegistry
from icestream.frontends.danube.request_batch import RequestBatch, RowOutcome
from icestream.frontends.danube.uniform_batch import uniform_batch
from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.model.block import Numbering, Value, encode_block
from icestream.model.envelope import Column
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks
from icestream.wal.receipt import Receipt


class SendOutcome(Protocol):
    """Hears what became of one message. The result: milliseconds to wait before the answer."""

    def done(self) -> bool: ...

    def set_result(self, result: int, /) -> None: ...

    def set_exception(self, exception: Exception, /) -> None: ...


class PendingMessage(NamedTuple):
    """One message on its way, and who waits for it."""

    producer: Producer
    shard: int
    row: Row
    number: int | None
    outcome: SendOutcome


class MessageSender:
    def __init__(
        self, broker: Broker, producers: ProducerRegistry, clock: Clock, tasks: Tasks, message_bytes_max: int
    ) -> None:
        self._broker = broker
        self._producers = producers
        self._clock = clock
        self._tasks = tasks
        self._message_bytes_max = message_bytes_max
        self._loop = asyncio.get_running_loop()
        self._waiting: list[PendingMessage] = []
        self._bytes = 0  # of all calls that are under way

    async def send(self, raw: bytes, call: Call) -> bytes:
        if self._bytes and self._bytes + len(raw) > limits.DANUBE_IN_FLIGHT_BYTES_MAX:
            raise errors.InFlightFull("too many messages wait to be stored", hint="send it again in a moment")
        self._bytes += len(raw)
        try:
            message = decode(pb.StreamMessage, raw)
            self._check_size(len(raw))
            wait_ms = await self._put(fields_of(message))
        finally:
            self._bytes -= len(raw)
        if wait_ms:
            await self._clock.sleep(wait_ms / 1000)
        return pb.MessageResponse(request_id=message.request_id).SerializeToString()

    def _check_size(self, size: int) -> None:
        """What is stored must be deliverable: clients end a stream that brings a larger one."""
        if size > self._message_bytes_max:
            raise errors.MessageTooLarge(
                f"a message of {size} bytes", hint=f"danube.max_message_bytes allows {self._message_bytes_max}"
            )

    async def _put(self, fields: Fields) -> int:
        outcome: asyncio.Future[int] = self._loop.create_future()
        self._wait(self._sent(fields, outcome) or await self._sent_later(fields, outcome))
        return await outcome

    def _sent(self, fields: Fields, outcome: SendOutcome) -> PendingMessage | None:
        """None where it takes a look at the metadata store: a producer of an earlier life, a message with a number."""
        producer = self._producers.find(fields.producer_id)
        if producer is None or SEQUENCE in fields.attributes:
            return None
        shard = self._shard_of(producer, fields.topic_name)
        return PendingMessage(producer.plain, shard, row_of(fields), None, outcome)

    async def _sent_later(self, fields: Fields, outcome: SendOutcome) -> PendingMessage | None:
        """None: it was stored before a restart of the broker, and the outcome is told."""
        producer = await self._producers.recall(fields.producer_id)
        shard = self._shard_of(producer, fields.topic_name)
        row, text = row_of(fields), fields.attributes.get(SEQUENCE)
        if text is None:
            return PendingMessage(producer.plain, shard, row, None, outcome)
        request = parse_sequence(text)
        numbered = await self._producers.numbered(producer, request.incarnation)
        last = producer.last_before.get(shard)
        if last is not None and request.number <= last:
            outcome.set_result(0)
            return None
        if last is not None and request.number > last + 1 and not numbered.is_numbered:
            raise errors.OutOfOrderSequence(
                f"message {request.number} came behind {last}", hint="send the numbers of a shard one after the other"
            )
        return PendingMessage(numbered, shard, row, request.number, outcome)

    # --- many at once ---

    def send_batch(self, batch: RequestBatch) -> None:
        """The same for requests that came together: no task for each, and no look at each where one does for all."""
        if not self._send_uniform(batch):
            self._send_rows(batch)

    def _send_uniform(self, batch: RequestBatch) -> bool:
        """False: nothing is stored of it, and its rows have to be looked at."""
        found = uniform_batch(batch)
        producer = None if found is None else self._producers.find(found.producer_id)
        if found is None or producer is None or found.message_bytes > self._message_bytes_max:
            return False
        try:
            shard = self._shard_of(producer, found.topic_name)
            block = encode_block(batch.count, found.columns)
            if len(block) > self._broker.storage.batch_bytes_max or not self._broker.storage.has_room(len(block)):
                return False
            self._publish(producer.plain, shard, block, lambda receipt: _tell_batch(batch, receipt))
        except errors.IcestreamError:
            return False  # one of them may be what is wrong with all
        return True

    def _send_rows(self, batch: RequestBatch) -> None:
        ready = []
        for index, fields in enumerate(fields_of_batch(batch)):
            outcome = RowOutcome(batch, index, status_number)
            try:
                if fields is None:
                    raise malformed_request(pb.StreamMessage)
                self._check_size(fields.size)
                sent = self._sent(fields, outcome)
            except errors.IcestreamError as error:
                outcome.set_exception(error)
                continue
            if sent is not None:
                ready.append(sent)
            else:
                self._tasks.start(self._wait_later(fields, outcome), "danube-send")
        self.store(ready)

    async def _wait_later(self, fields: Fields, outcome: SendOutcome) -> None:
        try:
            self._wait(await self._sent_later(fields, outcome))
        except Exception as error:  # noqa: BLE001 (whatever it is, the row has a caller who waits)
            outcome.set_exception(error)

    def _shard_of(self, producer: DanubeProducer, name: str) -> int:
        place = resolve_partition(self._broker.topics, name)
        if place.topic is not producer.plain.topic:
            raise errors.InvalidInput(
                f"producer {producer.id} belongs to {producer.topic}, not to {place.topic.name}",
                hint="send with the producer of the topic",
            )
        return place.shard

    # --- the turn ---

    def _wait(self, sent: PendingMessage | None) -> None:
        if sent is None:
            return
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(sent)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        self.store(waiting)

    def store(self, batch: Iterable[PendingMessage]) -> None:
        """Stores what is given, in order; every outcome is told when it is known."""
        together: dict[tuple[int, int], list[PendingMessage]] = {}
        for one in batch:
            if one.number is not None:
                self._store([one])
            else:
                together.setdefault((id(one.producer), one.shard), []).append(one)
        for group in together.values():
            for part in _parts(group, self._broker.storage.batch_bytes_max):
                self._store(part)

    def _store(self, group: list[PendingMessage]) -> None:
        first = group[0]
        numbering = None
        if first.number is not None:
            numbering = Numbering(first.producer.id, first.producer.epoch, first.number)
        try:
            block = encode_block(len(group), _columns(group), numbering)
            if self._broker.storage.has_room(len(block)):
                self._publish(first.producer, first.shard, block, lambda receipt: _tell(group, receipt))
            else:
                self._tasks.start(self._publish_later(group, block), "danube-room")
        except errors.IcestreamError as error:
            self._refuse(group, error)

    async def _publish_later(self, group: list[PendingMessage], block: bytes) -> None:
        try:
            await self._broker.storage.wait_for_room(len(block))
            self._publish(group[0].producer, group[0].shard, block, lambda receipt: _tell(group, receipt))
        except errors.IcestreamError as error:
            self._refuse(group, error)

    def _publish(self, producer: Producer, shard: int, block: bytes, tell: Callable[[Receipt], None]) -> None:
        if producer.pipe(shard).is_refused:
            self._broker.reset_producer(producer, shard)
        self._broker.publish(producer, shard, block).add_done_callback(tell)

    def _refuse(self, group: list[PendingMessage], error: errors.IcestreamError) -> None:
        """Each alone, where one of them may be what is wrong with all."""
        if len(group) > 1 and isinstance(error, errors.InvalidInput):
            for one in group:
                self._store([one])
            return
        for one in group:
            if not one.outcome.done():
                one.outcome.set_exception(error)


def _failure(receipt: Receipt) -> errors.IcestreamError | None:
    error = receipt.exception()
    if error is None:
        (result,) = receipt.result()
        error = result if isinstance(result, errors.IcestreamError) else None
    return error


def _tell_batch(batch: RequestBatch, receipt: Receipt) -> None:
    error = _failure(receipt)
    if error is not None:
        batch.fail_all(status_number(error))
    elif receipt.pause_ms:
        asyncio.get_running_loop().call_later(receipt.pause_ms / 1000, batch.succeed_all)
    else:
        batch.succeed_all()


def _tell(group: list[PendingMessage], receipt: Receipt) -> None:
    error = _failure(receipt)
    for one in group:
        if one.outcome.done():
            continue  # its client is gone
        if error is not None:
            one.outcome.set_exception(error)
        else:
            one.outcome.set_result(receipt.pause_ms)


def _columns(group: list[PendingMessage]) -> dict[Column, list[Value]]:
    columns: dict[Column, list[Value]] = {}
    for at, one in enumerate(group):
        for column, value in one.row.items():
            columns.setdefault(column, [None] * len(group))[at] = value
    return columns


def _parts(group: list[PendingMessage], bytes_max: int) -> Iterable[list[PendingMessage]]:
    """As many at a time as surely fit a block."""
    part: list[PendingMessage] = []
    size = 0
    for one in group:
        grown = _size(one.row)
        if part and (size + grown > bytes_max // 2 or len(part) == limits.BLOCK_ROWS_MAX):
            yield part
            part, size = [], 0
        part.append(one)
        size += grown
    if part:
        yield part


def _size(row: Row) -> int:
    return 64 + sum(len(value) for value in row.values() if isinstance(value, bytes | str)) + _headers_size(row)


def _headers_size(row: Row) -> int:
    return sum(
        len(key) + len(text) + 8 for found in row.values() if isinstance(found, dict) for key, text in found.items()
    )
