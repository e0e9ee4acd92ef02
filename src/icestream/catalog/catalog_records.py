"""Records of the catalog in the metadata store; catalog_keys.py has their keys.

Relations are msgpack, because a commit to 200 tables must fit one transaction of 1 MiB (hazard 10): the rounds that a
table remembers take 1.8 KB, and 4 KB as JSON. The others are JSON, so that an operator can read them. Unknown fields
are ignored: a later version may add some.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from icestream import errors
from icestream.catalog.topic_rules.binding import Binding
from icestream.catalog.topic_rules.removal import Removals
from icestream.metadata.entry import Entry
from icestream.model.topic_deletion_policy import DeletedTablePolicy


class CatalogNamespaceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A namespace of the catalog."""

    id: str  # tells namespaces of the same name apart, one dropped and one created later
    properties: dict[str, str] = {}
    generation: int = 0  # raised by every change, and by fences


class TableRecord(msgspec.Struct, frozen=True, omit_defaults=True, tag="table"):
    """The pointer of a table, with its binding to a topic."""

    uuid: str
    location: str  # of the current metadata file
    version: int  # of that file
    binding: Binding | None = None
    removals: Removals = ()
    is_registered: bool = False  # its metadata log may be incomplete (cleanup/orphan_metadata.py)
    places_elsewhere: tuple[str, ...] = ()  # outside of its location: where its properties place files
    is_pipeline_only: bool = False  # the pipeline alone has written its snapshots: they name files of its own
    former_topic: str = ""  # whose messages it has, if it is bound to none: of a deleted topic, or detached


class ViewRecord(msgspec.Struct, frozen=True, omit_defaults=True, tag="view"):
    """The pointer of a view."""

    uuid: str
    location: str
    version: int


Relation = TableRecord | ViewRecord


class TopicTableRecord(msgspec.Struct, frozen=True):
    """The table of a topic, by the id of the topic."""

    namespace: list[str]
    name: str
    uuid: str


class DeletedTableRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The table of a deleted topic, and what becomes of it."""

    namespace: list[str]
    name: str
    uuid: str
    end: DeletedTablePolicy = DeletedTablePolicy.KEEP
    grace_ms: int = 0  # how long the topic can come back to it


class BoundRecord(msgspec.Struct, frozen=True):
    """The topic of a table, by the UUID of the table."""

    topic: str
    topic_id: int


class DetachedRecord(msgspec.Struct, frozen=True):
    """The former table of a topic that has none. The pipeline does not create another: rows would be missing in it."""

    topic: str
    namespace: list[str]
    name: str
    uuid: str
    location: str  # of the table's last metadata file
    committed: dict[int, int]  # per shard, when it was detached
    pipeline_epoch: int


class RetainedRecord(msgspec.Struct, frozen=True):
    """The first kept offset of each shard of a topic: everything below it was removed by a retention. It belongs to the
    topic and not to its table, so that it survives whatever becomes of the table, and only rises."""

    first: dict[int, int]
    time_ms: int  # of the last change


class PurgeRecord(msgspec.Struct, frozen=True):
    """A dropped table whose files are to be removed."""

    location: str  # the last metadata file, which names all other files
    time_ms: int
    is_begun: bool = False  # files are being removed: the table cannot be registered again


class RetiredFilesRecord(msgspec.Struct, frozen=True):
    """Metadata files that no table names since a commit (cleanup/retired_files.py)."""

    time_ms: int  # of that commit
    locations: list[str]


class LeaseRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The lease of the pipeline's driver. Renewed with the same value, so that a commit can compare it."""

    epoch: int
    owner: str = ""  # may take over its own lease at once: a broker has one driver as its child


class RequestRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a request with an Idempotency-Key (idempotency.py), or the error that it failed with."""

    digest: str  # of the request's content
    code: str = ""
    message: str = ""
    hint: str = ""
    uuids: list[str] = []  # of the tables, in the order of their names, or of the view in the answer
    removed: list[str] = []  # properties of a namespace that existed


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
        record: Any = _relations.decode(entry.value)
    except (msgspec.MsgspecError, errors.InvalidInput) as error:
        raise _damaged(key, "table or view", error) from None
    relation: Relation = record
    return relation


def _damaged(key: str, kind: str, error: Exception) -> errors.MetadataDamaged:
    return errors.MetadataDamaged(
        f"{key} in the metadata store is not a {kind}: {error}",
        hint="restore it from a backup, or register the table again from its last metadata file",
    )
