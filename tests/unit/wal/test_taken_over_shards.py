"""Shards that another node served before continue after a gap, after any end of the process (item 21)."""

from __future__ import annotations

import pytest

from icestream.model.shard import DeclaredGap, GapState, ShardKey, TopicIdentity
from icestream.model.sync_mode import SyncMode
from tests.support.machine import Machine, messages, publish

pytestmark = pytest.mark.asyncio
TOPIC = TopicIdentity(77, "/default/taken", 77)
KEY = ShardKey(77, 0)
GAP = DeclaredGap(KEY, 1_000, 2**40, 0, "taken over from node b, which was removed", GapState.LOST)


@pytest.mark.parametrize("mode", list(SyncMode))
@pytest.mark.parametrize("with_checkpoint", [False, True])
async def test_a_taken_over_shard_continues_after_its_gap(mode: SyncMode, with_checkpoint: bool) -> None:
    machine = Machine(mode=mode)
    log = await machine.start()
    log.declare_topic(TOPIC)
    assert log.state.begin_behind([GAP]) == [GAP]
    await log.write_gaps([GAP])
    assert log.state.begin_behind([GAP]) == [], "it is there"
    assert await publish(log, KEY, b"first") == GAP.end
    if with_checkpoint:
        await log.checkpoint()
    await log.sync()
    await machine.power_loss()
    log = await machine.start({KEY: GAP.start})
    shard = log.state.shards[KEY]
    assert (shard.floor, log.gaps(KEY)[0]) == (GAP.start, GAP)
    assert await messages(log, KEY, GAP.start) == {GAP.end: b"first"}
    assert await publish(log, KEY, b"second") > GAP.end
    await machine.kill()
