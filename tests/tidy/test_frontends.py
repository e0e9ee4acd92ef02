"""Front ends use the use cases of a session, never the broker or the stores behind it: authorisation has one place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from icestream.broker.guarded_broker import ASKS_NOTHING, GuardedBroker
from icestream.broker.guarded_schemas import GuardedSchemas
from icestream.broker.schema_registry import SchemaRegistry
from icestream.broker.service import Broker

SOURCES = Path(__file__).parents[2] / "src" / "icestream"
BEHIND_THE_BROKER = {"store", "storage", "topics"}
# Metrics are computed by the node itself, not for a client.
OF_THE_NODE = {"frontends/http/gauges.py"}
UNGUARDED = {"icestream.broker.service", "icestream.broker.schema_registry"}
LOG_RESULTS = {"icestream.wal.appender", "icestream.wal.producer_sequences", "icestream.wal.receipt"}
# Use cases of the broker itself, which no front end has: its life, its own producers, and what its node asks.
OWN_USE_CASES = {
    "start",
    "shutdown",
    "consumed_offsets",
    "on_tables_committed",
    "find_internal_producer",
    "deleted_table_policy",
    "delivery_health",
    "scan_requests",
    "topic_count",
    "provide_route_topic",
    "mqtt_home",
    "mqtt_homes",
    "check_mqtt_home",
    "check_batch",
    "needs_decisions",
    "keep_by_routes",
}
OWN_SCHEMA_USE_CASES = {"load", "load_topic", "follow", "forget", "find_violation", "has_topics", "name_of"}
ASKING = {
    "_require",
    "_require_dead_letters",
    "_require_restore",
    "_is_allowed",
    "_page_visible",
    "require",
    "is_allowed",
    "decide",
    "check_kick",
    "_topic_rights",
}


def modules() -> list[Path]:
    paths = [path for folder in ("frontends", "internal_api") for path in (SOURCES / folder).rglob("*.py")]
    return [path for path in paths if str(path.relative_to(SOURCES)) not in OF_THE_NODE]


def accesses_behind_broker(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in BEHIND_THE_BROKER:
            owner = node.value
            name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
            if name.strip("_") == "broker":
                yield f"line {node.lineno}: {ast.unparse(node)}"


def imports_of(tree: ast.AST, names: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in names:
            # The values that use cases return are no way to the broker.
            classes = [alias.name for alias in node.names if alias.name in ("Broker", "SchemaRegistry")]
            if classes or names is LOG_RESULTS:
                yield f"line {node.lineno}: {node.module}"
        elif isinstance(node, ast.Import):
            yield from (f"line {node.lineno}: {alias.name}" for alias in node.names if alias.name in names)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCES)))
def test_front_ends_use_the_broker_of_a_session(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert list(accesses_behind_broker(tree)) == []
    assert list(imports_of(tree, UNGUARDED)) == []
    assert list(imports_of(tree, LOG_RESULTS)) == []


def test_accesses_to_stores_of_the_broker_are_detected() -> None:
    tree = ast.parse("self._broker.store.get(key)\nbroker.topics\nconnection.broker.storage.wait()\nbroker.topic(name)")
    assert len(list(accesses_behind_broker(tree))) == 3


def test_imports_of_the_broker_are_detected() -> None:
    tree = ast.parse("from icestream.broker.service import Broker, TopicPage\nimport icestream.broker.service")
    assert len(list(imports_of(tree, UNGUARDED))) == 2
    assert not list(imports_of(ast.parse("from icestream.broker.service import TopicPage"), UNGUARDED))


def use_cases(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_every_use_case_is_guarded_or_the_brokers_own() -> None:
    assert use_cases(Broker) - OWN_USE_CASES - use_cases(GuardedBroker) - ASKS_NOTHING.keys() == set()
    assert use_cases(SchemaRegistry) - OWN_SCHEMA_USE_CASES - use_cases(GuardedSchemas) == set()


def unasked(source: str) -> set[str]:
    """The public methods of the classes of a module that ask for no right."""
    names = set()
    for kind in [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]:
        if not kind.name.startswith("Guarded"):
            continue
        for method in kind.body:
            if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) or method.name.startswith("_"):
                continue
            calls = [node.func for node in ast.walk(method) if isinstance(node, ast.Call)]
            if not {call.attr for call in calls if isinstance(call, ast.Attribute)} & ASKING:
                names.add(method.name)
    return names


@pytest.mark.parametrize("module", ["guarded_broker", "guarded_schemas", "guarded_mqtt"])
def test_every_use_case_asks_for_a_right(module: str) -> None:
    assert unasked((SOURCES / "broker" / f"{module}.py").read_text()) <= ASKS_NOTHING.keys()


def test_a_use_case_that_asks_for_nothing_is_detected() -> None:
    source = "class GuardedBroker:\n    async def seek(self, name):\n        await self._broker.seek(name)\n"
    assert unasked(source) == {"seek"}
