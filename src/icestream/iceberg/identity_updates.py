"""Updates of the table as a whole: its UUID, format version, location and properties."""

from __future__ import annotations

from icestream import errors
from icestream.iceberg import values
from icestream.iceberg.table_builder import TableMetadataBuilder
from icestream.iceberg.table_metadata import FORMAT_VERSIONS, ROW_LINEAGE_SINCE
from icestream.iceberg.values import Object


def assign_uuid(draft: TableMetadataBuilder, update: Object) -> None:
    """Once. What a table is known by does not change under those who know it."""
    given, present = values.text(update, "uuid"), draft.fields.get("table-uuid")
    if present is not None and given.lower() != present.lower():
        raise errors.InvalidInput(f"Cannot reassign uuid: {present} to {given}")
    draft.put("table-uuid", present or given)


def upgrade_format_version(draft: TableMetadataBuilder, update: Object) -> None:
    wanted, present = values.integer(update, "format-version"), draft.format_version
    if wanted > FORMAT_VERSIONS[-1]:
        raise errors.InvalidInput(
            f"Cannot upgrade table to unsupported format version: v{wanted} (supported: v{FORMAT_VERSIONS[-1]})"
        )
    if wanted < present:
        raise errors.InvalidInput(f"Cannot downgrade v{present} table to v{wanted}")
    if draft.base is not None and draft.fields.get("table-uuid") is None and wanted > 1:
        raise errors.InvalidInput(f"UUID is required in format v{wanted}")
    draft.put("format-version", wanted)
    if wanted > 1:
        draft.fields.setdefault("last-sequence-number", draft.highest_sequence_number())
    if wanted >= ROW_LINEAGE_SINCE:
        draft.fields.setdefault("next-row-id", 0)


def set_location(draft: TableMetadataBuilder, update: Object) -> None:
    location = values.text(update, "location").rstrip("/")
    if not location:
        raise errors.InvalidInput("Invalid location: empty")
    draft.put("location", location)


def set_properties(draft: TableMetadataBuilder, update: Object) -> None:
    """`updated` is what Java's first clients called it."""
    given = values.text_map(update, values.present_name(update, "updates", "updated"))
    draft.put("properties", draft.fields["properties"] | given)


def remove_properties(draft: TableMetadataBuilder, update: Object) -> None:
    """Those that are there."""
    given = set(values.texts(update, values.present_name(update, "removals", "removed")))
    present = draft.fields["properties"]
    draft.put("properties", {name: value for name, value in present.items() if name not in given})
