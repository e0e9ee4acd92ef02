"""What the documents name is there: source files, tests, and functions that stand in brackets behind their file.

Decisions (docs/adr) are left out: each tells of the code of its day.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.tidy.tree import ROOT, report, repository_files

PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
]
OF_USERS = {"hello.py", "orders.py"}  # programs that the reader of a page writes
FILE = re.compile(r"`([\w./-]+\.(?:py|rs))`")
NAMES = re.compile(r"`([\w./-]+\.py)` \(((?:`\w+`[^`)]*)+)\)")
TESTS = re.compile(r"`((?:unit|hazards|process|property|chaos|contract|engines|planted|danube)/\w[\w./-]*)`")


@cache
def sources() -> dict[str, Path]:
    return {path.relative_to(ROOT).as_posix(): path for path in repository_files() if path.suffix in (".py", ".rs")}


def files_named(name: str) -> list[Path]:
    return [path for shown, path in sources().items() if f"/{shown}".endswith(f"/{name}")]


def missing_references(text: str) -> Iterator[str]:
    for name in FILE.findall(text):
        if name not in OF_USERS and not files_named(name):
            yield name
    for file, names in NAMES.findall(text):
        code = "".join(path.read_text(encoding="utf-8") for path in files_named(file))
        yield from (
            f"{name} in {file}" for name in re.findall(r"`(\w+)`", names) if not re.search(rf"\b{name}\b", code)
        )
    for name in TESTS.findall(text):
        prefix = re.sub(r"^hazards/(\d{2,3})$", r"hazards/test_hazard_\1_", name)
        if not any(shown.startswith(f"tests/{prefix}") for shown in sources()):
            yield f"tests/{name}"


def test_files_tests_and_functions_that_pages_name_exist() -> None:
    missing = {page.name: sorted(set(missing_references(page.read_text(encoding="utf-8")))) for page in PAGES}
    lines = [f"{page}: {name}" for page, names in missing.items() for name in names]
    assert not lines, report("these are not there:", lines)


def test_references_that_are_not_there_are_found() -> None:
    text = "`wal/gone.py`, `wal/state.py` (`no_such_name`), `unit/wal/test_gone.py`, `hazards/99`, `errors.py`"
    expected = {"wal/gone.py", "no_such_name in wal/state.py", "unit/wal/test_gone.py", "hazards/99"}
    assert {name.removeprefix("tests/") for name in missing_references(text)} == expected


def drawn_packages(architecture: str) -> list[str]:
    """The packages in the drawing of layers, from the top down; those in parentheses are not written yet."""
    drawing = architecture.split("## The packages", 1)[1].split("```text\n", 1)[1].split("```", 1)[0]
    left = [re.split(r" {2,}", line.strip())[0] for line in drawing.splitlines()]
    return [name for line in left for name in re.findall(r"\w+", re.sub(r"\(\w+\)", "", line))]


def test_the_architecture_draws_the_packages_in_the_order_of_their_layers() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = [re.findall(r"\w+", re.sub(r"\(\w+\)", "", layer)) for layer in contracts[0]["layers"]]
    rank = {name: number for number, names in enumerate(layers) for name in names}
    architecture = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    drawn = drawn_packages(architecture)
    assert sorted(drawn) == sorted(name for name in rank if name != "testing"), "testing stands at the right of cli"
    assert [rank[name] for name in drawn] == sorted(rank[name] for name in drawn)
    rows = [name for name in drawn if f"`{name}` |" not in architecture and f"`{name}.py`" not in architecture]
    assert not rows, report("these packages have no row in the table:", rows)
