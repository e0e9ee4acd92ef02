"""`icestream produce`: sends each line of the input as a message.

Lines are sent in order as they are read, many in flight at a time. Reading stops at the first line that cannot be sent
and at the first message that is not stored; then messages in flight are awaited, and the summary reports how many are
stored, so that a later run can continue after the last stored line.
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
from icestream.cli.broker_connection import interruptible, open_client, run_until_stopped
from icestream.cli.broker_location import BrokerOption, Target
from icestream.cli.message_input import LineSplitter, MessageDraft, parse_json_line, read_chunks
from icestream.cli.options import ConfigFile, OutputChoice, Sets
from icestream.cli.output import Output, OutputFormat, print_note
from icestream.cli.progress_bar import Advance, progress_bar
from icestream.client.batch import MessageId
from icestream.client.producer import Producer
from icestream.observability.words import counted

INTERRUPTED: Final = 130


@dataclass(slots=True)
class SendReport:
    """The outcome of the messages sent so far."""

    stored: int = 0
    failed: int = 0
    error: errors.IcestreamError | None = None
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)  # the first and the last of each shard

    def settle(self, receipt: asyncio.Future[MessageId]) -> None:
        """Records the outcome of one message."""
        error = receipt.exception() if not receipt.cancelled() else None
        if receipt.cancelled() or error is not None:
            self.failed += 1
            if self.error is None and isinstance(error, errors.IcestreamError):
                self.error = error
            return
        message_id = receipt.result()
        self.stored += 1
        # A duplicate of a message stored before a lost connection has no offset if the broker no longer remembers it.
        if message_id.offset >= 0:
            first, last = self.offsets.get(message_id.shard, (message_id.offset, message_id.offset))
            self.offsets[message_id.shard] = min(first, message_id.offset), max(last, message_id.offset)

    def ranges(self) -> list[dict[str, int]]:
        return [{"shard": shard, "first": first, "last": last} for shard, (first, last) in sorted(self.offsets.items())]

    def text(self) -> str:
        """`2 messages stored at offsets 0..1`"""
        texts = [_range_text(*offsets) for _, offsets in sorted(self.offsets.items())]
        if len(texts) == 1:
            suffix = f" at offset{'s' if '.' in texts[0] else ''} {texts[0]}"
        else:
            shards = (f"shard {shard}: {text}" for shard, text in zip(sorted(self.offsets), texts, strict=True))
            suffix = f" ({', '.join(shards)})" if texts else ""
        return f"{counted(self.stored, 'message')} stored{suffix}"


def _range_text(first: int, last: int) -> str:
    return f"{first}..{last}" if last > first else str(first)


@dataclass(frozen=True, slots=True)
class ProduceOptions:
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
        str | None, typer.Option("--key", metavar="KEY", help="Key of messages that do not have one.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="A header of every message; repeatable.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help='Each line is an object: {"payload": "text", "key": "k", "headers": {}}.')
    ] = False,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Read this file instead of stdin.")
    ] = None,
    create: Annotated[bool, typer.Option("--create/--no-create", help="Create the topic if it does not exist.")] = True,
    shards: Annotated[
        int, typer.Option("--shards", metavar="NUMBER", min=1, help="Number of shards of a new topic.")
    ] = 1,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=0.001, help="How long to wait for the broker to store one."),
    ] = limits.CLIENT_SEND_SECONDS_DEFAULT,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Send each line of the input as a message; print the number of stored messages and their offsets.

    Example: echo hello | icestream produce /default/orders
    Example: icestream produce /default/orders --file orders.txt --key customer-7 --header source=shop
    Example: icestream produce /default/orders --json --shards 4 < orders.jsonl
    """
    options = ProduceOptions(topic, key, dict(map(_parse_header, header or ())), as_json, shards, create, timeout)
    report = SendReport()
    input_error: errors.IcestreamError | None = None
    is_interrupted = False
    try:
        with ExitStack() as stack:
            source = _open(file, stack)
            advance = stack.enter_context(progress_bar("sending", _size(source)))
            target = Target(broker, config, sets)
            is_interrupted = asyncio.run(_produce(target, options, source, report, advance))
    except errors.IcestreamError as error:
        if not (report.stored or report.failed):
            raise
        input_error = error
    _print_report(report, Output(output), input_error)
    if is_interrupted:
        raise typer.Exit(INTERRUPTED)


