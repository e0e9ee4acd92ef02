"""`icestream consume`: messages of a topic, written line by line.

    its own subscription   made for this run, from --from on, and deleted at its end, also after Ctrl-C
    --subscription S       S goes on where it stands; --from counts only when it is made

Without --follow the run ends at the end that the topic had when it started. That end is the position of a subscription
at `latest`. A gap may reach up to it: the broker tells of that. What another consumer of S has, or what was acked
before, does not come, and nobody tells: so a run also ends when nothing came for --timeout seconds, and says so.

A message is acked when it is written and flushed: one that got lost in a broken pipe comes again.
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
from icestream.cli import completion
from icestream.cli.arguments import TopicName
from icestream.cli.broker import BrokerOption, Target
from icestream.cli.connection import client_of, interruptible, unless_stopped
from icestream.cli.formats import Format, format_of
from icestream.cli.nearest import with_suggestion
from icestream.cli.options import ConfigFile, OutputChoice, Sets
from icestream.cli.output import OutputFormat, say_aside, writing
from icestream.cli.places import place_of
from icestream.client.client import Client
from icestream.client.message import Gap, Message
from icestream.client.stalls import Stall
from icestream.client.start_position import StartPosition, start_arguments
from icestream.client.subscribe_call import TypeName
from icestream.client.subscription import Subscription
from icestream.observability.words import counted

# With --subscription, longer than the broker takes to report a read that does not answer (limits.READ_STALLED_MS).
IDLE_SECONDS: Final = 4.0
OWN_IDLE_SECONDS: Final = 30.0  # of a subscription of one's own, whose messages nobody else can have
STALL_SECONDS: Final = 10.0  # without --follow: for which stored messages may be unreadable
LOOK_SECONDS: Final = 0.2  # how often a run that waits for its end looks for gaps
TAKEN_AT_ONCE: Final = 256
TYPES: Final[tuple[TypeName, ...]] = get_args(TypeName)


@dataclass(frozen=True, slots=True)
class Wanted:
    topic: str
    subscription: str | None
    type: TypeName | None
    start: StartPosition | None
    format: Format
    count: int | None
    follow: bool
    acks: bool
    idle_seconds: float | None


@dataclass(slots=True)
class Progress:
    """How far a run has come. `ends`: of the shards, at its start; `behind`: the shards that have not reached it."""

    ends: dict[int, int] = field(default_factory=dict)
    behind: set[int] = field(default_factory=set)
    reached: dict[int, int] = field(default_factory=dict)  # the offset behind the last one, by shard
    written: int = 0
    said: set[Stall] = field(default_factory=set)

    def say_stalls(self, messages: Subscription) -> None:
        """What keeps messages from coming, once: it may pass by itself."""
        for stall in messages.stalls:
            if stall not in self.said:
                self.said.add(stall)
                say_aside(f"shard {stall.shard} stands still at offset {stall.offset}: {stall.reason}")

    def begin(self, starts: dict[int, int], ends: dict[int, int]) -> None:
        self.ends, self.reached = ends, dict(starts)
        self.behind = {shard for shard, end in ends.items() if starts.get(shard, 0) < end}

    def is_before_the_end(self, shard: int, offset: int) -> bool:
        return offset < self.ends.get(shard, 0)

    def note(self, shard: int, offset: int) -> None:
        self.written += 1
        self._reach(shard, offset + 1)

    def skip(self, gaps: Iterable[Gap]) -> None:
        """A gap that begins where the run stands takes it further."""
        for gap in gaps:
            if self.reached.get(gap.shard, 0) >= gap.start:
                self._reach(gap.shard, gap.end)

    def _reach(self, shard: int, offset: int) -> None:
        self.reached[shard] = max(offset, self.reached.get(shard, 0))
        if self.reached[shard] >= self.ends.get(shard, 0):
            self.behind.discard(shard)


SubscriptionOption = Annotated[
    str | None,
    typer.Option(
        "--subscription",
        metavar="NAME",
        help="Go on with this one; else one for this run only.",
        autocompletion=completion.subscriptions,
    ),
]
TypeOption = Annotated[
    str | None,
    typer.Option(
        "--type",
        metavar="TYPE",
        help=f"Of a subscription that is made: {', '.join(TYPES)}; else exclusive "
        "(the Python client makes shared ones).",
        autocompletion=completion.types,
    ),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="PLACE",
        help="earliest (the default; in the Python client that is latest), latest, an offset, a time such as "
        "2026-07-01T12:00, or -10m.",
        autocompletion=completion.places,
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
        help=f"End when nothing came for so long: {OWN_IDLE_SECONDS:g} without --follow, {IDLE_SECONDS:g} with "
        "--subscription.",
    ),
]


def consume(
    topic: TopicName,
    subscription: SubscriptionOption = None,
    kind: TypeOption = None,
    start: FromOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more at the end; Ctrl-C ends.")] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", metavar="NUMBER", min=1, help="End after so many messages.")
    ] = None,
    form: FormatOption = None,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Whether messages count as done.")] = True,
    timeout: TimeoutOption = None,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Write the messages of a topic, a line each, up to its end; Ctrl-C ends in order.

    Example: icestream consume /default/orders
    Example: icestream consume /default/orders --from -10m --follow
    Example: icestream consume /default/orders --from 2026-07-01T12:00 --count 100 --format "%o %k %p"
    Example: icestream consume /default/orders --subscription billing --type shared --output json
    """
    idle_seconds = IDLE_SECONDS if subscription is not None else OWN_IDLE_SECONDS
    wanted = Wanted(
        topic,
        subscription,
        _type_of(kind) if kind is not None else None,
        place_of(start) if start is not None else None,
        format_of(form or ("text" if output is not OutputFormat.JSON else "json")),
        count,
        follow,
        ack,
        timeout if timeout is not None or follow else idle_seconds,
    )
    asyncio.run(_consume(Target(broker, config, sets), wanted, sys.stdout.buffer))


