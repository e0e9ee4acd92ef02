"""What clients ask for in words of their own: gRPC metadata and attributes that Danube's protocol does not have.

x-icestream-start      metadata of Subscribe: earliest | latest | offset:N | time:T, where a new subscription
                           begins.
                       T: milliseconds since 1970, or a time as in ISO 8601; without a zone it is UTC
x-icestream-sequence   attribute of a message: <incarnation>:<n>. The producer's own number, for a retry that is
                       stored once (hazard 7). The incarnation names one life of the producer's process
"""

from __future__ import annotations

import re
import reprlib
from datetime import UTC, datetime
from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.model.subscription import Start, StartAt

START: Final = "x-icestream-start"
SEQUENCE: Final = "x-icestream-sequence"

_SEQUENCE: Final = re.compile(r"(?P<incarnation>[^\s:]+):(?P<number>0|[1-9][0-9]{0,18})", re.ASCII)
_NUMBER: Final = re.compile(r"-?[0-9]{1,16}", re.ASCII)


class ProducerSequence(NamedTuple):
    incarnation: str
    number: int


def parse_sequence(text: str) -> ProducerSequence:
    found = _SEQUENCE.fullmatch(text)
    if found is None or len(found["incarnation"].encode()) > limits.DANUBE_INCARNATION_BYTES_MAX:
        raise errors.InvalidInput(
            f"{SEQUENCE} {reprlib.repr(text)} is not <incarnation>:<number>",
            hint="an incarnation is a word for one life of the producer's process, such as its start time",
        )
    number = int(found["number"])
    if number >= 2**63 - 1:
        raise errors.InvalidInput(f"{SEQUENCE} {number} does not fit 63 bits", hint="count from 1")
    return ProducerSequence(found["incarnation"], number)


def parse_start(text: str) -> Start:
    at, _, value = text.strip().partition(":")
    if at == "offset" and _NUMBER.fullmatch(value):
        return Start(StartAt.OFFSET, int(value))
    if at == "time" and value:
        return Start(StartAt.TIME, _time_us(value))
    if text.strip() in ("earliest", "latest"):
        return Start(StartAt(text.strip()))
    raise _bad_start(text)


def _time_us(text: str) -> int:
    if _NUMBER.fullmatch(text):
        return int(text) * 1000
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise _bad_start(f"time:{text}") from None
    found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    since = found - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _bad_start(text: str) -> errors.InvalidInput:
    return errors.InvalidInput(
        f"{START} {reprlib.repr(text)} is not a start",
        hint="earliest, latest, offset:N, or time:T with milliseconds since 1970 or a time as in ISO 8601",
    )
