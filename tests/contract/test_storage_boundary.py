"""The storage facade is the one way in and out: only it touches the log, and a tick's batches enter it together."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import icestream
from icestream.model.shard import ShardKey
from icestream.model.subscription_options import FailurePolicy, PoisonPolicy, SubscriptionType
from icestream.model.topic_name import TopicName
from icestream.model.topic_policies import PolicyValues
from icestream.wal.receipt import Receipt
from tests.support.broker_machine import TOPIC, BrokerMachine, block, publish, quiet, stored_rows, subscribe
from tests.support.until import until

SOURCES = Path(icestream.__file__).parent
# What changes the log, and what reads messages from it. Modules that show its figures may read the rest.
DEEDS = {"submit", "append", "batch", "declare_topic", "advance_floor", "read", "follow", "offset_for_time"}
LOG = {"log", "_log", "reader", "tail"}
# The pipeline's desk tells the log what is in tables; it neither stores nor reads a message.
OF_THE_PIPELINE = "broker/pipeline_service.py: self.log.advance_floor"
# A backup copies sections of the log as they are; it delivers no message.
OF_BACKUPS = "broker/backup_service.py: self._log.reader.read"


def deeds(path: Path) -> list[str]:
    """Calls like `self._log.submit(…)` or `log.reader.read(…)`."""
    calls = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in DEEDS:
            owner = node.func.value
            name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
            if name in LOG:
                calls.append(f"{path.relative_to(SOURCES)}: {ast.unparse(node.func)}")
    return calls


def test_only_the_storage_facade_reads_and_writes_messages_of_the_log() -> None:
    folders = ("broker", "frontends", "server", "client", "lake")
    calls = [deed for folder in folders for path in (SOURCES / folder).rglob("*.py") for deed in deeds(path)]
    assert len(calls) > 5, "the check sees the storage itself"
    calls.remove(OF_THE_PIPELINE)
    calls.remove(OF_BACKUPS)
    modules = {"broker/iceberg_storage.py", "broker/tiered_shard_stream.py"}
    assert {deed.split(":")[0] for deed in calls} == modules, calls


@pytest.mark.asyncio
async def test_batches_of_one_tick_form_one_record_across_topics() -> None:
    machine = BrokerMachine()
    broker = await machine.open_broker()
    producers = []
    for name in "abc":
        await broker.create_topic(TopicName("default", name), 2)
        producers.append(await broker.open_producer(TopicName("default", name), "p"))
    assert machine.log is not None
    before = machine.log.state.lsn
    receipts = [broker.publish(producer, shard, block(b"x")) for producer in producers for shard in (0, 1)]
    for receipt in receipts:
        await receipt
    assert machine.log.state.lsn == before + 1


@pytest.mark.asyncio
async def test_publishing_dead_letters_and_subscriptions_use_the_facade(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await BrokerMachine().open_broker()
    stored: list[ShardKey] = []
    streams: list[str] = []
    store_messages, create_stream = broker.storage.store_messages, broker.storage.create_subscription_stream

    def store(shard: ShardKey, messages: bytes, *more: object) -> Receipt:
        stored.append(shard)
        return store_messages(shard, messages, *more)  # type: ignore[arg-type]

    async def create(namespace: str, topic: str, subscription: str) -> object:
        streams.append(subscription)
        return await create_stream(namespace, topic, subscription)

    monkeypatch.setattr(broker.storage, "store_messages", store)
    monkeypatch.setattr(broker.storage, "create_subscription_stream", create)
    dead = TopicName("default", "dead")
    await broker.create_topic(TOPIC, policies=PolicyValues())
    await publish(broker, await broker.open_producer(TOPIC, "p"), b"x")
    policy = FailurePolicy(0, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic=str(dead))
    reader = await subscribe(broker, kind=SubscriptionType.SHARED, failure=policy)
    await quiet()
    reader.nack(0)
    await until(lambda: not reader.subscription.lag)
    topics = [broker.topics.get(name).record.id for name in (TOPIC, dead)]
    assert stored == [ShardKey(topic, 0) for topic in topics]
    assert streams == ["s"]
    assert len(await stored_rows(broker, dead)) == 1
