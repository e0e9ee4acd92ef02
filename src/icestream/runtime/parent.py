"""A child's side of supervision, first part: the kernel kills it when its parent is gone (hazard 39). Linux.

It works while the child hangs, and after kill -9 of the parent. It is set up before anything else is loaded, so this
module imports nothing large. A parent that was gone before that is recognised by its id.

The second part is parent_pipe.py. Each of them is sufficient.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Asks the kernel for SIGKILL at the end of the parent; exits at once if the parent is gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        raise SystemExit(0)
