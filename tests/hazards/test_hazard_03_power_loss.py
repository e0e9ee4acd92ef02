"""Hazard 3: power loss in every mode, with a reader ahead of the disk and a cursor store that never passes synced."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence

import pytest

from icestream import errors
from icestream.model import ShardKey, SyncMode
from icestream.model.shard import GapState
from icestream.runtime.files import File
from icestream.wal.appender import Placed, PlannedWrite
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.machine import TOPICS, A, B, Machine, batch, messages, publish, turn, undeclared
from tests.support.stepped_sink import SteppedSink

pytestmark = pytest.mark.asyncio
MODES = pytest.mark.parametrize("mode", list(SyncMode))


class World:
    """Everybody outside the log: producers, a reader, a cursor store, a committed table."""

    def __init__(self) -> None:
        self.sent = 0
        self.seen: dict[tuple[ShardKey, int], bytes] = {}
        self.acked: dict[tuple[ShardKey, int], bytes] = {}
        self.cursors: dict[ShardKey, int] = {}
        self.waiting: list[tuple[ShardKey, bytes, asyncio.Future[list[object]]]] = []

    def send(self, log: WriteAheadLog, key: ShardKey, size: int) -> None:
        payload = b"%d." % self.sent + bytes(size)
        self.sent += 1
        self.waiting.append((key, payload, log.submit([batch(log, key, payload)])))

    def collect(self) -> None:
        for key, payload, answer in [one for one in self.waiting if one[2].done()]:
            (placed,) = answer.result()
            assert isinstance(placed, Placed)
            self.see(key, placed.base_offset, payload)
            self.acked[key, placed.base_offset] = payload
        self.waiting = [one for one in self.waiting if not one[2].done()]

    def see(self, key: ShardKey, offset: int, payload: bytes) -> None:
        known = self.seen.setdefault((key, offset), payload)
        assert known == payload, f"offset {offset} of {key} was seen with two payloads"

    async def read(self, log: WriteAheadLog) -> None:
        """A reader that is never behind what it may see."""
        for key in log.state.shards:
            for offset, payload in (await messages(log, key)).items():
                self.see(key, offset, payload)

    def store(self, log: WriteAheadLog) -> None:
        for key, shard in log.state.shards.items():
            self.cursors[key] = max(self.cursors.get(key, 0), shard.synced)

    def forget_what_was_never_promised(self, log: WriteAheadLog) -> None:
        self.acked = {
            (key, offset): payload
            for (key, offset), payload in self.acked.items()
            if offset < log.state.shards[key].synced
        }


class HoldingSink(SteppedSink):
    """Works at once until it is told to hold: a start that declares a gap waits for the disk."""

    holds = False

    def submit(self, writes: Sequence[PlannedWrite], files: Mapping[int, File]) -> bool:
        super().submit(writes, files)
        while not self.holds and self.step():
            pass
        return not self.holds


@MODES
@pytest.mark.parametrize("seed", range(6))
async def test_hazard_03_after_power_loss_no_offset_is_reused_and_nothing_is_skipped(mode: SyncMode, seed: int) -> None:
    chance = random.Random(seed)
    machine, world = Machine(seed, mode), World()
    for _ in range(4):
        sink = HoldingSink()
        log = await machine.start(world.cursors, sink)
        sink.holds = True
        await check_start(log, world)
        for _ in range(chance.randrange(5, 40)):
            world.send(log, chance.choice((A, B)), chance.randrange(3000))
            await turn(log, sink, chance.randrange(4))
            world.collect()
            if chance.random() < 0.3:
                await world.read(log)
            if chance.random() < 0.1:
                world.store(log)
            if chance.random() < 0.1:
                machine.clock.advance(1.0)
        world.collect()
        if mode is not SyncMode.ALWAYS:
            world.forget_what_was_never_promised(log)
        world.waiting.clear()
        await machine.power_loss()
    log = await machine.start(world.cursors)
    await check_start(log, world)
    await log.sync()
    await log.advance_floor({key: shard.synced for key, shard in log.state.shards.items()})


async def check_start(log: WriteAheadLog, world: World) -> None:
    for key, shard in log.state.shards.items():
        found = await messages(log, key)
        for offset, payload in found.items():
            world.see(key, offset, payload)
        lost = [at for (where, at), payload in world.acked.items() if where == key and found.get(at) != payload]
        assert not lost, f"{key}: acked and synced, gone now: {lost}"
        assert undeclared(log, key, found) == []
        highest = max((offset for where, offset in world.seen if where == key), default=-1)
        assert shard.assigned > highest, "the next message would get an offset that a reader has passed"
        assert shard.assigned >= world.cursors.get(key, 0)


@MODES
async def test_hazard_03_kill_loses_no_ack_in_any_mode(mode: SyncMode) -> None:
    machine = Machine(mode=mode)
    log = await machine.start()
    stored = {await publish(log, A, b"%d" % number): b"%d" % number for number in range(20)}
    await machine.kill()
    assert await messages(await machine.start(), A) == stored


@MODES
async def test_hazard_03_a_stored_position_beyond_the_log_stops_the_start(mode: SyncMode) -> None:
    machine = Machine(mode=mode)
    log = await machine.start()
    await publish(log, A, b"one")
    beyond = max(log.shard(*A).reserved, log.shard(*A).synced) + 1
    await machine.kill()
    before = {name: machine.disk.content(name) for name in machine.disk.names()}
    with pytest.raises(errors.LogDamaged, match=rf"offset {beyond} is known to have been synced.*wal repair"):
        await machine.start({A: beyond})
    await machine.kill()
    assert {name: machine.disk.content(name) for name in machine.disk.names()} == before
    assert (await machine.start({A: 1})).shard(*A).assigned >= 1


async def test_hazard_03_a_new_log_goes_on_behind_positions_of_topics_it_never_saw() -> None:
    """The disk was replaced; the table and the cursors know the shard, the log not even its topic."""
    machine = Machine()
    log = await machine.start(positions={A: 500})
    assert log.shard(*A).topic == TOPICS[0], "the real name takes the place of the stand-in"
    assert await publish(log, A, b"x") == 500
    await machine.power_loss()
    log = await machine.start(positions={A: 500})
    assert await messages(log, A) == {500: b"x"}
    assert [(gap.start, gap.end, gap.state) for gap in log.gaps(A)] == [(0, 500, GapState.LOST)]
