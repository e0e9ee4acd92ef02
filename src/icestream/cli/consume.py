"""`icestream consume`: writes the messages of a topic, one per line.

    temporary subscription   created for this run, starting at --from, and deleted at its end, also after Ctrl-C
    --subscription S         resumes S at its position; --from applies only if the run creates it

Without --follow the run ends at the end that the topic had when the run started: the position of a subscription at
`latest`. A gap may reach up to that end; the broker reports gaps. Messages that another consumer of S has, or that were
acknowledged before, are not delivered and not reported: therefore a run also ends after --timeout idle seconds, and
prints that.

A message is acknowledged when it is written and flushed: one lost in a broken pipe is delivered again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, BinaryIO, Final, get_args

import typer

from icestream import errors
from icestream.admin_api.topic_api import LIST_TOPICS
from icestream.cli import completion
from icestream.cli.arguments import TopicName
from icestream.cli.broker_connection import interruptible, open_client, run_until_stopped
from icestream.cli.broker_location import BrokerOption, Target
from icestream.cli.message_format import MessageFormatter, parse_format
from icestream.cli.options import ConfigFile, OutputChoice, Sets
from icestream.cli.output import OutputFormat, output_errors, print_note
from icestream.cli.positions import parse_position
from icestream.cli.suggestions import suggest_topic
from icestream.client.client import Client
from icestream.client.message import Gap, Message
from icestream.client.stalls import Stall
from icestream.client.start_position import StartPosition, start_arguments
from icestream.client.subscribe_call import TypeName
from icestream.client.subscription import Subscription
from icestream.observability.words import counted

# With --subscription: longer than the broker takes to report a stalled read (limits.READ_STALLED_MS).
IDLE_SECONDS: Final = 4.0
# With a temporary subscription: no other consumer can have its messages, so idleness means that the broker is slow.
TEMPORARY_IDLE_SECONDS: Final = 30.0
STALL_SECONDS: Final = 10.0  # without --follow: how long stored messages may be unreadable
POLL_SECONDS: Final = 0.2  # how often a run that waits for its end checks for gaps
BATCH_MESSAGES_MAX: Final = 256
TYPES: Final[tuple[TypeName, ...]] = get_args(TypeName)


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    topic: str
    subscription: str | None
    type: TypeName | None
    start: StartPosition | None
    format: MessageFormatter
    count: int | None
    follow: bool
    acks: bool
    idle_seconds: float | None


@dataclass(slots=True)
class ConsumeProgress:
    """The progress of a run. `ends`: of the shards, at its start; `behind`: the shards that have not reached it."""

    ends: dict[int, int] = field(default_factory=dict)
    behind: set[int] = field(default_factory=set)
    reached: dict[int, int] = field(default_factory=dict)  # by shard, the offset after the last one written or skipped
    written: int = 0
    reported_stalls: set[Stall] = field(default_factory=set)

    def report_stalls(self, messages: Subscription) -> None:
        """Prints each stall once; the run goes on waiting, because a stall may resolve by itself."""
        for stall in messages.stalls:
            if stall not in self.reported_stalls:
                self.reported_stalls.add(stall)
                print_note(f"delivery of shard {stall.shard} is stalled at offset {stall.offset}: {stall.reason}")

    def begin(self, starts: dict[int, int], ends: dict[int, int]) -> None:
        """Sets the positions at which the shards start, and the ends of the topic."""
        self.ends, self.reached = ends, dict(starts)
        self.behind = {shard for shard, end in ends.items() if starts.get(shard, 0) < end}

    def is_before_end(self, shard: int, offset: int) -> bool:
        return offset < self.ends.get(shard, 0)

    def record(self, shard: int, offset: int) -> None:
        """Records a written message."""
        self.written += 1
        self._advance(shard, offset + 1)

    def skip(self, gaps: Iterable[Gap]) -> None:
        """Advances over gaps that begin at or before the position of their shard."""
        for gap in gaps:
            if self.reached.get(gap.shard, 0) >= gap.start:
                self._advance(gap.shard, gap.end)

    def _advance(self, shard: int, offset: int) -> None:
        self.reached[shard] = max(offset, self.reached.get(shard, 0))
        if self.reached[shard] >= self.ends.get(shard, 0):
            self.behind.discard(shard)


SubscriptionOption = Annotated[
    str | None,
    typer.Option(
        "--subscription",
        metavar="NAME",
        help="Resume this subscription; default: a temporary one.",
        autocompletion=completion.subscriptions,
    ),
]
TypeOption = Annotated[
    str | None,
    typer.Option(
        "--type",
        metavar="TYPE",
        help=f"Type of a new subscription: {', '.join(TYPES)}; default: exclusive "
        "(the default of the Python client is shared).",
        autocompletion=completion.types,
    ),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="POSITION",
        help="earliest (the default; that of the Python client is latest), latest, an offset, a time such as "
        "2026-07-01T12:00, an age such as -10m, or snapshot:ID.",
        autocompletion=completion.positions,
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help='text, json, payload, or a pattern such as "%o %k %p": offset, key and payload.',
        autocompletion=completion.formats,
    ),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.001,
        help=f"Stop after this many idle seconds (default {TEMPORARY_IDLE_SECONDS:g}; {IDLE_SECONDS:g} with "
        "--subscription; none with --follow).",
    ),
]


def consume(
    topic: TopicName,
    subscription: SubscriptionOption = None,
    kind: TypeOption = None,
    start: FromOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new messages at the end; Ctrl-C stops.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", metavar="NUMBER", min=1, help="Stop after this many messages.")
    ] = None,
    form: FormatOption = None,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Whether to acknowledge messages.")] = True,
    timeout: TimeoutOption = None,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Write the messages of a topic up to its end, one per line; Ctrl-C stops cleanly.

    Example: icestream consume /default/orders
    Example: icestream consume /default/orders --from -10m --follow
    Example: icestream consume /default/orders --from 2026-07-01T12:00 --count 100 --format "%o %k %p"
    Example: icestream consume /default/orders --subscription billing --type shared --output json
    """
    idle_seconds = IDLE_SECONDS if subscription is not None else TEMPORARY_IDLE_SECONDS
    options = ConsumeOptions(
        topic,
        subscription,
        _parse_type(kind) if kind is not None else None,
        parse_position(start) if start is not None else None,
        parse_format(form or ("text" if output is not OutputFormat.JSON else "json")),
        count,
        follow,
        ack,
        timeout if timeout is not None or follow else idle_seconds,
    )
    asyncio.run(_consume(Target(broker, config, sets), options, sys.stdout.buffer))


