"""Front ends use the use cases of the broker, never the stores behind it: authorisation has one place to stand."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src" / "icestream"
BEHIND_THE_BROKER = {"store", "storage", "topics"}
# The metadata API of the node's own processes: the store is its subject.
EXEMPT = {"internal_api/metadata_calls.py"}
LOG_RESULTS = {"icestream.wal.appender", "icestream.wal.producer_sequences", "icestream.wal.receipt"}


def modules() -> list[Path]:
    paths = [path for folder in ("frontends", "internal_api") for path in (SOURCES / folder).rglob("*.py")]
    return [path for path in paths if str(path.relative_to(SOURCES)) not in EXEMPT]


def accesses_behind_broker(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in BEHIND_THE_BROKER:
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
            if name.strip("_") == "broker":
                yield f"line {node.lineno}: {ast.unparse(node)}"


def log_result_imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in LOG_RESULTS:
            yield f"line {node.lineno}: {node.module}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCES)))
def test_front_ends_do_not_access_the_stores_of_the_broker(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert list(accesses_behind_broker(tree)) == []
    assert list(log_result_imports(tree)) == []


def test_accesses_to_stores_of_the_broker_are_detected() -> None:
    tree = ast.parse("self._broker.store.get(key)\nbroker.topics\nconnection.broker.storage.wait()\nbroker.topic(name)")
    assert len(list(accesses_behind_broker(tree))) == 3
