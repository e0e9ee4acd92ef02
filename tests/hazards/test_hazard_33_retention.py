"""Hazard 33: old messages are dropped only where a retention says so, and then as a declared gap that readers are told
of. Hazard 32: a clock that is wrong does not drop everything."""

from __future__ import annotations

import itertools

import pytest

from icestream import errors, limits
from icestream.broker.service import Broker
from icestream.model import GapState, ShardKey, SyncMode
from icestream.model.topic_policies import PolicyValues
from icestream.wal.retention import Retention
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support import broker_machine
from tests.support.broker_machine import TOPIC, BrokerMachine, quiet, subscribe
from tests.support.machine import A, B, Machine, batch, messages, publish, settle

pytestmark = pytest.mark.asyncio


async def fill(log: WriteAheadLog, count: int, key: ShardKey = A) -> None:
    for _ in range(count):
        await log.submit([batch(log, key, bytes(6000))])


async def pass_time(machine: Machine, seconds: float) -> None:
    """Advances the clock and lets every sleeping task finish its work."""
    await settle()
    machine.clock.advance(seconds)
    for _ in range(5):
        await settle()


async def test_hazard_33_without_retention_the_log_refuses_at_its_quota_and_drops_nothing() -> None:
    machine = Machine(quota_bytes=400_000, topic_quota_bytes=400_000)
    log = await machine.start()
    with pytest.raises(errors.Refused):
        await fill(log, 1000)
    await pass_time(machine, 10 * 365 * 86400)
    assert sorted(await messages(log, A)) == list(range(log.shard(*A).assigned))
    assert log.gaps(A) == []


async def test_hazard_33_retention_by_size_keeps_a_log_writable_forever() -> None:
    machine = Machine(quota_bytes=600_000, topic_quota_bytes=600_000)
    log = await machine.start()
    log.retention_job.set_retention(1, 1, Retention(bytes_max=150_000))
    for _ in range(300):  # three times the quota passes through
        await fill(log, 1)
        await settle()
    (gap,) = log.gaps(A)
    assert (gap.start, gap.reason, gap.state) == (0, "dropped by retention", GapState.DROPPED)
    stored = await messages(log, A)
    assert sorted(stored) == list(range(gap.end, 300))
    assert 150_000 <= sum(map(len, stored.values())) < 150_000 + 2 * machine.options.file_bytes
    assert log.lifecycle.used_bytes < 300_000


async def test_hazard_33_readers_of_messages_dropped_by_retention_get_the_gap() -> None:
    machine = Machine()
    log = await machine.start()
    await fill(log, 60)
    log.retention_job.set_retention(1, 1, Retention(bytes_max=100_000))
    pin = log.lifecycle.pins.pin(log.lifecycle.files[0].number)
    await log.retention_job.step()
    assert log.lifecycle.files[0].number == pin.number, "the pinned bytes are still there"
    (gap,) = log.gaps(A)
    assert log.reader.earliest(A) == gap.end
    read = await log.reader.read(A, 3)
    assert (read.gaps, read.sections[0].base_offset) == ([gap], gap.end)
    beyond = await log.reader.read(A, gap.end)
    assert (beyond.gaps, beyond.sections[0].base_offset) == ([], gap.end)


async def test_hazard_33_retention_by_age_drops_old_messages_while_idle() -> None:
    machine = Machine(retention_step_percent=100)
    log = await machine.start()
    await fill(log, 30)
    machine.clock.advance(100)
    log.retention_job.set_retention(1, 1, Retention(age_max_us=150_000_000))
    await fill(log, 30)
    for _ in range(2):
        await pass_time(machine, limits.RETENTION_STEP_SECONDS)
    (gap,) = log.gaps(A)
    assert 15 < gap.end <= 30, "only files in which everything is too old"
    assert sorted(await messages(log, A)) == list(range(gap.end, 60))


async def test_hazard_32_a_clock_jump_drops_nothing_and_a_start_with_a_wrong_clock_at_most_a_share() -> None:
    machine = Machine()
    log = await machine.start()
    log.retention_job.set_retention(1, 1, Retention(age_max_us=3600 * 1_000_000))
    await fill(log, 60)
    machine.clock.step(365 * 86400)
    for _ in range(3):
        await pass_time(machine, limits.RETENTION_STEP_SECONDS)
    assert log.gaps(A) == []

    await machine.kill()
    log = await machine.start()
    log.retention_job.set_retention(1, 1, Retention(age_max_us=3600 * 1_000_000))
    await pass_time(machine, limits.RETENTION_STEP_SECONDS)
    (gap,) = log.gaps(A)
    assert 0 < gap.end <= 30


async def test_hazard_33_a_retention_touches_no_other_topic() -> None:
    machine = Machine()
    log = await machine.start()
    for _ in range(30):
        await fill(log, 1, A)
        await fill(log, 1, B)
    log.retention_job.set_retention(1, 1, Retention(bytes_max=1))
    await log.retention_job.step()
    assert log.gaps(A) != []
    assert sorted(await messages(log, B)) == list(range(30))
    assert log.state.usage[1].held_bytes < log.state.usage[2].held_bytes
    log.retention_job.set_retention(1, 1, Retention())
    before = log.gaps(A)
    await fill(log, 30, A)
    await log.retention_job.step()
    assert log.gaps(A) == before, "taken back"


