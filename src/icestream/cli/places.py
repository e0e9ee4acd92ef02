"""Places in a topic, in the words of the command line: earliest, latest, an offset, a time, a snapshot of its table
(`snapshot:ID`).

A time is ISO 8601 (`2026-07-01`, `2026-07-01T12:00+02:00`; without a zone it is the one of this machine), or how long
ago it was: `-30s`, `-10m`, `-2h`, `-7d`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from icestream import errors
from icestream.client.start_position import StartPosition, parse_start
from icestream.client.timestamps import to_datetime

_AGO: Final = re.compile(r"-(?P<count>\d{1,9}(?:\.\d{1,9})?)(?P<unit>ms|s|m|h|d)")
_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
HINT: Final = (
    "earliest, latest, an offset such as 1200, a time such as 2026-07-01T12:00, how long ago, such as -10m, or "
    "snapshot:ID"
)


def place_of(text: str, now: datetime | None = None) -> StartPosition:
    """Raises InvalidInput. `now` is for tests."""
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    if text.isascii() and text.isdigit():
        return int(text)
    if text.startswith("snapshot:"):
        parse_start(text)
        return text
    try:
        if match := _AGO.fullmatch(text):
            ago = timedelta(**{_UNITS[match["unit"]]: float(match["count"])})
            return (now or datetime.now(UTC)) - ago
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise errors.InvalidInput(f"{text!r} is not a place in a topic", hint=HINT) from None


def time_text(time_us: int | None) -> str | None:
    """ISO 8601, UTC, with microseconds; None for a time that no calendar has."""
    found = None if time_us is None else to_datetime(time_us)
    return None if found is None else found.isoformat(timespec="microseconds").replace("+00:00", "Z")
