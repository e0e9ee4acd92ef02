"""What the catalog writes into the metadata store; keys.py says under which keys.

Relations are msgpack, because a commit over 200 tables must fit one transaction of 1 MiB (hazard 10): the rounds that a
table remembers are 1.8 KB so, and 4 KB as JSON. The others are JSON, so that an operator can read them. Fields that are
not known are left out of the way: a later version may add some.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from icestream import errors
from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.removal import Removals
from icestream.metadata.entry import Entry
from icestream.model.topic_deletion_policy import DeletedTablePolicy


class NamespaceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str  # of this one: another of the same name has another
    properties: dict[str, str] = {}
    generation: int = 0  # raised by every change, and to make a transaction fail whose outcome is unknown


class TableRecord(msgspec.Struct, frozen=True, omit_defaults=True, tag="table"):
    uuid: str
    location: str  # of the metadata file that is in force
    version: int  # its number
    binding: Binding | None = None
    removals: Removals = ()
    is_registered: bool = False  # files beside those of its history may have been the table once (upkeep/leftovers.py)


class ViewRecord(msgspec.Struct, frozen=True, omit_defaults=True, tag="view"):
    uuid: str
    location: str
    version: int


Relation = TableRecord | ViewRecord


class TopicRecord(msgspec.Struct, frozen=True):
    namespace: list[str]
    name: str
    uuid: str


class DeletedTopicRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The table of a topic that was deleted, and what becomes of it."""

    namespace: list[str]
    name: str
    uuid: str
    end: DeletedTablePolicy = DeletedTablePolicy.KEEP


class BoundRecord(msgspec.Struct, frozen=True):
    topic: str
    topic_id: int


class DetachedRecord(msgspec.Struct, frozen=True):
    """A topic that had a table and has none: nobody gives it another by himself, because rows would be missing."""

    topic: str
    namespace: list[str]
    name: str
    uuid: str
    location: str  # of the table's last metadata file
    committed: dict[int, int]  # per shard, when they were parted
    pipeline_epoch: int


class PurgeRecord(msgspec.Struct, frozen=True):
    location: str  # the last metadata file: it names all the others
    time_ms: int
    is_begun: bool = False  # files are going: nobody registers the table any more


class LeaseRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of the pipeline's driver. Renewed with the same value, so that a commit can compare it."""

    epoch: int
    owner: str = ""  # who may take it from himself: a child of a broker, of which there is one at a time


class RequestRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a request that named itself (requests.py): done, or the error that ended it."""

    digest: str  # of what was asked
    code: str = ""
    message: str = ""
    hint: str = ""
    uuids: list[str] = []  # of the tables, in the order of their names, or of the view that it answered with
    removed: list[str] = []  # properties of a namespace that were there


Record = TypeVar("Record", bound=msgspec.Struct)

_relations: Final = msgspec.msgpack.Decoder(Relation)


def encode(record: msgspec.Struct) -> bytes:
    if isinstance(record, Relation):
        return msgspec.msgpack.encode(record)
    return msgspec.json.encode(record)


def decode(kind: type[Record], key: str, entry: Entry) -> Record:
    try:
        return msgspec.json.decode(entry.value, type=kind)
    except msgspec.MsgspecError as error:
        raise _damaged(key, kind.__name__, error) from None


def decode_relation(key: str, entry: Entry) -> Relation:
    try:
        found: Any = _relations.decode(entry.value)
    except (msgspec.MsgspecError, errors.InvalidInput) as error:
        raise _damaged(key, "table or view", error) from None
    relation: Relation = found
    return relation


def _damaged(key: str, what: str, error: Exception) -> errors.MetadataDamaged:
    return errors.MetadataDamaged(
        f"{key} in the metadata store is not a {what}: {error}",
        hint="restore it from a backup, or register the table again from its last metadata file",
    )
