"""Timestamps of messages: microseconds since 1970, UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from icestream import errors

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def to_microseconds(time: datetime | int) -> int:
    """The time in microseconds. Raises InvalidInput for a datetime without a time zone, which means another time on
    each machine."""
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise errors.InvalidInput(f"{time} has no time zone", hint="use datetime.now(UTC)")
        return (time - _EPOCH) // _MICROSECOND
    if type(time) is not int or not -(2**63) <= time < 2**63:
        raise errors.InvalidInput(
            f"a time must be a datetime, or microseconds since 1970 in 64 bits, got {time!r:.40}",
            hint="use datetime.now(UTC)",
        )
    return time


def to_datetime(time_us: int) -> datetime | None:
    """The time as a datetime in UTC; None outside of the years 1 to 9999, which a datetime cannot hold."""
    try:
        return _EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return None