def _type_of(given: str) -> TypeName:
    for name in TYPES:
        if given == name:
            return name
    raise errors.InvalidInput(f"{given!r} is not a type of subscriptions", hint=f"there are {', '.join(TYPES)}")


async def _consume(target: Target, wanted: Wanted, out: BinaryIO) -> None:
    progress = Progress()
    async with client_of(target) as client:
        try:
            with interruptible() as stop:
                async with _subscribed(client, wanted, progress) as messages:
                    while _goes_on(wanted, progress):
                        most = min(TAKEN_AT_ONCE, (wanted.count or sys.maxsize) - progress.written)
                        found = await _taken(messages, most, stop, wanted, progress)
                        if not found:
                            break
                        _write(found, wanted, progress, out)
                    _conclude(wanted, progress, messages, stop, is_lost=not client.is_connected)
        except errors.UnknownTopic as error:
            raise await with_suggestion(error, client.call) from None


async def _taken(
    messages: Subscription, most: int, stop: asyncio.Event, wanted: Wanted, progress: Progress
) -> list[Message] | None:
    """What comes next. Nothing: it was stopped, nothing came for too long, or only gaps were left."""
    if wanted.follow:
        return await _followed(messages, most, stop, wanted.idle_seconds)
    left = wanted.idle_seconds or 0.0
    while left > 0 and not stop.is_set():
        found = await unless_stopped(messages.take(most), stop, min(left, LOOK_SECONDS))
        progress.skip(messages.gaps)
        progress.say_stalls(messages)
        if found or not progress.behind:
            return found
        left -= LOOK_SECONDS
    return None


async def _followed(
    messages: Subscription, most: int, stop: asyncio.Event, idle_seconds: float | None
) -> list[Message] | None:
    """What comes next. A stall is said and waited for."""
    while True:
        try:
            return await unless_stopped(messages.take(most), stop, idle_seconds)
        except errors.SubscriptionStalled as error:
            say_aside(f"{error.message}; {error.hint}")


def _conclude(
    wanted: Wanted, progress: Progress, messages: Subscription, stop: asyncio.Event, *, is_lost: bool
) -> None:
    progress.skip(messages.gaps)
    for gap in (one for one in messages.gaps if progress.reached.get(one.shard, 0) >= one.end):
        say_aside(f"offsets {gap.start}..{gap.end - 1} of shard {gap.shard} hold no message: {gap.reason}")
    if is_lost and not stop.is_set():
        raise errors.ConnectionLost(
            f"the connection to the broker is lost; written until then: {counted(progress.written, 'message')}",
            hint="start it again with `icestream serve`; --follow waits for it",
        )
    if _goes_on(wanted, progress) and not stop.is_set() and messages.stalls:
        stall = messages.stalls[0]
        raise errors.SubscriptionStalled(
            f"shard {stall.shard} cannot be read from offset {stall.offset} on: {stall.reason}; written until then: "
            f"{counted(progress.written, 'message')}",
            hint=stall.hint or "try again later; --follow waits for it",
        )
    if _goes_on(wanted, progress) and not stop.is_set() and not wanted.follow and wanted.subscription is None:
        raise errors.SubscriptionStalled(
            f"nothing came for {wanted.idle_seconds:g} s, although the end is not reached in shard "
            f"{_shards_text(progress)}; written until then: {counted(progress.written, 'message')}",
            hint="the broker or its lake process may be busy: `icestream doctor` looks; --timeout waits longer",
        )
    if _goes_on(wanted, progress) and not stop.is_set():
        say_aside(f"nothing came for {wanted.idle_seconds:g} s{_left_text(wanted, progress)}")
    say_aside(counted(progress.written, "message"))


