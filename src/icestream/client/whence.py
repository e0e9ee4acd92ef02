"""Where a subscription begins, in the words of a user, and in those of the protocol."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final, Literal

from icestream import errors
from icestream.client.instant import microseconds
from icestream.model.subscription import Start, StartAt

Whence = Literal["earliest", "latest"] | int | datetime | str  # a text also names a snapshot: "snapshot:123"
_SNAPSHOT: Final = re.compile(r"snapshot:(-?[0-9]{1,19})", re.ASCII)


def start_of(whence: Whence) -> Start:
    """An `int` is an offset. Raises InvalidInput."""
    if isinstance(whence, datetime):
        return Start(StartAt.TIME, microseconds(whence))
    if isinstance(whence, int) and not isinstance(whence, bool):
        return Start(StartAt.OFFSET, whence)
    if whence in ("earliest", "latest"):
        return Start(StartAt(whence))
    if isinstance(whence, str) and (found := _SNAPSHOT.fullmatch(whence)):
        return Start(StartAt.SNAPSHOT, int(found[1]))
    raise errors.InvalidInput(
        f"{whence!r} is not a place to start",
        hint='"earliest", "latest", an offset, a datetime with a time zone, or "snapshot:ID"',
    )


def arguments_of(whence: Whence) -> dict[str, Any]:
    start = start_of(whence)
    return {"start": start.at.value, "start_value": start.value}