@pytest.mark.parametrize("power", [False, True])
async def test_hazard_33_a_crash_at_any_step_of_dropping_leaves_messages_or_a_gap(power: bool) -> None:
    for operations in itertools.count():
        machine = Machine(seed=operations)
        log = await machine.start()
        await fill(log, 60)
        log.retention_job.set_retention(1, 1, Retention(bytes_max=100_000))
        machine.disk.crash_after(operations)
        survived = await machine.survives(log.retention_job.step())
        await (machine.power_loss() if power else machine.kill())
        log = await machine.start()
        stored = await messages(log, A, 0)
        ends = {gap.start: gap.end for gap in log.gaps(A)}
        assert sorted(stored) == list(range(ends.get(0, 0), 60))
        assert await publish(log, A, b"next") == 60
        if survived:
            assert ends, "dropped messages stay dropped"
            break
        await machine.kill()
    assert operations > 5


async def test_hazard_33_the_gap_of_a_retention_outlives_restarts_and_grows() -> None:
    machine = Machine(mode=SyncMode.PERIODIC)
    ends = []
    for _ in range(3):
        log = await machine.start()
        log.retention_job.set_retention(1, 1, Retention(bytes_max=100_000))
        await fill(log, 60)
        await log.retention_job.step()
        dropped = [gap for gap in log.gaps(A) if gap.state is GapState.DROPPED]
        ends.append(max(gap.end for gap in dropped))
        stored = await messages(log, A, 0)
        assert all(any(gap.start <= at < gap.end for gap in log.gaps(A)) != (at in stored) for at in range(max(stored)))
        await machine.kill()
    assert ends == sorted(set(ends))


# --- subscriptions ----------------------------------------------------------------------------------------------------


async def publish_many(broker: Broker, count: int) -> None:
    producer = await broker.open_producer(TOPIC, "p")
    for number in range(count):
        await broker_machine.publish(broker, producer, b"%d " % number + bytes(6000))
    await quiet()


async def test_hazard_33_subscriptions_get_the_gap_and_continue_after_it() -> None:
    machine = BrokerMachine(tail_bytes=1)
    broker = await machine.open_broker()
    await publish_many(broker, 1)
    absent = await subscribe(broker, "absent", credit=0)
    absent.leave()
    slow = await subscribe(broker, "slow", credit=1)
    await quiet()
    assert slow.sink.offsets == [0]
    await broker.set_topic_policies(TOPIC, PolicyValues(retention_bytes=100_000))
    await publish_many(broker, 60)
    assert machine.log is not None
    (gap,) = machine.log.gaps(ShardKey(1, 0))
    assert gap.state is GapState.DROPPED

    slow.credit(1000)
    late = await subscribe(broker, "absent")
    new = await subscribe(broker, "new")
    await quiet()
    assert slow.sink.offsets == [0, *range(gap.end, 61)]
    assert late.sink.offsets == new.sink.offsets == [*range(gap.end, 61)]
    assert [gap_seen.end for gap_seen in slow.sink.gaps] == [gap_seen.end for gap_seen in late.sink.gaps] == [gap.end]
    assert new.sink.gaps == [], "a new subscription starts at the earliest stored message"
    slow.ack(*slow.sink.offsets)
    assert slow.subscription.delivery(0).dispatcher.acked.position == 61
    await broker.shutdown()


async def test_hazard_33_a_consumer_that_returns_after_restarts_gets_the_gap_too() -> None:
    """No consumer was there when the messages were dropped, nor at the start: the gap waits for the next one."""
    machine = BrokerMachine(tail_bytes=1)
    broker = await machine.open_broker()
    await publish_many(broker, 1)
    (await subscribe(broker, credit=0)).leave()
    await broker.set_topic_policies(TOPIC, PolicyValues(retention_bytes=100_000))
    await publish_many(broker, 60)
    for _ in range(2):
        await broker.shutdown()
        broker = await machine.open_broker()
        await machine.pass_time(30)
    back = await subscribe(broker)
    await quiet()
    (gap,) = back.sink.gaps
    assert back.sink.offsets == [*range(gap.end, 61)]
    assert back.subscription.delivery(0).lag == 61 - gap.end
    await broker.shutdown()


async def test_hazard_33_a_retention_is_a_policy_of_topic_or_namespace_and_survives_a_restart() -> None:
    machine = BrokerMachine()
    broker = await machine.open_broker()
    await broker.set_namespace_policies("default", PolicyValues(retention_bytes=100_000))
    await publish_many(broker, 60)
    assert machine.log is not None
    (first,) = machine.log.gaps(ShardKey(1, 0))
    await broker.shutdown()

    broker = await machine.open_broker()
    await publish_many(broker, 30)
    (second,) = machine.log.gaps(ShardKey(1, 0))
    assert (second.start, second.end > first.end) == (0, True)
    await broker.set_topic_policies(TOPIC, PolicyValues(retention_bytes=0))
    await publish_many(broker, 60)
    assert machine.log.gaps(ShardKey(1, 0)) == [second], "the topic's own word: no bound"
    await broker.delete_topic(TOPIC)
    await broker.shutdown()
