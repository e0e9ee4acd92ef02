"""Ticks come in time, as many as time asks for, and a quiet follower sleeps through those that change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.metadata.node import NodeWaiters
from icestream.metadata.raft_core import has_raft_core
from icestream.metadata.ticker import Ticker
from icestream.runtime.clock import SimulatedClock
from tests.support.node_group import NodeGroup

pytestmark = pytest.mark.asyncio
TICK = limits.METADATA_TICK_SECONDS
STEP = TICK / 10


class TickCountingNode:
    """A node that counts its ticks."""

    def __init__(self, clock: SimulatedClock) -> None:
        self.clock = clock
        self.heard_ns = self.applied_ns = 0
        self.is_quiet = self.leads = False
        self.ticked: list[float] = []
        self.woken: list[bool] = []  # for each sleep of a follower; False: by its alarm
        self.waiters = NodeWaiters(clock)

    def tick(self, ticks: int = 1) -> None:
        self.ticked += [round(self.clock.monotonic_ns() / 1e9 / TICK, 1)] * ticks

    async def until(self, is_reached: Callable[[], bool], seconds: float | None = None) -> bool:
        self.woken.append(await self.waiters.until(is_reached, seconds))
        return self.woken[-1]


class TickerHarness:
    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.node = TickCountingNode(self.clock)
        self.ticker = Ticker(self.clock, self.node)
        self.task = asyncio.ensure_future(self.ticker.run())

    async def ticks(self, count: float, *, heard_every: float = 0.0) -> None:
        """Advances the clock by so many ticks."""
        for step in range(1, round(count * 10) + 1):
            self.clock.advance(STEP)
            if heard_every and step % round(heard_every * 10) == 0:
                self.node.heard_ns = self.clock.monotonic_ns()
                self.node.waiters.check()
            for _ in range(5):
                await asyncio.sleep(0)


@pytest_asyncio.fixture
async def life() -> AsyncIterator[TickerHarness]:
    harness = TickerHarness()
    await asyncio.sleep(0)
    yield harness
    harness.task.cancel()
    await asyncio.gather(harness.task, return_exceptions=True)


async def test_a_leader_or_candidate_makes_every_tick_in_time(life: TickerHarness) -> None:
    await life.ticks(7, heard_every=0.3)
    assert life.node.ticked == [1, 2, 3, 4, 5, 6, 7]


async def test_an_idle_leader_makes_four_ticks_at_a_time(life: TickerHarness) -> None:
    life.node.is_quiet = life.node.leads = True
    await life.ticks(24)
    assert life.node.ticked == [*range(1, 20), 20, 24, 24, 24, 24]
    life.node.applied_ns = life.clock.monotonic_ns()
    life.node.ticked.clear()
    await life.ticks(7)
    assert life.node.ticked == [28, 28, 28, 28, 29, 30, 31]


async def test_a_follower_that_hears_its_leader_has_no_ticks(life: TickerHarness) -> None:
    life.node.is_quiet = True
    await life.ticks(100, heard_every=1)
    assert life.node.ticked == [1.0]


async def test_the_alarm_of_a_follower_moves_with_each_heartbeat_and_never_fires(life: TickerHarness) -> None:
    life.node.is_quiet = True
    await life.ticks(100, heard_every=limits.METADATA_IDLE_HEARTBEAT_TICKS)
    assert life.node.woken == [True] * 25
    assert life.node.ticked == [1.0]


async def test_the_alarm_does_not_move_with_each_message_of_a_busy_leader(life: TickerHarness) -> None:
    life.node.is_quiet = True
    await life.ticks(60, heard_every=0.1)
    assert len(life.node.woken) <= 60 / (limits.METADATA_IDLE_HEARTBEAT_TICKS - 1)
    assert life.node.ticked == [1.0]


async def test_a_silent_leader_is_detected_as_if_every_tick_had_been_made(life: TickerHarness) -> None:
    """Whenever it was heard last, an election of 10 ticks comes 10 to 11 ticks later."""
    life.node.is_quiet = True
    for silent_from in range(30, 50):
        await life.ticks(silent_from / 10 + 3, heard_every=1)
        life.node.heard_ns = heard_ns = life.clock.monotonic_ns()
        life.node.ticked.clear()
        while len(life.node.ticked) < 10:
            await life.ticks(0.1)
        since = (life.clock.monotonic_ns() - heard_ns) / 1e9 / TICK
        assert 9 <= since <= 11.1


async def test_a_follower_that_becomes_leader_while_asleep_ticks_immediately(life: TickerHarness) -> None:
    life.node.is_quiet = True
    await life.ticks(3, heard_every=1)
    life.node.leads = True
    life.node.applied_ns = life.clock.monotonic_ns()
    life.node.waiters.check()
    life.node.ticked.clear()
    await life.ticks(4, heard_every=1)
    assert len(life.node.ticked) == 4


async def test_a_tick_that_has_just_begun_at_wake_up_is_not_late(life: TickerHarness) -> None:
    life.node.is_quiet = True
    await life.ticks(3, heard_every=1)
    before = life.ticker.drift_seconds_max
    await life.ticks(0.5)
    life.node.is_quiet = False
    life.node.waiters.check()
    await life.ticks(0.1)
    assert life.ticker.drift_seconds_max == before


async def test_rule_8_late_ticks_are_counted_and_not_made_up_for(life: TickerHarness) -> None:
    await life.ticks(3)
    assert (life.ticker.late_ticks, len(life.node.ticked)) == (0, 3)
    life.clock.advance(TICK * limits.METADATA_ELECTION_TICKS)  # the process stood still
    await life.ticks(0.1)
    assert life.ticker.late_ticks == 1
    assert life.ticker.drift_seconds_max == pytest.approx(TICK * (limits.METADATA_ELECTION_TICKS - 0.9))
    assert len(life.node.ticked) == 4
    await life.ticks(1)
    assert len(life.node.ticked) == 5


async def test_a_follower_that_stood_still_does_not_count_that_as_silence_of_its_leader(life: TickerHarness) -> None:
    life.node.is_quiet = True
    await life.ticks(3, heard_every=1)
    life.node.ticked.clear()
    life.clock.advance(10.0)
    await life.ticks(0.1)
    assert len(life.node.ticked) <= limits.METADATA_QUIET_TICKS < limits.METADATA_ELECTION_TICKS


async def test_a_follower_never_sleeps_through_an_election_nor_wakes_before_a_heartbeat_is_missing() -> None:
    heartbeat = limits.METADATA_IDLE_HEARTBEAT_TICKS
    assert heartbeat + 1 < limits.METADATA_QUIET_TICKS < limits.METADATA_ELECTION_TICKS
    assert 2 * heartbeat < limits.METADATA_ELECTION_TICKS


async def test_it_ends_with_the_node(life: TickerHarness) -> None:
    life.node.is_quiet = True
    await life.ticks(3, heard_every=1)
    life.node.waiters.end(errors.LogClosed("closed"))
    await asyncio.wait_for(life.task, 5)
    assert life.task.exception() is None


@pytest.mark.skipif(not has_raft_core(), reason="several voters need the native part")
async def test_nodes_sleep_while_their_leader_is_alive_and_replace_it_in_time() -> None:
    group = await NodeGroup.form(3)
    for store in group.stores.values():
        store.node.tasks.start(Ticker(group.clock, store.node).run(), "ticks")
    term = group.led.node._term

    async def ticks(count: int) -> None:
        for _ in range(count * 5):
            group.clock.advance(TICK / 5)
            for _ in range(3):
                await group.turn()

    await ticks(200)
    assert group.led.node._term == term, "no node held an election"
    await group.kill(group.led.node.id)
    await ticks(2 * limits.METADATA_ELECTION_TICKS + 3)
    assert group.leader is not None
    await group.close()
