"""`icestream lake lag, commit-now`: messages that are not in their table yet, and how to commit them at once."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import typer

from icestream import errors
from icestream.admin_api.topic_api import DESCRIBE_TOPIC
from icestream.cli.arguments import OptionalTopicName
from icestream.cli.broker_connection import BrokerCalls, call_broker
from icestream.cli.broker_location import BrokerOption, Target
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch
from icestream.cli.output import Cell, Output, OutputFormat, print_note
from icestream.observability.words import counted, size_text

if TYPE_CHECKING:
    from icestream.model.backlog_messages import Backlog

_COLUMNS = ("topic", "messages", "bytes", "seconds")
_POLL_SECONDS = 0.2


def lag(
    topic: OptionalTopicName = None,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show how far tables are behind the log: messages not committed yet, and the age of the oldest.

    Example: icestream lake lag
    Example: icestream lake lag /default/orders --output json
    """
    backlog = call_broker(Target(broker, config, sets), _read_backlog)
    now_us = time.time_ns() // 1000
    rows = [
        [
            entry.name,
            entry.rows,
            Cell(entry.bytes, size_text(entry.bytes)),
            max(0, now_us - entry.oldest_us) // 1_000_000,
        ]
        for entry in backlog.topics
        if topic in (None, entry.name)
    ]
    answer = Output(output)
    if rows or not answer.is_text:
        answer.table(_COLUMNS, rows)
    else:
        print_note("No uncommitted messages.")
    if backlog.is_cut and answer.is_text:
        print_note("Truncated: showing the topics with the oldest uncommitted messages.")


def commit_now(
    topic: OptionalTopicName = None,
    wait: Annotated[
        int, typer.Option("--wait", metavar="SECONDS", help="How long to wait for the commit.", min=0)
    ] = 60,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Commit all messages published so far to their tables, without waiting for the interval; return when done.

    Example: icestream lake commit-now
    Example: icestream lake commit-now /default/orders --wait 10
    """
    rows = call_broker(Target(broker, config, sets), lambda broker: _commit(broker, topic, wait))
    answer = Output(output)
    if answer.is_text:
        print_note(f"Committed {counted(rows, 'message')}." if rows else "No uncommitted messages.")
    else:
        answer.record({"committed_messages": rows})


async def _read_backlog(broker: BrokerCalls) -> Backlog:
    from icestream.model.backlog_messages import decode_backlog

    return decode_backlog((await broker.call("pipeline_backlog", wait_ms=0))["backlog"])


async def _commit(broker: BrokerCalls, topic: str | None, seconds: int) -> int:
    """Waits until every message synced by now is committed, and returns the number of these messages.

    Raises NotReady after `seconds`.
    """
    if topic is not None:
        await broker.call(DESCRIBE_TOPIC, topic=topic)  # raises for a topic that is unknown or on another node
    started_us, backlog = time.time_ns() // 1000, await _read_backlog(broker)
    goal = CommitGoal(topic, started_us)
    goal.add(backlog)
    deadline = time.monotonic() + seconds
    if goal.rows:
        await _request_commit(broker)
    while goal.rows and (uncommitted := goal.uncommitted_shards(backlog)):
        if time.monotonic() >= deadline:
            raise errors.NotReady(
                f"{counted(uncommitted, 'shard')} not committed within {seconds} s",
                hint="`icestream pipeline status` shows the state of the pipeline",
            )
        await asyncio.sleep(_POLL_SECONDS)
        backlog = await _read_backlog(broker)
        goal.add(backlog)
    return goal.rows


class CommitGoal:
    """The offsets to which each shard must be committed: the synced ones at the time of the request.

    A backlog response is truncated to the topics with the oldest messages. Further topics appear in later responses,
    and belong to the goal if they have messages from before the request.
    """

    def __init__(self, topic: str | None, started_us: int) -> None:
        self._topic = topic
        self._started_us = started_us
        self._ends: dict[tuple[int, int], int] = {}
        self.rows = 0

    def add(self, backlog: Backlog) -> None:
        """Adds the topics of a backlog response that belong to the goal and are not in it yet."""
        is_first = not self._ends
        for entry in backlog.topics:
            is_new = is_first or (entry.oldest_us <= self._started_us and (entry.topic_id, 0) not in self._ends)
            if is_new and self._topic in (None, entry.name):
                self._ends |= {(entry.topic_id, shard.shard): shard.synced for shard in entry.shards}
                self.rows += entry.rows

    def uncommitted_shards(self, backlog: Backlog) -> int:
        """The number of shards that are not committed to the goal yet; shards outside the backlog are committed."""
        return sum(
            shard.committed < self._ends.get((entry.topic_id, shard.shard), 0)
            for entry in backlog.topics
            for shard in entry.shards
        )


async def _request_commit(broker: BrokerCalls) -> None:
    """Asks the pipeline for a commit now, by a key with a TTL in the metadata store."""
    from icestream.metadata import command as cmd
    from icestream.pipeline.driver.commit_now import KEY, TTL_MS

    request = cmd.Envelope(cmd.VERSION, b"", 0, 0, cmd.PutWithTtl(KEY, b"", TTL_MS))
    await broker.call("metadata_submit", envelope=cmd.encode_envelope(request))
