"""A consumer's front end that takes everything and remembers what happened to it."""

from __future__ import annotations

from typing import Any


class Taker:
    is_full = False
    peer = "test"

    def __init__(self) -> None:
        self.events: list[str] = []

    def deliver(self, *_: Any) -> None: ...

    def gap(self, *_: Any) -> None: ...

    def event(self, event: str, details: dict[str, object]) -> None:
        self.events.append(event)
