"""StartPosition: where a subscription begins, as users pass it, and as the protocol has it."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final, Literal

from icestream import errors
from icestream.client.timestamps import to_microseconds
from icestream.model.subscription_options import StartAt, SubscriptionStart
from icestream.rpc.document import Document

# An int is an offset, a datetime a publish time; a str may also name a snapshot of the table: "snapshot:123".
StartPosition = Literal["earliest", "latest"] | int | datetime | str
_SNAPSHOT: Final = re.compile(r"snapshot:(-?[0-9]{1,19})", re.ASCII)


def parse_start(position: StartPosition) -> SubscriptionStart:
    """The start that a user names. Raises InvalidInput."""
    if isinstance(position, datetime):
        return SubscriptionStart(StartAt.TIME, to_microseconds(position))
    if isinstance(position, int) and not isinstance(position, bool):  # True is an int in Python, and no offset
        return SubscriptionStart(StartAt.OFFSET, position)
    if position in ("earliest", "latest"):
        return SubscriptionStart(StartAt(position))
    if isinstance(position, str) and (match := _SNAPSHOT.fullmatch(position)):
        return SubscriptionStart(StartAt.SNAPSHOT, int(match[1]))
    raise errors.InvalidInput(
        f"{position!r} is not a start position",
        hint='"earliest", "latest", an offset, a datetime with a time zone, or "snapshot:ID"',
    )


def start_arguments(position: StartPosition) -> Document:
    """Returns the arguments of a call that name the position. Raises InvalidInput."""
    start = parse_start(position)
    return {"start": start.at.value, "start_value": start.value}
