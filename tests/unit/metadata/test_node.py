"""The driver of a node: the rules of its loop (node.py), one by one; readiness, refusals, stops and the end."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata import eraftpb, log_format
from icestream.metadata.core import HardState, Ready
from icestream.metadata.log_format import LogRecord
from icestream.metadata.node_store import NodeStore
from icestream.metadata.open import MetadataOptions, open_directory, open_metadata, start_alone
from icestream.metadata.solo_core import SoloCore
from icestream.runtime.files import LocalFile
from icestream.runtime.native import native
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.simulated_disk import SimulatedDisk
from icestream.wal import format as wire
from icestream.wal.log_file import SYNC_FAILED_NAME
from icestream.wal.record_scan import scan_records
from tests.support.held_sink import HeldSink
from tests.support.metadata_machine import HANGS_SECONDS, MetadataMachine, contents, outcome, settle, turn

pytestmark = pytest.mark.asyncio


def records(disk: SimulatedDisk, name: str = "log-0000000000000001.wal") -> Iterator[LogRecord]:
    data = disk.content(name)[wire.RECORDS_START :]
    first = int.from_bytes(data[8:16], "little")
    rows, _, _, _ = scan_records(data, wire.RECORDS_START, int(name[4:20]), first)
    for row in rows:
        yield log_format.decode_record(data, row[0] - wire.RECORDS_START, row[0], row[7])


def put(store: NodeStore, key: str, value: bytes = b"") -> asyncio.Future[int]:
    return asyncio.ensure_future(store.put(key, value))


async def stepped(machine: MetadataMachine) -> tuple[NodeStore, HeldSink]:
    """A ready store whose disk works only step by step, driven by the test."""
    sink = HeldSink()
    store = await machine.open(sink)
    await turn(store, sink)
    assert store.is_ready
    return store, sink


# --- rules 1 to 4 -----------------------------------------------------------------------------------------------------


async def test_rule_1_the_vote_is_synced_before_the_node_leads() -> None:
    machine, sink = MetadataMachine(), HeldSink()
    store = await machine.open(sink)
    await turn(store, sink, 1)
    assert not store.is_ready, "written, not synced"
    assert [record.state for record in records(machine.disk)] == [HardState(1, 1, 0)]
    await machine.power_loss()
    store = await machine.start()
    assert store.node._term >= 1
    await machine.kill()
    store = await machine.start()
    assert store.node._term >= 2, "no term is used twice"


async def test_rule_2_nothing_is_applied_answered_or_reported_before_it_is_synced() -> None:
    machine = MetadataMachine()
    store, sink = await stepped(machine)
    watch = store.watch("/", 0)
    answer, change = put(store, "/a"), asyncio.ensure_future(anext(watch))
    await turn(store, sink, 1)
    assert not answer.done()
    assert not change.done()
    assert await store.get("/a") is None, "a reader does not see what power loss could take back"
    await turn(store, sink, 1)
    assert (await answer, (await change).revision) == (1, 1)
    assert await store.get("/a") is not None


async def test_rule_3_all_proposals_of_a_tick_are_one_record_and_one_sync() -> None:
    machine = MetadataMachine()
    store = await machine.start()
    machine.disk.operations.clear()
    revisions = await asyncio.gather(*(store.put(f"/{number}", b"") for number in range(50)))
    assert list(revisions) == list(range(1, 51))
    assert [operation for operation, _ in machine.disk.operations] == ["write", "sync"]
    assert [len(record.entries) for record in records(machine.disk)] == [1, 50]


async def test_rule_3_proposals_during_a_sync_share_the_next() -> None:
    machine = MetadataMachine()
    store, sink = await stepped(machine)
    first = put(store, "/first")
    await turn(store, sink, 1)
    others = [put(store, f"/{number}") for number in range(20)]
    await settle()
    assert await turn(store, sink) == 3, "the sync under way, then one write and one sync for all others"
    assert all(future.done() for future in (first, *others))


async def test_rule_4_the_commit_index_alone_is_never_written() -> None:
    machine = MetadataMachine()
    store = await machine.start()
    for number in range(5):
        await store.put(f"/{number}", b"")
    states = [record.state for record in records(machine.disk)]
    assert states == [HardState(1, 1, 0), None, None, None, None, None]
    machine.disk.operations.clear()
    await settle()
    for _ in range(10):
        await store.get("/1")
    machine.clock.advance(3600)
    await settle()
    assert machine.disk.operations == [], "an idle store writes nothing"


async def test_a_large_tick_is_split_into_records_that_fit() -> None:
    machine = MetadataMachine()
    store = await machine.start()
    await asyncio.gather(*(store.put(f"/{number}", bytes(3000)) for number in range(40)))
    assert len(await contents(store)) == 40
    sizes = [sum(map(len, record.entries)) for name in logs(machine) for record in records(machine.disk, name)]
    assert max(sizes) < 16 * limits.KIB
    assert len(logs(machine)) > 5
    await machine.kill()
    assert len(await contents(await machine.start())) == 40


def logs(machine: MetadataMachine) -> list[str]:
    return [name for name in machine.disk.names() if name.startswith("log-")]


# --- rules 5 and 6: stops ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_rule_5_a_failed_write_or_sync_stops_the_node(operation: str) -> None:
    machine = MetadataMachine()
    store, sink = await stepped(machine)
    watch, failures = store.watch("/none", 0), list[errors.IcestreamError]()
    store.node.on_stop = failures.append
    before = put(store, "/before")
    await turn(store, sink)
    in_flight = put(store, "/in flight")
    await settle()
    machine.disk.fail(operation, errno.EIO)
    sink.step()
    sink.step()
    queued = put(store, "/queued")
    store.node._on_news()
    await settle()
    assert before.result() == 1
    assert isinstance(await outcome(in_flight), errors.OutcomeUnknown)
    assert isinstance(await outcome(queued), errors.OutcomeUnknown | errors.LogStopped)
    assert isinstance(store.stopped, errors.LogStopped)
    assert failures == [store.stopped]
    for call in (store.put("/late", b""), store.get("/before"), anext(watch), store.ready()):
        with pytest.raises(errors.LogStopped, match=f"a {operation} of the metadata log failed"):
            await call
    assert SYNC_FAILED_NAME in machine.disk.names()
    await store.close()
    await machine.kill()
    store = await machine.start()
    assert store.report.sync_failed_before
    assert "/before" in await contents(store)
    assert SYNC_FAILED_NAME not in machine.disk.names()


async def test_hazard_51_entries_synced_before_an_error_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_GATHERED_BYTES", 1)  # a write does not wait for the previous one
    machine = MetadataMachine()
    store, sink = await stepped(machine)
    first = put(store, "/first")
    await settle()
    sink.step()
    second = put(store, "/second")
    await settle()
    sink.step()  # the sync of the first write, not reported yet
    machine.disk.fail("write", errno.EIO)
    sink.step()
    store.node._on_news()
    await settle()
    assert first.result() == 1
    assert isinstance(second.exception(), errors.OutcomeUnknown)


class CorePanic(BaseException):
    """A panic of the native core as Python sees it: not an Exception."""


class PanickingCore(SoloCore):
    def ready(self) -> Ready | None:
        ready = super().ready()
        if ready is not None and any(entry.data for entry in ready.committed):
            raise CorePanic
        return ready


async def test_rule_6_any_exception_of_the_core_stops_the_node() -> None:
    machine = MetadataMachine()
    machine.core = PanickingCore
    store = await machine.start()
    seen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context["exception"]))
    assert isinstance(await outcome(put(store, "/a")), errors.OutcomeUnknown)
    assert isinstance(store.stopped, errors.LogStopped)
    assert [type(error) for error in seen] == [CorePanic], "it is not swallowed"
    await store.close()


@pytest.mark.skipif(native is None, reason="without the native part there is no thread for the disk")
async def test_rule_7_the_loop_waits_for_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes and syncs of the log are the native thread's; files and snapshots are made in a thread of their own."""
    waited: set[int] = set()
    for name in ("write_at", "sync", "allocate"):
        does = getattr(LocalFile, name)

        def noting(self: LocalFile, *arguments: Any, does: Any = does) -> None:
            waited.add(threading.get_ident())
            does(self, *arguments)

        monkeypatch.setattr(LocalFile, name, noting)
    options = MetadataOptions(log_file_bytes=limits.MIB, inline_sync_below_us=0)
    store = await start_alone(await open_directory(tmp_path, None, options), options, SystemRandomness(), SoloCore)
    await store.ready()
    for number in range(40):  # several files
        await store.put(f"/{number}", bytes(60_000))
    await store.snapshots.take()
    await store.close()
    assert store.node._log.plan.planned_bytes > 2 * limits.MIB
    assert waited
    assert threading.get_ident() not in waited


