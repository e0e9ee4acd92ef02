"""The one place that knows whether the native extension is there."""

from __future__ import annotations

from types import ModuleType

native: ModuleType | None
try:
    import icestream_native as native
except ImportError:
    # Everything works without it: syncs block the loop, encoding and scanning run in Python (README, "Native part").
    native = None
