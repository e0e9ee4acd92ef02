"""Events of the audit, and how repeated ones are merged. Pure.

The payload of a message of `/system/audit` is an event as JSON:

    time_us, last_us  when it happened first and last, microseconds since 1970; equal unless `count` is above 1
    event             denied | login-failed | change | change-failed | access | dropped
    principal         of the caller; for a failed login the name that was claimed, for `dropped` empty
    address           of the caller, without the port
    listener          that it connected to
    action, resource  of the request; for a change `resource` is followed by `detail`
    decision          allowed | denied
    rule              the deciding rule, or the reason of a failure
    detail            of a change: what it sets; never a secret
    node              that recorded it
    count             how many equal ones

An event holds no payload, no credential and no control character (hazard 121): every text is cleaned, and what looks
like a token is masked, because a client may send one as its name.

Merging: equal events of a second are one event with a count. A second has `per_second` events at most, and one pair of
principal and address a part of them, so that a flood does not hide others. What is above is counted and becomes one
event `dropped` with the count. Changes are never merged.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final, Literal

import msgspec

from icestream import limits
from icestream.security.caller_address import host_of

Event = Literal["denied", "login-failed", "change", "change-failed", "access", "dropped"]
MASK: Final = "(masked)"
_TOKEN: Final = re.compile(r"(?i:bearer|basic) \S+|eyJ[A-Za-z0-9_-]{8,}(\.[A-Za-z0-9_-]*)*")
_CUT: Final = "…"
_SHORT: Final = limits.AUDIT_TEXT_BYTES_MAX // 4  # characters that fit in any case


class AuditEvent(msgspec.Struct, frozen=True):
    """See the module."""

    time_us: int
    event: Event
    principal: str = ""
    address: str = ""
    listener: str = ""
    action: str = ""
    resource: str = ""
    decision: Literal["allowed", "denied"] = "denied"
    rule: str = ""
    detail: str = ""
    node: str = ""
    count: int = 1
    last_us: int = 0

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


def audit_event(
    time_us: int,
    event: Event,
    *,
    principal: str = "",
    address: str = "",
    listener: str = "",
    action: str = "",
    resource: str = "",
    is_allowed: bool = False,
    rule: str = "",
    detail: str = "",
    node: str = "",
) -> AuditEvent:
    """An event with cleaned texts."""
    return AuditEvent(
        time_us,
        event,
        clean_text(principal),
        clean_text(host_of(address)),
        clean_text(listener),
        clean_text(action),
        clean_text(resource),
        "allowed" if is_allowed else "denied",
        clean_text(rule),
        clean_text(detail),
        clean_text(node),
        last_us=time_us,
    )


def clean_text(text: str) -> str:
    """The text without control characters, tokens and broken Unicode, cut at AUDIT_TEXT_BYTES_MAX."""
    if len(text) <= _SHORT and text.isprintable() and _TOKEN.search(text) is None:
        return text  # nearly always: denials come at the pace of an attacker
    text = "".join(character if character.isprintable() else "\ufffd" for character in text[: limits.TOKEN_BYTES_MAX])
    text = _TOKEN.sub(MASK, text)
    raw = text.encode()
    if len(raw) <= limits.AUDIT_TEXT_BYTES_MAX:
        return text
    return raw[: limits.AUDIT_TEXT_BYTES_MAX - len(_CUT.encode())].decode(errors="ignore") + _CUT


class AuditMerge:
    """The events of the present second. `add` what happens, `take` what is to be recorded."""

    def __init__(self, per_second: int = limits.AUDIT_EVENTS_PER_SECOND, node: str = "") -> None:
        self._per_second = per_second
        self._share = max(per_second // limits.AUDIT_SHARE, 1)
        self._node = node
        self._events: dict[AuditEvent, AuditEvent] = {}  # by the event without its times and count
        self._of_caller: Counter[tuple[str, str]] = Counter()
        self._dropped = 0
        self._first_dropped_us = 0

    @property
    def is_empty(self) -> bool:
        return not self._events and not self._dropped

    def add(self, event: AuditEvent) -> bool:
        """Adds an event; False if it was only counted, because the second is full."""
        key = msgspec.structs.replace(event, time_us=0, last_us=0)
        present = self._events.get(key)
        if present is not None:
            self._events[key] = msgspec.structs.replace(
                present, count=present.count + event.count, last_us=max(present.last_us, event.last_us)
            )
            return True
        caller = (event.principal, event.address)
        if len(self._events) >= self._per_second or self._of_caller[caller] >= self._share:
            self._first_dropped_us = self._first_dropped_us or event.time_us
            self._dropped += 1
            return False
        self._of_caller[caller] += 1
        self._events[key] = event
        return True

    def take(self, now_us: int) -> list[AuditEvent]:
        """The events since the last call, at most `per_second` and one; begins a new second."""
        events = list(self._events.values())
        if self._dropped:
            events.append(
                AuditEvent(
                    self._first_dropped_us,
                    "dropped",
                    rule=f"more than {self._per_second} different events in a second, or {self._share} of one caller",
                    node=self._node,
                    count=self._dropped,
                    last_us=now_us,
                )
            )
        self._events, self._dropped, self._first_dropped_us = {}, 0, 0
        self._of_caller.clear()
        return events
