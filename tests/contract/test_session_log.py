"""The session log on both storages: durable transactions, a start that reads them, a log that stays short (R01)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from icestream import errors, limits
from icestream.broker.storage import PersistentStorage
from icestream.durable import session_changes as change
from icestream.durable.session_changes import MatchedRow, SubscriptionOptions
from icestream.durable.session_log import SessionLog, StoredBlock
from icestream.durable.session_records import SessionConnected
from icestream.durable.session_state import SessionState
from icestream.model import SyncMode, envelope
from icestream.model.block import encode_block
from icestream.model.shard import ShardKey, TopicIdentity
from tests.support.broker_machine import BrokerMachine

pytestmark = pytest.mark.asyncio

STATE = TopicIdentity(2**62, "/system/mqtt-state")
STATE_SHARD = ShardKey(STATE.id, 0)
MESSAGES = TopicIdentity(1, "/mqtt/messages")
A = ShardKey(1, 0)


@pytest.fixture(params=["log", "log-periodic", "memory"])
def machine(request: pytest.FixtureRequest) -> BrokerMachine:
    mode = SyncMode.PERIODIC if request.param == "log-periodic" else SyncMode.ALWAYS
    return BrokerMachine(mode=mode, in_memory=request.param == "memory", file_bytes=64 * limits.KIB)


@pytest_asyncio.fixture
async def storage(machine: BrokerMachine) -> AsyncIterator[PersistentStorage]:
    storage = await open_storage(machine)
    yield storage
    await storage.shutdown()


async def open_storage(machine: BrokerMachine) -> PersistentStorage:
    storage = await machine.open_storage()
    storage.declare_topic(STATE, 2)
    storage.declare_topic(MESSAGES, 1)
    return storage


async def connect(log: SessionLog, client_id: str, session_id: int) -> SessionState:
    plan = change.connect(log.table, client_id, session_id, 0, is_clean_start=False, expiry_s=60)
    await log.write_durable(plan.records)
    return log.table.sessions[plan.session_id]


async def test_a_start_finds_the_sessions_as_they_were(storage: PersistentStorage) -> None:
    log = await SessionLog.open(storage, STATE_SHARD)
    for number in range(1, 6):
        session = await connect(log, f"c{number}", number)
        await log.write(change.subscribe(session, "a/#", SubscriptionOptions(1), {A: 0}))
        await log.write(change.send_rows(session, A, [MatchedRow(0, 1, 1)], 1, 1))
    await log.write(change.beat(log.table, 5, 6, {A: 1}))
    reopened = await SessionLog.open(storage, STATE_SHARD)
    assert reopened.table.sessions == log.table.sessions
    assert (reopened.table.marks, reopened.table.elapsed_ms) == ({A: 1}, 5)
    assert reopened.floor == log.floor


async def test_a_refused_transaction_changes_nothing(storage: PersistentStorage) -> None:
    log = await SessionLog.open(storage, STATE_SHARD)
    session = await connect(log, "c", 1)
    end = storage.shard_stream(STATE_SHARD).visible
    with pytest.raises(errors.SessionFenced):
        log.write([*change.receive(session, 7, None), SessionConnected(1, session.epoch, 60)])
    assert not session.received
    assert storage.shard_stream(STATE_SHARD).visible == end


async def test_hazard_63_a_message_and_its_id_are_one_record(storage: PersistentStorage) -> None:
    log = await SessionLog.open(storage, STATE_SHARD)
    session = await connect(log, "c", 1)
    block = encode_block(1, {envelope.PAYLOAD: [b"21.5"], envelope.KEY: [b"a/b"]})
    placed = await log.write_durable(change.receive(session, 7, A), StoredBlock(A, block))
    assert placed.base_offsets[0] == 0
    assert storage.shard_stream(A).visible == 1
    reopened = await SessionLog.open(storage, STATE_SHARD)
    assert reopened.table.sessions[1].received == {7: A}


async def test_the_log_stays_within_a_factor_of_the_live_state(
    storage: PersistentStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SESSION_LOG_SLACK_BYTES", 4 * limits.KIB)
    log = await SessionLog.open(storage, STATE_SHARD)
    idle = await connect(log, "idle", 1)
    busy = await connect(log, "busy", 2)
    await log.write(change.beat(log.table, 1, 1, {}))
    for turn in range(600):
        await log.write(change.send_rows(busy, A, [MatchedRow(turn, 1, 1)], turn + 1, turn + 1))
        (packet_id,) = busy.in_flight
        await log.write(change.puback(busy, packet_id))
        if not turn % 50:
            await storage.wait_durable()
            await log.release()
    assert log.held_bytes < 16 * limits.KIB
    stream = storage.shard_stream(STATE_SHARD)
    assert stream.visible - log.floor < 200 < stream.visible
    reopened = await SessionLog.open(storage, STATE_SHARD)
    assert reopened.table.sessions == {1: idle, 2: busy}
    assert reopened.table.elapsed_ms == 1
    assert busy.last_packet_id == 600


async def test_an_ended_session_holds_nothing(storage: PersistentStorage) -> None:
    log = await SessionLog.open(storage, STATE_SHARD)
    session = await connect(log, "c", 1)
    await log.write(change.disconnect(session, 0, is_normal=True))
    await log.write(change.end_session(session))
    await log.write_durable(change.forget_session(session))
    assert log.floor == storage.shard_stream(STATE_SHARD).visible
    assert log.held_bytes == 0
    await log.release()
    assert not (await SessionLog.open(storage, STATE_SHARD)).table.sessions


async def test_released_offsets_are_gone_or_were_not_released_yet(storage: PersistentStorage) -> None:
    log = await SessionLog.open(storage, STATE_SHARD)
    await connect(log, "c", 1)
    with pytest.raises(errors.InvalidInput):
        await storage.release({STATE_SHARD: 10})


@pytest.mark.parametrize("mode", [SyncMode.ALWAYS, SyncMode.PERIODIC, SyncMode.NONE])
@pytest.mark.parametrize("power", [False, True])
async def test_r33_hazard_54_what_was_waited_for_survives_kill_and_power_loss_in_every_mode(
    mode: SyncMode, *, power: bool
) -> None:
    machine = BrokerMachine(mode=mode)
    log = await SessionLog.open(await open_storage(machine), STATE_SHARD)
    session = await connect(log, "c", 1)
    for packet_id in (1, 2, 3):
        await log.write_durable(change.receive(session, packet_id, None))
    log.write(change.receive(session, 4, None))  # not waited for: it may be lost
    await (machine.power_loss() if power else machine.kill())
    reopened = await SessionLog.open(await open_storage(machine), STATE_SHARD)
    assert {1, 2, 3} <= set(reopened.table.sessions[1].received) <= {1, 2, 3, 4}
