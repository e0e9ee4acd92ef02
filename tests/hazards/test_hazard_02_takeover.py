"""Hazard 2, the log's part: the format holds what a re-appended tail needs. The takeover waits for the cluster."""

from __future__ import annotations

import pytest

from icestream.model import ShardKey, envelope
from icestream.model.block import ConstantColumn, Numbering, encode_block, iter_blocks
from icestream.model.shard import DeclaredGap, GapState
from icestream.wal.format import SectionKind
from icestream.wal.producer_sequences import Duplicate
from tests.support.machine import A, Machine, publish

pytestmark = pytest.mark.asyncio


async def test_hazard_02_the_origin_of_a_message_is_kept_with_it() -> None:
    machine = Machine()
    log = await machine.start()
    log.state.producers.open(9, 3)
    numbering = Numbering(9, 3, 40)
    columns = {
        envelope.PAYLOAD: [b"x", b"y"],
        envelope.ORIGIN_EPOCH: ConstantColumn(7),
        envelope.ORIGIN_OFFSET: [1500, 1501],
    }
    await log.append([log.batch(log.shard(*A), encode_block(2, columns, numbering))])
    await publish(log, A, b"an ordinary one")
    for end in (machine.kill, machine.power_loss):
        await end()
        log = await machine.start()
        result = await log.reader.read(A, 0)
        first, second = [block for section in result.sections for block in iter_blocks(section.body)]
        assert first.values(envelope.ORIGIN_EPOCH) == [7, 7]
        assert first.values(envelope.ORIGIN_OFFSET) == [1500, 1501]
        assert first.numbering == numbering, "the original producer and sequence go with it"
        assert second.values(envelope.ORIGIN_OFFSET) == [None]
    assert log.state.producers.check(A, numbering, 2) == Duplicate(0, 1), "a producer that resends it is answered"


async def test_hazard_02_the_state_of_a_takeover_gap_survives_in_checkpoint_and_log() -> None:
    machine = Machine()
    log = await machine.start()
    await publish(log, A, b"before the takeover")
    pending = DeclaredGap(A, 1, 1000, 2, "owner lost", GapState.PENDING)
    log.appender.declare_gaps([pending], machine.clock.wall_us())
    assert await publish(log, A, b"after it") == 1000
    await machine.kill()
    log = await machine.start()
    assert log.gaps(A) == [pending], "from the log"
    await log.checkpoint()
    await machine.kill()
    log = await machine.start()
    assert log.gaps(A) == [pending], "from the checkpoint"
    assert (await log.reader.read(A, 5)).gaps == [pending]


async def test_hazard_02_origin_is_the_logs_own_and_never_a_column_of_the_table() -> None:
    assert not envelope.ORIGIN_EPOCH.in_table
    assert not envelope.ORIGIN_OFFSET.in_table
    assert SectionKind.REAPPEND == 7, "the kind of the progress notes is kept for them"
    assert isinstance(A, ShardKey)