def _parse_type(text: str) -> TypeName:
    for name in TYPES:
        if text == name:
            return name
    raise errors.InvalidInput(f"unknown subscription type {text!r}", hint=f"types: {', '.join(TYPES)}")


async def _consume(target: Target, options: ConsumeOptions, out: BinaryIO) -> None:
    progress = ConsumeProgress()
    async with open_client(target) as client:
        try:
            with interruptible() as stop:
                async with _subscribe(client, options, progress) as subscription:
                    while _is_unfinished(options, progress):
                        count = min(BATCH_MESSAGES_MAX, (options.count or sys.maxsize) - progress.written)
                        batch = await _next_batch(subscription, count, stop, options, progress)
                        if not batch:
                            break
                        _write(batch, options, progress, out)
                    _conclude(options, progress, subscription, stop, is_lost=not client.is_connected)
        except errors.UnknownTopic as error:
            raise await suggest_topic(error, lambda: client.call(LIST_TOPICS.name, {})) from None


async def _next_batch(
    subscription: Subscription, count: int, stop: asyncio.Event, options: ConsumeOptions, progress: ConsumeProgress
) -> list[Message] | None:
    """The next messages. None or empty if the run was stopped, was idle for too long, or only gaps remained."""
    if options.follow:
        return await _follow(subscription, count, stop, options.idle_seconds)
    seconds_left = options.idle_seconds or 0.0
    while seconds_left > 0 and not stop.is_set():
        batch = await run_until_stopped(subscription.take(count), stop, min(seconds_left, POLL_SECONDS))
        progress.skip(subscription.gaps)
        progress.report_stalls(subscription)
        if batch or not progress.behind:
            return batch
        seconds_left -= POLL_SECONDS
    return None


async def _follow(
    subscription: Subscription, count: int, stop: asyncio.Event, idle_seconds: float | None
) -> list[Message] | None:
    """The next messages of a run with --follow, which prints a stall and keeps waiting."""
    while True:
        try:
            return await run_until_stopped(subscription.take(count), stop, idle_seconds)
        except errors.SubscriptionStalled as error:
            print_note(f"{error.message}; {error.hint}")


