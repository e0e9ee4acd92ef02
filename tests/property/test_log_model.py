"""The log against a plain model: any mix of appends, crashes, faults, rotation, recycling and restarts.

The model remembers what each client was told. After every restart the whole log is read and compared:
    acked        every acked message is there, unless it lies below the floor, or power was lost before its sync
    one payload  no offset is ever seen with two payloads, over all lives of the log
    once         a payload that was never acked comes back at most once
    order        offsets of a shard rise in the order in which its messages were given to the log
    gaps         whatever is missing lies in a declared gap
"""

from __future__ import annotations

import asyncio
import errno

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from icestream import errors, limits
from icestream.model import ShardKey, SyncMode, TopicIdentity, envelope
from icestream.model.block import encode_block, iter_blocks
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.randomness import SeededRandomness
from icestream.runtime.simulated_disk import Crash, SimulatedDisk
from icestream.wal.appender import Placed
from icestream.wal.log_options import LogOptions
from icestream.wal.open_log import open_log_on
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.held_sink import HeldSink

TOPICS = [TopicIdentity(1, "/default/a"), TopicIdentity(2, "/default/b", 7)]
KEYS = [ShardKey(1, 0), ShardKey(1, 1), ShardKey(2, 0)]
OPERATIONS = ["write", "sync", "allocate", "create", "rename", "remove", "truncate", "sync_directory"]


