"""`icestream top`: live rates, lag and connections per topic, refreshed until Ctrl-C.

Rates are differences of two samples. A sample lists the topics over the local socket and reads the counters of the
whole broker from its HTTP port, whose number the broker reports.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from icestream import errors
from icestream.admin_api.node_api import DESCRIBE_SETTING, PLACES
from icestream.admin_api.topic_api import PAGE_TOPICS
from icestream.cli.broker_connection import (
    BrokerCalls,
    Document,
    OwnBrokerTls,
    broker_calls,
    interruptible,
    run_until_stopped,
)
from icestream.cli.broker_http import http_get
from icestream.cli.broker_location import BrokerOption, Target
from icestream.cli.login_profile import find_token
from icestream.cli.options import ConfigFile, OutputChoice, Sets
from icestream.cli.output import Cell, Output, OutputFormat, table_layout
from icestream.observability.words import size_text
from icestream.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from rich.console import Group

COLUMNS: Final = (
    "topic", "messages_per_second", "bytes_per_second", "lag", "producers", "consumers", "subscriptions",
)  # fmt: skip
DROP: Final = ("subscriptions", "producers", "consumers")  # omitted on a narrow terminal
# Topics of a sample, and of one call: describing topics must not delay the broker's other work.
TOPICS_MAX: Final = 5_000
TOPICS_PER_PAGE: Final = 100
# Counters of the broker that are shown as rates, and gauges that are shown as values; singular and plural.
RATES: Final = {
    "icestream_publish_messages_total": "published/s",
    "icestream_delivery_messages_total": "delivered/s",
    "icestream_delivery_acked_messages_total": "acked/s",
}
GAUGES: Final = {
    "icestream_topics": ("topic", "topics"),
    "icestream_connections": ("connection", "connections"),
    "icestream_subscriptions_lag_messages": ("message behind", "messages behind"),
}


@dataclass(frozen=True, slots=True)
class TopicSample:
    """The counters of one topic in a sample."""

    messages: int
    bytes: int
    lag: int
    producers: int
    consumers: int
    subscriptions: int


@dataclass(frozen=True, slots=True)
class Sample:
    at_ns: int
    topics: dict[str, TopicSample]
    metrics: dict[str, float] = field(default_factory=dict)


def top(
    once: Annotated[bool, typer.Option("--once", help="Print one table and exit; implied by a pipe.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, max=3600, help="Seconds between refreshes.")
    ] = 1.0,
    limit: Annotated[
        int, typer.Option("--limit", metavar="NUMBER", min=1, max=TOPICS_MAX, help="Maximum number of topics shown.")
    ] = 50,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show rates, lag and connections of the topics, the busiest first; Ctrl-C stops.

    Example: icestream top --once --output json
    """
    target = Target(broker, config, sets)
    is_live = not once and output is not OutputFormat.JSON and sys.stdout.isatty()
    asyncio.run(_top(target, interval, limit, Output(output), is_live=is_live))


async def _top(target: Target, interval: float, limit: int, answer: Output, *, is_live: bool) -> None:
    with interruptible() as stop:
        async with broker_calls(target.location) as broker:
            samples = _sample_pairs(broker, interval, stop, find_token(target.location))
            if not is_live:
                async for before, now in samples:
                    answer.table(COLUMNS, rows(before, now)[:limit], drop=DROP)
                    return
            from rich.console import Console
            from rich.live import Live

            with Live(console=Console(), screen=True, auto_refresh=False) as live:
                async for before, now in samples:
                    live.update(_screen(before, now, limit, answer.width), refresh=True)


async def _sample_pairs(
    broker: BrokerCalls, interval: float, stop: asyncio.Event, token: str | None = None
) -> AsyncIterator[tuple[Sample, Sample]]:
    """Each sample with the previous one, until `stop` is set. `token`: of a login, for the metrics."""
    clock: Clock = SystemClock()
    address = await _metrics_address(broker)
    before = await _take_sample(broker, address, clock, token)
    while await run_until_stopped(_sleep(clock, interval), stop):
        now = await _take_sample(broker, address, clock, token)
        yield before, now
        before = now


async def _metrics_address(broker: BrokerCalls) -> tuple[str, int, ssl.SSLContext | None] | None:
    """Host and port of the metrics, and what their certificate is verified with; None if they are disabled."""
    if not await _setting(broker, "metrics.enable"):
        return None
    host, places = await _setting(broker, "node.bind_host"), await broker.call(PLACES)
    chain = places["certificates"].get("http")
    context = None if chain is None else OwnBrokerTls(chain).context()
    return (host, places["http_port"], context) if places["http_port"] else None


