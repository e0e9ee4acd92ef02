"""Settings: one tree of plain data, from a file, the environment and flags, with the origin of every value.

It owns names, defaults, bounds and descriptions of all settings, and the rules between them. What a component does with
a setting is decided in `processes`.
"""

from icestream.settings.keys import KEYS, Key, value_at
from icestream.settings.load import Loaded, change, examine, load
from icestream.settings.setting_problems import Origin, SettingProblem, refusal
from icestream.settings.tree import Settings
from icestream.settings.wal_section import WalSection

__all__ = [
    "KEYS",
    "Key",
    "Loaded",
    "Origin",
    "SettingProblem",
    "Settings",
    "WalSection",
    "change",
    "examine",
    "load",
    "refusal",
    "value_at",
]
