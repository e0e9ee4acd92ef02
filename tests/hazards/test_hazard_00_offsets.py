"""Hazard 0: committed <= synced <= written <= assigned <= reserved, and nothing durable elsewhere passes synced."""

from __future__ import annotations

import random

import pytest

from icestream import errors
from icestream.model import SyncMode
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.held_sink import HeldSink
from tests.support.machine import A, B, Machine, batch, messages, publish, settle, turn, undeclared

pytestmark = pytest.mark.asyncio
MODES = pytest.mark.parametrize("mode", list(SyncMode))


def check_order(log: WriteAheadLog) -> None:
    for shard in log.state.shards.values():
        assert shard.floor <= shard.synced <= shard.written <= shard.assigned
        if log.appender.mode is not SyncMode.ALWAYS:
            assert shard.written <= shard.reserved, "a reader may see an offset that no promise on disk covers"
            assert shard.assigned <= shard.reserve_pending


@MODES
@pytest.mark.parametrize("seed", range(4))
async def test_hazard_00_offset_marks_stay_ordered_at_every_step_of_the_disk(mode: SyncMode, seed: int) -> None:
    chance = random.Random(seed)
    machine, sink = Machine(seed, mode), HeldSink()
    log = await machine.start(sink=sink)
    for number in range(60):
        log.submit([batch(log, key, b"%d" % number, bytes(chance.randrange(4000))) for key in (A, B)])
        for _ in range(chance.randrange(4)):
            await turn(log, sink, 1)
            check_order(log)
        if number % 7 == 0:
            machine.clock.advance(1.0)
            await settle()
        if number % 10 == 9:
            await log.advance_floor({A: log.shard(*A).synced})
        check_order(log)
    await turn(log, sink)
    check_order(log)
    assert log.shard(*A).written == log.shard(*A).assigned == 120
    assert log.shard(*A).floor > 0


@MODES
async def test_hazard_00_ack_and_delivery_happen_together_and_not_before_the_release(mode: SyncMode) -> None:
    machine, sink = Machine(mode=mode), HeldSink()
    log = await machine.start(sink=sink)
    first = log.submit([batch(log, A, b"first")])
    await settle()
    assert not first.done()
    await turn(log, sink, 1)
    assert not first.done(), "in `always` it is not synced; in the others its promise is not"
    assert await messages(log, A, 0) == {}
    await turn(log, sink, 1)
    assert first.done()
    assert await messages(log, A, 0) == {0: b"first"}

    second = log.submit([batch(log, A, b"second")])
    await turn(log, sink, 1)
    released_by_write = mode is not SyncMode.ALWAYS
    assert second.done() == released_by_write
    assert (1 in await messages(log, A, 0)) == released_by_write
    assert log.shard(*A).synced == 1, "written is not synced"
    await turn(log, sink)
    assert second.done()


@MODES
async def test_hazard_00_a_floor_beyond_synced_is_refused(mode: SyncMode) -> None:
    machine, sink = Machine(mode=mode), HeldSink()
    log = await machine.start(sink=sink)
    log.submit([batch(log, A, b"one")])
    await turn(log, sink)
    log.submit([batch(log, A, b"two")])
    await turn(log, sink, 1)
    with pytest.raises(errors.InvalidInput, match="beyond its synced offset 1"):
        await log.advance_floor({A: 2})
    assert log.shard(*A).floor == 0
    await log.advance_floor({A: 1})
    assert log.shard(*A).floor == 1


@pytest.mark.parametrize("mode", [SyncMode.PERIODIC, SyncMode.NONE])
async def test_hazard_00_offsets_that_must_not_be_reused_are_a_declared_gap_that_readers_skip(
    mode: SyncMode,
) -> None:
    machine = Machine(mode=mode)
    log = await machine.start()
    await publish(log, A, b"before")
    promised = log.shard(*A).reserved
    await machine.kill()

    log = await machine.start()
    (gap,) = log.gaps(A)
    assert (gap.start, gap.end, gap.reason) == (1, promised, "unclean stop")
    assert log.report.gaps == [gap]
    assert await publish(log, A, b"after") == promised
    result = await log.reader.read(A, 1)
    assert (result.gaps, result.next_offset) == ([gap], promised + 1)
    assert await messages(log, A) == {0: b"before", promised: b"after"}
    assert undeclared(log, A, await messages(log, A)) == []

    await log.close()
    log = await machine.start()
    assert log.gaps(A) == [gap], "a stop in order makes no further gap, and forgets none"


@pytest.mark.parametrize("mode", [SyncMode.PERIODIC, SyncMode.NONE])
async def test_hazard_00_a_shard_without_appends_since_the_last_start_gets_no_further_gap(mode: SyncMode) -> None:
    """Otherwise every unclean stop of a node would cost every shard that it ever had a million numbers."""
    machine = Machine(mode=mode)
    log = await machine.start()
    await publish(log, A, b"first")
    await machine.kill()
    log = await machine.start()
    (gap,) = log.report.gaps
    assert (gap.start, gap.end) == (1, log.shard(*A).assigned)
    for _ in range(2):
        await machine.power_loss()
        log = await machine.start()
        assert log.report.gaps == []
        assert log.gaps(A) == [gap]
    assert await publish(log, A, b"second") == gap.end
    await machine.kill()
    log = await machine.start()
    assert log.report.gaps != [], "a reader may have seen the lost offsets"
