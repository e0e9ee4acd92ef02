"""Drives the state machine through the consensus core and its log. Everything here runs on the loop's thread.

    propose --queue--> one step: one proposal for all --core--> entries --log--> one write, one sync
                                                           └─ to the followers ─┐      │ progress of the sink
    answer, watch events <-- applied in order, in slices <--core-- committed <---------┘ persisted

The rules of the loop, each with a test:
    1  entries, term and vote are synced before any message that depends on them is sent; a leader sends entries while
       it writes them itself, and the response to a heartbeat depends on nothing
    2  nothing is applied before it is synced here: the core hands out only synced entries
    3  all proposals of one step are one proposal, one record and one sync, and so are those that arrive while others
       are in flight (proposals.py); all reads of one step share one read index
    4  the commit index alone is never written, except with a change of members: it is written before any message to the
       new members is sent
    5  a failed write or sync stops the node; it never continues with a log whose contents are unknown
    6  an exception of the core or the state machine stops the node too
    7  waits for the disk happen in the sink's thread (inline only while syncs were measured to be short: ADR 4)
    8  late ticks are counted and logged (ticker.py)

    STARTING --an entry of the own term is applied, or a first read of the leader's state--> READY --close--> CLOSED
        └──────────────── rule 5 or 6 ───────────────────┴──> STOPPED
A command that was proposed and not yet applied when a node stops, or loses the lead, has an unknown outcome.

A SNAPSHOT OF ANOTHER NODE is complete in a file before the core is told of it. Its state is loaded off the loop; until
then nothing is applied (install.py). It is in force (core, log, state) when both the state and its BASE record are
there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata import eraftpb, stop_reasons
from icestream.metadata.core import Core, RaftMessage, Ready, Role, SoftState, Status, without_a_write
from icestream.metadata.eraftpb import LogEntry, SnapshotParts
from icestream.metadata.install import Installs
from icestream.metadata.log_format import Base, Promise
from icestream.metadata.log_store import LogStore
from icestream.metadata.proposals import UNKNOWN_HINT, AnswerFuture, Proposal, Proposals, lead_lost, not_leading
from icestream.metadata.reads import Read, Reads
from icestream.metadata.state_machine import StateMachine
from icestream.metadata.watch import WatchHub
from icestream.metadata.writes import Write, Writes
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks

# Header, sections and entries around them stay below RECORD_BYTES_TARGET.
BATCH_BYTES_MAX = limits.RECORD_BYTES_TARGET - 512 * limits.KIB
_log = get_logger("metadata")


class Node:
    """One node of the metadata store. `icestream.metadata.open.open_metadata` opens it."""

    def __init__(
        self,
        machine: StateMachine,
        core: Core,
        log: LogStore,
        clock: Clock,
        command_bytes_max: int,
        conf: bytes,
        name: bytes,
    ) -> None:
        """`name`: random bytes that are unique for this run of the node; they identify its reads."""
        self._loop = asyncio.get_running_loop()
        self._core = core
        self._log = log
        self._clock = clock
        self.id = log.plan.identity.node_id
        self.machine = machine
        self.hub = WatchHub(machine.revision)
        self._set_conf(conf)
        self.applied_index = log.covered_index
        self.applied_term = log.snapshots[0].head.term if log.snapshots else 0
        self.applied_ns = clock.monotonic_ns()  # when the time stamp of the state last advanced
        self._noted_time_ms = machine.time_ms
        self.tasks = Tasks(self._on_task_failed)
        self.installs = Installs(self, log)
        self.is_ready = False
        self.leads = False  # leader, and everything of former leaders is applied
        self.leader = 0
        self.heard_ns = 0  # when the last message of the present leader arrived
        self.stopped: errors.IcestreamError | None = None
        self.send: Callable[[list[RaftMessage]], None] = lambda _: None
        self.on_stop: Callable[[errors.IcestreamError], None] = lambda _: None
        self.on_applied: Callable[[], None] = lambda: None
        self.on_leading: Callable[[bool], None] = lambda _: None
        self.on_members: Callable[[], None] = lambda: None
        self.request_snapshot: Callable[[], None] = lambda: None
        self.on_snapshot_mark: Callable[[], None] = lambda: None  # the state is that of a TakeSnapshot
        self._term = core.status()["term"]
        self._role: int = Role.FOLLOWER
        self._new_term_write = 0  # the ready that brought the present term, while it is not synced
        self._proposals = Proposals(command_bytes_max)
        self._reads = Reads(name)
        self.writes = Writes(log, BATCH_BYTES_MAX)
        self._next_file = NextFile(log, clock, self.tasks, self._proposals, self._schedule_step)
        self.commit_notice = CommitNotice(clock, self.tasks, lambda: self._run_guarded(core.tell_commit, self._step))
        self.takes_part = (
            True  # in elections and confirmations; False until the promises of its peers are checked (ADR 45)
        )
        self.is_replaying = True  # entries that the log knows to be committed are not applied yet
        self._confs_unsynced = 0
        self._synced_ticket = 0
        self._to_apply: deque[LogEntry] = deque()
        self._is_step_scheduled = False
        self._closing: errors.LogClosed | None = None
        self._waiters = NodeWaiters(clock)

    def start(self) -> None:
        """Starts working; a single node becomes leader. There must be a file with room."""
        if self._log.fileno() >= 0:
            self._loop.add_reader(self._log.fileno(), self._on_news)
        self._schedule_step()

    def _on_replayed(self) -> None:
        """Called when the committed part of the log is applied: only now the members are known."""
        self.is_replaying = False
        # A node without peers need not wait for an election timeout: no other node can be leader.
        if self.is_alone and self.takes_part:
            self._core.campaign()
            self._schedule_step()

    def take_part(self) -> None:
        """Lets the node vote and confirm: its peers remember nothing that this log lacks (ADR 45)."""
        self.takes_part = True
        self._run_guarded(*([] if self.is_replaying else [self._on_replayed]))

    def note_promises(self, promises: dict[int, Promise]) -> None:
        """Writes the promises of other nodes into the log (cluster/promises.py)."""
        self.writes.add(Write(0, [], None, None, [], needs_disk=True, promises=promises))
        self._schedule_step()

    def _set_conf(self, conf: bytes) -> None:
        """Takes over the members of an encoded ConfState."""
        self.conf, self.members = conf, eraftpb.decode_conf(conf)
        self.is_alone = self.members.voters == (self.id,) and not self.members.voters_outgoing
        self._log.has_others |= self.members.has_others

    def status(self) -> Status:
        """The core's view of itself."""
        return self._core.status()

    # --- proposals ---

    def propose(self, data: bytes) -> AnswerFuture:
        """Proposes an encoded envelope; returns its answer once it is applied."""
        self.check_serving()
        answer = self._proposals.add(data)
        self._schedule_step()
        return answer

    def change_members(self, changes: list[tuple[int, int]]) -> AnswerFuture:
        """Proposes a change of members: (0 voter | 1 removed | 2 learner, node id). Returns when it is in force."""
        self.check_serving()
        answer: AnswerFuture = self._loop.create_future()
        self._run_guarded(lambda: self._propose_change(Proposal(b"", answer), changes))
        self._schedule_step()
        return answer

    def _propose_change(self, proposal: Proposal, changes: list[tuple[int, int]]) -> None:
        # Outstanding work first: the ready after the proposal must contain exactly its entry.
        self._drain()
        if not (self.leads and self._core.propose_conf(changes, 0, b"")):
            self._proposals.refuse([proposal], not_leading())
            return
        ready = self._core.ready()
        assert ready is not None
        self._proposals.add_logged(proposal, ready.entries[-1][0], self._term)
        self._handle(ready)

    def check_serving(self) -> None:
        """Raises the error that stopped or closed the node, NotReady while it is starting."""
        if self.stopped is not None:
            raise self.stopped
        if self._closing is not None:
            raise self._closing
        if not self.is_ready:
            raise errors.NotReady("the metadata store is starting: it is reading its log", hint="retry in a moment")

    # --- reads, messages, time ---

    def read(self) -> Read:
        """Returns when the local state has everything that was acknowledged anywhere before this call."""
        self.check_serving()
        return self._begin_read()

    def _begin_read(self) -> Read:
        read = self._reads.add()
        self._schedule_step()
        return read

    async def until(self, is_reached: Callable[[], bool], seconds: float | None = None) -> bool:
        """Waits for a condition, which is checked after each step. Returns False on timeout.

        Raises the error that stopped or closed the node.
        """
        return await self._waiters.until(is_reached, seconds)

    def receive(self, messages: list[bytes]) -> None:
        """Handles messages of other nodes. The state of a snapshot among them must be in its file already."""
        self._run_guarded(lambda: self._step_messages(messages))

    def _step_messages(self, messages: list[bytes]) -> None:
        for message in messages:
            try:
                self._core.step(message)
            except errors.DecodeError as error:
                _log.warning("ignored a malformed message of another node", error=str(error))
        self._step()
        if eraftpb.is_of_leader(messages, self.id, self.leader, self._term):
            self.heard_ns = self._clock.monotonic_ns()

    def tick(self, ticks: int = 1) -> None:
        """Advances the clock of elections and heartbeats."""
        self._run_guarded(lambda: self._tick(ticks))

    def _tick(self, ticks: int) -> None:
        for _ in range(ticks):
            self._core.tick()
            self._reads.tick(limits.METADATA_READ_PATIENCE_TICKS, limits.METADATA_READ_TICKS_MAX)
        self._step()

    @property
    def is_quiet(self) -> bool:
        """True if the node leads or follows a leader and no call is pending (ticker.py)."""
        is_settled = self.leads or (self._role == Role.FOLLOWER and bool(self.leader))
        return is_settled and not (self._reads.are_under_way or self._proposals.are_under_way)

    def transfer(self, to: int) -> None:
        """Transfers leadership; no effect if the other node cannot take it."""
        self._core.transfer_leader(to)
        self._schedule_step()

    def unreachable(self, node_id: int) -> None:
        """Reports that a message to a node was not delivered: the leader probes it instead of streaming entries."""
        if self.stopped is None:
            self._core.report_unreachable(node_id)

    def snapshot_sent(self, node_id: int, *, succeeded: bool) -> None:
        """Reports the end of a snapshot transfer: until then the leader sends that node nothing else."""
        if self.stopped is None:
            self._core.report_snapshot(node_id, succeeded)
            self._schedule_step()

    # --- one step ---

    def _schedule_step(self) -> None:
        if not self._is_step_scheduled:
            self._is_step_scheduled = True
            self._loop.call_soon(self._run_step)

    def _run_step(self) -> None:
        self._is_step_scheduled = False
        self._run_guarded(self._step)

    def _on_news(self) -> None:
        """Called when the sink reports progress."""
        self._run_guarded(self._handle_progress, self._step)

    def _run_guarded(self, *work: Callable[[], None]) -> None:
        """Runs the callables; an exception stops the node (rule 6). Afterwards every waiting condition is checked."""
        if self.stopped is not None:
            return
        try:
            for do in work:
                do()
        except BaseException as error:
            self._stop_on_exception(error)
            # Cancellation and interrupts must reach the loop; a panic of the native core is reported there, too.
            if not isinstance(error, Exception):
                raise
        finally:
            self._waiters.check()

    def _step(self) -> None:
        """Processes everything that is ready: plans writes, takes work from the core, proposes, applies."""
        while self.stopped is None:
            self.writes.plan()
            self._drain()
            self._propose_queued()
            # The sink works in its thread: its progress wakes the loop. If it wrote inline, the result is handled at
            # once, which may produce more work.
            if not self._log.submit_writes():
                break
            self._handle_progress()
        self._apply_slice(limits.METADATA_APPLY_SLICE)
        if self.is_replaying and not self._to_apply:
            self._on_replayed()
        self._request_file()

    def _drain(self) -> None:
        while (ready := self._core.ready()) is not None:
            self._handle(ready)

    def _handle(self, ready: Ready) -> None:
        term = self._term if ready.hard_state is None else ready.hard_state.term
        begins_term, self._term = term != self._term, term
        # Until this write is synced, no message may mention the new term: see below.
        if begins_term:
            self._new_term_write = ready.number
        # The role comes before entries and messages of the same ready: proposals of a lost lead must be failed before
        # another leader's entries take their indexes.
        if ready.soft_state is not None:
            self._change_role(ready.soft_state)
        if self._new_term_write or self._confs_unsynced:
            # The only voter leads before its term is synced. No other node may learn of it, or of new members, before.
            ready = ready._replace(send_now=[], send_after=ready.send_now + ready.send_after)
        self.send(ready.send_now)
        base = self._begin_install(ready.snapshot) if ready.snapshot is not None else None
        needs_disk = ready.must_sync or base is not None
        write = Write(
            ready.number, ready.entries, ready.hard_state, base, ready.send_after, needs_disk, base is not None,
            term=self._term, begins_term=begins_term,
        )  # fmt: skip
        # Also without a need for the disk: a write that is behind others completes behind them, in order (rule 1).
        if needs_disk or self.writes.are_under_way:
            free, write.messages = without_a_write(ready.send_after)
            self.send(free)
            self.writes.add(write)
        else:
            self.send(ready.send_after)
            # Nothing to write and no write before it: the core may count this ready as durable at once.
            self._core.persisted(ready.number)
        self._to_apply.extend(ready.committed)
        self._reads.add_indexes(ready.reads)

    def _change_role(self, soft: SoftState) -> None:
        """Takes over a new leader or role; proposals of a lost lead get an unknown outcome."""
        if soft.leader != self.leader and self.members.has_others:
            _log.info(
                "leader changed", rpc="Vote", leader=f"{soft.leader:016x}" if soft.leader else "none", term=self._term
            )
        led, self._role, self.leader = self.leads, soft.role, soft.leader
        if self._role == Role.LEADER:
            return
        if self.leader and not self.is_ready:
            # A linearizable read: when it completes, this node has everything that the leader has acknowledged.
            self._begin_read().add_done_callback(self._on_caught_up)
        self.leads = False
        # Entries of a former leader may still be committed by the next one: the outcome is unknown, not failed.
        self._proposals.fail_logged(lead_lost())
        if led:
            self.on_leading(False)

    def _on_caught_up(self, read: Read) -> None:
        if read.exception() is None and self.stopped is None:
            self.is_ready = True
            self._waiters.check()

    def _propose_queued(self) -> None:
        """Proposes the queued commands to the core, as many at a time as fit a record.

        Then begins a read index for all waiting reads.
        """
        # Not while earlier writes wait for room in a file: entries of the core cannot be taken back, queued commands
        # can still be refused.
        while self._proposals.is_batch_due and not self.writes.are_queued:
            batch = self._proposals.take_batch(BATCH_BYTES_MAX, self._log.plan.room_for)
            if not batch:
                break
            if not self._core.propose([proposal.data for proposal in batch]):
                self._proposals.refuse(batch, not_leading())
                continue
            ready = self._core.ready()
            assert ready is not None
            self.commit_notice.entries_sent()
            # The ready of a proposal ends with exactly its entries, because everything older was drained before. That
            # is how a command learns its index.
            own = ready.entries[-len(batch) :]
            for proposal, (index, _) in zip(batch, own, strict=True):
                self._proposals.add_logged(proposal, index, self._term)
            self._handle(ready)
        # A leader asks only once an entry of its own term is applied: the core drops earlier requests, and each would
        # cost METADATA_READ_PATIENCE_TICKS until it is repeated.
        if self._reads.are_waiting and (self.leads if self._role == Role.LEADER else self.leader):
            self._core.read_index(self._reads.begin())
            self._drain()

    # --- completions ---

    def _handle_progress(self) -> None:
        progress = self._log.progress()
        self._synced_ticket = progress.synced
        self._complete_writes()
        if progress.error is not None:
            # Entries that were synced before the error are durable and count (hazard 51).
            self._drain()
            while self._to_apply and not self.installs.are_loading:
                self._apply_slice(limits.METADATA_APPLY_SLICE)
            # The next start must not trust the page cache (hazard 6).
            self._log.note_failed_sync()
            self._stop(stop_reasons.disk_failed(progress.error))

    def _complete_writes(self) -> None:
        done = self.writes.take_synced(self._synced_ticket, is_installing=self.installs.are_loading)
        for write in done:
            # These messages confirm entries or votes. Sent before the sync they would promise what a crash forgets.
            self.send(write.messages)
            self.installs.bases_unsynced -= write.is_install
            self._confs_unsynced -= write.commit > 0
        # One call for all: `persisted` covers every earlier ready.
        if number := max((write.number for write in done), default=0):
            self._core.persisted(number)
            if number >= self._new_term_write:
                self._new_term_write = 0

    def _apply_slice(self, work: int) -> None:
        """Applies committed entries, up to this many commands or changes; a transaction is never split."""
        # The core is ahead of the state machine until the received snapshot is loaded.
        if self.installs.are_loading:
            return
        if self._to_apply:
            while self._to_apply and work > 0:
                work -= self._apply(self._to_apply.popleft())
            self._core.applied(self.applied_index)
            self._note_time()
            self.on_applied()
            if self.leads and self.members.has_others and not self._proposals.are_under_way:
                self.commit_notice.committed()  # else the next entries carry it
            if self._to_apply or self._proposals.is_batch_due:
                self._schedule_step()
        self._reads.applied(self.applied_index)

    def _apply(self, entry: LogEntry) -> int:
        """Applies one entry; returns its cost: the number of changes, at least 1."""
        work = 1
        answer: cmd.Answer | None = None
        if entry.kind != eraftpb.NORMAL:
            self._set_conf(self._core.apply_conf(entry.kind, entry.data))
            # Rule 4: the members in force are on disk before a message to them is sent. During replay they are read
            # from there.
            if not self.is_replaying:
                self._confs_unsynced += 1
                self.writes.add(Write(0, [], None, None, [], needs_disk=True, commit=entry.index))
                self._schedule_step()
            answer = cmd.Done(self.machine.revision)
        elif entry.data:
            envelope = cmd.decode_envelope(entry.data)
            answer, events = self.machine.apply(envelope)
            self.hub.publish(events)
            work = len(events) or 1
        self.applied_index, self.applied_term = entry.index, entry.term
        if entry.data and entry.kind == eraftpb.NORMAL and isinstance(envelope.command, cmd.TakeSnapshot):
            self.on_snapshot_mark()
        self._proposals.applied(entry, answer)
        if not self.leads and self._role == Role.LEADER and entry.term == self._term:
            self._note_time()
            # An entry of the own term is applied, so everything before it is, too: only now the leader may serve reads
            # and stamps.
            self.is_ready = self.leads = True
            self.on_leading(True)
        if entry.kind != eraftpb.NORMAL:
            self.on_members()
        return work

    def _note_time(self) -> None:
        """Remembers when the time stamp of the state advanced: a new leader continues from it (store_time.py)."""
        if self.machine.time_ms != self._noted_time_ms:
            self._noted_time_ms, self.applied_ns = self.machine.time_ms, self._clock.monotonic_ns()

    # --- a snapshot of another node ---

    def _begin_install(self, snapshot: bytes) -> Base:
        # The snapshot contains them: they were committed, and the core continues behind it.
        self._to_apply.clear()
        return self.installs.begin(snapshot)

    def replace_state(self, parts: SnapshotParts, machine: StateMachine) -> None:
        """Takes over the state of a received snapshot; watches are reset."""
        self.machine = machine
        self._set_conf(parts.conf)
        self.applied_index, self.applied_term = parts.index, parts.term
        self._note_time()
        self.hub.reset(machine.revision)

    def resume(self) -> None:
        """Continues after a received snapshot was loaded: completes its writes, applies what follows."""
        self._run_guarded(self._complete_writes, self._step)

    def adopted(self) -> None:
        """A received snapshot became the newest snapshot of this node: its members may differ."""
        self.on_members()

    # --- files, and the end ---

    def _request_file(self) -> None:
        """Requests the next log file; while closing only if something still has to be written."""
        if self.stopped is None and (self._closing is None or self._proposals.queue or self.writes.are_queued):
            self._next_file.request()

    def fail(self, error: errors.IcestreamError) -> None:
        """Stops the node with this error."""
        if self.stopped is None:
            self._stop(error)

    def _stop_on_exception(self, error: BaseException) -> None:
        """Stops the node with the error of an unexpected exception."""
        self._stop(stop_reasons.broken(error))

    def _on_task_failed(self, error: BaseException) -> None:
        self._loop.call_exception_handler({"message": "a task of the metadata store failed", "exception": error})
        if self.stopped is None:
            self._stop_on_exception(error)

    def _stop(self, error: errors.IcestreamError) -> None:
        self.stopped = error
        self.is_ready = self.leads = False
        self._stop_listening()
        _log.error("the metadata store stops", error=str(error))
        self._proposals.end(stop_reasons.unknown_outcome(), error)
        self._reads.fail(error)
        self._waiters.end(error)
        self.hub.end(error)
        self.on_stop(error)

    def _stop_listening(self) -> None:
        if self._log.fileno() >= 0:
            self._loop.remove_reader(self._log.fileno())

    async def close(self) -> None:
        """Finishes accepted work and seals the file, so that the next start has nothing to recover."""
        if self._closing is not None:
            return
        self._closing = errors.LogClosed("the metadata store is closed", hint="the broker is shutting down")
        # With peers the wait is bounded: without a quorum nothing would ever complete.
        seconds = None if self.is_alone else limits.METADATA_CLOSE_SECONDS_MAX
        with contextlib.suppress(errors.IcestreamError):
            await self._waiters.until(lambda: not self._proposals.are_under_way, seconds)
        # After the commands and before the seal: a task that still runs could plan another record.
        await self.tasks.stop()
        if self.stopped is None:
            with contextlib.suppress(errors.IcestreamError):
                self.writes.is_closed = True
                self._log.plan.seal()
                self._schedule_step()
                await self._waiters.until(lambda: self._log.plan.is_settled)
        self._proposals.end(errors.OutcomeUnknown("the metadata store was closed", hint=UNKNOWN_HINT), self._closing)
        self._reads.fail(self._closing)
        self.hub.end(self.stopped or self._closing)
        self._stop_listening()
        await self._log.close()
        self._waiters.end(self.stopped or self._closing)


