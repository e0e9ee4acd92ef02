"""How often Python looks for cyclic garbage in a serving process.

A broker creates a few small objects for each append and keeps none: Python's default, a collection after 700 of them,
costs about a tenth of an append and finds nothing. Objects loaded at the start are never garbage and are excluded.
"""

from __future__ import annotations

import gc

from icestream import limits


def calm_collector() -> None:
    """Sets the thresholds; called once, when everything is loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(limits.GARBAGE_OBJECTS, 10, 10)
