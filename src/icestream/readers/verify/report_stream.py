"""What a verifier says, as lines of JSON while it goes on: nobody waits in silence, and nothing is held back.

    {"progress": {"done": 3, "all": 120}}
    {"finding": {"check": "dense", "weight": "wrong", ...}}
    {"report": {"topic": ..., "is_good": true, "is_complete": true, ...}}     the last line, or
    {"problem": {"code": ..., "detail": ..., "hint": ...}}                    what kept it from going on

The verifier blocks, so it runs beside the loop, as far as one piece of lines goes. Whoever does not read on holds it
still; whoever leaves ends it.
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
    found = report._asdict()
    count = len(found.pop("findings"))
    found["snapshot_id"] = None if report.snapshot_id is None else str(report.snapshot_id)
    return found | {"is_good": report.is_good, "is_complete": report.is_complete, "finding_count": count}


async def lines(verifier: Verifier, deep: bool) -> AsyncIterator[bytes]:
    told = _told(verifier, deep)
    try:
        while piece := await asyncio.to_thread(_piece, told):
            yield piece
    finally:
        await asyncio.to_thread(told.close)


def _told(verifier: Verifier, deep: bool) -> Generator[bytes]:
    """Findings are counted, not kept."""
    count, weights = 0, set[Weight]()
    try:
        for one in verifier.told(deep):
            match one:
                case Finding():
                    count += 1
                    weights.add(one.weight)
                    yield _line("finding", one._asdict())
                case VerifyProgress():
                    yield _line("progress", one._asdict())
    except errors.IcestreamError as error:
        yield _line("problem", {"code": error.code, "detail": error.message, "hint": error.hint})
        return
    except Exception as error:  # noqa: BLE001  # whoever asked waits for a last line, whatever went wrong
        _log.error("a table could not be verified", exc_info=error)
        failed = errors.PersistentStorageError(
            f"it could not be verified: {error!r}", hint="its lake process logs more"
        )
        yield _line("problem", {"code": failed.code, "detail": failed.message, "hint": failed.hint})
        return
    report = summary(verifier.report(deep, []))
    found = {"is_good": Weight.WRONG not in weights, "is_complete": Weight.BOUNDS_ONLY not in weights}
    yield _line("report", report | found | {"finding_count": count})


def _piece(told: Iterator[bytes]) -> bytes:
    """What comes within a moment. Empty: that was all."""
    until = time.monotonic() + limits.VERIFY_LINES_SECONDS
    found: list[bytes] = []
    for line in told:
        found.append(line)
        if len(found) >= limits.VERIFY_LINES_MAX or time.monotonic() >= until:
            break
    return b"".join(found)


def _line(name: str, document: dict[str, Any]) -> bytes:
    return msgspec.json.encode({name: document}) + b"\n"