class LogModel(RuleBasedStateMachine):
    mode = SyncMode.ALWAYS
    restarts = 0

    def __init__(self) -> None:
        super().__init__()
        self.disk: SimulatedDisk | None = None
        self.log: WriteAheadLog | None = None
        self.payloads = 0
        self.numbers: dict[ShardKey, list[int]] = {key: [] for key in KEYS}  # numbers in the order sent
        self.acked: dict[ShardKey, dict[int, int]] = {key: {} for key in KEYS}
        self.seen: dict[ShardKey, dict[int, int]] = {key: {} for key in KEYS}
        self.synced = dict.fromkeys(KEYS, 0)
        self.floors = dict.fromkeys(KEYS, 0)
        self.cursors = dict.fromkeys(KEYS, 0)

    # --- life and death ---

    @precondition(lambda self: self.disk is None)
    @rule(seed=st.integers(0, 2**32), align=st.sampled_from([8, 512]), ballast=st.sampled_from([0, limits.KIB * 128]))
    def first_start(self, seed: int, align: int, ballast: int) -> None:
        self.disk = SimulatedDisk(seed)
        self.clock = SimulatedClock()
        self.options = LogOptions(
            mode=self.mode, file_bytes=64 * 1024, message_bytes_max=8000, align_bytes=align, spare_files=0,
            checkpoint_every_bytes=128 * 1024, quota_bytes=2**30, ballast_bytes=ballast,
        )  # fmt: skip
        self.open()

    def open(self) -> None:
        assert self.disk is not None
        self.loop = asyncio.new_event_loop()
        self.sink = HeldSink()
        self.pending: list[tuple[ShardKey, list[int], asyncio.Task[list[object]]]] = []
        positions = {key: offset for key, offset in self.cursors.items() if offset}
        opening = self.loop.create_task(
            open_log_on(self.disk, self.options, positions, self.clock, SeededRandomness(1), self.sink)
        )
        try:
            self.turn(until=opening)
            self.log = opening.result()
        except Crash:
            self.abandon()
            raise
        type(self).restarts += 1
        for topic in TOPICS:
            self.log.declare_topic(topic)
        self.compare_all()

    def abandon(self) -> None:
        """The process is gone: nothing of it runs any more."""

        async def end_all() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.loop.set_exception_handler(lambda loop, context: None)
        self.loop.run_until_complete(end_all())
        self.loop.close()
        self.log = None

    def turn(self, until: asyncio.Task[object] | None = None) -> None:
        """Lets the loop and the disk work until nothing is left to do (or `until` is done)."""
        for _ in range(300):
            self.loop.run_until_complete(asyncio.sleep(0))
            if until is not None and until.done():
                return
            worked = self.sink.step()
            log = self.log or self._opening_log()
            if log is not None:
                self.news(log)
            if not worked and until is None:
                self.loop.run_until_complete(asyncio.sleep(0))
                return
        assert until is None, "the log does not finish"

    def news(self, log: WriteAheadLog) -> None:
        """Reports progress of the native thread, as the eventfd does."""
        self.loop.call_soon(log._on_progress)
        self.loop.run_until_complete(asyncio.sleep(0))

    def _opening_log(self) -> WriteAheadLog | None:
        for task in asyncio.all_tasks(self.loop):
            frame = task.get_coro().cr_frame if task.get_coro() else None  # type: ignore[union-attr]
            if frame is not None and isinstance(frame.f_locals.get("log"), WriteAheadLog):
                return frame.f_locals["log"]  # type: ignore[no-any-return]
        return None

    def collect(self) -> None:
        """Notes the answers that have arrived: from here on these messages are promises."""
        left = []
        for key, numbers, task in self.pending:
            if not task.done():
                left.append((key, numbers, task))
                continue
            if task.exception() is not None:
                assert isinstance(task.exception(), errors.OutcomeUnknown | errors.LogStopped | errors.DiskFull)
                continue
            (result,) = task.result()
            assert isinstance(result, Placed)
            for at, number in enumerate(numbers):
                self.note_seen(key, result.base_offset + at, number)
                self.acked[key][result.base_offset + at] = number
        self.pending = left

    def note_seen(self, key: ShardKey, offset: int, number: int) -> None:
        before = self.seen[key].setdefault(offset, number)
        assert before == number, f"offset {offset} of {key} was seen as {before} and as {number}"

    def end(self, *, power: bool) -> None:
        assert self.disk is not None
        if self.log is not None:
            self.collect()
            for key in KEYS:
                if key in self.log.state.shards:
                    self.synced[key] = max(self.synced[key], self.log.state.shards[key].synced)
            self.abandon()
        if power:
            self.disk.power_loss()
            for key in KEYS:
                if self.mode is not SyncMode.ALWAYS:
                    self.forget_unsynced(key)
        else:
            self.disk.kill()

    def forget_unsynced(self, key: ShardKey) -> None:
        """Power was lost: acks beyond the last sync were never promises in this mode. What was seen stays seen."""
        self.acked[key] = {offset: n for offset, n in self.acked[key].items() if offset < self.synced[key]}

    @precondition(lambda self: self.log is not None)
    @rule(power=st.booleans(), crashes=st.lists(st.tuples(st.integers(0, 25), st.booleans()), max_size=2))
    def crash_and_restart(self, power: bool, crashes: list[tuple[int, bool]]) -> None:
        self.end(power=power)
        assert self.disk is not None
        for after, also_power in crashes:
            self.disk.crash_after(after)
            try:
                self.open()
            except Crash:
                self.end(power=also_power)
            else:
                self.end(power=also_power)
        self.open()

    @precondition(lambda self: self.log is not None)
    @rule()
    def close_and_restart(self) -> None:
        assert self.log is not None
        assert self.disk is not None
        self.disk.heal()
        self.turn()
        if self.log.stopped:
            return
        closing = self.loop.create_task(self.log.close())
        self.turn(until=closing)
        closing.result()
        self.collect()
        ends = {key: shard.assigned for key, shard in self.log.state.shards.items()}
        for key in ends:
            self.synced[key] = max(self.synced[key], self.log.state.shards[key].synced)
        self.abandon()
        self.open()
        assert self.log is not None
        assert self.log.report.clean
        assert not self.log.report.gaps
        assert {key: shard.assigned for key, shard in self.log.state.shards.items()} == ends

    # --- work ---

    @precondition(lambda self: self.log is not None)
    @rule(
        parts=st.lists(
            st.tuples(st.sampled_from(KEYS), st.integers(1, 3), st.integers(0, 7000)), min_size=1, max_size=6
        ),
        steps=st.integers(0, 6),
    )
    def append(self, parts: list[tuple[ShardKey, int, int]], steps: int) -> None:
        assert self.log is not None
        for key, rows, size in parts:
            numbers = list(range(self.payloads, self.payloads + rows))
            self.payloads += rows
            values = [str(number).encode() + b"." + bytes(size // rows) for number in numbers]
            block = encode_block(rows, {envelope.PAYLOAD: values})
            batch = self.log.batch(self.log.shard(*key), block)
            self.numbers[key] += numbers
            self.pending.append((key, numbers, self.loop.create_task(self.log.append([batch]))))
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.run_until_complete(asyncio.sleep(0))
        for _ in range(steps):
            if self.sink.step():
                self.news(self.log)
        self.loop.run_until_complete(asyncio.sleep(0))
        self.collect()

    @precondition(lambda self: self.log is not None)
    @rule(
        power=st.booleans(),
        operation=st.sampled_from(OPERATIONS),
        number=st.sampled_from([errno.ENOSPC, errno.EIO]),
        after=st.integers(0, 12),
        also_power=st.booleans(),
    )
    def restart_on_a_failing_disk(self, power: bool, operation: str, number: int, after: int, also_power: bool) -> None:
        """Whatever fails during a start: it starts with everything written down, or not at all."""
        assert self.disk is not None
        self.end(power=power)
        self.disk.fail(operation, number, after)
        try:
            self.open()
        except errors.IcestreamError:
            self.abandon()
            self.disk.heal()
            self.end(power=also_power)
            self.open()
        self.disk.heal()

    @precondition(lambda self: self.log is not None)
    @rule()
    def disk_catches_up(self) -> None:
        assert self.log is not None
        self.turn()
        self.turn()
        self.collect()
        if not self.log.stopped:
            assert not self.pending, "everything that was appended is answered once the disk has caught up"

    @precondition(lambda self: self.log is not None)
    @rule(seconds=st.sampled_from([0.001, 1.0, -3.0, -3600.0, 86400.0]))
    def time_passes(self, seconds: float) -> None:
        if seconds > 0:
            self.clock.advance(seconds)
        else:
            self.clock.step(seconds)
        self.turn()

    @precondition(lambda self: self.log is not None and not self.log.stopped)
    @rule()
    def store_cursors(self) -> None:
        """Positions are stored elsewhere: never beyond synced (section 0)."""
        assert self.log is not None
        for key, shard in self.log.state.shards.items():
            self.cursors[key] = max(self.cursors[key], shard.synced)

    @precondition(lambda self: self.log is not None and not self.log.stopped)
    @rule(key=st.sampled_from(KEYS), share=st.floats(0, 1))
    def commit(self, key: ShardKey, share: float) -> None:
        """The floor moves: later the pipeline does this."""
        assert self.log is not None
        self.turn()
        if self.log.stopped or key not in self.log.state.shards:
            return
        shard = self.log.state.shards[key]
        floor = shard.floor + int((shard.synced - shard.floor) * share)
        self.cursors[key] = max(self.cursors[key], floor)
        moving = self.loop.create_task(self.log.advance_floor({key: floor}))
        self.turn(until=moving)
        moving.result()
        self.floors[key] = max(self.floors[key], floor)

    @precondition(lambda self: self.log is not None and not self.log.stopped)
    @rule()
    def commit_everything(self) -> None:
        """Moves every floor to its synced end and writes the two checkpoints that free the files."""
        for key in KEYS:
            self.commit(key, 1.0)
        for _ in range(2):
            if self.log is not None and not self.log.stopped:
                self.checkpoint()

    @precondition(lambda self: self.log is not None and not self.log.stopped)
    @rule()
    def checkpoint(self) -> None:
        assert self.log is not None
        saving = self.loop.create_task(self.log.checkpoint())
        self.turn(until=saving)
        saving.result()

    @precondition(lambda self: self.log is not None and not self.log.stopped)
    @rule(after=st.integers(0, 3), number=st.sampled_from([errno.ENOSPC, errno.EIO]))
    def write_fails(self, after: int, number: int) -> None:
        assert self.disk is not None
        self.disk.fail("write", number, after)

    @precondition(lambda self: self.log is not None and not self.log.stopped)
    @rule()
    def no_room_for_the_next_file(self) -> None:
        assert self.disk is not None
        self.disk.fail("allocate", errno.ENOSPC)

    @precondition(lambda self: self.log is not None and not self.log.stopped)
    @rule(after=st.integers(0, 2))
    def sync_fails(self, after: int) -> None:
        """The kernel drops the pages and says so once: the node must stop and a restart must not believe the cache."""
        assert self.disk is not None
        assert self.log is not None
        self.disk.fail("sync", errno.EIO, after)

    # --- what must hold ---

    def compare_all(self) -> None:
        assert self.log is not None
        for key in KEYS:
            if key in self.log.state.shards:
                self.compare(key)

    def compare(self, key: ShardKey) -> None:
        assert self.log is not None
        stored = self.read(key)
        shard = self.log.state.shards[key]
        for offset, number in stored.items():
            self.note_seen(key, offset, number)
        assert len(set(stored.values())) == len(stored), "a message came back twice"
        in_order = [stored[offset] for offset in sorted(stored)]
        assert in_order == sorted(in_order), "messages changed their order"
        earliest = self.log.reader.earliest(key)
        for offset, number in self.acked[key].items():
            if offset >= self.floors[key]:
                assert stored.get(offset) == number, f"acked message {number} at {offset} of {key} is gone"
        gaps = self.log.gaps(key)
        for offset in range(earliest, min(shard.written, earliest + 5000)):
            in_gap = any(gap.start <= offset < gap.end for gap in gaps)
            assert in_gap != (offset in stored), f"offset {offset} of {key} is neither a message nor in a gap"
        assert shard.floor <= shard.synced <= shard.written <= shard.assigned
        assert shard.assigned > max(self.seen[key], default=-1)
        assert shard.assigned >= self.cursors[key]

    def read(self, key: ShardKey) -> dict[int, int]:
        assert self.log is not None
        numbers: dict[int, int] = {}
        offset = self.log.reader.earliest(key)
        last = -1
        while True:
            result = self.loop.run_until_complete(self.log.reader.read(key, offset, 20_000))
            for section in result.sections:
                at = section.base_offset
                for block in iter_blocks(section.body):
                    for value in block.values(envelope.PAYLOAD):
                        assert isinstance(value, bytes)
                        assert at > last, "offsets rise strictly"
                        last = at
                        numbers[at] = int(value.split(b".")[0])
                        at += 1
            if result.next_offset == offset:
                return numbers
            offset = result.next_offset

    @invariant()
    def offsets_are_in_order(self) -> None:
        if self.log is None:
            return
        for shard in self.log.state.shards.values():
            assert shard.floor <= shard.synced <= shard.written <= shard.assigned
            if self.mode is not SyncMode.ALWAYS:
                assert shard.written <= shard.reserved, "what a reader may see lies below a promise that is on disk"

    @precondition(lambda self: self.log is not None and not self.log.stopped)
    @rule()
    def readers_see_what_was_released(self) -> None:
        self.compare_all()

    def teardown(self) -> None:
        if self.disk is not None and not self.loop.is_closed():
            self.abandon()


class PeriodicLogModel(LogModel):
    mode = SyncMode.PERIODIC


class UnsyncedLogModel(LogModel):
    mode = SyncMode.NONE


MODELS = pytest.mark.parametrize(
    "model", [LogModel, PeriodicLogModel, UnsyncedLogModel], ids=["always", "periodic", "none"]
)


def run(model: type[LogModel], examples: int) -> int:
    """Plays that many random lives of a log. Without shrinking: a failing life is short enough to read."""
    chosen = settings(max_examples=examples, stateful_step_count=30, deadline=None, phases=[Phase.generate])
    run_state_machine_as_test(model, settings=chosen)  # type: ignore[no-untyped-call]
    return model.restarts


@MODELS
def test_the_log_matches_its_model(model: type[LogModel]) -> None:
    assert run(model, 100) > 100, "a run without restarts proves little"


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@MODELS
def test_the_log_matches_its_model_in_long_runs(model: type[LogModel]) -> None:
    assert run(model, 5000) > 5000