@pytest.mark.parametrize(
    ("data", "error"), [(b"\x95\x02\xc0\xc0\xc0\xc0", errors.FormatUnknown), (b"garbage", errors.DecodeError)]
)
async def test_an_entry_that_is_not_understood_stops_the_node_and_is_never_skipped(
    data: bytes, error: type[errors.IcestreamError]
) -> None:
    machine = MetadataMachine()
    store = await machine.start()
    await store.put("/a", b"")
    answer = store.node.propose(data)
    assert isinstance(await outcome(answer), errors.OutcomeUnknown)
    assert isinstance(store.stopped, error)
    await store.close()
    await machine.kill()
    store = await machine.open()
    with pytest.raises(error):
        await store.ready()
    assert not store.is_ready
    with pytest.raises(error):
        await store.get("/a")
    await store.close()


# --- ready ------------------------------------------------------------------------------------------------------------


async def test_calls_before_the_store_is_ready_raise_not_ready() -> None:
    machine, sink = MetadataMachine(), HeldSink()
    store = await machine.open(sink)
    waiting = asyncio.ensure_future(store.ready())
    await settle()
    assert not store.is_ready
    for call in (store.put("/a", b""), store.get("/a"), store.list("/"), store.revision()):
        with pytest.raises(errors.NotReady):
            await call
    with pytest.raises(errors.NotReady):
        store.watch("/", 0)
    assert not waiting.done()
    await turn(store, sink)
    await waiting
    assert store.is_ready
    assert await store.get("/a") is None


