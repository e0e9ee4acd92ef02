"""The one place that knows whether the native extension is there."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Final

# What this code expects of the extension's functions; `native/src/lib.rs` says what a build offers.
CONTRACT: Final = 3

native: ModuleType | None
try:
    import icestream_native as native

    if getattr(native, "CONTRACT", 1) != CONTRACT:
        warnings.warn("the native extension was built from other sources and is not used: make native", stacklevel=1)
        native = None
except ImportError:
    # Everything works without it: syncs block the loop, encoding and scanning run in Python (README, "Native part").
    native = None
