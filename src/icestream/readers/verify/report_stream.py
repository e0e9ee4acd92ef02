"""Streams the events of a verifier as lines of JSON, so that the client sees progress and nothing is buffered.

    {"progress": {"done": 3, "all": 120}}
    {"finding": {"check": "dense", "weight": "wrong", ...}}
    {"report": {"topic": ..., "is_good": true, "is_complete": true, ...}}     the last line, or
    {"problem": {"code": ..., "detail": ..., "hint": ...}}                    the error that ended it

The verifier blocks, so it runs in a thread, one chunk of lines at a time. A client that stops reading pauses it; a
client that disconnects ends it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from icestream import errors, limits
from icestream.observability.log import get_logger
from icestream.readers.verify.verify_report import Finding, VerifyProgress, VerifyReport, Weight

if TYPE_CHECKING:
    from icestream.readers.verify.verifier import Verifier

_log = get_logger("verify")


def summary(report: VerifyReport) -> dict[str, Any]:
    """Returns the last line: the report with a count instead of its findings, which were sent before."""
    document = report._asdict()
    count = len(document.pop("findings"))
    # As text: a snapshot id has 63 bits, more than a number of JavaScript.
    document["snapshot_id"] = None if report.snapshot_id is None else str(report.snapshot_id)
    return document | {"is_good": report.is_good, "is_complete": report.is_complete, "finding_count": count}


async def lines(verifier: Verifier, deep: bool) -> AsyncIterator[bytes]:
    """Yields the lines of one verification, in chunks. Closing the iterator ends the verification."""
    events = _encode_events(verifier, deep)
    try:
        while chunk := await asyncio.to_thread(_next_chunk, events):
            yield chunk
    finally:
        await asyncio.to_thread(events.close)


def _encode_events(verifier: Verifier, deep: bool) -> Generator[bytes]:
    """Yields a line for each event. Findings are counted, not kept: there may be millions."""
    count, weights = 0, set[Weight]()
    try:
        for event in verifier.events(deep):
            match event:
                case Finding():
                    count += 1
                    weights.add(event.weight)
                    yield _line("finding", event._asdict())
                case VerifyProgress():
                    yield _line("progress", event._asdict())
    except errors.IcestreamError as error:
        yield _line("problem", {"code": error.code, "detail": error.message, "hint": error.hint})
        return
    except Exception as error:  # noqa: BLE001  # the client waits for a last line, whatever went wrong
        _log.error("verify failed unexpectedly", exc_info=error)
        failed = errors.PersistentStorageError(
            f"verify failed: {error!r}", hint="the log of the lake process has the traceback"
        )
        yield _line("problem", {"code": failed.code, "detail": failed.message, "hint": failed.hint})
        return
    # The report is built without findings, so its verdict would always be good: it follows from what was counted.
    report = summary(verifier.report(deep, []))
    verdict = {"is_good": Weight.WRONG not in weights, "is_complete": Weight.BOUNDS_ONLY not in weights}
    yield _line("report", report | verdict | {"finding_count": count})


def _next_chunk(lines: Iterator[bytes]) -> bytes:
    """Returns the lines of the next VERIFY_LINES_SECONDS; empty at the end."""
    # By time and by number: a switch of threads for each line would cost more than the check.
    deadline = time.monotonic() + limits.VERIFY_LINES_SECONDS
    chunk: list[bytes] = []
    for line in lines:
        chunk.append(line)
        if len(chunk) >= limits.VERIFY_LINES_MAX or time.monotonic() >= deadline:
            break
    return b"".join(chunk)


def _line(name: str, document: dict[str, Any]) -> bytes:
    return msgspec.json.encode({name: document}) + b"\n"
