"""Drives the state machine through the core and its log. Everything here runs on the loop's thread.

    propose --queue--> one turn of the loop: one proposal for all --core--> entries --log--> one write, one sync
                                                                 └─ to the others ─┐          │ the sink's news
    answer, watch events <-- applied in order, a slice at a time <--core-- committed <--------┘ persisted

The rules of the loop (metadata_and_backup, A7), each with a test:
    1  entries, term and vote are synced before anything that depends on them is sent; a leader sends entries while it
       writes them itself, and the answer to a heartbeat depends on nothing
    2  nothing is applied before it is synced here: the core hands out only what is
    3  all proposals of one turn are one proposal, one record and one sync, and so are those that come while others are
       under way (proposals.py); all reads of one turn are one read index
    4  the commit index alone is never written, but that of new members, before anything is sent because of them
    5  a failed write or sync stops the node; it never goes on with a log of which nothing is known
    6  whatever the core or the state machine raises stops the node too
    7  the disk is waited for in the sink's thread (inline only where syncs were measured to be short: ADR 4)
    8  ticks that come late are counted and said (ticker.py)

    STARTING --an entry of the own term is applied, or a first read of the leader's state--> READY --close--> CLOSED
        └──────────────── rule 5 or 6 ───────────────────┴──> STOPPED
What was proposed and not yet applied when a node stops, or stops leading, has an unknown outcome.

A SNAPSHOT OF ANOTHER NODE lies whole in a file before the core hears of it. Its state is loaded beside the loop; until
then nothing is applied (install.py). It counts (core, log, state) when state and BASE record are both there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata import eraftpb, stop_reasons
from icestream.metadata.commit_notice import CommitNotice
from icestream.metadata.core import Core, Message, Ready, Role, SoftState, Status, without_a_write
from icestream.metadata.eraftpb import LogEntry, SnapshotParts
from icestream.metadata.install import Installs
from icestream.metadata.log_format import Base, Promise
from icestream.metadata.log_store import LogStore
from icestream.metadata.next_file import NextFile
from icestream.metadata.proposals import UNKNOWN_HINT, Answer, Proposal, Proposals, lead_lost, not_leading
from icestream.metadata.reads import Read, Reads
from icestream.metadata.state_machine import StateMachine
from icestream.metadata.waiters import Waiters
from icestream.metadata.watch import WatchHub
from icestream.metadata.writes import Write, Writes
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks

# Header, sections and entries around them stay below RECORD_BYTES_TARGET.
BATCH_BYTES_MAX = limits.RECORD_BYTES_TARGET - 512 * limits.KIB
_log = get_logger("metadata")


class Node:
    """Open one with `icestream.metadata.open.open_metadata`."""

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
        """`name`: random, unique for this life of the node."""
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
        self.applied_ns = clock.monotonic_ns()  # when the time of the state last moved on
        self._noted_time_ms = machine.time_ms
        self.tasks = Tasks(self._task_failed)
        self.installs = Installs(self, log)
        self.is_ready = False
        self.leads = False  # and everything of former leaders is applied
        self.leader = 0
        self.heard_ns = 0  # when the leader that this node follows was last heard
        self.stopped: errors.IcestreamError | None = None
        self.send: Callable[[list[Message]], None] = lambda _: None
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
        self._next_file = NextFile(log, clock, self.tasks, self._proposals, self._plan_turn)
        self.commit_notice = CommitNotice(clock, self.tasks, lambda: self._guarded(core.tell_commit, self._step))
        self.takes_part = True  # in elections and confirmations; False until it has asked the others (ADR 45)
        self.wakes = True  # what was known to be committed is not applied yet
        self._confs_unsynced = 0
        self._synced_ticket = 0
        self._to_apply: deque[LogEntry] = deque()
        self._turn_planned = False
        self._closing: errors.LogClosed | None = None
        self._waiters = Waiters(clock)

    def start(self) -> None:
        """A single node becomes leader. There must be a file with room."""
        if self._log.fileno() >= 0:
            self._loop.add_reader(self._log.fileno(), self._on_news)
        self._plan_turn()

    def _wake(self) -> None:
        """Called when the members are known from the log."""
        self.wakes = False
        if self.is_alone and self.takes_part:
            self._core.campaign()
            self._plan_turn()

    def take_part(self) -> None:
        """Lets the node take part: the others remember nothing that this log lacks."""
        self.takes_part = True
        self._guarded(*([] if self.wakes else [self._wake]))

    def note_promises(self, promises: dict[int, Promise]) -> None:
        """Writes the promises of other nodes into the log."""
        self.writes.add(Write(0, [], None, None, [], needs_disk=True, promises=promises))
        self._plan_turn()

    def _set_conf(self, conf: bytes) -> None:
        self.conf, self.members = conf, eraftpb.decode_conf(conf)
        self.is_alone = self.members.voters == (self.id,) and not self.members.voters_outgoing
        self._log.has_others |= self.members.has_others

    def status(self) -> Status:
        return self._core.status()

    # --- proposals ---

    def propose(self, data: bytes) -> Answer:
        """Proposes an encoded envelope; returns its answer once it is applied."""
        self.check_serving()
        answer = self._proposals.add(data)
        self._plan_turn()
        return answer

    def change_members(self, changes: list[tuple[int, int]]) -> Answer:
        """Changes members: (0 voter | 1 removed | 2 learner, node id). Returns when it is in force."""
        self.check_serving()
        answer: Answer = self._loop.create_future()
        self._guarded(lambda: self._offer_change(Proposal(b"", answer), changes))
        self._plan_turn()
        return answer

    def _offer_change(self, proposal: Proposal, changes: list[tuple[int, int]]) -> None:
        self._drain()
        if not (self.leads and self._core.propose_conf(changes, 0, b"")):
            self._proposals.refuse([proposal], not_leading())
            return
        ready = self._core.ready()
        assert ready is not None
        self._proposals.logged(proposal, ready.entries[-1][0], self._term)
        self._handle(ready)

    def check_serving(self) -> None:
        if self.stopped is not None:
            raise self.stopped
        if self._closing is not None:
            raise self._closing
        if not self.is_ready:
            raise errors.NotReady("the metadata store still reads its log", hint="it serves when that is done")

    # --- reads, messages, time ---

    def read(self) -> Read:
        """Returns when the local state has everything that was acknowledged anywhere before this call."""
        self.check_serving()
        return self._ask_read()

    def _ask_read(self) -> Read:
        read = self._reads.ask()
        self._plan_turn()
        return read

    async def until(self, is_reached: Callable[[], bool], seconds: float | None = None) -> bool:
        """Waits for a condition, checked after each step; False on timeout. Raises what stopped or closed the node."""
        return await self._waiters.until(is_reached, seconds)

    def receive(self, messages: list[bytes]) -> None:
        """Receives messages of other nodes. The state of a snapshot among them must be here already."""
        self._guarded(lambda: self._take_messages(messages))

    def _take_messages(self, messages: list[bytes]) -> None:
        for message in messages:
            try:
                self._core.step(message)
            except errors.DecodeError as error:
                _log.warning("a message of another node is not understood", error=str(error))
        self._step()
        if eraftpb.is_of_leader(messages, self.id, self.leader, self._term):
            self.heard_ns = self._clock.monotonic_ns()

    def tick(self, ticks: int = 1) -> None:
        self._guarded(lambda: self._tick(ticks))

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
        self._plan_turn()

    def unreachable(self, node_id: int) -> None:
        if self.stopped is None:
            self._core.report_unreachable(node_id)

    def snapshot_sent(self, node_id: int, *, succeeded: bool) -> None:
        if self.stopped is None:
            self._core.report_snapshot(node_id, succeeded)
            self._plan_turn()

    # --- a turn of the loop ---

    def _plan_turn(self) -> None:
        if not self._turn_planned:
            self._turn_planned = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_planned = False
        self._guarded(self._step)

    def _on_news(self) -> None:
        """Called when the sink has progress."""
        self._guarded(self._take_progress, self._step)

    def _guarded(self, *work: Callable[[], None]) -> None:
        if self.stopped is not None:
            return
        try:
            for do in work:
                do()
        except BaseException as error:
            self._failed(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._waiters.look()

    def _step(self) -> None:
        """Processes everything that is ready."""
        while self.stopped is None:
            self.writes.plan()
            self._drain()
            self._offer()
            if not self._log.carry_out():
                break
            self._take_progress()
        self._apply_slice(limits.METADATA_APPLY_SLICE)
        if self.wakes and not self._to_apply:
            self._wake()
        self._want_file()

    def _drain(self) -> None:
        while (ready := self._core.ready()) is not None:
            self._handle(ready)

    def _handle(self, ready: Ready) -> None:
        term = self._term if ready.hard_state is None else ready.hard_state.term
        begins_term, self._term = term != self._term, term
        if begins_term:
            self._new_term_write = ready.number
        if ready.soft_state is not None:
            self._take_role(ready.soft_state)
        if self._new_term_write or self._confs_unsynced:
            # the only voter leads before its term is synced; nobody may hear of it, or of new members, until then
            ready = ready._replace(send_now=[], send_after=ready.send_now + ready.send_after)
        self.send(ready.send_now)
        base = self._begin_install(ready.snapshot) if ready.snapshot is not None else None
        needs_disk = ready.must_sync or base is not None
        write = Write(
            ready.number, ready.entries, ready.hard_state, base, ready.send_after, needs_disk, base is not None,
            term=self._term, begins_term=begins_term,
        )  # fmt: skip
        if needs_disk or self.writes.are_under_way:
            free, write.messages = without_a_write(ready.send_after)
            self.send(free)
            self.writes.add(write)
        else:
            self.send(ready.send_after)
            self._core.persisted(ready.number)
        self._to_apply.extend(ready.committed)
        self._reads.answered(ready.reads)

    def _take_role(self, soft: SoftState) -> None:
        if soft.leader != self.leader and self.members.has_others:
            _log.info("leader changed", rpc="Vote", leader=f"{soft.leader:016x}", term=self._term)
        led, self._role, self.leader = self.leads, soft.role, soft.leader
        if self._role == Role.LEADER:
            return
        if self.leader and not self.is_ready:
            # what this leader has answered is here when this is done
            self._ask_read().add_done_callback(self._caught_up)
        self.leads = False
        self._proposals.lose(lead_lost())
        if led:
            self.on_leading(False)

    def _caught_up(self, read: Read) -> None:
        if read.exception() is None and self.stopped is None:
            self.is_ready = True
            self._waiters.look()

    def _offer(self) -> None:
        """Proposes the queued commands to the core, as many at a time as fit a record."""
        while self._proposals.may_go and not self.writes.are_queued:
            batch = self._proposals.take_batch(BATCH_BYTES_MAX, self._log.plan.room_for)
            if not batch:
                break
            if not self._core.propose([proposal.data for proposal in batch]):
                self._proposals.refuse(batch, not_leading())
                continue
            ready = self._core.ready()
            assert ready is not None
            self.commit_notice.entries_sent()
            own = ready.entries[-len(batch) :]
            for proposal, (index, _) in zip(batch, own, strict=True):
                self._proposals.logged(proposal, index, self._term)
            self._handle(ready)
        if self._reads.are_waiting and (self.leads if self._role == Role.LEADER else self.leader):
            self._core.read_index(self._reads.begin())
            self._drain()

    # --- completions ---

    def _take_progress(self) -> None:
        progress = self._log.progress()
        self._synced_ticket = progress.synced
        self._take_synced()
        if progress.error is not None:
            # what was synced before the error counts (hazard 51)
            self._drain()
            while self._to_apply and not self.installs.are_loading:
                self._apply_slice(limits.METADATA_APPLY_SLICE)
            self._log.note_failed_sync()
            self._stop(stop_reasons.disk_failed(progress.error))

    def _take_synced(self) -> None:
        done = self.writes.take_synced(self._synced_ticket, is_installing=self.installs.are_loading)
        for write in done:
            self.send(write.messages)
            self.installs.bases_unsynced -= write.is_install
            self._confs_unsynced -= write.commit > 0
        if number := max((write.number for write in done), default=0):
            self._core.persisted(number)
            if number >= self._new_term_write:
                self._new_term_write = 0

    def _apply_slice(self, work: int) -> None:
        """Applies committed entries, up to this many commands or changes; a transaction is never split."""
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
            if self._to_apply or self._proposals.may_go:
                self._plan_turn()
        self._reads.applied(self.applied_index)

    def _apply(self, entry: LogEntry) -> int:
        """Applies one entry; returns its cost: the number of changes, at least 1."""
        work = 1
        answer: cmd.Answer | None = None
        if entry.kind != eraftpb.NORMAL:
            self._set_conf(self._core.apply_conf(entry.kind, entry.data))
            if not self.wakes:
                self._confs_unsynced += 1
                self.writes.add(Write(0, [], None, None, [], needs_disk=True, commit=entry.index))
                self._plan_turn()
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
            self.is_ready = self.leads = True  # everything before it is applied too
            self.on_leading(True)
        if entry.kind != eraftpb.NORMAL:
            self.on_members()
        return work

    def _note_time(self) -> None:
        if self.machine.time_ms != self._noted_time_ms:
            self._noted_time_ms, self.applied_ns = self.machine.time_ms, self._clock.monotonic_ns()

    # --- a snapshot of another node ---

    def _begin_install(self, snapshot: bytes) -> Base:
        self._to_apply.clear()
        return self.installs.begin(snapshot)

    def take_state(self, parts: SnapshotParts, machine: StateMachine) -> None:
        self.machine = machine
        self._set_conf(parts.conf)
        self.applied_index, self.applied_term = parts.index, parts.term
        self._note_time()
        self.hub.reset(machine.revision)

    def go_on(self) -> None:
        self._guarded(self._take_synced, self._step)

    def adopted(self) -> None:
        self.on_members()

    # --- files, and the end ---

    def _want_file(self) -> None:
        if self.stopped is None and (self._closing is None or self._proposals.queue or self.writes.are_queued):
            self._next_file.want()

    def fail(self, error: errors.IcestreamError) -> None:
        """Stops the node with this error."""
        if self.stopped is None:
            self._stop(error)

    def _failed(self, error: BaseException) -> None:
        self._stop(stop_reasons.broken(error))

    def _task_failed(self, error: BaseException) -> None:
        self._loop.call_exception_handler({"message": "a task of the metadata store failed", "exception": error})
        if self.stopped is None:
            self._failed(error)

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
        # a node that lost the others does not wait for them for ever
        seconds = None if self.is_alone else limits.METADATA_CLOSE_SECONDS_MAX
        with contextlib.suppress(errors.IcestreamError):
            await self._waiters.until(lambda: not self._proposals.are_under_way, seconds)
        await self.tasks.stop()
        if self.stopped is None:
            with contextlib.suppress(errors.IcestreamError):
                self.writes.is_closed = True
                self._log.plan.seal()
                self._plan_turn()
                await self._waiters.until(lambda: self._log.plan.is_settled)
        self._proposals.end(errors.OutcomeUnknown("the metadata store was closed", hint=UNKNOWN_HINT), self._closing)
        self._reads.fail(self._closing)
        self.hub.end(self.stopped or self._closing)
        self._stop_listening()
        await self._log.close()
        self._waiters.end(self.stopped or self._closing)
