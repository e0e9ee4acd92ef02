"""`icestream lake lag, commit-now`: what is in no table yet, and how to get it there at once."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import typer

from icestream import errors
from icestream.cli.arguments import OptionalTopicName
from icestream.cli.broker import BrokerOption, Target
from icestream.cli.connection import BrokerCalls, ask
from icestream.cli.lake_app import app
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch
from icestream.cli.output import Cell, Output, OutputFormat, say_aside
from icestream.observability.words import counted, size_text

if TYPE_CHECKING:
    from icestream.model.backlog import Backlog

_LINE = ("topic", "messages", "bytes", "seconds")
_LOOK_SECONDS = 0.2


@app.command()
def lag(
    topic: OptionalTopicName = None,
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show how far the tables are behind the log: messages that are no rows yet, and the age of the oldest.

    Example: icestream lake lag
    Example: icestream lake lag /default/orders --output json
    """
    found = ask(Target(broker, config, sets), _backlog)
    now_us = time.time_ns() // 1000
    rows = [
        [one.name, one.rows, Cell(one.bytes, size_text(one.bytes)), max(0, now_us - one.oldest_us) // 1_000_000]
        for one in found.topics
        if topic in (None, one.name)
    ]
    answer = Output(output)
    answer.table(_LINE, rows)
    if not rows and answer.for_people:
        say_aside("everything is in its table")
    if found.is_cut and answer.for_people:
        say_aside("there is more: these wait longest")


@app.command("commit-now")
def commit_now(
    topic: OptionalTopicName = None,
    wait: Annotated[int, typer.Option("--wait", metavar="SECONDS", help="How long to wait for it.", min=0)] = 60,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Write to the tables what is published now, without waiting for the interval; returns when it is there.

    Example: icestream lake commit-now
    Example: icestream lake commit-now /default/orders --wait 10
    """
    rows = ask(Target(broker, config, sets), lambda broker: _committed(broker, topic, wait))
    answer = Output(output)
    if answer.for_people:
        say_aside(
            f"{counted(rows, 'message')} became {'a row' if rows == 1 else 'rows'}"
            if rows
            else "everything was in its table"
        )
    else:
        answer.record({"committed_messages": rows})


async def _backlog(broker: BrokerCalls) -> Backlog:
    from icestream.model.backlog import decode_backlog

    return decode_backlog((await broker.call("pipeline_backlog", wait_ms=0))["backlog"])


async def _committed(broker: BrokerCalls, topic: str | None, seconds: int) -> int:
    """Until everything that is synced now is in its table; how much that was."""
    if topic is not None:
        await broker.call("describe_topic", topic=topic)  # one that is not here, or on another node, is not in order
    began_us, found = time.time_ns() // 1000, await _backlog(broker)
    wanted = Wanted(topic, began_us)
    wanted.note(found)
    deadline = time.monotonic() + seconds
    if wanted.rows:
        await _wish(broker)
    while wanted.rows and (left := wanted.left(found)):
        if time.monotonic() >= deadline:
            raise errors.NotReady(
                f"{counted(left, 'shard')} of topics did not get into their tables in {seconds} s",
                hint="`icestream pipeline status` says how the pipeline is doing",
            )
        await asyncio.sleep(_LOOK_SECONDS)
        found = await _backlog(broker)
        wanted.note(found)
    return wanted.rows


class Wanted:
    """What was synced when somebody asked. An answer has room for those that wait longest: others show up behind them,
    by messages that were there before."""

    def __init__(self, topic: str | None, began_us: int) -> None:
        self._topic = topic
        self._began_us = began_us
        self._ends: dict[tuple[int, int], int] = {}
        self.rows = 0

    def note(self, found: Backlog) -> None:
        is_first = not self._ends
        for one in found.topics:
            is_new = is_first or (one.oldest_us <= self._began_us and (one.topic_id, 0) not in self._ends)
            if is_new and self._topic in (None, one.name):
                self._ends |= {(one.topic_id, shard.shard): shard.synced for shard in one.shards}
                self.rows += one.rows

    def left(self, found: Backlog) -> int:
        """Shards that are not there yet. One of which nothing is told has everything in its table."""
        return sum(
            shard.committed < self._ends.get((one.topic_id, shard.shard), 0)
            for one in found.topics
            for shard in one.shards
        )


async def _wish(broker: BrokerCalls) -> None:
    from icestream.metadata import command as cmd
    from icestream.pipeline.driver.commit_now import KEY, TTL_MS

    wish = cmd.Envelope(cmd.VERSION, b"", 0, 0, cmd.PutWithTtl(KEY, b"", TTL_MS))
    await broker.call("metadata_submit", envelope=cmd.encode_envelope(wish))
