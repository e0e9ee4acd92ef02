"""Points in time as they stand in messages: microseconds since 1970, UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from icestream import errors

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def microseconds(given: datetime | int) -> int:
    """Raises InvalidInput for a time without a zone: it means something else on each machine."""
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise errors.InvalidInput(f"{given} has no time zone", hint="datetime.now(UTC) has one")
        return (given - _EPOCH) // _MICROSECOND
    if type(given) is not int or not -(2**63) <= given < 2**63:
        raise errors.InvalidInput("a time is a datetime, or microseconds since 1970 in 64 bits")
    return given


def instant(time_us: int) -> datetime | None:
    """None for a time that a datetime cannot hold: its years are 1 to 9999."""
    try:
        return _EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return None
