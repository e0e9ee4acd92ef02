"""A fresh table for a topic whose table is gone: dropped, or its metadata files lost. Pure.

The new table has the envelope's columns and nothing in it. It gets what the log still holds; everything before is a
declared gap, which needs consent. Columns of a schema come again with the messages that have them.
"""

from __future__ import annotations

from collections.abc import Collection

from icestream.catalog.topic import envelope, properties, rebound
from icestream.catalog.topic.commit import Outcome
from icestream.catalog.topic.consequence import Consent, Consequence, TopicLog, fates
from icestream.catalog.topic.rebound import Former, Rebound
from icestream.iceberg.table_commit import apply_updates
from icestream.iceberg.table_creation import new_table_metadata
from icestream.iceberg.values import Object


def recreate(
    log: TopicLog,
    former: Former,
    consents: Collection[Consent],
    location: str,
    uuid: str,
    now_ms: int,
    layout: Object | None = None,
) -> Rebound:
    """`layout`: partition-spec and properties of the table, by the column ids of `envelope.new_schema`."""
    told = Consequence("recreate", log.topic, fates({}, log, former.committed))
    told.check(consents)
    binding = rebound.going_on(told, log, {}, former.pipeline_epoch, is_fresh=True)
    asked: Object = {**(layout or {}), "schema": envelope.new_schema()}
    made = apply_updates(
        new_table_metadata(asked, location, uuid, now_ms), None, properties.set_written({}, binding), now_ms
    )
    return Rebound(Outcome(made, binding, told.gaps(None, now_ms)), told)
