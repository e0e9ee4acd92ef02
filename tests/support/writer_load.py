"""The load of a writer process: everything a broker does to its log, at once, and all of it told to the parent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import uvloop

from icestream import errors
from icestream.model import envelope
from icestream.model.block import ConstantColumn, Numbering, encode_block, iter_blocks
from icestream.model.shard import ShardKey, TopicIdentity
from icestream.model.sync_mode import SyncMode
from icestream.runtime.native import native
from icestream.wal.appender import AppendBatch, Placed, Result
from icestream.wal.log_options import LogOptions
from icestream.wal.open_log import open_log
from icestream.wal.producer_sequences import Duplicate
from icestream.wal.receipt import Receipt
from icestream.wal.tail import SectionRead
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.batches import BatchNumbers, name_of, payloads
from tests.support.writer_plan import WriterPlan, WriterProducer

IN_FLIGHT_MAX = 4  # requests of one writer that wait for their acks
REQUEST_BATCHES = (1, 1, 1, 1, 1, 2, 2, 3, 40)
UPKEEP_EVERY_ACKS = 12
BREATH_SECONDS = 0.005  # a writer's pause after a refusal
FLOOR_LAGS = (1, 10, 50, 400)  # messages of a shard that the floor leaves in the log, at most

Part = tuple[str, int, ShardKey, Numbering | None]  # writer, batch, where it goes


_PARENT = 900  # a descriptor that no other file has


def run(plan: WriterPlan) -> None:
    os.dup2(1, _PARENT)
    os.dup2(2, 1)  # only `tell` speaks to the parent
    assert (native is not None) is plan.native, "the native part is not as the plan says"
    runner = uvloop.run if plan.native else asyncio.run
    runner(_run(plan))


async def _run(plan: WriterPlan) -> None:
    try:
        await _Load(plan).run()
    except NotOpened as failure:
        tell("not_opened", failure.error.code, str(failure.error))
    except BaseException:
        tell("failed", traceback.format_exc())
        raise


class NotOpened(Exception):
    def __init__(self, error: errors.IcestreamError) -> None:
        super().__init__(str(error))
        self.error = error


def tell(kind: str, *facts: Any) -> None:
    """One line, one write: the parent gets all of it or nothing."""
    line = json.dumps([kind, *facts], separators=(",", ":")).encode() + b"\n"
    while line:
        line = line[os.write(_PARENT, line) :]


class _Load:
    def __init__(self, plan: WriterPlan) -> None:
        self.plan = plan
        self.chance = random.Random(f"{plan.seed}/{plan.start}")
        self.keys = [ShardKey(topic, shard) for topic in range(1, plan.topics + 1) for shard in range(plan.shards)]
        self.floors = {key: plan.floors.get(f"{key.topic_id}/{key.shard}", 0) for key in self.keys}
        self.read_to = dict.fromkeys(self.keys, 0)
        self.acks = 0
        self.acked = asyncio.Condition()
        self.stopping = asyncio.Event()
        self.log: WriteAheadLog

    async def run(self) -> None:
        self._watch_stdin()
        tell("opening")
        started = time.monotonic()
        options = LogOptions(mode=SyncMode(self.plan.mode), **self.plan.options)
        positions = {key: floor for key, floor in self.floors.items() if floor} if self.plan.tell_positions else {}
        try:
            self.log = await open_log(Path(self.plan.directory), options, positions)
        except errors.IcestreamError as error:
            raise NotOpened(error) from error
        report = self.log.report
        facts: dict[str, Any] = {"clean": report.clean, "rewritten": report.rewritten_file}
        facts["files"] = [file.number for file in self.log.lifecycle.files]
        tell("opened", facts, time.monotonic() - started)
        for topic in range(1, self.plan.topics + 1):
            self.log.declare_topic(TopicIdentity(topic, f"/default/t{topic}"))
        for key in self.keys:
            await self._tell_shard(key)
        tell("ready")
        await {"storm": self._storm, "fill": self._fill, "rest": self._rest, "look": self._look}[self.plan.work]()
        await self.log.close()
        tell("closed")

    def _watch_stdin(self) -> None:
        def heard() -> None:
            if os.read(sys.stdin.fileno(), 100).startswith(b"stop"):
                self.stopping.set()
            else:
                os._exit(7)

        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), heard)

    async def _tell_shard(self, key: ShardKey) -> None:
        shard = self.log.shard(*key)
        gaps = [(gap.start, gap.end) for gap in self.log.gaps(key)]
        earliest = offset = self.log.reader.earliest(key)
        tell("shard", key, earliest, shard.assigned, gaps)
        while offset < shard.assigned:
            offset = await self._read(key, offset)
        self.read_to[key] = offset

    async def _read(self, key: ShardKey, offset: int) -> int:
        """Reads a stretch and tells each batch in it; where to go on."""
        answer = await self.log.reader.read(key, offset, self.chance.choice((1, 2_000, 100_000)))
        for section in answer.sections:
            self._tell_section(key, section)
        return answer.next_offset

    def _tell_section(self, key: ShardKey, section: SectionRead) -> None:
        base = section.base_offset
        for block in iter_blocks(section.body):
            stored = block.values(envelope.PAYLOAD)
            writer, number, _ = name_of(stored[0])  # type: ignore[arg-type]
            sent = payloads(self.plan.seed, writer, number)
            assert tuple(stored) == sent, f"offset {base} of {key} holds other bytes than {writer} sent as {number}"
            tell("read", key, base, writer, number)
            base += block.rows
        assert base == section.base_offset + section.rows, f"{key}: the rows of its blocks do not fill a section"

    # --- work ---

    async def _look(self) -> None:
        """Does nothing: the start has been reported."""

    async def _storm(self) -> None:
        writers = [self._write(f"u{self.plan.start}.{number}") for number in range(3)]
        producers = [self._produce(producer) for producer in self.plan.producers]
        background = [self._follow(key) for key in self.keys]
        await self._together([*writers, *producers], [*background, self._keep_up()])

    async def _together(
        self, until_stop: Sequence[Coroutine[Any, Any, None]], background: Sequence[Coroutine[Any, Any, None]]
    ) -> None:
        """The first part ends by itself when told to stop; then the second is cancelled. An error anywhere ends all."""
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(work) for work in background]
            async with asyncio.TaskGroup() as main:
                for work in until_stop:
                    main.create_task(work)
            for task in helpers:
                task.cancel()

    async def _write(self, writer: str) -> None:
        """A writer without numbers: requests of one batch or several, for any shards; the longest do not fit one file.

        What fails is not sent again: it must never be stored twice, and may be missing.
        """
        number = 0
        flight = _Flight(self)
        while not self.stopping.is_set():
            keys = self.chance.choices(self.keys, k=self.chance.choice(REQUEST_BATCHES))
            await flight.send([(writer, number + place, key, None) for place, key in enumerate(keys)])
            number += len(keys)
            await flight.recover()
        await flight.land()

    async def _produce(self, producer: WriterProducer) -> None:
        """A producer with numbers: first what was not acked before, the same batches again, then new ones."""
        key = ShardKey(producer.topic, producer.shard)
        numbers = BatchNumbers(self.plan.seed, producer.name)
        flight = _Flight(self)
        flight.next = producer.next_batch
        self.log.state.producers.open(producer.id, producer.epoch)
        if producer.new_epoch:
            flight.next = await self._come_back(producer, key, numbers)
        number = flight.next
        # at the end it goes on until all is acked
        while not self.stopping.is_set() or flight.next < number:
            if not self.stopping.is_set() or number == flight.next:
                numbering = Numbering(producer.id, producer.epoch, numbers.first(number))
                await flight.send([(producer.name, number, key, numbering)])
                number += 1
            # the first number of an epoch stands for itself: none goes out behind it before its ack
            if self.stopping.is_set() or flight.acks == 0:
                await flight.land()
            if await flight.recover():
                number = flight.next

    async def _come_back(self, producer: WriterProducer, key: ShardKey, numbers: BatchNumbers) -> int:
        """The producer returns: it gets the last stored number, and its former epoch is fenced (hazard 7)."""
        last = self.log.state.producers.last_sequence(key, producer.id)
        number = 0 if last is None else numbers.batch_at(last + 1)
        block = encode_block(1, {envelope.PAYLOAD: [b"x"]}, Numbering(producer.id, producer.epoch - 1, (last or 0) + 1))
        answer = await self._answer_to(self.log.batch(self.log.shard(*key), block))
        assert isinstance(answer, errors.ProducerFenced), f"an old epoch of {producer.name} got {answer!r}"
        tell("known", producer.name, number)
        return number

    async def _answer_to(self, batch: AppendBatch) -> Result:
        while True:
            try:
                (answer,) = await self.log.append([batch])
            except (errors.DiskFull, errors.OutcomeUnknown):
                if not self.plan.disk_fails:
                    raise
                await asyncio.sleep(BREATH_SECONDS)
            else:
                return answer

    async def _follow(self, key: ShardKey) -> None:
        """A reader at the end of a shard, which sometimes looks back."""
        shard = self.log.shard(*key)
        while True:
            await self._wait_until(lambda: shard.written > self.read_to[key])
            self.read_to[key] = await self._read(key, self.read_to[key])
            if self.chance.random() < 0.3:
                floor = self.floors[key]
                with contextlib.suppress(errors.PositionGone):
                    offset = self.chance.randint(floor, max(floor, self.read_to[key] - 1))
                    await self._read(key, offset)
                    floor = -1
                assert floor == -1 or self.floors[key] > floor, f"{key}: offset {offset} is gone, floor {floor}"

    async def _keep_up(self) -> None:
        """Works like the pipeline: syncs, moves the floor behind what was read, writes a checkpoint now and then."""
        while True:
            await self._wait_for_acks(UPKEEP_EVERY_ACKS)
            if self.chance.random() < 0.7:
                await self.log.sync()
            moved = {}
            lag = self.chance.choice(FLOOR_LAGS)
            for key in self.keys:
                offset = min(self.log.shard(*key).synced, self.read_to[key]) - self.chance.randrange(lag)
                if offset > self.floors[key]:
                    moved[key] = self.floors[key] = offset
                    tell("floor", key, offset)
            await self.log.advance_floor(moved)
            if self.chance.random() < 0.7:
                await self.log.checkpoint()

    async def _wait_for_acks(self, count: int) -> None:
        enough = self.acks + count
        await self._wait_until(lambda: self.acks >= enough)

    async def _wait_until(self, is_so: Callable[[], bool]) -> None:
        async with self.acked:
            await self.acked.wait_for(is_so)

    async def _fill(self) -> None:
        """One writer, until it is refused; then it waits for the end."""
        number = 0
        flight = _Flight(self)
        while not flight.failed:
            await flight.send([(f"u{self.plan.start}.0", number, self.keys[number % len(self.keys)], None)])
            number += 1
            await flight.land()
        await self.stopping.wait()

    async def _rest(self) -> None:
        """A few messages, then nothing at all."""
        flight = _Flight(self)
        for number in range(20):
            await flight.send([(f"u{self.plan.start}.0", number, self.keys[number % len(self.keys)], None)])
        await flight.land()
        await self.log.sync()
        tell("resting")
        await self.stopping.wait()


class _Flight:
    """The requests of one writer that wait for their acks."""

    def __init__(self, load: _Load) -> None:
        self._load = load
        self._waiting: set[Receipt] = set()
        self._news = asyncio.Event()
        self.next = 0  # the first batch that is not acked
        self.acks = 0
        self.failed = False

    async def send(self, parts: Sequence[Part]) -> None:
        load = self._load
        while len(self._waiting) >= IN_FLIGHT_MAX or (self._waiting and load.chance.random() < 0.3):
            await self._settle_answers()
        batches = [self._batch(*part) for part in parts]
        for writer, number, key, _ in parts:
            tell("send", writer, number, key)
        answer = load.log.submit(batches)
        self._waiting.add(answer)
        # a callback, not a task: it runs in the order in which the log answers
        answer.add_done_callback(lambda done: self._answered(parts, done))

    def _batch(self, writer: str, number: int, key: ShardKey, numbering: Numbering | None) -> AppendBatch:
        messages = payloads(self._load.plan.seed, writer, number)
        columns = {envelope.PAYLOAD: list(messages), envelope.PRODUCER_NAME: ConstantColumn(writer)}
        block = encode_block(len(messages), columns, numbering)
        return self._load.log.batch(self._load.log.shard(*key), block)

    def _answered(self, parts: Sequence[Part], answer: Receipt) -> None:
        self._news.set()
        error = answer.exception()
        results = [error] * len(parts) if error else answer.result()
        for (writer, number, key, numbering), result in zip(parts, results, strict=True):
            if isinstance(result, Placed) or (isinstance(result, Duplicate) and numbering):
                tell("ack", writer, number, key, result.base_offset)
                self.next = number + 1
                self.acks += 1
                self._load.acks += 1
            elif isinstance(result, errors.IcestreamError):
                tell("refused", result.code, str(result), writer, number)

    async def _settle_answers(self) -> None:
        while not (done := {answer for answer in self._waiting if answer.done()}):
            self._news.clear()
            await self._news.wait()
        self._waiting -= done
        for answer in done:
            error = answer.exception()
            for failure in [error] if error else answer.result():
                if isinstance(failure, BaseException):
                    self._fail(failure)
        async with self._load.acked:
            self._load.acked.notify_all()

    def _fail(self, error: BaseException) -> None:
        """A failing disk is an answer where the plan foresees it; what follows a lost number is out of order then."""
        expected = (errors.DiskFull, errors.OutcomeUnknown, errors.OutOfOrderSequence)
        if not (self._load.plan.disk_fails and isinstance(error, expected)):
            raise error
        self.failed = True

    async def recover(self) -> bool:
        """After a failure: all answers first, and a breath."""
        if self.failed:
            await self.land()
            await asyncio.sleep(BREATH_SECONDS)
        failed, self.failed = self.failed, False
        return failed

    async def land(self) -> None:
        while self._waiting:
            await self._settle_answers()
