"""Hazard 3: power loss in every mode, with a reader ahead of the disk and a cursor store that never passes synced."""

from __future__ import annotations

import asyncio
import random

import pytest

from icestream import errors
from icestream.model import ShardKey, SyncMode
from icestream.model.shard import GapState
from icestream.wal.appender import Placed
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.held_sink import HeldSink
from tests.support.machine import TOPICS, A, B, Machine, batch, messages, publish, turn, undeclared

pytestmark = pytest.mark.asyncio
MODES = pytest.mark.parametrize("mode", list(SyncMode))


class PowerLossModel:
    """All that is outside the log: producers, a reader, a cursor store, a committed table."""

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
        for key, payload, answer in [request for request in self.waiting if request[2].done()]:
            (placed,) = answer.result()
            assert isinstance(placed, Placed)
            self.see(key, placed.base_offset, payload)
            self.acked[key, placed.base_offset] = payload
        self.waiting = [request for request in self.waiting if not request[2].done()]

    def see(self, key: ShardKey, offset: int, payload: bytes) -> None:
        first_payload = self.seen.setdefault((key, offset), payload)
        assert first_payload == payload, f"offset {offset} of {key} was seen with two payloads"

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


@MODES
@pytest.mark.parametrize("seed", range(6))
async def test_hazard_03_after_power_loss_no_offset_is_reused_or_skipped(mode: SyncMode, seed: int) -> None:
    chance = random.Random(seed)
    machine, world = Machine(seed, mode), PowerLossModel()
    for _ in range(4):
        sink = HeldSink(held=False)
        log = await machine.start(world.cursors, sink)
        sink.is_held = True
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


async def check_start(log: WriteAheadLog, world: PowerLossModel) -> None:
    for key, shard in log.state.shards.items():
        stored = await messages(log, key)
        for offset, payload in stored.items():
            world.see(key, offset, payload)
        lost = [at for (where, at), payload in world.acked.items() if where == key and stored.get(at) != payload]
        assert not lost, f"{key}: acked and synced, gone now: {lost}"
        assert undeclared(log, key, stored) == []
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


async def test_hazard_03_a_new_log_continues_after_positions_of_unknown_topics() -> None:
    """The disk was replaced; the table and the cursors know the shard, the log not even its topic."""
    machine = Machine()
    log = await machine.start(positions={A: 500})
    assert log.shard(*A).topic == TOPICS[0], "the real name takes the place of the stand-in"
    assert await publish(log, A, b"x") == 500
    await machine.power_loss()
    log = await machine.start(positions={A: 500})
    assert await messages(log, A) == {500: b"x"}
    assert [(gap.start, gap.end, gap.state) for gap in log.gaps(A)] == [(0, 500, GapState.LOST)]
