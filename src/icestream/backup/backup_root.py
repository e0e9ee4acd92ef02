"""The root of a backup and its begin, as JSON (ADR 70 has the meaning of each field). Pure.

A reader refuses a higher `format_version`, and ignores fields that it does not know. The last line of a document is its
digest, and every reader compares it:

    "sha256": "<64 hex>"    SHA-256 of the bytes of the document without this line and the comma before it

Documents of versions before it have none. Such a version knew no field that this one does not know, which tells its
documents from those whose digest was damaged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final, Literal, TypeVar

import msgspec

from icestream import errors
from icestream.catalogs.object_lock import LockMode

FORMAT_VERSION: Final = 1
_DIGEST_LINE: Final = re.compile(rb',\n "sha256": "([0-9a-f]{64})"\n\}\Z')
# Why a topic was left out whose record came between the cut of the log and the freeze of the metadata store.
CREATED_DURING_BACKUP: Final = "created during the backup"
Kind = Literal["copy", "reference"]
State = Literal["complete", "incomplete"]


class ObjectRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stored object. `sha256` and `size` are of the stored bytes, `content_…` of the plain ones."""

    path: str
    size: int
    sha256: str
    content_size: int
    content_sha256: str
    key_id: str = ""


class TailRef(msgspec.Struct, frozen=True):
    """An object with the messages [start, end) of a shard, gaps apart."""

    start: int
    end: int
    object: ObjectRef


class ShardCut(msgspec.Struct, frozen=True):
    """A shard at the cut: the table has the offsets below `committed`, `tails` those up to `end`."""

    shard: int
    node: str
    epoch: int
    committed: int
    end: int
    reserved: int
    append_time_us: int
    gaps: list[tuple[int, int]]
    tails: list[TailRef]


class TableCut(msgspec.Struct, frozen=True):
    """The table of a topic as it was pinned. `view` is empty if the backup is encrypted."""

    namespace: list[str]
    name: str
    uuid: str
    snapshot_id: int
    format_version: int
    source: str
    metadata: ObjectRef
    view: str
    files: int
    rows: int
    bytes: int


class TopicCut(msgspec.Struct, frozen=True):
    """`erased`: the side file with its erased offsets (model/erased_offsets.py); null if there are none."""

    id: int
    incarnation: int
    name: str
    table: TableCut | None
    shards: list[ShardCut]
    erased: ObjectRef | None = None


class NodeCut(msgspec.Struct, frozen=True):
    """The log of a node at the cut; `checkpoint` is an object in the form of wal/checkpoint.py."""

    name: str
    log_id: str
    lsn: int
    checkpoint: ObjectRef


class IncompleteShard(msgspec.Struct, frozen=True):
    topic: str
    shard: int
    node: str
    reason: str


class LeftOutTopic(msgspec.Struct, frozen=True):
    topic: str
    reason: str


class ListRef(msgspec.Struct, frozen=True):
    """The object list."""

    path: str
    size: int
    sha256: str
    rows: int


class MissingManifest(msgspec.Struct, frozen=True):
    seq: int
    reason: str


class SeedManifests(msgspec.Struct, frozen=True):
    """How many manifests of seed 003 were written, and which could not be."""

    written: int = 0
    missing: list[MissingManifest] = []


class EncryptionNote(msgspec.Struct, frozen=True):
    key_id: str
    algorithm: str


class LockNote(msgspec.Struct, frozen=True):
    """The store keeps every object of the backup until then (ADR 107)."""

    mode: LockMode
    until_ms: int


class BackupBegin(msgspec.Struct, frozen=True):
    """BackupBegin: written before anything else of the backup."""

    format_version: int
    id: str
    kind: Kind
    parent: str | None
    topics: list[str]
    begun_ms: int
    begin_revision: int
    cluster: str
    node: str
    key_id: str = ""
    log_id: str = ""  # of the node's log: nodes of two clusters may have one name (hazard 79)


class BackupRoot(msgspec.Struct, frozen=True):
    """The root object. It is written last: without it there is no backup."""

    format_version: int
    id: str
    kind: Kind
    parent: str | None
    cluster: str
    instance: str
    version: str
    begun_ms: int
    cut_ms: int
    ended_ms: int
    begin_revision: int
    revision: int
    state: State
    incomplete: list[IncompleteShard]
    left_out: list[LeftOutTopic]
    metadata: ObjectRef
    nodes: list[NodeCut]
    topics: list[TopicCut]
    objects: ListRef
    files: int
    bytes: int
    content_bytes: int
    objects_sha256: str
    manifests: SeedManifests
    encryption: EncryptionNote | None
    frozen_ms: int = 0  # the first millisecond behind the snapshot of the metadata store; 0: not recorded
    log_id: str = ""  # of the log that the ids of topics belong to (ADR 115)
    lock: LockNote | None = None


Document = TypeVar("Document", BackupBegin, BackupRoot)


def encode_document(document: BackupBegin | BackupRoot) -> bytes:
    """The JSON text of a root or a begin with its digest, readable by people."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=1)
    return text.removesuffix(b"\n}") + b',\n "sha256": "%b"\n}' % hashlib.sha256(text).hexdigest().encode()


def decode_document(kind: type[Document], name: str, data: bytes) -> Document:
    """Raises BackupDamaged, and FormatUnknown for a version that is not known."""
    line = _DIGEST_LINE.search(data)
    if line is not None and hashlib.sha256(data[: line.start()] + b"\n}").hexdigest() != line[1].decode():
        raise _changed(name)
    try:
        version = msgspec.json.decode(data, type=_Versioned).format_version
        if version > FORMAT_VERSION:
            raise errors.FormatUnknown(
                f"{name} has format version {version}, this version of Icestream reads up to {FORMAT_VERSION}",
                hint="use the version that wrote it, or a later one",
            )
        if line is None and not msgspec.json.decode(data, type=dict[str, msgspec.Raw]).keys() <= _names(kind):
            raise _changed(name)
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise errors.BackupDamaged(f"{name} is not a {kind.__name__}: {error}") from None


def _names(kind: type[Document]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)}


def _changed(name: str) -> errors.BackupDamaged:
    return errors.BackupDamaged(
        f"{name} was changed: its SHA-256 differs",
        hint="`icestream backup delete` removes this backup; the objects of others stay",
    )


class _Versioned(msgspec.Struct):
    format_version: int


def digest_of_objects(objects: Iterable[tuple[str, str, int]]) -> str:
    """`objects_sha256`: over path, SHA-256 and size of each row of the object list, in the order of the lines."""
    digest = hashlib.sha256()
    for line in sorted(f"{path} {sha256} {size}\n" for path, sha256, size in objects):
        digest.update(line.encode())
    return digest.hexdigest()
