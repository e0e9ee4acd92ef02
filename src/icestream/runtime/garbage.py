"""How often Python looks for cyclic garbage in a process that serves.

A broker makes a few small objects for each append and keeps none: the default, a look after 700 of them, costs about a
tenth of an append and finds nothing. What is loaded at the start is never garbage and is left out of every look.
"""

from __future__ import annotations

import gc

from icestream import limits


def calm_collector() -> None:
    """Once, when everything is loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(limits.GARBAGE_OBJECTS, 10, 10)
