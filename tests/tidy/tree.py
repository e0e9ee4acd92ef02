"""The files of the repository, as the tests about the repository see them."""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Where git is missing: what the set-up and the tools put beside the sources.
NOT_SOURCES = {".git", ".venv", "site", "dist", "target", "target-planted", "data", "__pycache__", "Cargo.lock"}


@cache
def repository_files() -> tuple[Path, ...]:
    """Every file that is, or could be, committed."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if listed.returncode == 0:
            paths = (ROOT / name for name in listed.stdout.split("\0") if name)
            return tuple(sorted(path for path in paths if path.is_file()))
    return tuple(sorted(walk(ROOT)))


def walk(directory: Path) -> Iterator[Path]:
    for path in directory.iterdir():
        if path.name in NOT_SOURCES or (path.is_dir() and path.name.endswith("_cache")):
            continue
        if path.is_dir():
            yield from walk(path)
        else:
            yield path


def shown(path: Path) -> str:
    """A path as messages show it."""
    return path.relative_to(ROOT).as_posix()


def read(name: str) -> str:
    """The text of a file that must be there."""
    path = ROOT / name
    assert path.is_file(), f"{name} is missing"
    return path.read_text(encoding="utf-8")


def text_lines() -> Iterator[tuple[str, int, str]]:
    """Every line of every text file: shown path, line number, line."""
    for path in repository_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            yield shown(path), number, line


def python_files(*folders: str) -> list[Path]:
    """The Python files below the given folders of the repository."""
    return [path for path in repository_files() if path.suffix == ".py" and shown(path).startswith(folders)]


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def report(rule: str, findings: list[str]) -> str:
    """The message of a broken rule: what to do, then each place."""
    return "\n".join([rule, *(f"  {finding}" for finding in findings)])