class NodeWaiters:
    """Coroutines that wait for conditions on a node; the node calls `check` after each step."""

    def __init__(self, clock: Clock) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self.ended: errors.IcestreamError | None = None

    async def until(self, is_reached: Callable[[], bool], seconds: float | None = None) -> bool:
        """Waits until the condition holds; False on timeout. Raises the error that ended the node."""
        if self.ended is not None:
            raise self.ended
        if is_reached():
            return True
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((is_reached, waiter))
        if seconds is None:
            await waiter
            return True
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait({waiter, timer}, return_when=asyncio.FIRST_COMPLETED)
            return waiter.done() and waiter.result() is None
        finally:
            timer.cancel()
            waiter.cancel()

    def check(self) -> None:
        """Checks all conditions again."""
        if not self._waiting:
            return
        remaining = []
        for is_reached, waiter in self._waiting:
            if waiter.done():
                continue
            if self.ended is not None:
                waiter.set_exception(self.ended)
            elif is_reached():
                waiter.set_result(None)
            else:
                remaining.append((is_reached, waiter))
        self._waiting = remaining

    def end(self, error: errors.IcestreamError) -> None:
        """Ends all waits with this error; conditions that hold succeed."""
        self.check()
        self.ended = error
        self.check()


class CommitNotice:
    """Decides when the leader sends the commit index to its followers in a message of its own (ADR 33).

    A leader's entries carry the commit index, and so do its heartbeats. While commands follow each other that is soon
    enough, and a message for each commit would cost every node as much as the commands do. So:

        sent --commands were applied here--> pending --the next entries leave--> sent
                                               └── METADATA_TELL_SECONDS later, or a node waits: a message --> sent
    """

    def __init__(self, clock: Clock, tasks: Tasks, send: Callable[[], None]) -> None:
        self._clock = clock
        self._tasks = tasks
        self._send = send
        self._is_pending = False
        self._is_waiting = False

    def committed(self) -> None:
        """Notes that the followers may not know the commit index."""
        self._is_pending = True
        if not self._is_waiting:
            self._is_waiting = True
            self._tasks.start(self._send_later(), "metadata-commit-notice")

    def entries_sent(self) -> None:
        """Notes that entries left, which carry the commit index."""
        self._is_pending = False

    def send_now(self) -> None:
        """Sends the commit index now, because another node waits for it."""
        if self._is_pending:
            self._is_pending = False
            self._send()

    async def _send_later(self) -> None:
        await self._clock.sleep(limits.METADATA_TELL_SECONDS)
        self._is_waiting = False
        self.send_now()


