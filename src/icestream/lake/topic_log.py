"""Runs operations on a topic's table together with the broker's log of the topic (hazard 21).

When a table goes back to an older state, the messages that it lost are committed again from the log. Until then the log
must retain them:

    1  preview             a dry run against the log; a consequence without consent ends the operation here
    2  lower the floors    to the offsets at which the table will resume: the log retains everything above them
    3  run the operation   against what the log retains now, which is read again
    4  lower the floors    again: the pipeline may have raised them in between, by the former state of the table

An interruption leaves floors that are too low; the pipeline raises them to the committed offsets of the table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

from icestream.admin_api.topic_api import INSPECT_TOPIC, TopicOnly
from icestream.catalog.topic_rules.operation_preview import Consent, OperationPreview, ShardLog, TopicLog
from icestream.lake.broker_calls import BrokerLink
from icestream.lake.operations import ReadLog

OperationStep = Callable[[ReadLog, bool], Awaitable[OperationPreview]]


async def read_topic_log(broker: BrokerLink, topic: str) -> TopicLog:
    """The current range of a topic in the broker's log, by shard."""
    state = await broker(INSPECT_TOPIC, TopicOnly(topic))
    shards = {
        shard.shard: ShardLog(shard.epoch, shard.earliest, max(shard.earliest, shard.synced))
        for shard in state.shard_offsets
    }
    return TopicLog(state.topic, state.id, shards)


async def run_operation(
    broker: BrokerLink, topic: str, consents: Collection[Consent], is_dry: bool, step: OperationStep
) -> OperationPreview:
    """Runs an operation and returns its preview. `step` runs it against a log, as a dry run or not.

    Raises the error of `OperationPreview.check` if a consequence is not consented to.
    """
    preview = await step(lambda: read_topic_log(broker, topic), True)
    if is_dry:
        return preview
    preview.check(consents)
    floors = await _lower_floors(broker, topic, preview)
    preview = await step(lambda: _read_retained_log(broker, topic, floors), False)
    await _lower_floors(broker, topic, preview)
    return preview


async def _lower_floors(broker: BrokerLink, topic: str, preview: OperationPreview) -> dict[int, int]:
    """Lowers the floors of the log to where the table resumes, and returns the floors by shard."""
    topic_id = (await read_topic_log(broker, topic)).topic_id
    positions = [[topic_id, shard.shard, shard.goes_on_at] for shard in preview.shards]
    return await broker.reopen_offsets(positions)


async def _read_retained_log(broker: BrokerLink, topic: str, floors: Mapping[int, int]) -> TopicLog:
    """The range of the log that is retained: records below the floor may still exist, but can disappear at any time."""
    log = await read_topic_log(broker, topic)
    shards = {
        shard: state._replace(earliest=min(max(state.earliest, floors.get(shard, 0)), state.end))
        for shard, state in log.shards.items()
    }
    return log._replace(shards=shards)
