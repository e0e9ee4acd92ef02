"""A model of a topic with a retention: random publishes, looks, compactions, hours that pass, drivers that are killed.

The list of everything that was published, from the first kept offsets on, is what another reader finds in the table,
and what `verify` expects (`FaultWorld.check`). The first kept offsets only rise, and leave at least what is kept.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from icestream.model.backlog_messages import RetainedTopic
from icestream.pipeline.driver.effects import Effect, Fault
from tests.support.fault_world import FaultWorld
from tests.support.interruptible_driver import DriverKilled
from tests.support.merge_job import add_merge

pytestmark = pytest.mark.asyncio
STEPS, AGE_MS = 18, 6 * 3_600_000


def kept_rows(world: FaultWorld, first: dict[int, int]) -> int:
    shards = {key.shard: offsets for key, offsets in world.published.items() if key.topic_id == 1}
    return sum(offset >= first.get(shard, 0) for shard, offsets in shards.items() for offset in offsets)


@pytest.mark.parametrize("seed", range(3))
async def test_a_table_is_the_list_from_the_first_kept_offsets_on(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    world = await FaultWorld.open(tmp_path)
    kept = RetainedTopic(1, "/default/t1", messages_max=20, age_ms=AGE_MS if seed % 2 else 0)
    world.retained = [kept]
    driver = world.driver()
    first: dict[int, int] = {}
    for _ in range(STEPS):
        step = chance.choice(["publish", "publish", "look", "look", "merge", "hours", "kill"])
        if step == "publish":
            await world.publish_some()
        elif step == "hours":
            world.clock.advance(chance.choice([1, 5]) * 3_600)
        elif step == "kill":
            await driver.end()
            fault = Fault(chance.random() < 0.5, chance.choice([Effect.COMMIT, Effect.LOOK_AGAIN, Effect.NOTE]))
            driver = world.driver(fault)
        if step == "merge" and world.published:
            add_merge(world, driver)
        world.clock.advance(61)
        try:
            await world.drain(driver)
            await driver.driver.turn()
        except DriverKilled:
            await driver.end()
            driver = world.driver()
        risen = await world.first(1)
        assert all(offset >= first.get(shard, 0) for shard, offset in risen.items())
        if risen != first and not kept.age_ms:
            assert kept_rows(world, risen) >= kept.messages_max
        first = risen
    await driver.end()
    await world.drain(world.driver())
    await world.check()
    assert first, "the retention has removed something"
    await world.close()
