"""`icestream consume`: messages of a topic, written line by line.

    its own subscription   made for this run, from --from on, and deleted at its end, also after Ctrl-C
    --subscription S       S goes on where it stands; --from counts only when it is made

Without --follow the run ends at the end that the topic had when it started. That end is the position of a subscription
at `latest`. What another consumer of S has, or what was acked before, does not come; nor does what a gap took. So a run
also ends when nothing came for --timeout seconds.

A message is acked when it is written and flushed: one that got lost in a broken pipe comes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, BinaryIO, Final, get_args

import typer

from icestream import errors
from icestream.cli.connection import AddressOption, Target, client_of, interruptible, unless_stopped
from icestream.cli.formats import Format, format_of
from icestream.cli.options import ConfigFile, OutputChoice, Sets
from icestream.cli.output import OutputFormat, say_aside
from icestream.cli.places import place_of
from icestream.client.asked import TypeName
from icestream.client.client import Client
from icestream.client.message import Message
from icestream.client.subscription import Subscription
from icestream.client.whence import Whence, arguments_of

IDLE_SECONDS: Final = 2.0
TAKEN_AT_ONCE: Final = 256
TYPES: Final[tuple[TypeName, ...]] = get_args(TypeName)


@dataclass(frozen=True, slots=True)
class Wanted:
    topic: str
    subscription: str | None
    type: TypeName
    start: Whence | None
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
    written: int = 0

    def begin(self, starts: dict[int, int], ends: dict[int, int]) -> None:
        self.ends = ends
        self.behind = {shard for shard, end in ends.items() if starts.get(shard, 0) < end}

    def is_before_the_end(self, shard: int, offset: int) -> bool:
        return offset < self.ends.get(shard, 0)

    def note(self, shard: int, offset: int) -> None:
        self.written += 1
        if offset + 1 >= self.ends.get(shard, 0):
            self.behind.discard(shard)


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Such as /default/orders.")],
    subscription: Annotated[
        str | None, typer.Option("--subscription", help="Go on with this one; else one for this run only.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--type", help=f"{', '.join(TYPES)}; exclusive if not given.")] = None,
    start: Annotated[
        str | None, typer.Option("--from", help="earliest (the default), latest, an offset, a time, or -10m.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more at the end; Ctrl-C ends.")] = False,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after so many messages.")] = None,
    form: Annotated[str | None, typer.Option("--format", help='text, json, payload, or "%o %k %p".')] = None,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Whether messages count as done.")] = True,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", min=0.001, help="End when nothing came for so many seconds; 2 without --follow."),
    ] = None,
    address: AddressOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Write the messages of a topic, a line each, up to its end; Ctrl-C ends in order.

    Example: icestream consume /default/orders --from -10m --follow --format "%o %k %p"
    """
    wanted = Wanted(
        topic,
        subscription,
        _type_of(kind),
        place_of(start) if start is not None else None,
        format_of(form or ("text" if output is OutputFormat.TABLE else "json")),
        count,
        follow,
        ack,
        timeout if timeout is not None or follow else IDLE_SECONDS,
    )
    asyncio.run(_consume(Target(address, None, config, sets), wanted, sys.stdout.buffer))


def _type_of(given: str | None) -> TypeName:
    for name in TYPES:
        if given in (name, None):
            return name
    raise errors.InvalidInput(f"{given!r} is not a type of subscriptions", hint=f"there are {', '.join(TYPES)}")


async def _consume(target: Target, wanted: Wanted, out: BinaryIO) -> None:
    progress = Progress()
    async with client_of(target) as client:
        with interruptible() as stop:
            async with _subscribed(client, wanted, progress) as messages:
                while _goes_on(wanted, progress):
                    most = min(TAKEN_AT_ONCE, (wanted.count or sys.maxsize) - progress.written)
                    found = await unless_stopped(messages.take(most), stop, wanted.idle_seconds)
                    if not found:
                        break
                    _write(found, wanted, progress, out)
                _conclude(wanted, progress, messages, is_lost=not (client.is_connected or stop.is_set()))


def _conclude(wanted: Wanted, progress: Progress, messages: Subscription, *, is_lost: bool) -> None:
    for gap in messages.gaps:
        say_aside(f"offsets {gap.start}..{gap.end - 1} of shard {gap.shard} hold no message: {gap.reason}")
    if is_lost:
        raise errors.ConnectionLost(
            f"the connection to the broker is lost, {progress.written} messages were written",
            hint="start it again with `icestream serve`; --follow waits for it",
        )
    say_aside(f"{progress.written} messages")


def _goes_on(wanted: Wanted, progress: Progress) -> bool:
    if wanted.count is not None and progress.written >= wanted.count:
        return False
    return wanted.follow or bool(progress.behind)


def _write(found: list[Message], wanted: Wanted, progress: Progress, out: BinaryIO) -> None:
    """Those up to the end that the run has; what is behind it stays."""
    written = []
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
            progress.begin(await _sought(client, wanted.topic, passing, start), ends)
        else:
            async with _at_the_end(client, wanted, passing) as ends:
                progress.begin({}, ends)
        name = wanted.subscription or passing
        asked = client.subscribe(wanted.topic, name, type=wanted.type, start=start, dedup=not wanted.acks)
        yield await stack.enter_async_context(asked)


@contextlib.asynccontextmanager
async def _at_the_end(client: Client, wanted: Wanted, name: str) -> AsyncIterator[dict[int, int]]:
    """A subscription at the end of the topic: its positions are the ends. Deletes it afterwards."""
    arguments = {"topic": wanted.topic, "subscription": name, "type": wanted.type, "start": "latest"}
    found = await client.call("subscribe", {**arguments, "consumer": name})
    try:
        await client.call("close_consumer", {"handle": found["handle"]})
        yield dict(enumerate(found["positions"]))
    finally:
        if client.is_connected:  # else nobody waits for a broker that may never come back
            with contextlib.suppress(errors.UnknownTopic, errors.UnknownSubscription):  # deleted in the meantime
                await client.delete_subscription(wanted.topic, name)


async def _sought(client: Client, topic: str, name: str, start: Whence) -> dict[int, int]:
    """Where it stands afterwards, by shard."""
    arguments = {"topic": topic, "subscription": name, **arguments_of(start)}
    return dict(enumerate((await client.call("seek", arguments))["positions"]))