def _parse_header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise errors.InvalidInput(f"header {text!r} is not NAME=VALUE", hint="for example --header source=shop")
    return name, value


def _open(file: Path | None, stack: ExitStack) -> IO[bytes]:
    if file is None or str(file) == "-":
        if sys.stdin.isatty():
            print_note("Each line is a message; Ctrl-D ends the input.")
        return sys.stdin.buffer
    try:
        return stack.enter_context(file.open("rb"))
    except OSError as error:
        raise errors.InvalidInput(
            f"cannot read {file}: {error.strerror}", hint="name an existing file, or - for stdin"
        ) from None


def _size(source: IO[bytes]) -> int | None:
    """The size of the input in bytes; None for a pipe, a terminal or bytes in memory."""
    with suppress(OSError):
        status = os.fstat(source.fileno())
        return status.st_size if stat.S_ISREG(status.st_mode) else None
    return None


async def _produce(
    target: Target, options: ProduceOptions, source: IO[bytes], report: SendReport, advance: Advance
) -> bool:
    """Sends the input and returns whether it was interrupted."""
    async with open_client(target, send_timeout=options.timeout_seconds) as client:
        with interruptible() as stop:
            async with client.producer(options.topic, create=options.create, shards=options.shards) as producer:
                sender = _InputSender(producer, options, report)
                await run_until_stopped(sender.send_all(source, advance), stop)
            return stop.is_set()


class _InputSender:
    """Sends the lines of the input through a producer and records their outcomes in the report."""

    def __init__(self, producer: Producer, options: ProduceOptions, report: SendReport) -> None:
        self._producer = producer
        self._options = options
        self._key = os.fsencode(options.key) if options.key is not None else None  # the bytes as the shell passed them
        self._report = report
        self._sent_lines = 0

    async def send_all(self, source: IO[bytes], advance: Advance) -> None:
        """Sends every line until the first failure. Messages in flight are settled when the producer is closed."""
        splitter = LineSplitter(as_json=self._options.as_json)
        async for chunk in read_chunks(source):
            if not await self._send_lines(splitter.feed(chunk)):
                return
            advance(len(chunk))
            await asyncio.sleep(0)  # the producer flushes at the end of the event loop's turn
        await self._send_lines(splitter.end())

    async def _send_lines(self, lines: Iterator[bytes]) -> bool:
        """Sends these lines; False if a message could not be stored."""
        try:
            for line in lines:
                await self._producer.ready()
                if self._report.error is not None:
                    return False
                self._send(line)
                self._sent_lines += 1
        except errors.InvalidInput as error:
            raise type(error)(f"line {self._sent_lines + 1}: {error.message}", hint=error.hint) from None
        return True

    def _send(self, line: bytes) -> None:
        draft = parse_json_line(line) if self._options.as_json else MessageDraft(line)
        if draft is None:
            return
        headers = {**self._options.headers, **(draft.headers or {})}
        key = draft.key if draft.key is not None else self._key
        self._producer.send(draft.payload, key=key, headers=headers or None).add_done_callback(self._report.settle)


def _print_report(report: SendReport, answer: Output, input_error: errors.IcestreamError | None) -> None:
    """Prints the outcome. Raises the error of the input, or of the messages that were not stored."""
    if answer.is_text:
        answer.print_line(report.text())
    else:
        answer.record({"stored": report.stored, "failed": report.failed, "offsets": report.ranges()})
    if input_error is not None:
        raise type(input_error)(f"{input_error.message}; {_summary(report)}", hint=input_error.hint)
    if report.failed:
        error = report.error or errors.OutcomeUnknown("the broker did not reply")
        raise type(error)(_failure_text(report, error), hint=error.hint)


def _failure_text(report: SendReport, error: errors.IcestreamError) -> str:
    """`5 of 9 messages not stored: …`; `unconfirmed` if the outcome is unknown."""
    if isinstance(error, errors.OutcomeUnknown):
        return f"{report.failed} of {counted(report.stored + report.failed, 'message')} unconfirmed: {error.message}"
    return f"{_summary(report)}: {error.message}"


def _summary(report: SendReport) -> str:
    if report.failed:
        return f"{report.failed} of {counted(report.stored + report.failed, 'message')} not stored"
    return f"{counted(report.stored, 'message')} before it stored"
