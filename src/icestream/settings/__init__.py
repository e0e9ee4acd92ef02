"""Settings: one tree of plain data, from a file, the environment and flags, with the origin of every value."""

from icestream.settings.keys import KEYS, Key, value_at
from icestream.settings.load import Loaded, change, examine, load
from icestream.settings.problems import Origin, Problem, refusal
from icestream.settings.tree import Settings
from icestream.settings.wal import Wal

__all__ = [
    "KEYS",
    "Key",
    "Loaded",
    "Origin",
    "Problem",
    "Settings",
    "Wal",
    "change",
    "examine",
    "load",
    "refusal",
    "value_at",
]
