"""`icestream produce`: each line of the input becomes a message.

Lines are sent as they are read, many under way at a time, in order. The first line that cannot be sent, and the first
message that could not be stored, end the reading; what is under way then is waited for, and the summary says how much
is stored. So a run can go on behind the last line that counts.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Final

import typer

from icestream import errors, limits
from icestream.cli.arguments import TopicName
from icestream.cli.broker import BrokerOption, Target
from icestream.cli.connection import client_of, interruptible, unless_stopped
from icestream.cli.lines import Draft, LineSplitter, draft_of_json, read_chunks
from icestream.cli.options import ConfigFile, OutputChoice, Sets
from icestream.cli.output import Output, OutputFormat, say_aside
from icestream.cli.progress import Advance, progress
from icestream.client.batch import MessageId
from icestream.client.producer import Producer
from icestream.observability.words import counted

INTERRUPTED: Final = 130


@dataclass(slots=True)
class Account:
    """What became of the messages."""

    stored: int = 0
    failed: int = 0
    error: errors.IcestreamError | None = None
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)  # the first and the last of each shard

    def settle(self, answer: asyncio.Future[MessageId]) -> None:
        error = answer.exception() if not answer.cancelled() else None
        if answer.cancelled() or error is not None:
            self.failed += 1
            if self.error is None and isinstance(error, errors.IcestreamError):
                self.error = error
            return
        found = answer.result()
        self.stored += 1
        if found.offset >= 0:  # stored before a connection was lost, so long ago that the broker cannot say where
            first, last = self.offsets.get(found.shard, (found.offset, found.offset))
            self.offsets[found.shard] = min(first, found.offset), max(last, found.offset)

    def ranges(self) -> list[dict[str, int]]:
        return [{"shard": shard, "first": first, "last": last} for shard, (first, last) in sorted(self.offsets.items())]

    def words(self) -> str:
        """`2 messages stored at offsets 0..1`"""
        texts = [_range_text(*found) for _, found in sorted(self.offsets.items())]
        if len(texts) == 1:
            places = f" at offset{'s' if '.' in texts[0] else ''} {texts[0]}"
        else:
            shards = (f"shard {shard}: {text}" for shard, text in zip(sorted(self.offsets), texts, strict=True))
            places = f" ({', '.join(shards)})" if texts else ""
        return f"{counted(self.stored, 'message')} stored{places}"


def _range_text(first: int, last: int) -> str:
    return f"{first}..{last}" if last > first else str(first)


@dataclass(frozen=True, slots=True)
class Wanted:
    topic: str
    key: str | None
    headers: dict[str, str]
    as_json: bool
    shards: int
    create: bool
    timeout_seconds: float


def produce(
    topic: TopicName,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Key of every message that has none of its own.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="A header of every message; repeatable.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help='Each line is an object: {"payload": "text", "key": "k", "headers": {}}.')
    ] = False,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Read this file instead of the standard input.")
    ] = None,
    create: Annotated[bool, typer.Option("--create/--no-create", help="Make the topic if it is not there.")] = True,
    shards: Annotated[
        int, typer.Option("--shards", metavar="NUMBER", min=1, help="Shards of a topic that is made.")
    ] = 1,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="In which a message must be stored.")
    ] = limits.CLIENT_SEND_SECONDS_DEFAULT,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Send each line of the input as a message; ends with how many are stored, and where.

    Example: echo hello | icestream produce /default/orders
    Example: icestream produce /default/orders --file orders.txt --key customer-7 --header source=shop
    Example: icestream produce /default/orders --json --shards 4 < orders.jsonl
    """
    wanted = Wanted(topic, key, dict(map(_header, header or ())), as_json, shards, create, timeout)
    account = Account()
    stopped_by: errors.IcestreamError | None = None
    interrupted = False
    try:
        with ExitStack() as stack:
            source = _open(file, stack)
            advance = stack.enter_context(progress("sending", _size(source)))
            target = Target(broker, config, sets)
            interrupted = asyncio.run(_produce(target, wanted, source, account, advance))
    except errors.IcestreamError as error:
        if not (account.stored or account.failed):
            raise
        stopped_by = error
    _report(account, Output(output), stopped_by)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _header(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not equals or not name:
        raise errors.InvalidInput(f"header {given!r} is not NAME=VALUE", hint="for example --header source=shop")
    return name, value


def _open(file: Path | None, stack: ExitStack) -> IO[bytes]:
    if file is None or str(file) == "-":
        if sys.stdin.isatty():
            say_aside("each line is a message; Ctrl-D ends")
        return sys.stdin.buffer
    try:
        return stack.enter_context(file.open("rb"))
    except OSError as error:
        raise errors.InvalidInput(
            f"{file} cannot be read: {error.strerror}", hint="name a file that is there, or - for the standard input"
        ) from None


def _size(source: IO[bytes]) -> int | None:
    """None where nobody knows: a pipe, a terminal, bytes in memory."""
    with suppress(OSError):
        found = os.fstat(source.fileno())
        return found.st_size if stat.S_ISREG(found.st_mode) else None
    return None


async def _produce(target: Target, wanted: Wanted, source: IO[bytes], account: Account, advance: Advance) -> bool:
    """Whether it was interrupted."""
    async with client_of(target, send_timeout=wanted.timeout_seconds) as client:
        with interruptible() as stop:
            async with client.producer(wanted.topic, create=wanted.create, shards=wanted.shards) as producer:
                sending = _Sending(producer, wanted, account)
                await unless_stopped(sending.send_all(source, advance), stop)
            return stop.is_set()


class _Sending:
    def __init__(self, producer: Producer, wanted: Wanted, account: Account) -> None:
        self._producer = producer
        self._wanted = wanted
        self._key = os.fsencode(wanted.key) if wanted.key is not None else None  # the bytes that the shell gave
        self._account = account
        self._lines = 0  # that were sent

    async def send_all(self, source: IO[bytes], advance: Advance) -> None:
        """Every line until the first that fails. What is sent is settled when the producer is closed."""
        splitter = LineSplitter(as_json=self._wanted.as_json)
        async for chunk in read_chunks(source):
            if not await self._send_lines(splitter.feed(chunk)):
                return
            advance(len(chunk))
            await asyncio.sleep(0)  # the end of a tick: what was sent leaves
        await self._send_lines(splitter.end())

    async def _send_lines(self, lines: Iterator[bytes]) -> bool:
        """False: something could not be stored."""
        try:
            for line in lines:
                await self._producer.ready()
                if self._account.error is not None:
                    return False
                self._send(line)
                self._lines += 1
        except errors.InvalidInput as error:
            raise type(error)(f"line {self._lines + 1}: {error.message}", hint=error.hint) from None
        return True

    def _send(self, line: bytes) -> None:
        draft = draft_of_json(line) if self._wanted.as_json else Draft(line)
        if draft is None:
            return
        headers = {**self._wanted.headers, **(draft.headers or {})}
        key = draft.key if draft.key is not None else self._key
        self._producer.send(draft.payload, key=key, headers=headers or None).add_done_callback(self._account.settle)


def _report(account: Account, answer: Output, stopped_by: errors.IcestreamError | None) -> None:
    if answer.for_people:
        answer.say(account.words())
    else:
        answer.record({"stored": account.stored, "failed": account.failed, "offsets": account.ranges()})
    if stopped_by is not None:
        raise type(stopped_by)(f"{stopped_by.message}; {_lost(account)}", hint=stopped_by.hint)
    if account.failed:
        error = account.error or errors.OutcomeUnknown("the answers did not come")
        raise type(error)(f"{_lost(account)}: {error.message}", hint=error.hint)


def _lost(account: Account) -> str:
    """How many are stored, and how many of those that were sent are not."""
    if account.failed:
        return f"{account.failed} of {counted(account.stored + account.failed, 'message')} not stored"
    return f"{counted(account.stored, 'message')} before it stored"