async def test_a_long_log_is_applied_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_APPLY_SLICE", 10)
    machine = MetadataMachine()
    store = await machine.start()
    await asyncio.gather(*(store.put(f"/{number}", b"") for number in range(95)))
    await machine.kill()
    store = await machine.open()
    turns, most, last = 0, 0, 0
    while not store.is_ready:
        await asyncio.sleep(0)
        most, last = max(most, store.node.applied_index - last), store.node.applied_index
        turns += 1
        assert turns < 100
    assert most <= 10
    assert turns > 9
    assert len(await contents(store)) == 95


async def test_a_slice_is_bounded_by_changes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_APPLY_SLICE", 10)
    machine = MetadataMachine()
    store = await machine.start()
    operations = [cmd.Put(f"/{number}", b"") for number in range(8)]
    await asyncio.gather(*(store.txn([], operations) for _ in range(20)))
    await machine.kill()
    store = await machine.open()
    most, last, turns = 0, 0, 0
    while not store.is_ready:
        await asyncio.sleep(0)
        most, last, turns = max(most, store.node.applied_index - last), store.node.applied_index, turns + 1
        assert turns < 100
    assert most <= 3, "two transactions of eight changes are more than ten"


async def test_only_one_process_has_the_store_open() -> None:
    machine = MetadataMachine()
    store = await machine.start()
    with pytest.raises(errors.LogLocked):
        await machine.open()
    await store.close()
    assert (await machine.start()).is_ready


# --- refusals ---------------------------------------------------------------------------------------------------------


async def test_too_many_bytes_in_flight_are_refused_and_others_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_IN_FLIGHT_BYTES_MAX", 5_000)
    machine = MetadataMachine()
    store, sink = await stepped(machine)
    answers = [put(store, f"/{number}", bytes(1000)) for number in range(10)]
    await turn(store, sink)
    outcomes = [await outcome(answer) for answer in answers]
    assert [isinstance(outcome, int) for outcome in outcomes] == [True] * 4 + [False] * 6
    assert all(isinstance(outcome, errors.InFlightFull) for outcome in outcomes[4:])
    again = put(store, "/again", bytes(4000))
    await turn(store, sink)
    assert await again == 5
    assert store.node._proposals.in_flight_bytes == 0


