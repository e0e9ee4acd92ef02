"""When an ack may leave."""

from __future__ import annotations

from enum import StrEnum


class SyncMode(StrEnum):
    ALWAYS = "always"  # after fdatasync: survives power loss
    PERIODIC = "periodic"  # after write: survives kill -9; power loss costs at most the last interval
    NONE = "none"  # after write: survives kill -9; power loss costs what the kernel had not written yet
