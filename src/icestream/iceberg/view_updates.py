"""Commits to one view: every update and requirement of Iceberg's REST protocol, and the next version of the document.
Pure.

When a commit is finished, the oldest versions are dropped (`version.history.num-entries`), but never the current one or
one that the commit added. A dropped version takes the history before it away. A replacement that loses a dialect is
refused unless `replace.drop-dialect.allowed` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from icestream import errors, limits
from icestream.iceberg import schema as schemas
from icestream.iceberg import values, view_metadata
from icestream.iceberg.table_properties import as_flag, as_integer
from icestream.iceberg.values import Object, short_repr
from icestream.iceberg.view_metadata import FORMAT_VERSION, ViewMetadata

HISTORY_SIZE: Final = "version.history.num-entries"
DROP_DIALECT: Final = "replace.drop-dialect.allowed"


# --- commits ----------------------------------------------------------------------------------------------------------


def commit(view: ViewMetadata, requirements: Sequence[Object], updates: Sequence[Object], now_ms: int) -> ViewMetadata:
    """Returns the metadata after the updates; `view` itself if they change nothing.

    Raises CommitConflict if a requirement does not hold, InvalidInput for an invalid update.
    """
    for requirement in requirements:
        check_requirement(view, requirement)
    return _apply_updates(view, updates, now_ms)


def new_view_metadata(request: Object, location: str, uuid: str, now_ms: int) -> ViewMetadata:
    """Returns the metadata of a new view. `request` has `schema`, `view-version` and `properties`."""
    version = values.as_object(values.required(request, "view-version"), "view version")
    updates: list[Object] = [
        {"action": "assign-uuid", "uuid": uuid},
        {"action": "add-schema", "schema": values.required(request, "schema")},
        {"action": "add-view-version", "view-version": {**version, "schema-id": -1}},
        {"action": "set-current-view-version", "view-version-id": -1},
        {"action": "set-location", "location": location},
        {"action": "set-properties", "updates": values.optional_text_map(request, "properties")},
    ]
    return _apply_updates(None, updates, now_ms)


def _apply_updates(view: ViewMetadata | None, updates: Sequence[Object], now_ms: int) -> ViewMetadata:
    builder = ViewMetadataBuilder(view, now_ms)
    for update in updates:
        apply(builder, update)
    return builder.finish()


def check_requirement(view: ViewMetadata, requirement: Object) -> None:
    """Raises CommitConflict if the requirement does not hold."""
    kind = values.text(requirement, "type").lower()
    if kind != "assert-view-uuid":
        raise errors.InvalidInput(f"Unknown requirement of a view: {short_repr(kind)}")
    expected = values.text(requirement, "uuid")
    if expected.lower() != view.uuid.lower():
        raise errors.CommitConflict(f"Requirement failed: view UUID does not match: expected {view.uuid} != {expected}")


# --- the builder ------------------------------------------------------------------------------------------------------


class ViewMetadataBuilder:
    """The base with the updates of one commit so far. The base is shared and never modified."""

    def __init__(self, base: ViewMetadata | None, now_ms: int) -> None:
        self.base = base
        self.now_ms = now_ms
        self.fields: Object = dict(base.fields) if base else _empty_fields()
        self.is_changed = base is None
        self.last_added_schema: int | None = None
        self.last_added_version: int | None = None
        self.added_versions: set[int] = set()
        self._log_entry: Object | None = None

    def put(self, name: str, value: Any) -> None:
        if self.fields.get(name) != value:
            self.fields[name] = value
            self.is_changed = True

    def add_version(self, version: Object) -> None:
        self.fields["versions"] = [*self.fields["versions"], version]
        self.added_versions.add(version["version-id"])
        self.is_changed = True

    def set_current(self, version: Object) -> None:
        """Sets the current version. A commit adds at most one entry to the version log, for the last one it sets."""
        version_id = version["version-id"]
        if self.fields["current-version-id"] == version_id and self.fields["version-log"]:
            return
        self.fields["current-version-id"] = version_id
        time_ms = version["timestamp-ms"] if version_id in self.added_versions else self.now_ms
        self._log_entry = {"version-id": version_id, "timestamp-ms": time_ms}
        self.is_changed = True

    def finish(self) -> ViewMetadata:
        """Returns the new metadata; the base itself if the updates changed nothing. Raises InvalidInput."""
        if self.base is not None and not self.is_changed:
            return self.base
        current = values.find(self.fields["versions"], "version-id", self.fields["current-version-id"])
        if current is None:
            raise errors.InvalidInput("Invalid view: no versions were added")
        if not self.fields["location"] or not self.fields["view-uuid"]:
            raise errors.InvalidInput("Invalid view: no location, or no uuid")
        self._check_dialects(current)
        if self._log_entry is not None:
            self.fields["version-log"] = [*self.fields["version-log"], self._log_entry]
        self._drop_old_versions(current)
        return ViewMetadata(self.fields)

    def _check_dialects(self, current: Object) -> None:
        if self.base is None or as_flag(self.fields["properties"], DROP_DIALECT, False):
            return
        before, after = view_metadata.dialects(self.base.current_version), view_metadata.dialects(current)
        if not set(before) <= set(after):
            raise errors.InvalidInput(
                f"Cannot replace view due to loss of view dialects ({DROP_DIALECT}=false):\n"
                f"Previous dialects: {sorted(before)}\nNew dialects: {sorted(after)}"
            )

    def _drop_old_versions(self, current: Object) -> None:
        history_size = as_integer(self.fields["properties"], HISTORY_SIZE, limits.CATALOG_VIEW_VERSIONS_DEFAULT)
        if history_size <= 0:
            raise errors.InvalidInput(f"{HISTORY_SIZE} must be positive but was {history_size}")
        versions = self.fields["versions"]
        protected = self.added_versions | {current["version-id"]}
        others = sorted({version["version-id"] for version in versions} - protected, reverse=True)
        remaining = protected | set(others[: max(history_size - len(protected), 0)])
        if len(remaining) == len(versions):
            return
        self.fields["versions"] = [version for version in versions if version["version-id"] in remaining]
        # The log restarts after a dropped version: with a gap it would claim that another version was current.
        log: list[Object] = []
        for entry in self.fields["version-log"]:
            log = [*log, entry] if entry["version-id"] in remaining else []
        self.fields["version-log"] = log


def _empty_fields() -> Object:
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


# --- updates ----------------------------------------------------------------------------------------------------------


def assign_uuid(builder: ViewMetadataBuilder, update: Object) -> None:
    new_uuid, current_uuid = values.text(update, "uuid"), builder.fields["view-uuid"]
    if current_uuid is not None and new_uuid.lower() != current_uuid.lower():
        raise errors.InvalidInput("Cannot reassign uuid")
    builder.put("view-uuid", current_uuid or new_uuid)


def upgrade_format_version(_builder: ViewMetadataBuilder, update: Object) -> None:
    """There is one format version, so an upgrade changes nothing."""
    version = values.integer(update, "format-version")
    if version < FORMAT_VERSION:
        raise errors.InvalidInput(f"Cannot downgrade v{FORMAT_VERSION} view to v{version}")
    if version > FORMAT_VERSION:
        raise errors.InvalidInput(f"Unsupported format version: {version}")


def add_schema(builder: ViewMetadataBuilder, update: Object) -> None:
    """An equal schema that exists already is reused."""
    new_schema = values.as_object(values.required(update, "schema"), "schema")
    schemas.fields_of(new_schema)
    existing = builder.fields["schemas"]
    schema = next((candidate for candidate in existing if schemas.same(candidate, new_schema)), None)
    if schema is None:
        new_id = max((candidate["schema-id"] + 1 for candidate in existing), default=0)
        schema = {"type": "struct", **new_schema, "schema-id": new_id}
        builder.put("schemas", [*existing, schema])
    builder.last_added_schema = schema["schema-id"]


def add_version(builder: ViewMetadataBuilder, update: Object) -> None:
    """A version that behaves like an existing one is that version."""
    new_version = values.as_object(values.required(update, "view-version"), "view version")
    view_metadata.check_version(new_version)
    if new_version["schema-id"] == -1:
        if builder.last_added_schema is None:
            raise errors.InvalidInput("Cannot set last added schema: no schema has been added")
        new_version = {**new_version, "schema-id": builder.last_added_schema}
    if values.find(builder.fields["schemas"], "schema-id", new_version["schema-id"]) is None:
        raise errors.InvalidInput(f"Cannot add version with unknown schema: {new_version['schema-id']}")
    existing = builder.fields["versions"]
    version = next(
        (candidate for candidate in existing if view_metadata.has_same_behaviour(candidate, new_version)), None
    )
    if version is None:
        version = {**new_version, "version-id": _assign_version_id(new_version["version-id"], existing)}
        builder.add_version(version)
    builder.last_added_version = version["version-id"]


def _assign_version_id(requested_id: int, existing: list[Object]) -> int:
    """Returns the requested id if it is free, else the next free one. Raises InvalidInput for an id so high that few
    would remain."""
    next_id = max((version["version-id"] + 1 for version in existing), default=1)
    if requested_id > next_id + limits.CATALOG_VIEW_VERSION_LEAP_MAX or next_id > values.INT_MAX:
        raise errors.InvalidInput(f"Cannot add version {requested_id}: the next free number is {next_id}")
    return max(requested_id, next_id)


def set_current_version(builder: ViewMetadataBuilder, update: Object) -> None:
    version_id = values.integer(update, "view-version-id")
    if version_id == -1:
        if builder.last_added_version is None:
            raise errors.InvalidInput("Cannot set last version id: no current version id has been set")
        version_id = builder.last_added_version
    version = values.find(builder.fields["versions"], "version-id", version_id)
    if version is None:
        raise errors.InvalidInput(f"Cannot set current version to unknown version: {version_id}")
    builder.set_current(version)


def set_location(builder: ViewMetadataBuilder, update: Object) -> None:
    location = values.text(update, "location").rstrip("/")
    if not location:
        raise errors.InvalidInput("Invalid location: empty")
    builder.put("location", location)


def set_properties(builder: ViewMetadataBuilder, update: Object) -> None:
    new_properties = values.text_map(update, values.present_name(update, "updates", "updated"))
    builder.put("properties", builder.fields["properties"] | new_properties)


def remove_properties(builder: ViewMetadataBuilder, update: Object) -> None:
    removals = set(values.texts(update, values.present_name(update, "removals", "removed")))
    properties = builder.fields["properties"]
    builder.put("properties", {name: value for name, value in properties.items() if name not in removals})


UPDATES: Final[dict[str, Callable[[ViewMetadataBuilder, Object], None]]] = {
    "assign-uuid": assign_uuid,
    "upgrade-format-version": upgrade_format_version,
    "add-schema": add_schema,
    "add-view-version": add_version,
    "set-current-view-version": set_current_version,
    "set-location": set_location,
    "set-properties": set_properties,
    "remove-properties": remove_properties,
}


def apply(builder: ViewMetadataBuilder, update: Object) -> None:
    """Applies one update. Raises InvalidInput."""
    action = values.text(update, "action").lower()
    apply_update = UPDATES.get(action)
    if apply_update is None:
        raise errors.InvalidInput(f"Unknown update of a view: {short_repr(action)}")
    apply_update(builder, update)
