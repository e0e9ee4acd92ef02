"""Positions in a topic as the command line writes them: earliest, latest, an offset, a time, or a snapshot of the
topic's table (`snapshot:ID`).

A time is ISO 8601 (`2026-07-01`, `2026-07-01T12:00+02:00`; without a zone, the zone of this machine applies), or an
age: `-30s`, `-10m`, `-2h`, `-7d`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from icestream import errors
from icestream.client.start_position import StartPosition, parse_start
from icestream.client.timestamps import to_datetime

_AGE: Final = re.compile(r"-(?P<count>\d{1,9}(?:\.\d{1,9})?)(?P<unit>ms|s|m|h|d)")
_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
HINT: Final = (
    "use earliest, latest, an offset such as 1200, a time such as 2026-07-01T12:00, an age such as -10m, or snapshot:ID"
)


def parse_position(text: str, now: datetime | None = None) -> StartPosition:
    """The position that the text means. `now` is the reference for ages; tests set it. Raises InvalidInput."""
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    if text.isascii() and text.isdigit():
        return int(text)
    if text.startswith("snapshot:"):
        parse_start(text)  # raises InvalidInput for an id that is not a number
        return text
    try:
        if match := _AGE.fullmatch(text):
            age = timedelta(**{_UNITS[match["unit"]]: float(match["count"])})
            return (now or datetime.now(UTC)) - age
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise errors.InvalidInput(f"{text!r} is not a position in a topic", hint=HINT) from None


def time_text(time_us: int | None) -> str | None:
    """ISO 8601 in UTC with microseconds; None for a time outside the calendar's range."""
    moment = None if time_us is None else to_datetime(time_us)
    return None if moment is None else moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
