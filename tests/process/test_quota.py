"""A quota that is reached: a refusal that names the quota, for the topics concerned, until there is room again (16)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from icestream import errors
from icestream.limits import CHECKPOINT_EVERY_BYTES, MIB
from icestream.model import envelope
from icestream.model.block import Numbering, encode_block
from icestream.model.shard import TopicIdentity
from icestream.model.sync_mode import SyncMode
from icestream.wal.log_options import LogOptions
from icestream.wal.open_log import open_log
from tests.support.acked_messages import AckedMessages


def options(mode: SyncMode, **more: int) -> LogOptions:
    return LogOptions(mode=mode, **({"file_bytes": MIB, "quota_bytes": 12 * MIB, "spare_files": 1} | more))


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", list(SyncMode))
@pytest.mark.parametrize("checkpoint_every_bytes", [2 * MIB, CHECKPOINT_EVERY_BYTES])
async def test_hazard_16_at_the_node_quota_all_are_refused_until_the_floor_moves(
    tmp_path: Path, mode: SyncMode, checkpoint_every_bytes: int
) -> None:
    chosen = options(mode, topic_quota_bytes=12 * MIB, checkpoint_every_bytes=checkpoint_every_bytes)
    log = await open_log(tmp_path, chosen)
    keeper, other = AckedMessages(log), AckedMessages(log, topic_id=2)
    refusal = await keeper.fill()
    assert isinstance(refusal, errors.NodeQuotaReached), repr(refusal)
    assert "storage.iceberg_config.wal.quota" in refusal.hint
    with pytest.raises(errors.NodeQuotaReached):
        await other.send()
    await keeper.check()

    floor = len(keeper.acked) * 3 // 4
    await keeper.drain(floor)
    for _ in range(50):
        await keeper.send()
        await other.send()
    await log.close()
    for traffic in (keeper, other):
        traffic.attach(await open_log(tmp_path, chosen)) if traffic is keeper else traffic.attach(keeper.log)
    await keeper.check(floor)
    await other.check()
    await keeper.log.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", list(SyncMode))
async def test_hazard_16_a_topic_at_its_quota_is_refused_while_others_continue(tmp_path: Path, mode: SyncMode) -> None:
    chosen = options(mode, quota_bytes=40 * MIB, topic_quota_bytes=6 * MIB, checkpoint_every_bytes=2 * MIB)
    log = await open_log(tmp_path, chosen)
    keeper, other = AckedMessages(log), AckedMessages(log, topic_id=2)
    refusal = await keeper.fill()
    assert isinstance(refusal, errors.TopicQuotaReached), repr(refusal)
    assert keeper.topic.name in str(refusal)
    assert "storage.iceberg_config.wal.topic_quota" in refusal.hint
    for _ in range(50):
        await other.send()

    await keeper.drain(len(keeper.acked))
    await other.drain(len(other.acked))
    await keeper.send()
    await log.close()
    log = await open_log(tmp_path, chosen)
    keeper.attach(log)
    other.attach(log)
    await keeper.check(len(keeper.acked) - 1)
    await other.check(len(other.acked))
    assert isinstance(await keeper.fill(), errors.TopicQuotaReached), "the quota does not count after a start"
    await log.close()


@pytest.mark.asyncio
async def test_hazard_16_a_floor_advanced_during_a_checkpoint_frees_space_too(tmp_path: Path) -> None:
    log = await open_log(tmp_path, options(SyncMode.ALWAYS, topic_quota_bytes=12 * MIB))
    keeper = AckedMessages(log)
    await keeper.fill()
    # as a file that is sealed starts one
    under_way = asyncio.create_task(log.checkpoint())
    await asyncio.sleep(0)
    await log.advance_floor({keeper.key: len(keeper.acked)})
    await under_way
    await keeper.send()
    await keeper.check(len(keeper.acked) - 1)
    await log.close()


@pytest.mark.asyncio
async def test_hazard_07_a_number_that_was_refused_is_never_answered_as_stored(tmp_path: Path) -> None:
    """The producer had sent the next number already, and there was room for that one."""
    log = await open_log(tmp_path, options(SyncMode.ALWAYS, topic_quota_bytes=12 * MIB, checkpoint_every_bytes=MIB))
    keeper = AckedMessages(log)
    await keeper.fill()
    log.declare_topic(TopicIdentity(2, "/default/numbered"))
    shard = log.shard(2, 0)
    log.state.producers.open(7, 1)
    first, second = (
        log.batch(shard, encode_block(1, {envelope.PAYLOAD: [bytes(size)]}, Numbering(7, 1, number)))
        for number, size in enumerate((60_000, 10))
    )
    with pytest.raises(errors.NodeQuotaReached):
        await log.submit([first])
    answers = await log.submit([second])
    await keeper.drain(len(keeper.acked))
    answers += await log.submit([first])
    acked = [answer for answer in answers if not isinstance(answer, errors.IcestreamError)]
    assert len(acked) == shard.assigned, f"{len(acked)} are acked, {shard.assigned} are stored: {answers}"
    await log.close()
