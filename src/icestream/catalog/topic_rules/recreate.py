"""A fresh table for a topic whose table was dropped or whose metadata files are lost. Pure.

The new table has the envelope's columns and no rows. It gets what the log still holds; everything before is a declared
gap, which needs consent. Typed columns of a schema are added again with the messages that have them.
"""

from __future__ import annotations

from collections.abc import Collection

from icestream.catalog.topic_rules import rebinding, topic_properties, topic_schema
from icestream.catalog.topic_rules.commit_rules import CommitDecision
from icestream.catalog.topic_rules.operation_preview import Consent, OperationPreview, TopicLog, shard_previews
from icestream.catalog.topic_rules.rebinding import FormerTable, Rebinding
from icestream.iceberg.table_commit import apply_updates, new_table_metadata
from icestream.iceberg.values import Object


def recreate(
    log: TopicLog,
    former: FormerTable,
    consents: Collection[Consent],
    location: str,
    uuid: str,
    now_ms: int,
    layout: Object | None = None,
) -> Rebinding:
    """`layout`: partition-spec and properties of the table, by the column ids of `topic_schema.new_schema`."""
    preview = OperationPreview("recreate", log.topic, shard_previews({}, log, former.committed))
    preview.check(consents)
    binding = rebinding.resume_binding(preview, log, {}, former.pipeline_epoch, is_fresh=True)
    # The schema last: a layout must not replace the columns of the envelope.
    definition: Object = {**(layout or {}), "schema": topic_schema.new_schema()}
    table = apply_updates(
        new_table_metadata(definition, location, uuid, now_ms), None, topic_properties.set_written({}, binding), now_ms
    )
    return Rebinding(CommitDecision(table, binding, preview.gaps(None, now_ms)), preview)