async def _setting(broker: BrokerCalls, key: str) -> Any:
    return (await broker.call(DESCRIBE_SETTING, key=key))["value"]


async def _sleep(clock: Clock, seconds: float) -> bool:
    """True, which distinguishes the end of the interval from a stop."""
    await clock.sleep(seconds)
    return True


async def _take_sample(
    broker: BrokerCalls,
    metrics_address: tuple[str, int, ssl.SSLContext | None] | None,
    clock: Clock,
    token: str | None = None,
) -> Sample:
    topics: dict[str, TopicSample] = {}
    after: str | None = ""
    while after is not None and len(topics) < TOPICS_MAX:
        page = await broker.call(PAGE_TOPICS, after=after, limit=TOPICS_PER_PAGE)
        # Topics of other nodes have no lag here.
        topics |= {topic["topic"]: _topic_sample(topic) for topic in page["items"] if topic["lag"] is not None}
        after = page["next"]
    metrics = await asyncio.to_thread(_read_metrics, *metrics_address, token) if metrics_address is not None else {}
    return Sample(clock.monotonic_ns(), topics, metrics)


def _topic_sample(topic: Document) -> TopicSample:
    return TopicSample(
        topic["published_messages"], topic["published_bytes"], topic["lag"], topic["producers"], topic["consumers"],
        topic["subscriptions"],
    )  # fmt: skip


def _read_metrics(
    host: str, port: int, context: ssl.SSLContext | None = None, token: str | None = None
) -> dict[str, float]:
    """The metrics that are shown; empty if the HTTP port does not respond, or not to this principal."""
    try:
        status, body = http_get(host, port, "/metrics", token=token, context=context)
        return parse_metrics(body.decode()) if status == 200 else {}
    except (errors.ConnectionLost, ValueError):
        return {}


def parse_metrics(text: str) -> dict[str, float]:
    """The metrics that are shown, each summed over all labels."""
    from prometheus_client.parser import text_string_to_metric_families

    values: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in RATES or sample.name in GAUGES:
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return values


# --- rows and summary -------------------------------------------------------------------------------------------------


def rows(before: Sample, now: Sample) -> list[tuple[object, ...]]:
    """The rows of the topics: the busiest first, then by lag, then by name."""
    seconds = max((now.at_ns - before.at_ns) / 1e9, 1e-9)
    empty = TopicSample(0, 0, 0, 0, 0, 0)
    entries = []
    for name, topic in now.topics.items():
        previous = before.topics.get(name, empty)
        # The counters of a topic that was deleted and created again restart at 0.
        messages = max(topic.messages - previous.messages, 0) / seconds
        size = max(topic.bytes - previous.bytes, 0) / seconds
        entries.append((-messages, -topic.lag, name, size, topic))
    return [
        (
            name, Cell(round(-messages, 1), f"{-messages:,.0f}"), Cell(round(size), f"{size_text(round(size))}/s"),
            topic.lag, topic.producers, topic.consumers, topic.subscriptions,
        )
        for messages, _, name, size, topic in sorted(entries, key=lambda entry: entry[:3])
    ]  # fmt: skip


def summary(before: Sample, now: Sample) -> str:
    """One line about the whole broker; empty without metrics."""
    seconds = max((now.at_ns - before.at_ns) / 1e9, 1e-9)
    texts = [
        f"{max(now.metrics[name] - before.metrics[name], 0) / seconds:,.0f} {text}"
        for name, text in RATES.items()
        if name in now.metrics and name in before.metrics
    ]
    texts += [
        f"{now.metrics[name]:,.0f} {singular if now.metrics[name] == 1 else plural}"
        for name, (singular, plural) in GAUGES.items()
        if name in now.metrics
    ]
    return ", ".join(texts)


def _screen(before: Sample, now: Sample, limit: int, width: int | None) -> Group:
    from rich.console import Group
    from rich.text import Text

    headings = [column.replace("_per_second", "/s") for column in COLUMNS]
    layout = table_layout(headings, rows(before, now)[:limit], width, DROP)
    heading = Text("\n".join(layout.heading), style="" if os.environ.get("NO_COLOR") else "bold")
    table = Text("\n".join(layout.lines), no_wrap=True)
    return Group(Text(summary(before, now)), heading, table, Text("Ctrl-C stops", style="dim"))
