"""The reader of recorded system calls: entries that a killed process left cut."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.syscall_recorder import UNFINISHED, Call, Event, read_tree

HEADER = struct.Struct("=QIIQQqqIIQ")
MARK = 0x8F1D6BE35AC2974E
BEGIN, END = 1, 2
PATH = b"/place/log-1.wal"


def entry(phase: int, thread: int, data: bytes = b"", result: int = 0) -> bytes:
    path = PATH if phase == BEGIN else b""
    return HEADER.pack(MARK, phase, Call.WRITE, thread, 7, 0, result, len(path), 0, len(data)) + path + data


def call(thread: int, data: bytes) -> bytes:
    return entry(BEGIN, thread, data) + entry(END, thread, result=len(data))


def events_of(content: bytes, place: Path) -> list[Event]:
    trace = place / "trace"
    trace.write_bytes(content)
    return read_tree(trace, place / "said")


@given(cut=st.integers(0, 10_000), is_end_cut=st.booleans(), data=st.binary(min_size=1, max_size=200))
def test_calls_of_other_threads_behind_a_cut_entry_are_read(
    tmp_path_factory: pytest.TempPathFactory, cut: int, is_end_cut: bool, data: bytes
) -> None:
    whole, last = call(1, data), (entry(BEGIN, 2, data), entry(END, 2, result=len(data)))
    entries = last[0] + last[1][: cut % len(last[1])] if is_end_cut else last[0][: cut % len(last[0])]
    place = tmp_path_factory.getbasetemp()
    events = events_of(whole + entries + call(3, data) * 2, place)
    assert [event.thread for event in events if event.done] == [1, 3, 3]
    unfinished = [event for event in events if event.end == UNFINISHED]
    assert [event.thread for event in unfinished] == ([2] if is_end_cut else [])
    assert all(event.data == data for event in events)


def test_a_thread_that_goes_on_behind_a_cut_entry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="thread 2 went on"):
        events_of(entry(BEGIN, 2, b"data" * 9)[:-5] + call(2, b"more"), tmp_path)


def test_bytes_that_are_no_entry_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="torn at byte"):
        events_of(call(1, b"data") + b"no entry" + call(3, b"more"), tmp_path)
