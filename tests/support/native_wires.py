"""The two ways in which native connections are served: by asyncio, and by the native wire. Tests run on both."""

from __future__ import annotations

from typing import Final

import pytest

from icestream.frontends.native import native_listener

WIRES: Final = ("asyncio", "wire")


@pytest.fixture(params=WIRES)
def native_wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of them brokers use that are started from now on."""
    use_wire(monkeypatch, is_used=request.param == "wire")
    return str(request.param)


def use_wire(monkeypatch: pytest.MonkeyPatch, *, is_used: bool) -> None:
    monkeypatch.setattr(native_listener, "has_frame_wire", lambda: is_used)
