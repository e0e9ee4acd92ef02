"""The native extension, if it is installed. The only module that imports it."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Final

# The version of the extension's functions that this code needs; `native/src/lib.rs` has that of the build.
CONTRACT: Final = 10

native: ModuleType | None
try:
    import icestream_native as native

    if getattr(native, "CONTRACT", 1) != CONTRACT:
        warnings.warn("the native extension was built from other sources and is not used: make native", stacklevel=1)
        native = None
except ImportError:
    # A single node works without it: syncs block the loop, encoding and scanning run in Python. A cluster does not: the
    # Raft core is native (README, "The native part").
    native = None
