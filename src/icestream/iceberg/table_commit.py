"""A commit to one table: requirements and updates in, the next version of its document out. Pure.

The cost of a commit does not grow with the table: requirements look at fields, updates copy what they change, and the
snapshots that were there before are shared. Encoding the result copies their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from icestream import errors, limits
from icestream.iceberg import requirements as requirement
from icestream.iceberg import updates as update
from icestream.iceberg.properties import as_flag
from icestream.iceberg.table_builder import TableMetadataBuilder
from icestream.iceberg.table_metadata import FORMAT_VERSION_DEFAULT, FORMAT_VERSIONS, TableMetadata
from icestream.iceberg.values import Object, as_object, integer

DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"


def check_size(requirements: Sequence[Object], updates: Sequence[Object]) -> None:
    for found, most, what in (
        (requirements, limits.CATALOG_REQUIREMENTS_MAX, "requirements"),
        (updates, limits.CATALOG_UPDATES_MAX, "updates"),
    ):
        if len(found) > most:
            raise errors.InvalidInput(f"a commit of {len(found)} {what}, at most {most}")
        for one in found:
            as_object(one, what)


def is_create(requirements: Sequence[Object]) -> bool:
    return any(requirement.kind(one) == requirement.CREATE for one in requirements)


def check_requirements(table: TableMetadata | None, requirements: Sequence[Object]) -> None:
    for one in requirements:
        requirement.check(table, one)


def apply_updates(
    table: TableMetadata | None, table_location: str | None, updates: Sequence[Object], now_ms: int
) -> TableMetadata:
    """The table that the updates make of another, or of none. The same one when they change nothing.

    `table_location` is the metadata file that holds `table`.
    """
    draft = TableMetadataBuilder(table, now_ms, _first_version(updates))
    for one in updates:
        update.apply(draft, one)
    return draft.finish(table_location)


def _first_version(updates: Sequence[Object]) -> int:
    """A table is created in the version that the first update of it names."""
    for one in updates:
        if update.action(one) == "upgrade-format-version":
            return min(max(integer(one, "format-version"), FORMAT_VERSIONS[0]), FORMAT_VERSIONS[-1])
    return FORMAT_VERSION_DEFAULT


def dropped_metadata_files(before: TableMetadata, after: TableMetadata) -> list[str]:
    """Metadata files that nobody needs when `after` is in force: as the table's properties say, none by default."""
    if not as_flag(after.properties, DELETE_AFTER_COMMIT, False):
        return []
    kept = {entry["metadata-file"] for entry in after.metadata_log}
    return [name for entry in before.metadata_log if (name := entry["metadata-file"]) not in kept]
