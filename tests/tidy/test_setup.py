"""The set-up scripts on machines that lack something: they say what, and what to do about it."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

OLD_PYTHON = """#!/bin/sh
if [ "$1" = --version ]; then echo "Python 3.9.2"; else exit 1; fi
"""
WITHOUT_VENV = """#!/bin/sh
case "$2" in
    *ensurepip*) exit 1 ;;
    *print*) echo 3.11 ;;
esac
"""
FAILING_CARGO = """#!/bin/sh
if [ "$1" = --version ]; then echo "cargo 1.95.0 (0 2026-01-01)"; else echo "error: it does not compile"; exit 101; fi
"""
CARGO_WITHOUT_TOOLCHAIN = """#!/bin/sh
echo "error: rustup could not choose a version of cargo to run, because no default is configured." >&2
echo "help: run 'rustup default stable' to set a default toolchain." >&2
exit 1
"""
MANIFEST = '[package]\nname = "icestream-native"\nrust-version = "{needed}"\n'


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def make_venv(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    """Runs the script with a PATH on which the only Python is the given text."""
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14"):
        executable(folder / "bin" / name, python)
    for tool in ("sh", "cat"):
        (folder / "bin" / tool).symlink_to(str(shutil.which(tool)))
    command = [str(folder / "bin" / "sh"), str(ROOT / "scripts" / "make_venv.sh"), "python3"]
    environment = {"PATH": str(folder / "bin")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("python", "says"),
    [
        (OLD_PYTHON, ["Python 3.11 or later", "Python 3.9.2", "PYTHON="]),
        (WITHOUT_VENV, ["no venv module", "apt install python3.11-venv"]),
    ],
    ids=["old", "without venv"],
)
def test_an_unfit_python_is_refused_with_the_fix(tmp_path: Path, python: str, says: list[str]) -> None:
    done = make_venv(tmp_path, python)
    assert done.returncode == 1
    assert [words for words in says if words not in done.stderr] == []
    assert not (tmp_path / ".venv").exists()


class SetupMachine:
    """A copy of the build script in a tree of its own, run by a Python that sees no installed packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "scripts" / "build_native.py"
        self.script.parent.mkdir()
        shutil.copy(ROOT / "scripts" / "build_native.py", self.script)
        (folder / "bin").mkdir()

    def with_sources(self, needed: str = "1.80") -> None:
        (self.folder / "native").mkdir()
        (self.folder / "native" / "Cargo.toml").write_text(MANIFEST.format(needed=needed), encoding="utf-8")

    def with_failing_compiler(self) -> None:
        executable(self.folder / "bin" / "cargo", FAILING_CARGO)
        executable(self.folder / ".venv" / "bin" / "maturin", FAILING_CARGO)

    def build(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", "-S", str(self.script), *options]
        environment = {**os.environ, "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin"}
        if not (self.folder / "bin" / "cargo").exists():
            environment["PATH"] = str(self.folder / "bin")
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> SetupMachine:
    return SetupMachine(tmp_path)


def check_goes_on_slower(done: subprocess.CompletedProcess[str], reason: str) -> None:
    assert done.returncode == 0, done.stderr
    assert reason in done.stdout
    assert "inline on the event loop" in done.stdout
    assert "scanning run in Python" in done.stdout


def test_setup_continues_without_sources(machine: SetupMachine) -> None:
    check_goes_on_slower(machine.build(), "native/Cargo.toml is not there")


def test_setup_continues_without_a_compiler(machine: SetupMachine) -> None:
    machine.with_sources()
    check_goes_on_slower(machine.build(), "there is no Rust compiler")
    check_goes_on_slower(machine.build("--required", "--planted"), "there is no Rust compiler")


def test_a_cargo_without_a_toolchain_is_reported_in_its_own_words(machine: SetupMachine) -> None:
    machine.with_sources()
    check_goes_on_slower(machine.build(), "there is no Rust compiler")
    executable(machine.folder / "bin" / "cargo", CARGO_WITHOUT_TOOLCHAIN)
    built = machine.build()
    check_goes_on_slower(built, "`cargo --version` fails: rustup could not choose a version of cargo to run")
    assert "rustup default stable" in built.stdout
    assert "there is no Rust compiler" not in built.stdout, "the stamp of the run before"


def test_an_old_compiler_counts_as_missing(machine: SetupMachine) -> None:
    machine.with_sources(needed="1.99")
    machine.with_failing_compiler()
    check_goes_on_slower(machine.build("--required"), "cargo is 1.95.0, it needs 1.99")


def test_a_failing_build_is_tried_once_for_a_run_and_always_for_tests(machine: SetupMachine) -> None:
    machine.with_sources()
    machine.with_failing_compiler()
    first, second = machine.build(), machine.build()
    check_goes_on_slower(first, "its build failed")
    assert "it does not compile" in first.stderr
    check_goes_on_slower(second, "its build failed")
    assert "building" not in second.stdout, "the same sources and compiler were tried twice"
    tested = machine.build("--required")
    assert tested.returncode == 1
    assert "does not build" in tested.stderr


def test_a_changed_source_is_built_again(machine: SetupMachine) -> None:
    machine.with_sources()
    machine.with_failing_compiler()
    machine.build()
    manifest = machine.folder / "native" / "Cargo.toml"
    manifest.write_text(manifest.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    assert "building the native extension" in machine.build().stdout


# --- a build that takes long ------------------------------------------------------------------------------------------

# Says what it compiles, and waits until it has been seen.
SLOW_BUILD = """import os, sys
print("   Compiling raft v0.7.0", file=sys.stderr, flush=True)
os.open(sys.argv[1], os.O_RDONLY)
sys.exit(7)
"""


def test_a_long_build_shows_what_it_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = runpy.run_path(str(ROOT / "scripts" / "build_native.py"))
    monkeypatch.setitem(builder["run_telling"].__globals__, "NATIVE", tmp_path)
    seen = tmp_path / "seen"
    os.mkfifo(seen)
    signs: list[str] = []

    def tell(sign: str) -> None:
        if sign.endswith(" s: Compiling raft v0.7.0") and not signs:
            signs.append(sign)
            os.close(os.open(seen, os.O_WRONLY))

    command = [sys.executable, "-I", "-S", "-c", SLOW_BUILD, str(seen)]
    log = tmp_path / "log"
    assert builder["run_telling"](command, log, log, tell, pause_seconds=0.01) == 7
    assert len(signs) == 1
    assert builder["sign_of_life"]("", 29.7) == "setup: still building after 30 s: it has said nothing yet"


def test_progress_at_a_terminal_is_one_transient_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    builder = runpy.run_path(str(ROOT / "scripts" / "build_native.py"))
    for is_terminal, printed in ((True, "\r\033[Kone\r\033[Ktwo\r\033[K"), (False, "one\ntwo\n")):
        monkeypatch.setattr(sys.stdout, "isatty", lambda answer=is_terminal: answer)
        with builder["shown_signs"]() as tell:
            tell("one")
            tell("two")
        assert capsys.readouterr().out == printed
