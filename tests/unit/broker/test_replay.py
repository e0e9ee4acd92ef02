"""Replay as the seed's stage 4 asks for it: several subscriptions of one topic, a restart in the middle, each type with
its backlog in memory, in the log, in the table alone, and in all of them at once. What comes is what was published,
byte for byte, wherever it lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream.broker.service import Broker
from icestream.model.shard import ShardKey
from icestream.model.subscription_options import SubscriptionType
from icestream.observability import metrics
from tests.support.broker_machine import TOPIC, SubscriptionReader, publish, quiet, subscribe
from tests.support.tiers import TieredMachine

pytestmark = pytest.mark.asyncio
COUNT, ACKED = 60, 15
KEY = ShardKey(1, 0)
PAYLOADS = [b"%d " % number + bytes([number]) * (3_000 + 17 * number) for number in range(COUNT)]
ALL = dict(enumerate(PAYLOADS))
# Where the messages are: bytes of memory, how many of them are committed, and which tiers must have served reads.
TIERS = {
    "tail": (10_000_000, 0, {"tail"}),
    "log": (0, 0, {"log"}),
    "table": (0, COUNT, {"table", "cache"}),
    "mixed": (40_000, 40, {"tail", "log", "table", "cache"}),
}
TOGETHER = {SubscriptionType.SHARED: 3, SubscriptionType.KEY_SHARED: 3}  # consumers at once; others have one


async def filled(machine: TieredMachine, committed: int) -> Broker:
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    await machine.lake.bind()
    producer = await broker.open_producer(TOPIC, "p")
    for number, payload in enumerate(PAYLOADS):
        if number == committed and committed:
            await let_go(machine)
        await publish(broker, producer, payload, keys=[b"k%d" % number])
    if committed == COUNT:
        for _ in range(20):  # so that no log file with one of the others is left
            await publish(broker, producer, bytes(7_000), keys=[b"filler"])
        await let_go(machine)
    return broker


async def let_go(machine: TieredMachine) -> None:
    await machine.commit()
    await machine.forget()


async def joined(broker: Broker, name: str, kind: SubscriptionType, credit: int = 1_000) -> list[SubscriptionReader]:
    """Joins as many consumers as the subscription type allows; `credit` is that of all together."""
    count = TOGETHER.get(kind, 1)
    return [
        await subscribe(broker, f"{kind.value}-{name}", kind, f"c{number}", credit=credit // count)
        for number in range(count)
    ]


async def read_messages(readers: list[SubscriptionReader], messages: int) -> dict[int, bytes]:
    """The payloads by offset, once the readers together have so many of the first COUNT messages."""
    for _ in range(400):
        await quiet()
        received = [
            (offset, payload) for reader in readers for offset, payload, _ in reader.sink.received if offset < COUNT
        ]
        if len(received) >= messages:
            payloads = dict(received)
            assert len(payloads) == len(received), "nothing comes twice"
            assert not any(reader.sink.gaps for reader in readers)
            assert len(readers) > 1 or readers[0].sink.offsets == sorted(readers[0].sink.offsets)
            return payloads
    raise AssertionError(f"{len(received)} of {messages} came")


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kind", SubscriptionType)
async def test_every_type_replays_from_every_tier_over_a_restart(
    tmp_path: Path, kind: SubscriptionType, tier: str, is_killed: bool
) -> None:
    tail_bytes, committed, served_by = TIERS[tier]
    machine = TieredMachine(tmp_path, tail_bytes=tail_bytes)
    broker = await filled(machine, committed)
    assert machine.log is not None
    first_held = machine.log.reader.earliest(KEY)
    assert (first_held >= COUNT) if tier == "table" else (0 < first_held < COUNT) is (tier == "mixed")
    before = dict(metrics.READS.values)
    some = await joined(broker, "some", kind, credit=ACKED)
    others = await joined(broker, "all", kind)
    first_part = await read_messages(some, ACKED)
    assert await read_messages(others, COUNT) == ALL, "one subscription takes nothing from another"
    assert first_part.items() <= ALL.items()
    if tier == "mixed":  # they stand at the end now: what comes next comes from memory
        await publish(broker, await broker.open_producer(TOPIC, "live"), b"live", keys=[b"live"])
        await quiet()
        assert [payload for reader in others for _, payload, _ in reader.sink.received].count(b"live") == 1
    served = {name for name, count in metrics.READS.values.items() if count > before.get(name, 0)}
    assert served <= served_by
    assert served >= served_by - {"table", "cache"}
    assert not committed or served & {"table", "cache"}
    for reader in some:
        reader.ack(*reader.sink.offsets)
    await broker.storage.flush_cursors()
    if is_killed:
        await machine.kill()
    else:
        await broker.shutdown()
    broker = await machine.open_broker()
    rest = await read_messages(await joined(broker, "some", kind), COUNT - len(first_part))
    assert rest == {at: payload for at, payload in ALL.items() if at not in first_part}, (
        "what was acked does not come again"
    )
    assert await read_messages(await joined(broker, "all", kind), COUNT) == ALL, "what was not, does"
    assert await read_messages(await joined(broker, "late", kind), COUNT) == ALL, "a new one has all of it"
    await broker.shutdown()
