"""`icestream lake`: the tables of topics, in whatever catalog they are, and the process that serves our own."""

from __future__ import annotations

from icestream.cli import lake_lag, lake_operations, lake_reading, lake_serve
from icestream.cli.lake_app import app

_ORDER = (
    "namespaces", "tables", "describe", "snapshots", "history", "files", "lag", "commit-now",
    "bind", "detach", "adopt", "rewind", "recreate", "drop", "serve",
)  # fmt: skip
app.registered_commands.sort(key=lambda one: _ORDER.index(one.name or getattr(one.callback, "__name__", "")))

__all__ = ["app", "lake_lag", "lake_operations", "lake_reading", "lake_serve"]
