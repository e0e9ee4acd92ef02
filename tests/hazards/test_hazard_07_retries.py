"""Hazard 7, the log's part: a numbered batch is stored once, whatever its producer, the disk or the process does."""

from __future__ import annotations

import errno

import pytest

from icestream import errors, limits
from icestream.model import ShardKey, SyncMode
from icestream.model.block import Numbering
from icestream.wal.appender import Placed
from icestream.wal.checkpoint import window_slices
from icestream.wal.producer_sequences import Duplicate
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.held_sink import HeldSink
from tests.support.machine import A, Machine, batch, messages, publish, settle, turn

pytestmark = pytest.mark.asyncio
PRODUCER, OTHER = 5, 6


def numbered(first: int, epoch: int = 1) -> Numbering:
    return Numbering(PRODUCER, epoch, first)


async def send(log: WriteAheadLog, first: int, value: bytes, key: ShardKey = A, epoch: int = 1) -> object:
    (result,) = await log.append([batch(log, key, value, numbering=numbered(first, epoch))])
    return result


async def test_hazard_07_a_retry_before_the_first_copy_is_synced_waits_for_the_same_sync() -> None:
    machine, sink = Machine(), HeldSink()
    log = await machine.start(sink=sink)
    log.state.producers.open(PRODUCER, 1)
    first = log.submit([batch(log, A, b"x", numbering=numbered(0))])
    await settle()
    retry = log.submit([batch(log, A, b"x", numbering=numbered(0))])
    await turn(log, sink, 1)
    assert not first.done()
    assert not retry.done(), "written is not enough: a power loss now would lose an acked message"
    await turn(log, sink)
    assert first.result() == [Placed(0, 1)]
    assert retry.result() == [Duplicate(0, 1)]
    assert await messages(log, A) == {0: b"x"}


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_hazard_07_a_retry_shares_the_fate_of_the_first_copy(operation: str) -> None:
    machine, sink = Machine(), HeldSink()
    log = await machine.start(sink=sink)
    log.state.producers.open(PRODUCER, 1)
    first = log.submit([batch(log, A, b"x", numbering=numbered(0))])
    await settle()
    retry = log.submit([batch(log, A, b"x", numbering=numbered(0))])
    await settle()
    machine.disk.fail(operation, errno.EIO)
    await turn(log, sink)
    assert isinstance(first.exception(), errors.OutcomeUnknown)
    assert isinstance(retry.exception(), errors.OutcomeUnknown)
    await machine.kill()
    log = await machine.start()
    log.state.producers.open(PRODUCER, 1)
    answer = await send(log, 0, b"x")
    assert answer.base_offset == 0  # type: ignore[attr-defined]
    assert await messages(log, A) == {0: b"x"}


async def test_hazard_07_a_failed_append_is_forgotten_so_that_its_retry_is_stored() -> None:
    machine, sink = Machine(), HeldSink()
    log = await machine.start(sink=sink)
    log.state.producers.open(PRODUCER, 1)
    await settle()
    lost = [log.submit([batch(log, A, b"%d" % first, numbering=numbered(first))]) for first in range(3)]
    await settle()
    machine.disk.fail("write", errno.ENOSPC)
    await turn(log, sink)
    assert all(isinstance(answer.exception(), errors.OutcomeUnknown) for answer in lost)
    again = [log.submit([batch(log, A, b"%d" % first, numbering=numbered(first))]) for first in range(3)]
    await turn(log, sink)
    assert [answer.result()[0].base_offset for answer in again] == [0, 1, 2]  # type: ignore[union-attr]
    assert all(isinstance(answer.result()[0], Placed) for answer in again)
    assert await messages(log, A) == {0: b"0", 1: b"1", 2: b"2"}


