"""The commits of other engines that the table of a topic refuses (hazard 21).

    refused unless forced    dropping, renaming or retyping columns of the envelope; new required columns, because no
                             message has a value for them; replacing the table, or leaving it without a current
                             snapshot; a format version that the pipeline cannot write
    allowed                  everything else. Removed rows are recorded (removal.py)

Dropping, renaming and registering a topic's table are refused where they are planned (plans/relation_plans.py). A
forced commit detaches the table from its topic, because the pipeline could no longer write to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from icestream import errors
from icestream.catalog.topic_rules import topic_schema
from icestream.iceberg import updates as update
from icestream.iceberg import values
from icestream.iceberg.snapshots import MAIN
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object

INGEST_FORMAT_VERSION_MAX: Final = 2
HINT: Final = "detach it first: `icestream lake detach`, or repeat the request with icestream-force"


def objection(
    before: TableMetadata, after: TableMetadata, updates: Sequence[Object]
) -> errors.TopicTableConflict | None:
    """The error for a commit that a topic's table does not allow; None if it is allowed."""
    if after.format_version > max(INGEST_FORMAT_VERSION_MAX, before.format_version):
        return _refusal(f"the pipeline cannot write format version {after.format_version}")
    had_rows = before.current_snapshot_id is not None
    # `CREATE OR REPLACE TABLE` of an engine drops the branch main and its snapshot in one commit.
    if had_rows and (after.current_snapshot_id is None or any(_drops_main(table_update) for table_update in updates)):
        return _refusal("the table of a topic cannot be replaced")
    return _schema_objection(before.current_schema, after.current_schema)


def _schema_objection(before: Object, after: Object) -> errors.TopicTableConflict | None:
    """Compares schemas by content: the same commit may give an id to another schema."""
    if after == before:
        return None
    column = topic_schema.changed_column(before, after)
    if column is not None:
        return _refusal(f"column {column} belongs to the envelope of the topic's messages")
    new = topic_schema.required_beside(after) - topic_schema.required_beside(before)
    if new:
        return errors.TopicTableConflict(
            topic_schema.no_values(min(new)), hint=f"{topic_schema.OPTIONAL_HINT}, or {HINT}"
        )
    return None


def _drops_main(table_update: Object) -> bool:
    return update.action(table_update) == "remove-snapshot-ref" and values.text(table_update, "ref-name") == MAIN


def _refusal(reason: str) -> errors.TopicTableConflict:
    return errors.TopicTableConflict(reason, hint=HINT)
