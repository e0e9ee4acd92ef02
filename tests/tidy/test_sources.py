"""The habits of the sources that no linter checks. Each message says what to do instead."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from icestream import errors, limits
from tests.tidy.tree import ROOT, functions, parsed, python_files, read, report, shown

EMPTY_NAMES = {"util", "utils", "helper", "helpers", "manager", "managers"}
UNITS = {"KIB", "MIB", "GIB"}
CODE_FOLDERS = ("src/", "tests/", "bench/", "scripts/", "conformance/")


def test_modules_are_named_after_what_they_do() -> None:
    vague_names = [
        shown(path)
        for path in python_files(*CODE_FOLDERS)
        if any(EMPTY_NAMES & set(part.removesuffix(".py").split("_")) for part in path.relative_to(ROOT).parts)
    ]
    assert not vague_names, report("These names say nothing; use the noun or verb of the data path:", vague_names)


def test_public_classes_have_names_of_their_own() -> None:
    """Go-to-symbol finds one class."""
    modules: dict[str, list[str]] = {}
    for path in python_files("src/"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and "_pb2" not in path.name:
                modules.setdefault(node.name, []).append(shown(path))
    shared = [f"{name}: {', '.join(places)}" for name, places in modules.items() if len(set(places)) > 1]
    assert not shared, report("These classes have the same name; say in one of them what it is of:", shared)


def test_source_files_have_names_of_their_own() -> None:
    """A file is found by its name."""
    paths_by_name: dict[str, list[str]] = {}
    for path in python_files("src/"):
        paths_by_name.setdefault(path.name, []).append(shown(path))
    del paths_by_name["__init__.py"]
    shared = [", ".join(paths) for paths in paths_by_name.values() if len(paths) > 1]
    assert not shared, report("These files have the same name; say in one of them what it is of:", shared)


def test_modules_that_say_they_are_pure_are() -> None:
    """The contract in pyproject.toml names the modules that everything depends on; a docstring counts for any other."""
    impure = [
        f"{shown(path)} imports {', '.join(sorted(imports))}"
        for path in python_files("src/")
        if claims_purity(parsed(path)) and (imports := imported_modules(parsed(path)) & impure_modules())
    ]
    assert not impure, report("Hand time, chance and I/O in by constructor, or do not say Pure:", impure)


@pytest.mark.parametrize(
    ("docstring", "is_claim"),
    [
        ("Decides. Pure.", True),
        ("Decides. Pure: the time is a parameter.", True),
        ("Reads. Pure, except for `read`.", False),
        ("Decides what is\npurely a matter of taste.", False),
    ],
)
def test_a_docstring_claims_purity_in_its_first_paragraph(docstring: str, is_claim: bool) -> None:
    assert claims_purity(ast.parse(f'"""{docstring}\n\nMore. Pure."""')) is is_claim


def claims_purity(module: ast.Module) -> bool:
    first_paragraph = (ast.get_docstring(module) or "").split("\n\n")[0]
    return re.search(r"\bPure\b(?!,)", first_paragraph) is not None


def imported_modules(module: ast.Module) -> set[str]:
    """The top-level names of the modules that a module imports, inside of functions too."""
    names: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


@cache
def impure_modules() -> frozenset[str]:
    """The modules that the contract about values and decisions forbids."""
    contracts = tomllib.loads(read("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    (contract,) = (contract for contract in contracts if contract["name"].startswith("Values and decisions are pure"))
    return frozenset(contract["forbidden_modules"])


def test_packages_only_reexport() -> None:
    statements = [
        f"{shown(path)}:{node.lineno}: {ast.unparse(node).splitlines()[0][:80]}"
        for path in python_files("src/")
        if path.name == "__init__.py"
        for node in parsed(path).body
        if not is_reexport(node)
    ]
    assert not statements, report(
        "An __init__.py holds a docstring, imports, __all__ and __version__; move the rest:", statements
    )


def test_each_package_says_what_it_owns() -> None:
    silent = [
        shown(path)
        for path in python_files("src/")
        if path.name == "__init__.py" and len(re.findall(r"[.:;](?:\s|$)", ast.get_docstring(parsed(path)) or "")) < 2
    ]
    assert not silent, report("Its docstring says in two sentences what the package owns:", silent)


def is_reexport(node: ast.stmt) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name in {"__all__", "__version__"}
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body, orelse=[]):
            return all(is_reexport(inner) for inner in body)
        case _:
            return False


# What people read in the output of commands. Units and rates ("64 bytes", "5 messages/s") stand as they are.
READ_BY_PEOPLE = ("src/icestream/cli/", "src/icestream/readers/verify/", "src/icestream/pipeline/driver/")
COUNTED = re.compile(
    r" (?!has )(?:[a-z]+ )?(?:check|column|file|gap|message|namespace|node|offset|part|partition|problem|record|round|"
    r"row|shard|snapshot|subscription|table|topic|window)s\b(?!/)"
)
NEVER_ONE = re.compile(r"counted\(|limits\.|allowed$")  # `allowed`: open files of a process


def test_numbers_and_their_nouns_agree() -> None:
    places = [
        f"{shown(path)}:{text.lineno}: {{{ast.unparse(number.value)}}}{text.value[:40]}"
        for path in python_files(*READ_BY_PEOPLE)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.JoinedStr)
        for number, text in pairwise(node.values)
        if isinstance(number, ast.FormattedValue)
        and isinstance(text, ast.Constant)
        and COUNTED.match(str(text.value))
        and not NEVER_ONE.match(ast.unparse(number.value))
    ]
    assert not places, report('"1 rows" is no English: say it with `counted` of observability/words.py:', places)


def test_every_test_has_an_assertion() -> None:
    empty_tests = [
        f"{shown(path)}:{node.lineno}: {node.name}"
        for path in python_files("tests/")
        for node in functions(parsed(path))
        if node.name.startswith("test_") and not asserts_something(node)
    ]
    assert not empty_tests, report(
        "Nothing is asserted here; state what must hold (assert, raises, or a check_… call):", empty_tests
    )


def asserts_something(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(is_assertion(node) for node in ast.walk(function))


def is_assertion(node: ast.AST) -> bool:
    match node:
        case ast.Assert():
            return True
        case ast.With(items=items) | ast.AsyncWith(items=items):
            return any(re.search("raises|warns", ast.unparse(item.context_expr)) for item in items)
        case ast.Call(func=called):
            return re.search("assert|check|verify|expect", ast.unparse(called)) is not None
        case _:
            return False


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def test_a():\n    run()", False),
        ("def test_a():\n    assert run() == 1", True),
        ("def test_a():\n    with pytest.raises(ValueError):\n        run()", True),
        ("async def test_a():\n    for log in logs:\n        verify_dense(log)", True),
    ],
)
def test_the_assertion_check_recognises_assertions(source: str, expected: bool) -> None:
    function = next(functions(ast.parse(source)))
    assert asserts_something(function) is expected


def test_every_bound_has_its_reason() -> None:
    bounds = unexplained(Path(limits.__file__).read_text(encoding="utf-8"))
    assert not bounds, report(
        "limits.py: a comment directly above each bound (or its group) says why this number:", bounds
    )


def unexplained(text: str) -> list[str]:
    """The constants that have no comment between them and the blank line above. Rulers (`# ---`) explain nothing."""
    constants = {
        node.lineno: target.id
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id.isupper() and target.id not in UNITS
    }
    bounds, explained = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            explained = False
        elif line.startswith("#") and not line.startswith("# ---"):
            explained = True
        elif number in constants and not explained:
            bounds.append(f"{number}: {constants[number]}")
    return bounds


def test_the_reason_check_recognises_groups_and_rulers() -> None:
    text = "# --- part ---\nA_MAX = 1\n\n# Why.\nB_MAX = 2\nC_MAX: Final = 3\n\nD_MAX = 4\n"
    assert unexplained(text) == ["2: A_MAX", "8: D_MAX"]


def test_the_error_tree_in_the_docstring_matches_the_classes() -> None:
    """Names, parents, codes and retryability in the docstring of errors.py against the classes."""
    defined = {
        name: (error.__mro__[1].__name__, error.code, "yes" if error.retryable else "no")
        for name, error in inspect.getmembers(errors, inspect.isclass)
        if issubclass(error, errors.IcestreamError) and error is not errors.IcestreamError
    }
    drawn = drawn_tree(errors.__doc__ or "")
    differences = [
        f"{name}: drawn as {drawn.get(name, 'nothing')}, is {defined.get(name, 'nothing')}"
        for name in sorted(drawn.keys() | defined.keys())
        if drawn.get(name) != defined.get(name)
    ]
    assert not differences, report(
        "The tree at the top of errors.py (parent, code, retryable) differs from the classes:", differences
    )


def test_every_error_belongs_to_the_tree() -> None:
    strays = [
        name
        for name, error in inspect.getmembers(errors, inspect.isclass)
        if issubclass(error, BaseException) and not issubclass(error, errors.IcestreamError)
    ]
    assert not strays, report("errors.py: every error derives from IcestreamError:", strays)


def drawn_tree(text: str) -> dict[str, tuple[str, str, str]]:
    """Name to (parent, code, retryable) of each branch; the parent is the nearest name above, further left."""
    row = re.compile(r"^(?P<rails>[ │]*[├└]── )(?P<name>\w+) +(?P<code>[a-z_]+) +(?P<retryable>yes|no)\b")
    tree: dict[str, tuple[str, str, str]] = {}
    columns: list[tuple[int, str]] = [(0, "IcestreamError")]
    for line in text.splitlines():
        if match := row.match(line):
            column = len(match["rails"])
            columns = [entry for entry in columns if entry[0] < column]
            tree[match["name"]] = (columns[-1][1], match["code"], match["retryable"])
            columns.append((column, match["name"]))
    return tree