@pytest.mark.parametrize("recycled", [False, True])
async def test_hazard_07_after_a_restart_a_retry_is_answered_with_the_old_offset(recycled: bool) -> None:
    machine = Machine()
    log = await machine.start()
    log.state.producers.open(PRODUCER, 1)
    for first in range(30):
        await send(log, first, b"%d" % first + bytes(5000))
    if recycled:
        await log.advance_floor({A: 30})
        await log.checkpoint()
        await log.checkpoint()
        assert log.lifecycle.files == []
    await machine.power_loss()
    log = await machine.start()
    assert (await send(log, 7, b"7" + bytes(5000))).base_offset == 7  # type: ignore[attr-defined]
    assert isinstance(await send(log, 29, b"29" + bytes(5000)), Duplicate)
    assert isinstance(await send(log, 30, b"30"), Placed), "a known producer goes on without opening again"
    assert log.shard(*A).assigned == 31


async def test_hazard_07_a_retry_below_the_window_is_success_without_an_offset() -> None:
    machine = Machine()
    log = await machine.start()
    log.state.producers.open(PRODUCER, 1)
    for first in range(limits.PRODUCER_WINDOW_BATCHES + 2):
        await send(log, first, b"x")
    assert await send(log, 0, b"x") == Duplicate(None, 0)
    assert await send(log, 1, b"x") == Duplicate(None, 0)
    assert (await send(log, 2, b"x")).base_offset == 2  # type: ignore[attr-defined]
    assert log.shard(*A).assigned == limits.PRODUCER_WINDOW_BATCHES + 2


async def test_hazard_07_a_number_gap_and_a_partial_batch_store_nothing() -> None:
    machine = Machine()
    log = await machine.start()
    log.state.producers.open(PRODUCER, 1)
    await publish(log, A, b"0", b"1", b"2", numbering=numbered(0))
    assert isinstance(await send(log, 4, b"a jump"), errors.OutOfOrderSequence)
    (mixed,) = await log.append([batch(log, A, b"2", b"3", numbering=numbered(2))])
    assert isinstance(mixed, errors.OutOfOrderSequence), "part of a known batch and more"
    assert log.shard(*A).assigned == 3
    assert isinstance(await send(log, 3, b"3"), Placed)


async def test_hazard_07_a_restarted_producer_numbers_from_0_under_a_new_epoch() -> None:
    machine = Machine()
    log = await machine.start()
    log.state.producers.open(PRODUCER, 1)
    await send(log, 0, b"before")
    log.state.producers.open(PRODUCER, 2)
    assert isinstance(await send(log, 0, b"after", epoch=2), Placed), "not taken for a duplicate and dropped"
    assert isinstance(await send(log, 1, b"a zombie", epoch=1), errors.ProducerFenced)
    await machine.kill()
    log = await machine.start()
    assert isinstance(await send(log, 1, b"a zombie", epoch=1), errors.ProducerFenced)
    assert await messages(log, A) == {0: b"before", 1: b"after"}


async def test_hazard_07_an_unknown_producer_must_open_again() -> None:
    machine = Machine()
    log = await machine.start()
    assert isinstance(await send(log, 0, b"x"), errors.UnknownProducer)
    assert log.shard(*A).assigned == 0
    log.state.producers.open(PRODUCER, 1)
    assert isinstance(await send(log, 0, b"x"), Placed)


async def test_hazard_07_a_producer_evicted_by_count_is_unknown_and_never_new() -> None:
    machine = Machine()
    log = await machine.start()
    log.state.producers.count_max = 3
    log.state.producers.open(PRODUCER, 1)
    for shard in range(4):
        await send(log, 0, b"x", key=ShardKey(1, shard))
    answer = await send(log, 0, b"x", key=ShardKey(1, 0))
    assert isinstance(answer, errors.UnknownProducer), f"a retry was answered {answer}: stored twice"
    assert log.shard(1, 0).assigned == 1
    log.state.producers.open(PRODUCER, 2)
    assert isinstance(await send(log, 0, b"y", key=ShardKey(1, 0), epoch=2), Placed), "after opening again it goes on"


