"""One contract, two directories: what the log may expect of a disk holds for the real one and for the simulated one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.runtime.files import Directory, LocalDirectory
from icestream.runtime.simulated_disk import SimulatedDisk
from tests.support.hypothesis_effort import HALF


@pytest.fixture(params=["local", "simulated"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Directory]:
    if request.param == "simulated":
        yield SimulatedDisk(1)
    else:
        local = LocalDirectory(tmp_path / "made" / "for" / "this")
        yield local
        local.close()
        local.close()  # twice is harmless


# --- files ------------------------------------------------------------------------------------------------------------


def test_written_bytes_are_read(directory: Directory) -> None:
    file = directory.create("a")
    assert (file.size(), file.read_at(0, 10)) == (0, b"")
    file.write_at(0, b"0123456789")
    file.write_at(4, b"xx")
    assert file.read_at(0, 100) == b"0123xx6789"
    assert file.read_at(3, 4) == b"3xx6"
    assert file.read_at(9, 5) == b"9"
    assert file.read_at(10, 5) == b""
    assert file.read_at(10**9, 5) == b""
    assert file.read_at(2, 0) == b""
    file.close()


def test_a_read_is_a_copy(directory: Directory) -> None:
    """hazard 15: a later write to the same place changes nothing that was read."""
    file = directory.create("a")
    file.write_at(0, b"before")
    data = file.read_at(0, 6)
    file.write_at(0, b"behind")
    assert (data, type(data)) == (b"before", bytes)
    file.close()


def test_a_hole_reads_as_zeros(directory: Directory) -> None:
    file = directory.create("a")
    file.write_at(5, b"x")
    assert (file.read_at(0, 10), file.size()) == (bytes(5) + b"x", 6)
    file.close()


def test_an_empty_write_changes_nothing(directory: Directory) -> None:
    file = directory.create("a")
    file.write_at(0, b"ab")
    file.write_at(10, b"")
    assert (file.read_at(0, 20), file.size()) == (b"ab", 2)
    file.close()


def test_a_large_write_is_complete(directory: Directory) -> None:
    file = directory.create("a")
    content = bytes(range(256)) * 20_000
    file.write_at(3, content)
    assert file.read_at(3, len(content)) == content
    file.close()


def test_allocate_reserves_space_and_changes_no_byte(directory: Directory) -> None:
    file = directory.create("a")
    file.write_at(0, b"ab")
    file.allocate(1_000)
    assert (file.size(), file.read_at(0, 2_000)) == (1_000, b"ab" + bytes(998))
    file.allocate(10)
    assert file.size() == 1_000
    file.close()


@pytest.mark.parametrize("size", [0, 1, 3, 8])
def test_truncate_cuts_and_extends_with_zeros(directory: Directory, size: int) -> None:
    file = directory.create("a")
    file.write_at(0, b"abc")
    file.truncate(size)
    assert (file.size(), file.read_at(0, 20)) == (size, b"abc\0\0\0\0\0"[:size])
    file.truncate(10)
    assert file.read_at(0, 20) == b"abc"[:size].ljust(10, b"\0")
    file.close()


def test_all_handles_of_a_file_see_the_same_bytes(directory: Directory) -> None:
    first = directory.create("a")
    two = directory.open("a")
    first.write_at(0, b"x")
    assert two.read_at(0, 5) == b"x"
    two.truncate(0)
    assert first.size() == 0
    first.close()
    two.write_at(0, b"y")
    two.sync()
    assert two.read_at(0, 5) == b"y"
    two.close()


def test_a_closed_file_is_closed(directory: Directory) -> None:
    """The descriptor may belong to another file by then: the simulated disk must show the mistake too."""
    file = directory.create("a")
    file.close()
    file.close()  # twice is harmless
    uses: list[Callable[[], object]] = [
        lambda: file.read_at(0, 1), lambda: file.write_at(0, b"x"), file.sync, lambda: file.truncate(0),
        lambda: file.allocate(10),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises((OSError, ValueError), match="descriptor"):
            use()


# --- names ------------------------------------------------------------------------------------------------------------


def content(directory: Directory, name: str) -> bytes:
    file = directory.open(name)
    try:
        return file.read_at(0, 1_000)
    finally:
        file.close()


def make(directory: Directory, name: str, data: bytes) -> None:
    file = directory.create(name)
    file.write_at(0, data)
    file.close()


def test_names_are_sorted_and_complete(directory: Directory) -> None:
    for name in ("b", "a", "c"):
        make(directory, name, b"")
    assert directory.names() == ["a", "b", "c"]
    directory.remove("b")
    directory.sync()
    assert directory.names() == ["a", "c"]


def test_a_name_is_created_once(directory: Directory) -> None:
    make(directory, "a", b"first")
    with pytest.raises(FileExistsError):
        directory.create("a")
    assert content(directory, "a") == b"first"


@pytest.mark.parametrize("call", ["open", "remove", "rename"])
def test_a_missing_file_raises(directory: Directory, call: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: directory.open("a"),
        "remove": lambda: directory.remove("a"),
        "rename": lambda: directory.rename("a", "b"),
    }
    with pytest.raises(FileNotFoundError):
        calls[call]()
    assert directory.names() == []


def test_rename_moves_and_replaces(directory: Directory) -> None:
    make(directory, "a", b"from a")
    make(directory, "b", b"from b")
    directory.rename("a", "b")
    assert (directory.names(), content(directory, "b")) == (["b"], b"from a")
    directory.rename("b", "c")
    assert (directory.names(), content(directory, "c")) == (["c"], b"from a")


def test_an_open_file_outlives_its_name(directory: Directory) -> None:
    """A reader keeps its bytes while the file is renamed, replaced or removed."""
    file = directory.create("a")
    file.write_at(0, b"mine")
    make(directory, "b", b"other")
    directory.rename("b", "a")
    assert (file.read_at(0, 9), content(directory, "a")) == (b"mine", b"other")
    directory.remove("a")
    assert (file.read_at(0, 9), directory.names()) == (b"mine", [])
    file.close()


def test_a_renamed_file_is_still_the_same_file(directory: Directory) -> None:
    file = directory.create("a")
    directory.rename("a", "b")
    file.write_at(0, b"later")
    assert content(directory, "b") == b"later"
    file.close()


def test_free_bytes_is_a_number_of_bytes(directory: Directory) -> None:
    assert directory.free_bytes() > 0


def test_describe_names_the_file(directory: Directory) -> None:
    assert directory.describe("log-1").endswith("log-1")


# --- the lock ---------------------------------------------------------------------------------------------------------


def test_only_one_has_the_lock(directory: Directory) -> None:
    lock = directory.lock("LOCK")
    assert directory.names() == ["LOCK"]
    with pytest.raises(errors.LogLocked):
        directory.lock("LOCK")
    lock.close()
    again = directory.lock("LOCK")
    with pytest.raises(errors.LogLocked):
        directory.lock("LOCK")
    again.close()


# --- both at once -----------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c"])
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), NAMES),
        st.tuples(st.just("open"), NAMES),
        st.tuples(st.just("remove"), NAMES),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.just("write_at"), st.integers(0, 9), st.integers(0, 600), st.binary(min_size=1, max_size=700)),
        st.tuples(st.just("truncate"), st.integers(0, 9), st.integers(0, 1_200)),
        st.tuples(st.just("allocate"), st.integers(0, 9), st.integers(1, 1_200)),
        st.tuples(st.just("sync"), st.integers(0, 9)),
        st.tuples(st.just("sync_directory")),
    ),
    max_size=25,
)


def run(directory: Directory, operations: list[tuple[Any, ...]]) -> list[object]:
    """Everything that can be seen of a run."""
    handles: list[Any] = []
    seen: list[object] = []
    for what, *arguments in operations:
        names = directory.names()
        if what in ("create", "open"):
            if (arguments[0] in names) == (what == "open"):
                handles.append(getattr(directory, what)(arguments[0]))
        elif what in ("remove", "rename"):
            if arguments[0] in names and len({*arguments}) == len(arguments):
                getattr(directory, what)(*arguments)
        elif what == "sync_directory":
            directory.sync()
        elif handles:
            number, *rest = arguments
            getattr(handles[number % len(handles)], what)(*rest)
        seen.append((directory.names(), [(handle.size(), handle.read_at(0, 5_000)) for handle in handles]))
    seen.append([(name, content(directory, name)) for name in directory.names()])
    for handle in handles:
        handle.close()
    return seen


@HALF
@given(OPERATIONS)
def test_any_sequence_behaves_the_same_on_both_directories(operations: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as path:
        local = LocalDirectory(Path(path))
        real = run(local, operations)
        local.close()
    assert run(SimulatedDisk(1), operations) == real


# --- the real one alone -----------------------------------------------------------------------------------------------


def test_the_lock_excludes_other_directory_objects(tmp_path: Path) -> None:
    first, two = LocalDirectory(tmp_path), LocalDirectory(tmp_path)
    lock = first.lock("LOCK")
    with pytest.raises(errors.LogLocked, match="open") as caught:
        two.lock("LOCK")
    assert "data_dir" in caught.value.hint
    lock.close()
    two.lock("LOCK").close()
    first.close()
    two.close()


def test_a_real_file_has_a_descriptor_for_the_native_thread(tmp_path: Path) -> None:
    directory = LocalDirectory(tmp_path)
    file = directory.create("a")
    assert file.fileno() >= 0
    file.close()
    assert file.fileno() == -1
    assert directory.describe("a") == str(tmp_path / "a")
    assert directory.free_bytes() > 0
    directory.close()


def test_a_read_only_directory_creates_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"as it was")
    directory = LocalDirectory(tmp_path, read_only=True)
    file = directory.open("a")
    assert file.read_at(0, 100) == b"as it was"
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write_at(0, b"x")
    file.close()
    directory.close()
    with pytest.raises(FileNotFoundError):
        LocalDirectory(tmp_path / "nowhere", read_only=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