async def test_a_command_that_fits_no_file_is_refused() -> None:
    store = await MetadataMachine().start()
    with pytest.raises(errors.MessageTooLarge):
        await store.put("/a", bytes(12_000))
    assert await store.put("/a", bytes(9_000)) == 1


async def test_a_full_disk_refuses_and_resumes_when_there_is_space() -> None:
    machine = MetadataMachine()
    store = await machine.start()
    machine.disk.capacity = machine.disk.used_bytes()
    refused = 0
    for number in range(30):
        try:
            await store.put(f"/{number}", bytes(1000))
        except errors.DiskFull:
            refused += 1
    stored = await contents(store)
    assert refused > 10
    assert len(stored) == 30 - refused
    machine.disk.capacity = 2**40
    machine.clock.advance(limits.METADATA_RETRY_SECONDS)
    await store.put("/room", bytes(1000))
    await machine.kill()
    assert await contents(await machine.start()) == stored | {"/room": bytes(1000)}


async def test_a_cancelled_caller_affects_no_other() -> None:
    machine = MetadataMachine()
    store, sink = await stepped(machine)
    first, second = put(store, "/first"), put(store, "/second")
    await settle()
    first.cancel()
    await turn(store, sink)
    assert await second == 2
    assert "/first" in await contents(store)
    assert store.node._proposals.in_flight_bytes == 0


# --- time -------------------------------------------------------------------------------------------------------------


async def test_deadlines_survive_a_restart_and_expired_ones_apply_immediately() -> None:
    machine = MetadataMachine()
    store = await machine.start()
    await store.put_with_ttl("/short", b"", 1_000)
    await store.put_with_ttl("/long", b"", 60_000)
    await machine.kill()
    machine.clock.advance(10)
    store = await machine.start()
    await settle()
    assert set(await contents(store)) == {"/long"}
    machine.clock.advance(50.1)
    await settle()
    assert await contents(store) == {}


async def test_a_clock_behind_the_log_does_not_move_time_back() -> None:
    machine = MetadataMachine()
    store = await machine.start()
    await store.put_with_ttl("/a", b"", 10_000)
    deadline_ms = store.node.machine.next_deadline_ms
    await machine.kill()
    machine.clock.step(-86_400)
    store = await machine.start()
    await store.put_with_ttl("/b", b"", 10_000)
    assert store.node.machine.next_deadline_ms == deadline_ms
    machine.clock.advance(10.1)
    await settle()
    assert await contents(store) == {}


async def test_many_simultaneous_expiries_are_split_into_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_EXPIRE_KEYS_MAX", 4)
    machine = MetadataMachine()
    store = await machine.start()
    await asyncio.gather(*(store.put_with_ttl(f"/{number}", b"", 1_000) for number in range(10)))
    await settle()
    machine.clock.advance(1.1)
    for _ in range(5):
        await settle()
    assert await contents(store) == {}
    assert await store.revision() == 13


async def test_an_expiry_that_was_refused_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = MetadataMachine()
    store, sink = await stepped(machine)
    answer = asyncio.ensure_future(store.put_with_ttl("/a", b"", 1_000))
    await turn(store, sink)
    await answer
    monkeypatch.setattr(limits, "METADATA_IN_FLIGHT_BYTES_MAX", 50)
    blocking = put(store, "/b", bytes(100))
    machine.clock.advance(1.1)
    await settle()
    await turn(store, sink)
    await blocking
    assert await store.get("/a") is not None
    machine.clock.advance(limits.METADATA_RETRY_SECONDS)
    await turn(store, sink)
    assert await store.get("/a") is None


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_close_answers_accepted_commands_and_leaves_nothing_to_recover() -> None:
    machine = MetadataMachine()
    store, sink = await stepped(machine)
    answers = [put(store, f"/{number}") for number in range(5)]
    await settle()
    closing = asyncio.ensure_future(store.close())
    await settle()
    with pytest.raises(errors.LogClosed):
        await store.put("/late", b"")
    while not closing.done():
        await turn(store, sink)
    assert [answer.result() for answer in answers] == [1, 2, 3, 4, 5]
    machine.disk.power_loss()
    machine.disk.operations.clear()
    store = await machine.start()
    assert store.report.rewritten_file == ""
    assert store.report.tail_bytes == 0
    assert len(await contents(store)) == 5


