"""Snapshots and the references to them: validation, and the fields with defaults. Pure.

snapshot    {"snapshot-id", "parent-snapshot-id", "sequence-number", "timestamp-ms", "manifest-list", "summary",
             "schema-id", "first-row-id", "added-rows"}; a v1 table may name its manifests instead of their list
reference   {"snapshot-id", "type": "branch" | "tag", "min-snapshots-to-keep", "max-snapshot-age-ms",
             "max-ref-age-ms"}; a tag has only the last of the three
"""

from __future__ import annotations

from types import NoneType
from typing import Final

from icestream import errors
from icestream.iceberg import values
from icestream.iceberg.values import Object, short_repr

MAIN: Final = "main"
NO_SNAPSHOT: Final = -1  # written by v1 and v2 for a table without snapshots
_LONGS: Final = (
    "snapshot-id",
    "timestamp-ms",
    "sequence-number",
    "parent-snapshot-id",
    "first-row-id",
    "added-rows",
)
_REFERENCE_FIELDS: Final = ("snapshot-id", "type", "min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms")


def check_snapshot(snapshot: Object) -> None:
    """Raises InvalidInput for an object that is not a snapshot."""
    if not _is_common_form(snapshot):
        _check_fields(snapshot)


def _is_common_form(snapshot: Object) -> bool:
    """True for the form that nearly all snapshots have. A fast path: a table is read with a thousand of them."""
    get = snapshot.get
    summary = get("summary")
    return (
        type(get("snapshot-id")) is int
        and type(get("timestamp-ms")) is int
        and type(get("sequence-number")) is int
        and type(get("parent-snapshot-id")) in (int, NoneType)
        and type(get("first-row-id")) in (int, NoneType)
        and type(get("added-rows")) in (int, NoneType)
        and type(get("schema-id")) is int
        and type(get("manifest-list")) is str
        and get("manifest-list") != ""
        and type(summary) is dict
        and {*map(type, summary.values())} == {str}
        and 0 <= snapshot["schema-id"] <= values.INT_MAX
        and max([get(name) or 0 for name in _LONGS]) <= values.LONG_MAX
    )


def _check_fields(snapshot: Object) -> None:
    values.long(snapshot, "snapshot-id")
    values.long(snapshot, "timestamp-ms")
    for name in ("parent-snapshot-id", "sequence-number", "first-row-id", "added-rows"):
        values.optional_long(snapshot, name)
    values.optional_integer(snapshot, "schema-id")
    if snapshot.get("manifest-list") is None:
        values.texts(snapshot, "manifests")
    elif not values.text(snapshot, "manifest-list"):
        raise errors.InvalidInput("Invalid snapshot: an empty manifest-list")
    values.optional_text_map(snapshot, "summary")


def sequence_number(snapshot: Object) -> int:
    """Returns 0 for snapshots of v1 tables, which have no sequence numbers."""
    return values.optional_long(snapshot, "sequence-number") or 0


def operation(snapshot: Object) -> str:
    """Returns the operation of the snapshot.

    A missing one counts as `overwrite`, the most cautious choice, as in Iceberg's own library.
    """
    return (snapshot.get("summary") or {}).get("operation") or "overwrite"


def check_reference(name: str, reference: Object) -> Object:
    """Returns the validated fields of a reference; others, which an update has, are left out. Raises InvalidInput."""
    values.long(reference, "snapshot-id")
    kind = values.text(reference, "type").lower()
    if kind not in ("branch", "tag"):
        raise errors.InvalidInput(f"Invalid snapshot ref type: {short_repr(kind)}")
    retention = {
        "min-snapshots-to-keep": values.optional_integer(reference, "min-snapshots-to-keep"),
        "max-snapshot-age-ms": values.optional_long(reference, "max-snapshot-age-ms"),
        "max-ref-age-ms": values.optional_long(reference, "max-ref-age-ms"),
    }
    for field, value in retention.items():
        if value is not None and value <= 0:
            raise errors.InvalidInput(f"Invalid ref {short_repr(name)}: {field} must be greater than 0")
    if kind == "tag" and (retention["min-snapshots-to-keep"] or retention["max-snapshot-age-ms"]):
        raise errors.InvalidInput(f"Tags do not support setting min-snapshots-to-keep or max-snapshot-age-ms: {name}")
    return {field: reference[field] for field in _REFERENCE_FIELDS if reference.get(field) is not None} | {"type": kind}
