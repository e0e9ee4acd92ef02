"""Extensions of Danube's protocol: gRPC metadata and message attributes with the prefix `x-icestream-`.

x-icestream-start      metadata of Subscribe: earliest | latest | offset:N | time:T, the start of a new subscription.
                       T: milliseconds since 1970, or an ISO 8601 time, UTC if it has no zone
x-icestream-sequence   attribute of a message: <incarnation>:<n>. The producer's own sequence number, so that a retry is
                       stored once (hazard 7). The incarnation identifies one run of the producer's process
"""

from __future__ import annotations

import re
import reprlib
from datetime import UTC, datetime
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.model.subscription_options import StartAt, SubscriptionStart

START: Final = "x-icestream-start"
SEQUENCE: Final = "x-icestream-sequence"

_SEQUENCE: Final = re.compile(r"(?P<incarnation>[^\s:]+):(?P<number>0|[1-9][0-9]{0,18})", re.ASCII)
_NUMBER: Final = re.compile(r"-?[0-9]{1,16}", re.ASCII)


class ProducerSequence(NamedTuple):
    """The sequence number of a message, within one run of the producer's process."""

    incarnation: str
    number: int


def parse_sequence(text: str) -> ProducerSequence:
    """Parses x-icestream-sequence. Raises InvalidInput."""
    parts = _SEQUENCE.fullmatch(text)
    if parts is None or len(parts["incarnation"].encode()) > limits.DANUBE_INCARNATION_BYTES_MAX:
        raise errors.InvalidInput(
            f"{SEQUENCE} {reprlib.repr(text)} is not <incarnation>:<number>",
            hint="an incarnation identifies one run of the producer's process, such as its start time",
        )
    number = int(parts["number"])
    if number >= 2**63 - 1:  # the next one must fit too
        raise errors.InvalidInput(f"{SEQUENCE} {number} does not fit 63 bits", hint="count from 1")
    return ProducerSequence(parts["incarnation"], number)


def parse_start(text: str) -> SubscriptionStart:
    """Parses x-icestream-start. Raises InvalidInput."""
    at, _, value = text.strip().partition(":")
    if at == "offset" and _NUMBER.fullmatch(value):
        return SubscriptionStart(StartAt.OFFSET, int(value))
    if at == "time" and value:
        return SubscriptionStart(StartAt.TIME, _time_us(value))
    if text.strip() in ("earliest", "latest"):
        return SubscriptionStart(StartAt(text.strip()))
    raise _bad_start(text)


def _time_us(text: str) -> int:
    """The microseconds since 1970 of a time. Raises InvalidInput."""
    if _NUMBER.fullmatch(text):
        return int(text) * 1000
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise _bad_start(f"time:{text}") from None
    time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    # By integers: the float of `timestamp()` would round microseconds.
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _bad_start(text: str) -> errors.InvalidInput:
    return errors.InvalidInput(
        f"{START} {reprlib.repr(text)} is not a start",
        hint="earliest, latest, offset:N, or time:T with milliseconds since 1970 or a time as in ISO 8601",
    )
