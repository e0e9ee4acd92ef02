"""What serves Danube's clients here: the native wire, or gRPC's own for Python where there is no native build."""

from __future__ import annotations

import pytest

from icestream.frontends.danube import native_grpc_server


@pytest.fixture(params=["native", "python"])
def wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A test that uses it runs on both."""
    name: str = request.param
    if name == "python":
        monkeypatch.setattr(native_grpc_server, "has_native_wire", lambda: False)
    return name
