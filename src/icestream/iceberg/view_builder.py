"""The next version of a view's document while a commit makes it.

The base is shared and never touched. At the end the oldest versions go (`version.history.num-entries`), but never the
current one or one that this commit added; a version that goes takes the history before it away. A replacement that
loses a dialect is refused unless `replace.drop-dialect.allowed` says otherwise.
"""

from __future__ import annotations

from typing import Any

from icestream import errors, limits
from icestream.iceberg import values, view_versions
from icestream.iceberg.properties import as_flag, as_integer
from icestream.iceberg.values import Object
from icestream.iceberg.view_metadata import FORMAT_VERSION, ViewMetadata

HISTORY_SIZE = "version.history.num-entries"
DROP_DIALECT = "replace.drop-dialect.allowed"


class ViewMetadataBuilder:
    def __init__(self, base: ViewMetadata | None, now_ms: int) -> None:
        self.base = base
        self.now_ms = now_ms
        self.fields: Object = dict(base.fields) if base else _nothing()
        self.is_changed = base is None
        self.last_added_schema: int | None = None
        self.last_added_version: int | None = None
        self.added_versions: set[int] = set()
        self._history: Object | None = None

    def put(self, name: str, value: Any) -> None:
        if self.fields.get(name) != value:
            self.fields[name] = value
            self.is_changed = True

    def add_version(self, added: Object) -> None:
        self.fields["versions"] = [*self.fields["versions"], added]
        self.added_versions.add(added["version-id"])
        self.is_changed = True

    def set_current(self, chosen: Object) -> None:
        """One entry of history for a commit, however often it changes its mind."""
        version_id = chosen["version-id"]
        if self.fields["current-version-id"] == version_id and self.fields["version-log"]:
            return
        self.fields["current-version-id"] = version_id
        time_ms = chosen["timestamp-ms"] if version_id in self.added_versions else self.now_ms
        self._history = {"version-id": version_id, "timestamp-ms": time_ms}
        self.is_changed = True

    def finish(self) -> ViewMetadata:
        if self.base is not None and not self.is_changed:
            return self.base
        current = values.find(self.fields["versions"], "version-id", self.fields["current-version-id"])
        if current is None:
            raise errors.InvalidInput("Invalid view: no versions were added")
        if not self.fields["location"] or not self.fields["view-uuid"]:
            raise errors.InvalidInput("Invalid view: no location, or no uuid")
        self._check_dialects(current)
        if self._history is not None:
            self.fields["version-log"] = [*self.fields["version-log"], self._history]
        self._drop_versions(current)
        return ViewMetadata(self.fields)

    def _check_dialects(self, current: Object) -> None:
        if self.base is None or as_flag(self.fields["properties"], DROP_DIALECT, False):
            return
        before, after = view_versions.dialects(self.base.current_version), view_versions.dialects(current)
        if not set(before) <= set(after):
            raise errors.InvalidInput(
                f"Cannot replace view due to loss of view dialects ({DROP_DIALECT}=false):\n"
                f"Previous dialects: {sorted(before)}\nNew dialects: {sorted(after)}"
            )

    def _drop_versions(self, current: Object) -> None:
        size = as_integer(self.fields["properties"], HISTORY_SIZE, limits.CATALOG_VIEW_VERSIONS_DEFAULT)
        if size <= 0:
            raise errors.InvalidInput(f"{HISTORY_SIZE} must be positive but was {size}")
        always = self.added_versions | {current["version-id"]}
        known = sorted(self.fields["versions"], key=lambda one: one["version-id"], reverse=True)
        room = max(size - len(always), 0)
        others = [one["version-id"] for one in known if one["version-id"] not in always]
        kept = always | set(others[:room])
        if len(kept) == len(known):
            return
        self.fields["versions"] = [one for one in self.fields["versions"] if one["version-id"] in kept]
        log: list[Object] = []
        for entry in self.fields["version-log"]:
            log = [*log, entry] if entry["version-id"] in kept else []
        self.fields["version-log"] = log


def _nothing() -> Object:
    return {
        "view-uuid": None,
        "format-version": FORMAT_VERSION,
        "location": None,
        "schemas": [],
        "current-version-id": 0,
        "versions": [],
        "version-log": [],
        "properties": {},
    }
