"""How a part of the node is doing, in a form that people and programs can read."""

from __future__ import annotations

from typing import NamedTuple


class Check(NamedTuple):
    name: str
    ok: bool
    reason: str = ""
    is_needed: bool = True  # without it the broker does not serve; else it is only shown

    @property
    def line(self) -> str:
        mark = "+" if self.ok else "-" if self.is_needed else "!"
        return f"[{mark}] {self.name}: {self.reason or 'ok'}"
