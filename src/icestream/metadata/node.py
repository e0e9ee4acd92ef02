"""Drives the state machine through the core and its log. Everything here runs on the loop's thread.

    propose --queue--> one turn of the loop: one proposal for all --core--> entries --log--> one write, one sync
                                                                                              │ the sink's news
    answer, watch events <-- applied in order, a slice at a time <--core-- committed <--------┘ persisted

The rules of the loop (metadata_and_backup, A7), each with a test:
    1  entries, term and vote are synced before anything that depends on them is sent
    2  nothing is applied before it is synced here: the core hands out only what is
    3  all proposals of one turn are one proposal, one record and one sync
    4  the commit index alone is never written
    5  a failed write or sync stops the node; it never goes on with a log of which nothing is known
    6  whatever the core or the state machine raises stops the node too
    7  the disk is waited for in the sink's thread (inline only where syncs were measured to be short: ADR 4)

    STARTING --an entry of the own term is applied--> READY --close--> CLOSED
        └──────────────── rule 5 or 6 ───────────────────┴──> STOPPED
What was proposed and not yet applied when a node stops has an unknown outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata import eraftpb
from icestream.metadata.core import Core, Ready, Role
from icestream.metadata.eraftpb import LogEntry
from icestream.metadata.log_format import ENTRY_OVERHEAD_BYTES
from icestream.metadata.log_store import LogStore
from icestream.metadata.state_machine import StateMachine
from icestream.metadata.watch import WatchHub
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks
from icestream.wal.sink import SinkError

Answer = asyncio.Future[cmd.Answer]
UNKNOWN_HINT = "read what it would have changed, or repeat it under the same client and sequence"
# Header, sections and entries around them stay below RECORD_BYTES_TARGET.
BATCH_BYTES_MAX = limits.RECORD_BYTES_TARGET - 512 * limits.KIB
_log = get_logger("metadata")


@dataclass(slots=True)
class Proposal:
    data: bytes
    answer: Answer
    term: int = 0


class Node:
    """Open one with `icestream.metadata.open.open_metadata`."""

    def __init__(
        self, machine: StateMachine, core: Core, log: LogStore, clock: Clock, command_bytes_max: int, conf: bytes
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._core = core
        self._log = log
        self._clock = clock
        self._command_bytes_max = command_bytes_max
        self.machine = machine
        self.hub = WatchHub(machine.revision)
        self.conf = conf
        self.applied_index = log.covered_index
        self.applied_term = log.snapshots[0].head.term if log.snapshots else 0
        self.tasks = Tasks(self._task_failed)
        self.is_ready = False
        self.stopped: errors.IcestreamError | None = None
        self.on_stop: Callable[[errors.IcestreamError], None] = lambda _: None
        self.on_applied: Callable[[], None] = lambda: None
        self._term = 0
        self._role: int = Role.FOLLOWER
        self._queue: deque[Proposal] = deque()
        self._waiting: dict[int, Proposal] = {}  # by the index of its entry
        self._in_flight_bytes = 0
        self._persisting: deque[tuple[int, int]] = deque()  # ticket of the log, number of the ready
        self._to_apply: deque[LogEntry] = deque()
        self._turn_planned = False
        self._retry_file_ns = 0
        self._closing: errors.LogClosed | None = None
        self._is_closed = False
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def start(self) -> None:
        """Takes the lead. There must be a file with room."""
        if self._log.fileno() >= 0:
            self._loop.add_reader(self._log.fileno(), self._on_news)
        self._core.campaign()
        self._plan_turn()

    # --- proposals ---

    def propose(self, data: bytes) -> Answer:
        """The answer to an encoded envelope, once it is applied."""
        self.check_serving()
        if len(data) > self._command_bytes_max:
            raise errors.MessageTooLarge(f"a command of {len(data)} bytes, at most {self._command_bytes_max} fit")
        if self._in_flight_bytes and self._in_flight_bytes + len(data) > limits.METADATA_IN_FLIGHT_BYTES_MAX:
            raise errors.InFlightFull(
                f"{self._in_flight_bytes} bytes of commands wait for the disk", hint="wait for answers, then send more"
            )
        proposal = Proposal(data, self._loop.create_future())
        self._queue.append(proposal)
        self._in_flight_bytes += len(data)
        self._plan_turn()
        return proposal.answer

    def check_serving(self) -> None:
        if self.stopped is not None:
            raise self.stopped
        if self._closing is not None:
            raise self._closing
        if not self.is_ready:
            raise errors.NotReady("the metadata store still reads its log", hint="it serves when that is done")

    async def until_ready(self) -> None:
        if self._closing is not None:
            raise self._closing
        await self._until(lambda: self.is_ready)

    # --- a turn of the loop ---

    def _plan_turn(self) -> None:
        if not self._turn_planned:
            self._turn_planned = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_planned = False
        self._guarded(self._step)

    def _on_news(self) -> None:
        """The disk has done something."""
        self._guarded(self._step_after_news)

    def _guarded(self, work: Callable[[], None]) -> None:
        if self.stopped is not None:
            return
        try:
            work()
        except BaseException as error:
            self._failed(error)
            if not isinstance(error, Exception):
                raise
        finally:
            if self._waiters:
                self._wake()

    def _step_after_news(self) -> None:
        self._take_progress()
        self._step()

    def _step(self) -> None:
        """Everything that can be done now."""
        while self.stopped is None:
            self._drain()
            self._offer()
            if not self._log.carry_out():
                break
            self._take_progress()
        self._apply_slice(limits.METADATA_APPLY_SLICE)
        self._want_file()

    def _drain(self) -> None:
        while (ready := self._core.ready()) is not None:
            self._handle(ready)

    def _handle(self, ready: Ready) -> None:
        # messages to others and snapshots from others come with the cluster
        assert not ready.send_now and not ready.send_after and ready.snapshot is None  # noqa: PT018
        if ready.hard_state is not None:
            self._term = ready.hard_state.term
        if ready.soft_state is not None:
            self._role = ready.soft_state.role
        if ready.must_sync:
            self._persisting.append((self._log.append(ready.entries, ready.hard_state), ready.number))
        elif self._persisting:
            self._persisting.append((self._persisting[-1][0], ready.number))
        else:
            self._core.persisted(ready.number)
        self._to_apply.extend(ready.committed)

    def _offer(self) -> None:
        """Hands the queue to the core, as much at a time as fits a record."""
        while batch := self._take_batch():
            if not self._core.propose([proposal.data for proposal in batch]):
                self._refuse(batch, errors.NotReady("this node does not lead", hint="ask the node that does"))
                continue
            ready = self._core.ready()
            assert ready is not None
            own = ready.entries[-len(batch) :]
            for proposal, (index, _) in zip(batch, own, strict=True):
                proposal.term = self._term
                self._waiting[index] = proposal
            self._handle(ready)

    def _take_batch(self) -> list[Proposal]:
        batch: list[Proposal] = []
        queue, size = self._queue, 0
        while queue:
            size += len(queue[0].data)
            if batch and size + len(batch) * ENTRY_OVERHEAD_BYTES > BATCH_BYTES_MAX:
                break
            if not self._log.plan.room_for(size, len(batch) + 1):
                break
            batch.append(queue.popleft())
        return batch

    # --- completions ---

    def _take_progress(self) -> None:
        progress = self._log.progress()
        number = 0
        while self._persisting and self._persisting[0][0] <= progress.synced:
            number = self._persisting.popleft()[1]
        if number:
            self._core.persisted(number)
        if progress.error is not None:
            # what was synced before the error counts (hazard 51)
            self._drain()
            while self._to_apply:
                self._apply_slice(limits.METADATA_APPLY_SLICE)
            self._disk_failed(progress.error)

    def _apply_slice(self, work: int) -> None:
        """Applies what is committed, up to this many commands or changes; a transaction is never cut."""
        if not self._to_apply:
            return
        while self._to_apply and work > 0:
            work -= self._apply(self._to_apply.popleft())
        self._core.applied(self.applied_index)
        self.on_applied()
        if self._to_apply:
            self._plan_turn()

    def _apply(self, entry: LogEntry) -> int:
        """How much work it was: its changes, at least one."""
        work = 1
        if entry.kind != eraftpb.NORMAL:
            self.conf = self._core.apply_conf(entry.kind, entry.data)
        elif entry.data:
            answer, events = self.machine.apply(cmd.decode_envelope(entry.data))
            self.hub.publish(events)
            self._answer(entry, answer)
            work = len(events) or 1
        self.applied_index, self.applied_term = entry.index, entry.term
        if not self.is_ready and self._role == Role.LEADER and entry.term == self._term:
            # everything before it is applied too
            self.is_ready = True
        return work

    def _answer(self, entry: LogEntry, answer: cmd.Answer) -> None:
        proposal = self._waiting.pop(entry.index, None)
        if proposal is None:
            return
        self._in_flight_bytes -= len(proposal.data)
        if proposal.answer.done():
            return
        if proposal.term == entry.term:
            proposal.answer.set_result(answer)
        else:
            proposal.answer.set_exception(errors.OutcomeUnknown("another node took the lead", hint=UNKNOWN_HINT))

    # --- files ---

    def _want_file(self) -> None:
        if self._log.preparing or not self._log.plan.wants_file or self.stopped is not None:
            return
        if self._closing is not None and not self._queue:
            return
        if self._clock.monotonic_ns() >= self._retry_file_ns:
            self._log.preparing = True  # now: a second step may come before the task begins
            self.tasks.start(self._prepare_file(), "metadata-file")
        elif self._queue:
            self._refuse_queue()

    async def _prepare_file(self) -> None:
        await self._log.prepare()
        if (error := self._log.prepare_error) is not None:
            _log.warning("no further log file for the metadata store", error=str(error))
            self._retry_file_ns = self._clock.monotonic_ns() + int(limits.METADATA_RETRY_SECONDS * 1e9)
        self._plan_turn()

    def _refuse_queue(self) -> None:
        """The present file is full and the disk has no room for another: nothing of the queue was stored."""
        refused = list(self._queue)
        self._queue.clear()
        self._refuse(
            refused,
            errors.DiskFull(f"no room for a log file: {self._log.prepare_error}", hint="free disk space, then retry"),
        )

    def _refuse(self, proposals: list[Proposal], error: errors.IcestreamError) -> None:
        for proposal in proposals:
            self._in_flight_bytes -= len(proposal.data)
            if not proposal.answer.done():
                proposal.answer.set_exception(error)

    # --- failures ---

    def _disk_failed(self, error: SinkError) -> None:
        self._log.note_failed_sync()
        self._stop(
            errors.LogStopped(
                f"a {error.operation} of the metadata log failed (errno {error.errno}): the node stops",
                hint="check the disk, then start again: recovery writes the unsealed part anew",
            )
        )

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, errors.IcestreamError):
            self._stop(error)
        else:
            self._stop(errors.LogStopped(f"the metadata store stops: {error!r}", hint="start the node again"))

    def _task_failed(self, error: BaseException) -> None:
        self._loop.call_exception_handler({"message": "a task of the metadata store failed", "exception": error})
        if self.stopped is None:
            self._failed(error)
            self._wake()

    def _stop(self, error: errors.IcestreamError) -> None:
        self.stopped = error
        self.is_ready = False
        self._stop_listening()
        _log.error("the metadata store stops", error=str(error))
        unknown = errors.OutcomeUnknown("the metadata store stopped before this was confirmed", hint=UNKNOWN_HINT)
        self._refuse([*self._waiting.values()], unknown)
        self._refuse([*self._queue], error)
        self._waiting.clear()
        self._queue.clear()
        self.hub.end(error)
        self.on_stop(error)

    def _stop_listening(self) -> None:
        if self._log.fileno() >= 0:
            self._loop.remove_reader(self._log.fileno())

    # --- waiting ---

    async def _until(self, is_reached: Callable[[], bool]) -> None:
        if self.stopped is not None:
            raise self.stopped
        if not is_reached():
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append((is_reached, waiter))
            await waiter

    def _wake(self) -> None:
        left = []
        for is_reached, waiter in self._waiters:
            if waiter.done():
                continue
            if self.stopped is not None:
                waiter.set_exception(self.stopped)
            elif is_reached():
                waiter.set_result(None)
            elif self._is_closed and self._closing is not None:
                waiter.set_exception(self._closing)
            else:
                left.append((is_reached, waiter))
        self._waiters = left

    # --- end ---

    async def close(self) -> None:
        """Finishes what was taken, seals the file. The next start has nothing to recover."""
        if self._closing is not None:
            return
        self._closing = errors.LogClosed("the metadata store is closed", hint="the broker is shutting down")
        if self.stopped is None:
            with contextlib.suppress(errors.IcestreamError):
                await self._until(lambda: not self._queue and not self._waiting)
        await self.tasks.stop()
        if self.stopped is None:
            with contextlib.suppress(errors.IcestreamError):
                self._log.plan.seal()
                self._plan_turn()
                await self._until(lambda: self._log.plan.is_settled)
        self.hub.end(self.stopped or self._closing)
        self._stop_listening()
        await self._log.close()
        self._is_closed = True
        self._wake()
