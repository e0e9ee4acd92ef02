"""The scenarios, in the order in which they run."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from bench.harness import Scenario

PARTS = {
    "log": (
        "single", "concurrent64", "burst", "sustained", "topics1000", "catchup", "rotation", "start16", "acks",
        "inline",
    ),
    "broker": (
        "frames", "awaited", "delivery", "keyshared", "manytopics", "pyclient", "footprint", "danube", "mqtt",
        "mqttsessions", "security",
    ),
    "lake": ("catalog", "backup"),
    "pipeline": (
        "pipeline", "append", "compaction", "tablecare", "longrun", "newtopics", "freshness", "freshness1000",
        "producers", "replay", "coldreaders", "caches", "writers",
    ),
    "raft": ("raft",),
}  # fmt: skip
NAMES = tuple(name for names in PARTS.values() for name in names)


def load(names: Sequence[str]) -> list[Scenario]:
    return [cast("Scenario", import_module(f"bench.scenarios.{name}")) for name in names]
