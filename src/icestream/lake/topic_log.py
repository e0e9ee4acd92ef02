"""The broker's log of a topic, for an operator who decides about its table (hazard 21).

Where a table goes back, the log writes again what it still has. So the log must not let go of that meanwhile, and the
pipeline must find it:

    1  what would it come to?           a dry run, by what the log has. What nobody agreed to ends here
    2  the floors go down to there      from here on the log keeps it
    3  the decision                     by what the log keeps, asked again
    4  the floors go down once more     a driver may have moved them up meanwhile, by the table of before

Whatever ends in the middle leaves floors that are too low: the pipeline moves them up to where it finds the table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

from icestream.catalog.topic_rules.operation_preview import Consent, OperationPreview, ShardLog, TopicLog
from icestream.lake.broker_calls import BrokerCalls
from icestream.lake.operations import AskLog

Decide = Callable[[AskLog, bool], Awaitable[OperationPreview]]


async def topic_log(broker: BrokerCalls, topic: str) -> TopicLog:
    """What the broker's log holds of a topic now."""
    found = await broker("inspect_topic", topic=topic)
    shards = {
        one["shard"]: ShardLog(one["epoch"], one["earliest"], max(one["earliest"], one["synced"]))
        for one in found["shard_offsets"]
    }
    return TopicLog(found["topic"], found["id"], shards)


async def decided(
    broker: BrokerCalls, topic: str, consents: Collection[Consent], is_dry: bool, decide: Decide
) -> OperationPreview:
    """`decide`: the operation, by a log, as a dry run or not."""
    told = await decide(lambda: topic_log(broker, topic), True)
    if is_dry:
        return told
    told.check(consents)
    floors = await _reopened(broker, topic, told)
    told = await decide(lambda: _kept(broker, topic, floors), False)
    await _reopened(broker, topic, told)
    return told


async def _reopened(broker: BrokerCalls, topic: str, told: OperationPreview) -> dict[int, int]:
    topic_id = (await topic_log(broker, topic)).topic_id
    positions = [[topic_id, fate.shard, fate.goes_on_at] for fate in told.shards]
    found = await broker("pipeline_reopen", positions=positions)
    return {shard: floor for _, shard, floor in found["floors"]}


async def _kept(broker: BrokerCalls, topic: str, floors: Mapping[int, int]) -> TopicLog:
    """What lies below its floor the log may have, but it does not keep it."""
    log = await topic_log(broker, topic)
    shards = {
        shard: one._replace(earliest=min(max(one.earliest, floors.get(shard, 0)), one.end))
        for shard, one in log.shards.items()
    }
    return log._replace(shards=shards)
