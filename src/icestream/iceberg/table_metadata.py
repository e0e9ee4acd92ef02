"""A table: one version of its metadata document, formats v1 to v3. It never changes; a commit makes the next one.

    fields         the document as JSON has it, without the three lists below; unknown fields included
    snapshots      in the order in which they were added, to be found by their ids
    snapshot_log   which snapshot was the current one, and since when
    metadata_log   the metadata files before this one

`load` reads any valid document and completes it: what only v1 may leave out is filled in, so that everything behind
has one form to deal with. What v1 repeats for older readers (`schema`, `partition-spec`) is written anew by `encode`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from icestream import errors, limits
from icestream.iceberg import partitioning, side_files, sorting, values
from icestream.iceberg import schema as schemas
from icestream.iceberg import snapshots as snapshot
from icestream.iceberg.shared_list import SharedList
from icestream.iceberg.values import Object

FORMAT_VERSIONS: Final = (1, 2, 3)
FORMAT_VERSION_DEFAULT: Final = 2
ROW_LINEAGE_SINCE: Final = 3
_LISTS: Final = ("snapshots", "snapshot-log", "metadata-log")


class TableMetadata:
    __slots__ = ("_pieces", "fields", "metadata_log", "snapshot_log", "snapshots")

    def __init__(
        self, fields: Object, snapshots: SharedList, snapshot_log: SharedList, metadata_log: SharedList
    ) -> None:
        self.fields = fields
        self.snapshots = snapshots
        self.snapshot_log = snapshot_log
        self.metadata_log = metadata_log
        self._pieces: list[bytes] | None = None

    @property
    def format_version(self) -> int:
        return int(self.fields["format-version"])

    @property
    def uuid(self) -> str | None:
        """None only for a v1 table of an old writer."""
        return self.fields.get("table-uuid")

    @property
    def location(self) -> str:
        return str(self.fields["location"])

    @property
    def properties(self) -> dict[str, str]:
        found: dict[str, str] = self.fields["properties"]
        return found

    @property
    def references(self) -> dict[str, Object]:
        found: dict[str, Object] = self.fields["refs"]
        return found

    @property
    def current_snapshot_id(self) -> int | None:
        found = self.fields.get("current-snapshot-id")
        return None if found is None or found == snapshot.NO_SNAPSHOT else int(found)

    @property
    def current_schema(self) -> Object:
        found = values.find(self.fields["schemas"], "schema-id", self.fields["current-schema-id"])
        assert found is not None  # load and draft see to it
        return found

    def pieces(self) -> list[bytes]:
        """The document as a metadata file has it, to be written one piece after the other. Made once: it is written,
        and then answered."""
        if self._pieces is None:
            found = [values.encode(self._written_fields())[:-1]]
            for name, entries in self._lists():
                found += (b',"%s":[' % name.encode(), *entries.pieces(), b"]")
            found.append(b"}")
            self._pieces = found
        return self._pieces

    def encode(self) -> bytes:
        return b"".join(self.pieces())

    def _lists(self) -> Iterable[tuple[str, SharedList]]:
        return zip(_LISTS, (self.snapshots, self.snapshot_log, self.metadata_log), strict=True)

    def _written_fields(self) -> Object:
        """Who reads v1 only finds the present schema and spec where they always were."""
        if self.format_version > 1:
            return self.fields
        spec = values.find(self.fields["partition-specs"], "spec-id", self.fields["default-spec-id"])
        assert spec is not None
        return self.fields | {"schema": self.current_schema, "partition-spec": spec["fields"]}

    def as_json(self) -> Object:
        """The same as plain values."""
        return self._written_fields() | {name: list(entries) for name, entries in self._lists()}

    def with_referenced_snapshots(self) -> TableMetadata:
        """Without the snapshots that no branch or tag names: what a client asks for that loads history late."""
        wanted = {one["snapshot-id"] for one in self.references.values()}
        kept = self.snapshots.kept(lambda one: one["snapshot-id"] in wanted)
        return TableMetadata(self.fields, kept, self.snapshot_log, self.metadata_log)


# --- reading ----------------------------------------------------------------------------------------------------------


def decode(data: bytes) -> TableMetadata:
    return load(values.decode(data, limits.CATALOG_DOCUMENT_BYTES_MAX))


def load(document: Object) -> TableMetadata:
    """A table from its document. Raises InvalidInput for one that is not valid in its own format version."""
    version = values.integer(document, "format-version")
    if version not in FORMAT_VERSIONS:
        raise errors.InvalidInput(f"Cannot read unsupported version {version}")
    fields = {name: value for name, value in document.items() if name not in _LISTS}
    fields["properties"] = values.optional_text_map(document, "properties")
    values.text(document, "location")
    values.long(document, "last-updated-ms")
    values.integer(document, "last-column-id")
    if version == 1:
        _complete_v1(fields)
    else:
        values.text(document, "table-uuid")
        values.long(document, "last-sequence-number")
    if version >= ROW_LINEAGE_SINCE:
        values.long(document, "next-row-id")
    _check_layouts(fields)
    _check_side_files(fields)
    return _with_snapshots(fields, document)


def _complete_v1(fields: Object) -> None:
    values.optional_text(fields, "table-uuid")
    fields.pop("last-sequence-number", None)
    alone, spec = fields.pop("schema", None), fields.pop("partition-spec", None)
    if fields.get("schemas") is None:
        one = values.as_object(alone, "schema")
        fields["schemas"] = [one | {"schema-id": schemas.schema_id(one)}]
        fields["current-schema-id"] = schemas.schema_id(one)
    if fields.get("partition-specs") is None:
        made = partitioning.numbered({"spec-id": 0, "fields": spec}, [], partitioning.FIRST_FIELD_ID - 1)
        fields["partition-specs"] = [made]
        fields["default-spec-id"] = 0
    if fields.get("last-partition-id") is None:
        fields["last-partition-id"] = partitioning.last_field_id(fields["partition-specs"])
    if fields.get("sort-orders") is None:
        fields["sort-orders"] = [sorting.UNSORTED]
        fields["default-sort-order-id"] = 0


def _check_layouts(fields: Object) -> None:
    """Schemas, specs and orders, and that those in use are there. An older spec may name columns that are gone."""
    for one in values.objects(fields, "schemas"):
        schemas.fields_of(one)
    for one in values.objects(fields, "partition-specs"):
        partitioning.fields_of(one)
    for one in values.objects(fields, "sort-orders"):
        sorting.fields_of(one)
    values.integer(fields, "last-partition-id")
    for name, id_name, used in (
        ("schemas", "schema-id", "current-schema-id"),
        ("partition-specs", "spec-id", "default-spec-id"),
        ("sort-orders", "order-id", "default-sort-order-id"),
    ):
        if values.find(fields[name], id_name, values.integer(fields, used)) is None:
            raise errors.InvalidInput(f"Cannot find one of {name} with {used}={fields[used]}")


def _check_side_files(fields: Object) -> None:
    for name, check in (
        ("statistics", side_files.check_statistics),
        ("partition-statistics", side_files.check_partition_statistics),
        ("encryption-keys", side_files.check_encryption_key),
    ):
        for one in values.optional_objects(fields, name):
            check(one)


def _with_snapshots(fields: Object, document: Object) -> TableMetadata:
    found = values.optional_objects(document, "snapshots")
    known: set[int] = set()
    last = values.LONG_MAX if fields["format-version"] == 1 else fields["last-sequence-number"]
    for one in found:
        snapshot.check_snapshot(one)
        if one["snapshot-id"] in known:
            raise errors.InvalidInput(f"Invalid table metadata: two snapshots with id {one['snapshot-id']}")
        if (number := snapshot.sequence_number(one)) > last:
            raise errors.InvalidInput(
                f"Invalid snapshot with sequence number {number} greater than last sequence number {last}"
            )
        known.add(one["snapshot-id"])
    _check_references(fields, known)
    log = values.optional_objects(document, "snapshot-log")
    for entry in log:
        values.long(entry, "timestamp-ms")
        values.long(entry, "snapshot-id")
    files = values.optional_objects(document, "metadata-log")
    for entry in files:
        values.long(entry, "timestamp-ms")
        values.text(entry, "metadata-file")
    return TableMetadata(fields, SharedList([*found], "snapshot-id"), SharedList([*log]), SharedList([*files]))


def _check_references(fields: Object, known: set[int]) -> None:
    current = values.optional_long(fields, "current-snapshot-id")
    current = None if current == snapshot.NO_SNAPSHOT else current
    if current is not None and current not in known:
        raise errors.InvalidInput("Invalid table metadata: Cannot find current version")
    fields["refs"] = values.as_object(fields.get("refs") or {}, "refs")
    if current is not None and snapshot.MAIN not in fields["refs"]:
        fields["refs"] = {snapshot.MAIN: {"snapshot-id": current, "type": "branch"}, **fields["refs"]}
    for name, reference in fields["refs"].items():
        snapshot.check_reference(name, values.as_object(reference, f"ref {name}"))
        if reference["snapshot-id"] not in known:
            raise errors.InvalidInput(f"Snapshot for reference {name} does not exist in the existing snapshots list")
    main = fields["refs"].get(snapshot.MAIN)
    if (main["snapshot-id"] if main else None) != current:
        raise errors.InvalidInput(f"Current snapshot ID does not match main branch ({current} != {main})")
