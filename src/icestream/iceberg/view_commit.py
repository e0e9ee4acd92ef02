"""A commit to one view, and a new view: values in, the next version of its document out. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from icestream.iceberg import values, view_updates
from icestream.iceberg.values import Object
from icestream.iceberg.view_builder import ViewMetadataBuilder
from icestream.iceberg.view_metadata import ViewMetadata


def commit(view: ViewMetadata, requirements: Sequence[Object], updates: Sequence[Object], now_ms: int) -> ViewMetadata:
    """The same view when the updates change nothing."""
    for one in requirements:
        view_updates.check_requirement(view, one)
    return _applied(view, updates, now_ms)


def new_view_metadata(request: Object, location: str, uuid: str, now_ms: int) -> ViewMetadata:
    """`request` has schema, view-version and properties. The version gets the id of the schema beside it."""
    version = values.as_object(values.required(request, "view-version"), "view version")
    updates: list[Object] = [
        {"action": "assign-uuid", "uuid": uuid},
        {"action": "add-schema", "schema": values.required(request, "schema")},
        {"action": "add-view-version", "view-version": {**version, "schema-id": -1}},
        {"action": "set-current-view-version", "view-version-id": -1},
        {"action": "set-location", "location": location},
        {"action": "set-properties", "updates": values.optional_text_map(request, "properties")},
    ]
    return _applied(None, updates, now_ms)


def _applied(view: ViewMetadata | None, updates: Sequence[Object], now_ms: int) -> ViewMetadata:
    draft = ViewMetadataBuilder(view, now_ms)
    for one in updates:
        view_updates.apply(draft, one)
    return draft.finish()
