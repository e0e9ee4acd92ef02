"""`icestream top`: what the broker does at the moment, topic by topic, refreshed until Ctrl-C.

Two looks at the broker make rates. A look asks for the topics over the local socket, and for the counters of the whole
broker over its HTTP. Where that is, the broker says itself.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from icestream import errors
from icestream.cli.broker import BrokerOption, Target
from icestream.cli.broker_http import http_get
from icestream.cli.connection import BrokerCalls, Document, broker_calls, interruptible, unless_stopped
from icestream.cli.options import ConfigFile, OutputChoice, Sets
from icestream.cli.output import Cell, Output, OutputFormat, table_layout
from icestream.observability.words import size_text
from icestream.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from rich.console import Group

COLUMNS: Final = (
    "topic", "messages_per_second", "bytes_per_second", "lag", "producers", "consumers", "subscriptions",
)  # fmt: skip
DROP: Final = ("subscriptions", "producers", "consumers")  # where there is little room
# How many topics are looked at, and how many the broker describes in one go: it has more to do than this.
TOPICS_MAX: Final = 5_000
TOPICS_AT_ONCE: Final = 100
# Counters of the broker that are shown as rates, and gauges as they are.
RATES: Final = {
    "icestream_publish_messages_total": "published/s",
    "icestream_delivery_messages_total": "delivered/s",
    "icestream_delivery_acked_messages_total": "acked/s",
}
GAUGES: Final = ("icestream_topics", "icestream_connections", "icestream_subscriptions_lag_messages")


@dataclass(frozen=True, slots=True)
class Line:
    """A topic at one look."""

    messages: int
    bytes: int
    lag: int
    producers: int
    consumers: int
    subscriptions: int


@dataclass(frozen=True, slots=True)
class Look:
    at_ns: int
    topics: dict[str, Line]
    metrics: dict[str, float] = field(default_factory=dict)


def top(
    once: Annotated[bool, typer.Option("--once", help="Show one table and end; always so into a pipe.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, max=3600, help="Seconds between looks.")
    ] = 1.0,
    limit: Annotated[
        int, typer.Option("--limit", metavar="NUMBER", min=1, max=TOPICS_MAX, help="Show so many topics at most.")
    ] = 50,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show rates, lag and connections of the topics, the busiest first; Ctrl-C ends.

    Example: icestream top --once --output json
    """
    target = Target(broker, config, sets)
    is_live = not once and output is not OutputFormat.JSON and sys.stdout.isatty()
    asyncio.run(_top(target, interval, limit, Output(output), is_live=is_live))


async def _top(target: Target, interval: float, limit: int, answer: Output, *, is_live: bool) -> None:
    with interruptible() as stop:
        async with broker_calls(target.place) as broker:
            looks = _looks(broker, interval, stop)
            if not is_live:
                async for before, now in looks:
                    answer.table(COLUMNS, rows(before, now)[:limit], drop=DROP)
                    return
            from rich.console import Console
            from rich.live import Live

            with Live(console=Console(), screen=True, auto_refresh=False) as live:
                async for before, now in looks:
                    live.update(_screen(before, now, limit, answer.width), refresh=True)


async def _looks(broker: BrokerCalls, interval: float, stop: asyncio.Event) -> AsyncIterator[tuple[Look, Look]]:
    """Each look with the one before it, until somebody stops it."""
    clock: Clock = SystemClock()
    place = await _place_of_metrics(broker)
    before = await _look(broker, place, clock)
    while await unless_stopped(_slept(clock, interval), stop):
        now = await _look(broker, place, clock)
        yield before, now
        before = now


async def _place_of_metrics(broker: BrokerCalls) -> tuple[str, int] | None:
    """Host and port; None where there are no metrics."""
    if not await _setting(broker, "metrics.enable"):
        return None
    host, port = await _setting(broker, "node.bind_host"), (await broker.call("places"))["http_port"]
    return (host, port) if port else None


async def _setting(broker: BrokerCalls, key: str) -> Any:
    return (await broker.call("describe_setting", key=key))["value"]


async def _slept(clock: Clock, seconds: float) -> bool:
    await clock.sleep(seconds)
    return True


async def _look(broker: BrokerCalls, place: tuple[str, int] | None, clock: Clock) -> Look:
    topics: dict[str, Line] = {}
    after: str | None = ""
    while after is not None and len(topics) < TOPICS_MAX:
        page = await broker.call("page_topics", after=after, limit=TOPICS_AT_ONCE)
        topics |= {one["topic"]: _line(one) for one in page["items"] if one["lag"] is not None}  # of this node
        after = page["next"]
    metrics = await asyncio.to_thread(_metrics, *place) if place is not None else {}
    return Look(clock.monotonic_ns(), topics, metrics)


def _line(one: Document) -> Line:
    return Line(
        one["published_messages"], one["published_bytes"], one["lag"], one["producers"], one["consumers"],
        one["subscriptions"],
    )  # fmt: skip


def _metrics(host: str, port: int) -> dict[str, float]:
    """Empty where nobody answers."""
    try:
        status, body = http_get(host, port, "/metrics")
        return metrics_of(body.decode()) if status == 200 else {}
    except (errors.ConnectionLost, ValueError):
        return {}


def metrics_of(text: str) -> dict[str, float]:
    """Those that are shown; the values of all labels together."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in RATES or sample.name in GAUGES:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


# --- what is shown ----------------------------------------------------------------------------------------------------


def rows(before: Look, now: Look) -> list[tuple[object, ...]]:
    """The busiest first, then by lag, then by name."""
    seconds = max((now.at_ns - before.at_ns) / 1e9, 1e-9)
    nothing = Line(0, 0, 0, 0, 0, 0)
    found = []
    for name, line in now.topics.items():
        was = before.topics.get(name, nothing)
        # counted anew when it was made anew
        messages = max(line.messages - was.messages, 0) / seconds
        size = max(line.bytes - was.bytes, 0) / seconds
        found.append((-messages, -line.lag, name, size, line))
    return [
        (
            name, Cell(round(-messages, 1), f"{-messages:,.0f}"), Cell(round(size), f"{size_text(round(size))}/s"),
            line.lag, line.producers, line.consumers, line.subscriptions,
        )
        for messages, _, name, size, line in sorted(found, key=lambda one: one[:3])
    ]  # fmt: skip


def summary(before: Look, now: Look) -> str:
    """The whole broker in a line; empty where its HTTP says nothing."""
    seconds = max((now.at_ns - before.at_ns) / 1e9, 1e-9)
    words = [
        f"{max(now.metrics[name] - before.metrics[name], 0) / seconds:,.0f} {text}"
        for name, text in RATES.items()
        if name in now.metrics and name in before.metrics
    ]
    words += [f"{now.metrics[name]:,.0f} {name.removeprefix('icestream_')}" for name in GAUGES if name in now.metrics]
    return ", ".join(words)


def _screen(before: Look, now: Look, limit: int, width: int | None) -> Group:
    from rich.console import Group
    from rich.text import Text

    headings = [column.replace("_per_second", "/s") for column in COLUMNS]
    layout = table_layout(headings, rows(before, now)[:limit], width, DROP)
    heading = Text("\n".join(layout.heading), style="" if os.environ.get("NO_COLOR") else "bold")
    table = Text("\n".join(layout.lines), no_wrap=True)
    return Group(Text(summary(before, now)), heading, table, Text("Ctrl-C ends", style="dim"))
