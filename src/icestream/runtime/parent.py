"""A child's side of supervision, first part: the kernel kills it when its parent is gone (hazard 39). Linux.

Also while it hangs, and also after kill -9 of the parent. It is asked for before anything else is loaded, so the module
loads nothing itself. What was gone already at that moment is seen by the parent's id.

The second part is parent_pipe.py. Either is enough to end.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        raise SystemExit(0)