async def test_hazard_07_a_producer_evicted_by_age_is_unknown_and_never_new() -> None:
    machine = Machine()
    log = await machine.start()
    log.state.producers.open(PRODUCER, 1)
    await send(log, 0, b"x")
    machine.clock.advance(limits.PRODUCER_AGE_SECONDS_DEFAULT + 60)
    log.state.producers.expire(machine.clock.wall_us() - limits.PRODUCER_AGE_SECONDS_DEFAULT * 1_000_000)
    answer = await send(log, 0, b"x")
    assert isinstance(answer, errors.UnknownProducer), f"a retry was answered {answer}: stored twice"
    assert log.shard(*A).assigned == 1


async def test_hazard_07_windows_are_evicted_by_age_without_a_request() -> None:
    machine = Machine()
    log = await machine.start()
    log.state.producers.open(PRODUCER, 1)
    await send(log, 0, b"x")
    machine.clock.advance(limits.PRODUCER_AGE_SECONDS_DEFAULT + 60)
    await publish(log, A, b"another")
    await log.checkpoint()
    assert len(log.state.producers) == 0, "after seven days a window is dropped: the state is bounded by age too"


@pytest.mark.parametrize("power", [False, True])
async def test_hazard_07_each_number_once_and_in_order_with_a_crash_at_every_step(power: bool) -> None:
    """The producer resends everything that was not answered, until it is."""
    crashed, operations = True, 0
    while crashed:
        machine = Machine(seed=operations)
        log = await machine.start()
        log.state.producers.open(PRODUCER, 1)
        acked = 0
        machine.disk.crash_after(operations)

        async def produce(log: WriteAheadLog = log) -> None:
            nonlocal acked
            for first in range(acked, 10):
                answer = await send(log, first, b"%d" % first + bytes(6000))
                assert isinstance(answer, Placed | Duplicate), answer
                assert answer.base_offset == first
                acked += 1

        crashed = not await machine.survives(produce())
        await (machine.power_loss() if power else machine.kill())
        log = await machine.start()
        last_sequence = log.state.producers.last_sequence(A, PRODUCER)
        assert (-1 if last_sequence is None else last_sequence) >= acked - 1
        log.state.producers.open(PRODUCER, 1)
        assert await machine.survives(produce(log))
        assert await messages(log, A) == {first: b"%d" % first + bytes(6000) for first in range(10)}
        operations += 1
    assert operations > 20


async def test_hazard_07_a_checkpoint_during_the_first_batch_of_an_epoch_keeps_the_epoch_before() -> None:
    machine, sink = Machine(), HeldSink()
    log = await machine.start(sink=sink)
    log.state.producers.open(PRODUCER, 1)
    for first in range(10):
        answer = log.submit([batch(log, A, b"x", numbering=numbered(first))])
        await turn(log, sink)
        assert answer.done()
    log.state.producers.open(PRODUCER, 2)
    log.submit([batch(log, A, b"x", numbering=numbered(10, 2))])
    await settle()
    await log.checkpoint()
    await machine.kill()
    log = await machine.start()
    assert log.state.producers.last_sequence(A, PRODUCER) == 9


@pytest.mark.parametrize("mode", [SyncMode.NONE, SyncMode.PERIODIC])
async def test_hazard_07_a_synced_batch_is_known_after_power_loss_however_much_was_unsynced(mode: SyncMode) -> None:
    machine = Machine(mode=mode)
    log = await machine.start()
    log.state.producers.open(PRODUCER, 1)
    for first in range(10):
        await send(log, first, b"x")
    await log.sync()
    for first in range(10, 12 + limits.PRODUCER_WINDOW_BATCHES):
        await send(log, first, b"x")
    await log.checkpoint()
    await machine.power_loss()
    log = await machine.start()
    last_sequence = log.state.producers.last_sequence(A, PRODUCER)
    assert last_sequence is not None
    assert last_sequence >= 9
    log.state.producers.open(PRODUCER, 1)
    assert isinstance(await send(log, 9, b"x"), Duplicate)


