"""A broker asks the kernel for short time slices, and its children for the usual ones and less of a core."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from icestream import limits
from icestream.runtime import time_slice

# what the kernel says of a task: niceness, slice in nanoseconds (0 before Linux 6.12)
SAID = """
import ctypes, os, threading
from icestream.runtime import time_slice

def said():
    found = time_slice._Attributes()
    number = time_slice._SCHED_SETATTR[os.uname().machine] + 1  # sched_getattr
    assert not ctypes.CDLL(None, use_errno=True).syscall(number, 0, ctypes.byref(found), ctypes.sizeof(found), 0)
    print(found.nice, found.runtime_ns)

said()
time_slice.raise_priority()
said()
other = threading.Thread(target=said)
other.start()
other.join()
time_slice.lower_priority(3)
said()
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="time slices are Linux's")


def time_slices() -> list[tuple[int, int]]:
    done = subprocess.run([sys.executable, "-c", SAID], capture_output=True, text=True, check=True, timeout=60)
    return [(int(nice), int(slice_ns)) for nice, slice_ns in map(str.split, done.stdout.splitlines())]


def test_a_broker_requests_short_slices_and_a_child_resets_them() -> None:
    usual, broker, thread, child = time_slices()
    assert child[0] == usual[0] + 3
    assert [broker[0], thread[0]] == [usual[0], usual[0]]
    if not usual[1]:
        pytest.skip("this kernel has no slices to ask for")
    assert broker[1] == thread[1] == limits.BROKER_SLICE_NS < usual[1]
    assert child[1] == usual[1]


def test_a_machine_without_the_call_is_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[object] = []
    monkeypatch.setattr(time_slice, "_SCHED_SETATTR", {})
    monkeypatch.setattr(ctypes, "CDLL", lambda *arguments, **_: loaded.append(arguments))
    time_slice.raise_priority()
    assert loaded == []
