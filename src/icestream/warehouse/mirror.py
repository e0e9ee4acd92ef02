"""What is noted in our own metadata store of a topic's table in another catalog, behind each commit (hazard 21).

The pipeline writes it and compares it with the table before it goes on; readers learn from it which table is whose, and
a watch of it tells them of each commit. It may lag behind the table, never lead.
"""

from __future__ import annotations

from typing import Final

import msgspec

from icestream import errors
from icestream.metadata.entry import Entry

MIRRORS: Final = "/pipeline/tables/"


class Mirror(msgspec.Struct, frozen=True):
    """In the metadata store, at `mirror_key`."""

    namespace: list[str]
    name: str
    uuid: str
    committed: dict[int, int]
    snapshot_id: int = 0
    topic: str = ""


def mirror_key(topic_id: int) -> str:
    return f"{MIRRORS}{topic_id}"


def decode_mirror(key: str, entry: Entry) -> Mirror:
    try:
        return msgspec.json.decode(entry.value, type=Mirror)
    except msgspec.MsgspecError as error:
        raise errors.MetadataDamaged(
            f"{key} in the metadata store is no mirror of a table: {error}",
            hint="`icestream lake recreate` makes a fresh table, `adopt` takes one as it is",
        ) from None
