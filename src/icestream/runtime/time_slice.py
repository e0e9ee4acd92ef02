"""Who gets a core first when all are taken: a broker before its children, and before whatever else runs beside it.

A broker works for some microseconds and waits again. Linux 6.12 and newer let a task ask for shorter time slices: it
gets no more of a core in all, but gets it sooner after it wakes up, where else it waits until the slice of somebody who
computes is over. Every ack waits for such wake-ups. Beside four processes that compute on two cores, one wake-up in a
hundred took 6 to 8 ms, and takes 3.5 with the shortest slice.

Nothing needs a privilege. A thread takes the slice of the one that starts it, a process that of its parent: so a broker
asks before it starts any, and its children ask for the usual again. Elsewhere nothing is changed.
"""

from __future__ import annotations

import ctypes
import os
import sys

from icestream import limits

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}


class _Attributes(ctypes.Structure):
    """The kernel's `struct sched_attr`, in its first size. For a usual task `runtime_ns` is the slice."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def come_first() -> None:
    """For a broker, before it starts a thread."""
    _ask(limits.BROKER_SLICE_NS)


def give_way(niceness: int) -> None:
    """For everything that is not the broker: whatever it does, acks come first."""
    os.nice(niceness)
    _ask(0)


def _ask(slice_ns: int) -> None:
    """0: the kernel's own choice. A kernel or a sandbox that refuses is no reason to stop."""
    number = _SCHED_SETATTR.get(os.uname().machine)
    if sys.platform != "linux" or number is None:
        return
    own = _Attributes(nice=os.getpriority(os.PRIO_PROCESS, 0), runtime_ns=slice_ns)
    own.size, own.policy = ctypes.sizeof(own), os.sched_getscheduler(0)
    if own.policy in (os.SCHED_OTHER, os.SCHED_BATCH):
        ctypes.CDLL(None, use_errno=True).syscall(number, 0, ctypes.byref(own), 0)
