"""The repository as a whole: what it must not name, what must be there, and that its commands explain themselves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib

import pytest
import yaml

from tests.tidy.tree import ROOT, read, report, repository_files, shown, text_lines

# Put together here so that this file does not break its own rules.
REGISTRY_HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("crates", "io"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("repo1", "maven", "org"),
        ("repo", "maven", "apache", "org"),
        ("docker", "io"),
    )
]
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:" + "|".join(("work", "root", "Users")) + r")/")
UNFINISHED = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")

PUBLIC_TARGETS = ("run", "test", "lint", "format", "bench", "chaos", "conformance", "docs", "clean")
ADR_NAME = re.compile(r"\d{4}-[a-z0-9-]+\.md")


def test_no_file_names_a_package_registry() -> None:
    mentions = [
        f"{path}:{n}: {host}" for path, n, line in text_lines() for host in REGISTRY_HOSTS if host in line.lower()
    ]
    assert not mentions, report(
        "Where packages come from is the machine's business; name the package, not the host:", mentions
    )


def test_no_file_names_a_path_of_one_machine() -> None:
    mentions = [f"{path}:{n}: {line.strip()[:80]}" for path, n, line in text_lines() if MACHINE_PATH.search(line)]
    assert not mentions, report(
        "These paths exist on one machine only; make them relative to the repository:", mentions
    )


def test_no_unfinished_work_is_marked_in_the_text() -> None:
    marks = [f"{path}:{n}: {line.strip()[:80]}" for path, n, line in text_lines() if UNFINISHED.search(line)]
    assert not marks, report("Finish it, or open an issue and take the mark away:", marks)


def test_lock_files_are_not_committed() -> None:
    locks = {"Cargo.lock", "uv.lock", "poetry.lock", "package-lock.json"}
    lock_files = [shown(path) for path in repository_files() if path.name in locks]
    assert not lock_files, report(
        "Lock files record registry addresses; pin in requirements/ and native/Cargo.toml:", lock_files
    )
    ignored = read(".gitignore").splitlines()
    assert {"Cargo.lock", "uv.lock"} <= set(ignored), ".gitignore must name Cargo.lock and uv.lock: builds create them"


def pins(name: str) -> list[str]:
    lines = read(f"requirements/{name}").splitlines()
    return [line for line in lines if line and not line.startswith(("#", "-r "))]


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "requirements").glob("*.txt")))
def test_requirements_are_exact_pins_only(name: str) -> None:
    loose = [line for line in pins(name) if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)]
    assert not loose, report(f"requirements/{name}: each line is `package==version`, a comment or `-r file`:", loose)


def test_every_dependency_of_the_package_is_pinned() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    declared = {re.split(r"[<>=!~\[; ]", line)[0].lower() for line in project["dependencies"]}
    pinned = {pin.split("==")[0].lower().replace("_", "-") for pin in pins("runtime.txt")}
    missing = sorted(declared - pinned)
    assert not missing, report("In pyproject.toml but not pinned in requirements/runtime.txt:", missing)


def test_plain_make_lists_every_public_target() -> None:
    if shutil.which("make") is None:
        pytest.skip("there is no make on this machine")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    listed = dict(re.findall(r"^  make (\w+) +(\S.*)$", done.stdout, flags=re.MULTILINE))
    missing = sorted(set(PUBLIC_TARGETS) - set(listed))
    assert not missing, report("`make` does not list these; write `## what it does` behind their rule:", missing)
    written = set(re.findall(r"^([a-z]+):", read("Makefile"), flags=re.MULTILINE))
    internal = {"native"}
    unlisted = sorted(written - internal - set(listed))
    assert not unlisted, report("Targets without a line of help:", unlisted)


def test_the_readme_shows_the_two_commands() -> None:
    readme = read("README.md")
    missing = [command for command in ("make run", "make test") if command not in readme]
    assert not missing, report("README.md must show a newcomer these commands:", missing)


def test_ci_runs_the_tests_that_developers_run() -> None:
    text = read(".ci/run")
    assert os.access(ROOT / ".ci" / "run", os.X_OK), ".ci/run must be executable"
    assert "set -euo pipefail" in text, ".ci/run must stop at the first failure"
    assert "make test" in text, ".ci/run must call `make test`"


def test_every_page_of_the_documentation_exists() -> None:
    nav = yaml.safe_load(read("mkdocs.yml"))["nav"]
    missing = [page for page in pages(nav) if not (ROOT / "docs" / page).is_file()]
    assert not missing, report("mkdocs.yml lists pages that are not in docs/:", missing)


def pages(entry: object) -> list[str]:
    match entry:
        case str():
            return [entry]
        case list():
            return [page for item in entry for page in pages(item)]
        case dict():
            return [page for item in entry.values() for page in pages(item)]
        case _:
            raise AssertionError(f"mkdocs.yml: {entry!r} is no page")


def test_the_first_page_leads_to_every_other() -> None:
    names = sorted(path.name for path in (ROOT / "docs").glob("*.md") if path.name != "index.md")
    index, nav = read("docs/index.md"), pages(yaml.safe_load(read("mkdocs.yml"))["nav"])
    unlinked = [name for name in names if f"({name})" not in index or name not in nav]
    assert not unlinked, report("docs/index.md does not link, or mkdocs.yml does not list:", unlinked)


def test_every_decision_is_numbered_once_and_linked() -> None:
    folder = ROOT / "docs" / "adr"
    names = sorted(path.name for path in folder.glob("*.md") if path.name != "index.md")
    odd = [name for name in names if not ADR_NAME.fullmatch(name)]
    assert not odd, report("Decisions are called NNNN-short-title.md:", odd)
    numbers = [name[:4] for name in names]
    assert len(numbers) == len(set(numbers)), report("Two decisions with one number:", names)
    index = read("docs/adr/index.md")
    unlinked = [name for name in names if f"({name})" not in index]
    assert not unlinked, report("docs/adr/index.md does not link:", unlinked)