def _left_text(wanted: Wanted, progress: Progress) -> str:
    if wanted.follow:
        return ""
    why = "another consumer has them, or they are done"
    return f", although the end is not reached in shard {_shards_text(progress)} ({why})"


def _shards_text(progress: Progress) -> str:
    return ", ".join(map(str, sorted(progress.behind)))


def _goes_on(wanted: Wanted, progress: Progress) -> bool:
    if wanted.count is not None and progress.written >= wanted.count:
        return False
    return wanted.follow or bool(progress.behind)


def _write(found: list[Message], wanted: Wanted, progress: Progress, out: BinaryIO) -> None:
    """Those up to the end that the run has; what is behind it stays."""
    written = []
    with writing():
        for message in found:
            if wanted.follow or progress.is_before_the_end(message.shard, message.offset):
                out.write(wanted.format(message))
                progress.note(message.shard, message.offset)
                written.append(message)
        out.flush()
    if wanted.acks:
        for message in written:
            message.ack()


# --- subscriptions ----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _subscribed(client: Client, wanted: Wanted, progress: Progress) -> AsyncIterator[Subscription]:
    topic = await client.describe_topic(wanted.topic)
    if wanted.subscription is not None and wanted.subscription in topic.subscriptions and wanted.start is not None:
        raise errors.InvalidInput(
            f"subscription {wanted.subscription} exists: it goes on where it stands, not at --from",
            hint=f"move it with `icestream sub seek {wanted.topic} {wanted.subscription} --to …`",
        )
    passing = f"consume-{socket.gethostname()}-{secrets.token_hex(4)}"
    start = wanted.start if wanted.start is not None else "earliest"
    async with contextlib.AsyncExitStack() as stack:
        if wanted.subscription is None:
            ends = await stack.enter_async_context(_at_the_end(client, wanted, passing))
            await client.call("seek", {"topic": wanted.topic, "subscription": passing, **start_arguments(start)})
        else:
            async with _at_the_end(client, wanted, passing) as ends:
                pass
        exists = wanted.subscription in topic.subscriptions
        types = (wanted.type,) if wanted.type is not None else TYPES if exists else TYPES[:1]
        opened = await _opened(client, wanted, wanted.subscription or passing, start, types)
        stack.push_async_callback(opened.close)
        progress.begin(dict(enumerate(opened.positions)), ends)
        yield opened


async def _opened(
    client: Client, wanted: Wanted, name: str, start: StartPosition, types: Sequence[TypeName]
) -> Subscription:
    """By the first of the types that it has: nobody but the subscription itself knows."""
    for kind in types:
        try:
            return await client.subscribe(
                wanted.topic, name, type=kind, start=start, dedup=not wanted.acks, stall_timeout=STALL_SECONDS
            )
        except errors.InvalidInput as error:
            if type(error) is not errors.InvalidInput or kind is types[-1]:
                raise
    raise AssertionError("there is at least one type")


@contextlib.asynccontextmanager
async def _at_the_end(client: Client, wanted: Wanted, name: str) -> AsyncIterator[dict[int, int]]:
    """A subscription at the end of the topic: its positions are the ends. Deletes it afterwards."""
    opened = await client.subscribe(wanted.topic, name, type=wanted.type or TYPES[0], start="latest")
    try:
        ends = dict(enumerate(opened.positions))
        await opened.close()
        yield ends
    finally:
        if client.is_connected:  # else nobody waits for a broker that may never come back
            with contextlib.suppress(errors.UnknownTopic, errors.UnknownSubscription):  # deleted in the meantime
                await client.delete_subscription(wanted.topic, name)