async def test_closing_serves_a_queue_that_needs_further_files() -> None:
    machine = MetadataMachine()
    store = await machine.start()
    answers = [put(store, f"/{number}", bytes(3000)) for number in range(40)]
    await asyncio.sleep(0)
    await asyncio.wait_for(store.close(), HANGS_SECONDS)
    assert [answer.result() for answer in answers] == list(range(1, 41))


async def test_close_before_ready_ends_waiting_calls() -> None:
    machine, sink = MetadataMachine(), HeldSink()
    store = await machine.open(sink)
    waiting = asyncio.ensure_future(store.ready())
    await settle()
    closing = asyncio.ensure_future(store.close())
    while not closing.done():
        await turn(store, sink)
    assert waiting.done()
    with pytest.raises(errors.LogClosed):
        await store.ready()


async def test_a_deadline_that_passes_during_close_is_harmless() -> None:
    machine = MetadataMachine()
    store, sink = await stepped(machine)
    answer = asyncio.ensure_future(store.put_with_ttl("/a", b"", 1_000))
    await turn(store, sink)
    await answer
    last = put(store, "/b")
    await settle()
    closing = asyncio.ensure_future(store.close())
    await settle()
    machine.clock.advance(2)
    while not closing.done():
        await turn(store, sink)
    assert await last == 2
    assert store.stopped is None
    machine.disk.power_loss()
    assert (await machine.start()).report.rewritten_file == ""


async def test_a_stopped_store_does_not_keep_the_loop_busy(tmp_path: Path) -> None:
    """A stopped store does not read the reports of its writer thread, so they must not wake the event loop."""
    store = await open_metadata(tmp_path)
    await store.ready()
    descriptor = store.node._log.fileno()
    store.node._stop_on_exception(RuntimeError("on purpose"))
    if descriptor >= 0:
        assert not asyncio.get_running_loop().remove_reader(descriptor)
    assert isinstance(await outcome(put(store, "/a")), errors.LogStopped)
    await store.close()


async def test_a_store_is_opened_and_closed_many_times_in_bounded_space() -> None:
    machine = MetadataMachine(snapshot_every_bytes=32 * limits.KIB)
    for number in range(30):
        store = await machine.start()
        await store.put(f"/{number}", b"")
        await settle()
        await store.close()
    assert len(logs(machine)) < 10
    assert len(await contents(await machine.start())) == 30


async def test_a_proposal_lost_to_another_leader_has_an_unknown_outcome() -> None:
    """Index 2 comes back with the term of another leader (trap 11)."""
    store, _ = await stepped(MetadataMachine())
    answer = put(store, "/a")
    await settle()
    foreign = cmd.encode_envelope(cmd.Envelope(cmd.VERSION, b"", 0, 0, cmd.Put("/b", b"")))
    store.node._apply(eraftpb.LogEntry(2, 9, eraftpb.NORMAL, foreign, b""))
    assert isinstance(await outcome(answer), errors.OutcomeUnknown)


async def test_a_half_full_file_gets_exactly_one_successor() -> None:
    machine = MetadataMachine()
    store, sink = await stepped(machine)
    answer = put(store, "/large", bytes(machine.options.log_file_bytes // 2))
    await asyncio.sleep(0)  # it is proposed
    store.node._on_news()
    store.node._on_news()  # in the same turn of the loop: what it wants has not begun yet
    await turn(store, sink)
    assert await outcome(answer) == 1
    assert store.stopped is None
    assert store.node._log.plan.next_file is not None
    await machine.kill()
