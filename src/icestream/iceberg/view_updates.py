"""Every update and requirement of a view in Iceberg's REST protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from icestream import errors, limits
from icestream.iceberg import schema as schemas
from icestream.iceberg import values, view_versions
from icestream.iceberg.values import Object, short_repr
from icestream.iceberg.view_builder import ViewMetadataBuilder
from icestream.iceberg.view_metadata import FORMAT_VERSION, ViewMetadata


def assign_uuid(draft: ViewMetadataBuilder, update: Object) -> None:
    given, present = values.text(update, "uuid"), draft.fields["view-uuid"]
    if present is not None and given.lower() != present.lower():
        raise errors.InvalidInput("Cannot reassign uuid")
    draft.put("view-uuid", present or given)


def upgrade_format_version(draft: ViewMetadataBuilder, update: Object) -> None:
    wanted = values.integer(update, "format-version")
    if wanted < FORMAT_VERSION:
        raise errors.InvalidInput(f"Cannot downgrade v{FORMAT_VERSION} view to v{wanted}")
    if wanted > FORMAT_VERSION:
        raise errors.InvalidInput(f"Unsupported format version: {wanted}")


def add_schema(draft: ViewMetadataBuilder, update: Object) -> None:
    added = values.as_object(values.required(update, "schema"), "schema")
    schemas.fields_of(added)
    known = draft.fields["schemas"]
    found = next((one for one in known if schemas.same(one, added)), None)
    if found is None:
        found = {"type": "struct", **added, "schema-id": max((one["schema-id"] + 1 for one in known), default=0)}
        draft.put("schemas", [*known, found])
    draft.last_added_schema = found["schema-id"]


def add_version(draft: ViewMetadataBuilder, update: Object) -> None:
    """A version that behaves like one that is there is that one."""
    added = values.as_object(values.required(update, "view-version"), "view version")
    view_versions.check_version(added)
    if added["schema-id"] == -1:
        if draft.last_added_schema is None:
            raise errors.InvalidInput("Cannot set last added schema: no schema has been added")
        added = {**added, "schema-id": draft.last_added_schema}
    if values.find(draft.fields["schemas"], "schema-id", added["schema-id"]) is None:
        raise errors.InvalidInput(f"Cannot add version with unknown schema: {added['schema-id']}")
    known = draft.fields["versions"]
    found = next((one for one in known if view_versions.same(one, added)), None)
    if found is None:
        found = {**added, "version-id": _number(added["version-id"], known)}
        draft.add_version(found)
    draft.last_added_version = found["version-id"]


def _number(given: int, known: list[Object]) -> int:
    """The one that was asked for, if it is free, and leaves room for those behind it."""
    free = max((one["version-id"] + 1 for one in known), default=1)
    if given > free + limits.CATALOG_VIEW_VERSION_LEAP_MAX or free > values.INT_MAX:
        raise errors.InvalidInput(f"Cannot add version {given}: the next free number is {free}")
    return max(given, free)


def set_current_version(draft: ViewMetadataBuilder, update: Object) -> None:
    wanted = values.integer(update, "view-version-id")
    if wanted == -1:
        if draft.last_added_version is None:
            raise errors.InvalidInput("Cannot set last version id: no current version id has been set")
        wanted = draft.last_added_version
    chosen = values.find(draft.fields["versions"], "version-id", wanted)
    if chosen is None:
        raise errors.InvalidInput(f"Cannot set current version to unknown version: {wanted}")
    draft.set_current(chosen)


def set_location(draft: ViewMetadataBuilder, update: Object) -> None:
    location = values.text(update, "location").rstrip("/")
    if not location:
        raise errors.InvalidInput("Invalid location: empty")
    draft.put("location", location)


def set_properties(draft: ViewMetadataBuilder, update: Object) -> None:
    given = values.text_map(update, values.present_name(update, "updates", "updated"))
    draft.put("properties", draft.fields["properties"] | given)


def remove_properties(draft: ViewMetadataBuilder, update: Object) -> None:
    given = set(values.texts(update, values.present_name(update, "removals", "removed")))
    draft.put("properties", {name: one for name, one in draft.fields["properties"].items() if name not in given})


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


def apply(draft: ViewMetadataBuilder, update: Object) -> None:
    action = values.text(update, "action").lower()
    known = UPDATES.get(action)
    if known is None:
        raise errors.InvalidInput(f"Unknown update of a view: {short_repr(action)}")
    known(draft, update)


def check_requirement(view: ViewMetadata, requirement: Object) -> None:
    kind = values.text(requirement, "type").lower()
    if kind != "assert-view-uuid":
        raise errors.InvalidInput(f"Unknown requirement of a view: {short_repr(kind)}")
    wanted = values.text(requirement, "uuid")
    if wanted.lower() != view.uuid.lower():
        raise errors.CommitConflict(f"Requirement failed: view UUID does not match: expected {view.uuid} != {wanted}")