async def test_hazard_07_windows_of_a_started_checkpoint_are_kept_until_it_is_written() -> None:
    """Between two slices of a checkpoint a producer fills its whole window anew, and all of it is synced."""
    machine = Machine()
    log = await machine.start()
    log.state.producers.open(OTHER, 1)
    await publish(log, A, b"x", numbering=Numbering(OTHER, 1, 0))
    log.state.producers.open(PRODUCER, 1)
    await send(log, 0, b"x")
    slices = window_slices(log.state, log.appender.synced_lsn, 1)
    assert len(next(slices)) > 0, "the windows of the other producer are written"
    for first in range(1, 2 + limits.PRODUCER_WINDOW_BATCHES):
        await send(log, first, b"x")
    assert len(next(slices)) > 0
    slices.close()
    await send(log, 2 + limits.PRODUCER_WINDOW_BATCHES, b"x")
    _, (_, _, window) = log.state.producers.windows()
    assert len(window.sent) == limits.PRODUCER_WINDOW_BATCHES, "a window is not longer"


async def test_hazard_07_the_batch_after_a_failed_first_one_is_not_the_first_of_its_epoch() -> None:
    machine, sink = Machine(), HeldSink()
    log = await machine.start(sink=sink)
    log.state.producers.open(PRODUCER, 1)
    stored = log.submit([batch(log, A, b"0", numbering=numbered(0))])
    await turn(log, sink)
    assert stored.done()
    log.state.producers.open(PRODUCER, 2)
    lost = log.submit([batch(log, A, b"1", numbering=numbered(1, 2))])
    await settle()
    machine.disk.fail("write", errno.EIO)
    await turn(log, sink)
    assert isinstance(lost.exception(), errors.OutcomeUnknown)
    assert log.state.producers.last_sequence(A, PRODUCER) == 0
    behind = log.submit([batch(log, A, b"2", numbering=numbered(2, 2))])
    await turn(log, sink)
    assert isinstance(behind.result()[0], errors.OutOfOrderSequence)
    again = [log.submit([batch(log, A, b"%d" % first, numbering=numbered(first, 2))]) for first in (1, 2)]
    await turn(log, sink)
    assert [answer.result()[0].base_offset for answer in again] == [1, 2]  # type: ignore[union-attr]


SECOND = ShardKey(1, 1)


async def test_hazard_07_an_older_epoch_is_refused_in_every_shard_also_after_a_restart() -> None:
    """Epoch 2 has sent in one shard only; epoch 1 is fenced in the other one too."""
    machine = Machine()
    log = await machine.start()
    log.state.producers.open(PRODUCER, 1)
    for key in (A, SECOND):
        await send(log, 0, b"x", key)
    log.state.producers.open(PRODUCER, 2)
    await send(log, 0, b"y", A, 2)
    for end in (None, machine.kill, machine.power_loss):
        if end is not None:
            await end()
            log = await machine.start()
        assert isinstance(await send(log, 1, b"zombie", SECOND, 1), errors.ProducerFenced)
    assert await messages(log, SECOND) == {0: b"x"}


@pytest.mark.parametrize("restarts", [False, True])
async def test_hazard_07_a_forgotten_epoch_is_not_opened_again(restarts: bool) -> None:
    """Retries of a forgotten epoch could not be told from new messages, so the producer needs a new epoch."""
    machine = Machine()
    log = await machine.start()
    log.state.producers.open(PRODUCER, 3)
    await send(log, 0, b"once", epoch=3)
    machine.clock.advance(limits.PRODUCER_AGE_SECONDS_DEFAULT + 60)
    await log.checkpoint()
    if restarts:
        await log.advance_floor({A: 1})
        await log.close()
        log = await machine.start()
    for epoch in (1, 3):
        with pytest.raises(errors.ProducerFenced):
            log.state.producers.open(PRODUCER, epoch)
    assert isinstance(await send(log, 0, b"once", epoch=3), errors.UnknownProducer)
    log.state.producers.open(PRODUCER, 4)
    assert isinstance(await send(log, 0, b"other", epoch=4), Placed)
