"""What a process asked of its disk, in the order in which it really happened: syscall_recorder.c, compiled and read.

library(directory)              the shared object, compiled; None where there is no C compiler
environment(library, …)         what a child process needs in its environment to be recorded
read_trace(trace, directory)    the calls of the run that concern one directory
read_tree(trace)                all of them
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_suffix(".c")
_ENTRY = struct.Struct("=QIIQQqqIIQ")
_MARK = struct.pack("=Q", 0x8F1D6BE35AC2974E)  # begins every entry
_BEGIN, _END = 1, 2
UNFINISHED = 2**62  # the end of a call that the process did not live to see


class Call(IntEnum):
    WRITE = 1
    SYNC = 2
    TRUNCATE = 3
    ALLOCATE = 4
    RENAME = 5
    UNLINK = 6
    CREATE = 7
    SYNC_DIRECTORY = 8
    SAY = 9  # a line that the program wrote about itself


@dataclass(frozen=True, slots=True)
class Event:
    """One call. `begin` and `end` are places in the one order of the whole run."""

    begin: int
    end: int
    call: Call
    name: str  # of the file when the call began, without its directory
    inode: int = 0
    position: int = 0  # of a write; the size that TRUNCATE or ALLOCATE asked for
    result: int = 0
    target: str = ""  # the new name of a RENAME
    data: bytes = b""
    thread: int = 0

    @property
    def done(self) -> bool:
        """True if the call returned success."""
        if self.end == UNFINISHED:
            return False
        return self.result == 0 if self.call is Call.ALLOCATE else self.result >= 0

    def __str__(self) -> str:
        end = "…" if self.end == UNFINISHED else f"#{self.end}"
        return f"#{self.begin}-{end}"


def library(directory: Path) -> Path | None:
    """The recorder, compiled into `directory`."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    target = directory / "syscall_recorder.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-U_FORTIFY_SOURCE", "-o", str(target), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return target


def environment(library: Path, root: Path, trace: Path | None) -> dict[str, str]:
    """Records everything below `root` into `trace`. Without a trace the recorder can only hold syncs back."""
    chosen = {"LD_PRELOAD": str(library), "SYSCALL_RECORDER_ROOT": str(root)}
    return {**chosen, "SYSCALL_RECORDER_TRACE": str(trace)} if trace else chosen


def read_trace(trace: Path, directory: Path, output: Path) -> list[Event]:
    """The calls on `directory` and its files, and the lines written to the file `said`, by their begin."""
    place, output_path = os.path.realpath(directory), os.path.realpath(output)
    events = []
    for event, path in _paired(trace.read_bytes()):
        folder, _, name = path.rpartition("/")
        if path == output_path and event.call is Call.WRITE:
            events.append(replace(event, call=Call.SAY, name=name))
        elif path == place and event.call is Call.SYNC:
            events.append(replace(event, call=Call.SYNC_DIRECTORY))
        elif folder == place:
            events.append(replace(event, name=name, target=event.target.rpartition("/")[2]))
    return list(_told_apart(sorted(events, key=lambda event: event.begin)))


def read_tree(trace: Path, output: Path) -> list[Event]:
    """The same for everything that was recorded, with whole paths as names."""
    output_path = os.path.realpath(output)
    events = [
        replace(event, call=Call.SAY if path == output_path and event.call is Call.WRITE else event.call, name=path)
        for event, path in _paired(trace.read_bytes())
    ]
    return list(_told_apart(sorted(events, key=lambda event: event.begin)))


def _told_apart(events: Iterable[Event]) -> Iterator[Event]:
    """A file system gives the inode of a removed file to the next one: each file made gets a number of its own."""
    numbers: dict[int, int] = {}
    for event in events:
        inode = event.result if event.call is Call.CREATE else event.inode
        if event.call is Call.CREATE:
            numbers[inode] = -event.begin - 1
        yield replace(event, inode=numbers.get(inode, inode))


class _Entry(NamedTuple):
    place: int
    phase: int
    call: Call
    thread: int
    inode: int
    position: int
    result: int
    path: str
    target: str
    data: bytes


def _paired(content: bytes) -> Iterator[tuple[Event, str]]:
    """Each call joined with its end, and with its full path."""
    under_way: dict[int, _Entry] = {}
    for entry in _entries(content):
        if entry.phase == _BEGIN:
            assert entry.thread not in under_way, f"thread {entry.thread} began two calls at once"
            under_way[entry.thread] = entry
            continue
        begun = under_way.pop(entry.thread)
        assert begun.call == entry.call, f"thread {entry.thread} ended another call than it began"
        yield _event(begun, entry.place, entry.result), begun.path
    for begun in under_way.values():
        yield _event(begun, UNFINISHED, -1), begun.path


def _event(begun: _Entry, end: int, result: int) -> Event:
    fields = (begun.inode, begun.position, result, begun.target, begun.data, begun.thread)
    return Event(begun.place, end, begun.call, "", *fields)


def _entries(content: bytes) -> Iterator[_Entry]:
    """Yields the whole entries of a trace.

    An entry that its process did not live to complete is left out: a call whose begin is cut was never made, one whose
    end is cut counts as unfinished. Only the last entry of a thread can be cut: anything else is an AssertionError.
    """
    at = place = 0
    ended: set[int] = set()  # threads whose entry is cut
    while at < len(content):
        following = content.find(_MARK, at + 1)
        limit = len(content) if following < 0 else following
        if limit - at < _ENTRY.size:
            assert _MARK.startswith(content[at : min(at + len(_MARK), limit)]), f"the trace is torn at byte {at}"
            at = limit
            continue
        mark, phase, call, thread, inode, position, result, *sizes = _ENTRY.unpack_from(content, at)
        is_entry = mark == int.from_bytes(_MARK, sys.byteorder) and phase in (_BEGIN, _END)
        assert is_entry, f"the trace is torn at byte {at}"
        assert thread not in ended, f"thread {thread} went on behind an entry that is cut"
        if at + _ENTRY.size + sum(sizes) > limit:
            ended.add(thread)
            at = limit
            continue
        parts = []
        at += _ENTRY.size
        for size in sizes:
            parts.append(content[at : at + size])
            at += size
        path, target, data = parts
        yield _Entry(place, phase, Call(call), thread, inode, position, result, path.decode(), target.decode(), data)
        place += 1