class NextFile:
    """Keeps a prepared log file behind the active one; without disk space it refuses proposals and retries."""

    def __init__(
        self, log: LogStore, clock: Clock, tasks: Tasks, proposals: Proposals, on_prepared: Callable[[], None]
    ) -> None:
        self._log_store = log
        self._clock = clock
        self._tasks = tasks
        self._proposals = proposals
        self._on_prepared = on_prepared
        self._retry_ns = 0

    def request(self) -> None:
        """Starts preparing a file if the log needs one."""
        log = self._log_store
        if log.preparing or not log.plan.wants_file:
            return
        if self._clock.monotonic_ns() >= self._retry_ns:
            log.preparing = True  # set here and not in the task: a second step may come before it begins
            self._tasks.start(self._prepare(), "metadata-file")
        elif self._proposals.queue:
            # The present file is full and the disk has no room for another one.
            self._proposals.refuse_queue(
                errors.DiskFull(
                    f"disk full: cannot create a file of the metadata log: {log.prepare_error}",
                    hint="free disk space, then retry",
                )
            )

    async def _prepare(self) -> None:
        await self._log_store.prepare()
        if (error := self._log_store.prepare_error) is not None:
            _log.warning("cannot create the next file of the metadata log", error=str(error))
            self._retry_ns = self._clock.monotonic_ns() + int(limits.METADATA_RETRY_SECONDS * 1e9)
        self._on_prepared()
