"""Holds: records in the metadata store that keep the files of snapshots (hazards 76, 89).

    /holds/{table uuid}/{holder}      HoldRecord; the holder is `backup-{id of a backup}`

A holder writes its record first and tags the snapshot then, so that expiry spares it, too. While a table has a hold, it
is not purged, whatever became of its name and topic; the clean-up removes nothing of it unless the table still has all
held snapshots. The tag is removed by the holder alone, which removes its record first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from icestream import errors
from icestream.catalog.catalog_keys import HOLDS
from icestream.iceberg.table_metadata import TableMetadata
from icestream.iceberg.values import Object
from icestream.metadata.store import MetadataStore

BACKUP_TAG: Final = "icestream-backup-"


class HoldRecord(msgspec.Struct, frozen=True):
    """Which snapshots of a table a holder needs."""

    snapshots: list[int]
    created_ms: int


def holds_prefix(uuid: str) -> str:
    return f"{HOLDS}{uuid.lower()}/"


def hold_key(uuid: str, holder: str) -> str:
    return f"{holds_prefix(uuid)}{holder}"


async def held_snapshots(store: MetadataStore, uuid: str) -> dict[str, list[int]]:
    """The held snapshots of a table by holder. A record that cannot be decoded holds the table, with no snapshot."""
    snapshots_by_holder: dict[str, list[int]] = {}
    for key, entry in await store.list_all(holds_prefix(uuid)):
        try:
            snapshots = msgspec.json.decode(entry.value, type=HoldRecord).snapshots
        except msgspec.MsgspecError:
            snapshots = []
        snapshots_by_holder[key.removeprefix(holds_prefix(uuid))] = snapshots
    return snapshots_by_holder


def lost_tags(before: TableMetadata, after: TableMetadata) -> list[str]:
    """The tags of backups that a commit removes or moves to another snapshot."""
    return [name for name in _backup_tags(before) if after.references.get(name) != before.references.get(name)]


def _backup_tags(table: TableMetadata) -> Mapping[str, Object]:
    return {name: reference for name, reference in table.references.items() if name.startswith(BACKUP_TAG)}


def check_tags(lost: Collection[str], holders: Collection[str]) -> None:
    """Raises TopicTableConflict if a lost tag is that of a holder."""
    for tag in sorted(lost):
        if tag.removeprefix("icestream-") in holders:
            raise errors.TopicTableConflict(
                f"tag {tag} belongs to a backup and cannot be removed or moved",
                hint=f"`icestream backup delete {tag.removeprefix(BACKUP_TAG)}` deletes the backup and its tags",
            )