def _conclude(
    options: ConsumeOptions,
    progress: ConsumeProgress,
    subscription: Subscription,
    stop: asyncio.Event,
    *,
    is_lost: bool,
) -> None:
    """Prints gaps and the number of messages. Raises ConnectionLost or SubscriptionStalled for an incomplete run."""
    progress.skip(subscription.gaps)
    for gap in subscription.gaps:
        if progress.reached.get(gap.shard, 0) >= gap.end:
            print_note(f"gap in shard {gap.shard}: offsets {gap.start}..{gap.end - 1} are missing ({gap.reason})")
    total = counted(progress.written, "message")
    is_incomplete = _is_unfinished(options, progress) and not stop.is_set()
    if is_lost and not stop.is_set():
        raise errors.ConnectionLost(
            f"connection to the broker lost after {total}",
            hint="restart it with `icestream serve`; --follow waits for it",
        )
    if is_incomplete and subscription.stalls:
        stall = subscription.stalls[0]
        raise errors.SubscriptionStalled(
            f"shard {stall.shard} cannot be read from offset {stall.offset}: {stall.reason}; stopped after {total}",
            hint=stall.hint or "retry later; --follow waits for it",
        )
    if is_incomplete and not options.follow and options.subscription is None:
        raise errors.SubscriptionStalled(
            f"no message received for {options.idle_seconds:g} s, but the end is not reached in shard "
            f"{_shards_text(progress)}; stopped after {total}",
            hint="the broker or its lake process may be busy: run `icestream doctor`, or raise --timeout",
        )
    if is_incomplete:
        print_note(f"no message received for {options.idle_seconds:g} s{_unreached_text(options, progress)}")
    print_note(total)


def _unreached_text(options: ConsumeOptions, progress: ConsumeProgress) -> str:
    if options.follow:
        return ""
    cause = "delivered to another consumer, or already acknowledged"
    return f", but the end is not reached in shard {_shards_text(progress)} ({cause})"


def _shards_text(progress: ConsumeProgress) -> str:
    return ", ".join(map(str, sorted(progress.behind)))


def _is_unfinished(options: ConsumeOptions, progress: ConsumeProgress) -> bool:
    if options.count is not None and progress.written >= options.count:
        return False
    return options.follow or bool(progress.behind)


def _write(batch: list[Message], options: ConsumeOptions, progress: ConsumeProgress, out: BinaryIO) -> None:
    """Writes and acknowledges the messages before the end of the run; later ones remain in the subscription."""
    written = []
    with output_errors():
        for message in batch:
            if options.follow or progress.is_before_end(message.shard, message.offset):
                out.write(options.format(message))
                progress.record(message.shard, message.offset)
                written.append(message)
        out.flush()
    if options.acks:
        for message in written:
            message.ack()


# --- subscriptions ----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _subscribe(client: Client, options: ConsumeOptions, progress: ConsumeProgress) -> AsyncIterator[Subscription]:
    topic = await client.describe_topic(options.topic)
    exists = options.subscription in topic.subscriptions
    if exists and options.start is not None:
        raise errors.InvalidInput(
            f"subscription {options.subscription} exists: it resumes at its position, --from does not apply",
            hint=f"move it with `icestream sub seek {options.topic} {options.subscription} --to …`",
        )
    temporary_name = f"consume-{socket.gethostname()}-{secrets.token_hex(4)}"
    start = options.start if options.start is not None else "earliest"
    async with contextlib.AsyncExitStack() as stack:
        # A temporary subscription at `latest` reveals the ends of the shards, also for a run with --subscription.
        if options.subscription is None:
            ends = await stack.enter_async_context(_read_ends(client, options, temporary_name))
            await client.call(
                "seek", {"topic": options.topic, "subscription": temporary_name, **start_arguments(start)}
            )
        else:
            async with _read_ends(client, options, temporary_name) as ends:
                pass
        types = (options.type,) if options.type is not None else TYPES if exists else TYPES[:1]
        subscription = await _open(client, options, options.subscription or temporary_name, start, types)
        stack.push_async_callback(subscription.close)
        progress.begin(dict(enumerate(subscription.positions)), ends)
        yield subscription


async def _open(
    client: Client, options: ConsumeOptions, name: str, start: StartPosition, types: Sequence[TypeName]
) -> Subscription:
    """Subscribes with the first matching type: the type of an existing subscription is not known beforehand."""
    for kind in types:
        try:
            return await client.subscribe(
                options.topic, name, type=kind, start=start, dedup=not options.acks, stall_timeout=STALL_SECONDS
            )
        except errors.InvalidInput as error:
            if type(error) is not errors.InvalidInput or kind is types[-1]:
                raise
    raise AssertionError("there is at least one type")


@contextlib.asynccontextmanager
async def _read_ends(client: Client, options: ConsumeOptions, name: str) -> AsyncIterator[dict[int, int]]:
    """Yields the end offset of each shard: the positions of a new subscription at `latest`. Deletes it afterwards."""
    subscription = await client.subscribe(options.topic, name, type=options.type or TYPES[0], start="latest")
    try:
        ends = dict(enumerate(subscription.positions))
        await subscription.close()
        yield ends
    finally:
        if client.is_connected:  # otherwise the call would wait for a broker that may not return
            with contextlib.suppress(errors.UnknownTopic, errors.UnknownSubscription):  # deleted in the meantime
                await client.delete_subscription(options.topic, name)
