"""`TableMetadata`: one immutable version of a table's metadata document, formats v1 to v3. Pure.

    fields         the document as JSON has it, without the three lists below; unknown fields included
    snapshots      in the order in which they were added, indexed by id
    snapshot_log   which snapshot was current, and since when
    metadata_log   the metadata files before this one

`load` accepts any valid document and completes it: what only v1 may omit is filled in, so that all other code has one
form to handle. The fields that v1 repeats for older readers (`schema`, `partition-spec`) are added again when the
document is encoded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from icestream import errors, limits
from icestream.iceberg import partitioning, sorting, values
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
        properties: dict[str, str] = self.fields["properties"]
        return properties

    @property
    def references(self) -> dict[str, Object]:
        references: dict[str, Object] = self.fields["refs"]
        return references

    @property
    def current_snapshot_id(self) -> int | None:
        snapshot_id = self.fields.get("current-snapshot-id")
        return None if snapshot_id is None or snapshot_id == snapshot.NO_SNAPSHOT else int(snapshot_id)

    @property
    def current_schema(self) -> Object:
        schema = values.find(self.fields["schemas"], "schema-id", self.fields["current-schema-id"])
        assert schema is not None  # checked by load and by the builder
        return schema

    def pieces(self) -> list[bytes]:
        """Returns the encoded document in pieces, to be written one after the other.

        Encoded once: the same bytes go to the metadata file and to the client. The bytes of the long lists are shared
        with the versions before.
        """
        if self._pieces is None:
            pieces = [values.encode(self._encoded_fields())[:-1]]
            for name, items in self._lists():
                pieces += (b',"%s":[' % name.encode(), *items.pieces(), b"]")
            pieces.append(b"}")
            self._pieces = pieces
        return self._pieces

    def encode(self) -> bytes:
        return b"".join(self.pieces())

    def _lists(self) -> Iterable[tuple[str, SharedList]]:
        return zip(_LISTS, (self.snapshots, self.snapshot_log, self.metadata_log), strict=True)

    def _encoded_fields(self) -> Object:
        """Returns the fields with those that readers of v1 expect: the current schema and the default spec."""
        if self.format_version > 1:
            return self.fields
        spec = values.find(self.fields["partition-specs"], "spec-id", self.fields["default-spec-id"])
        assert spec is not None
        return self.fields | {"schema": self.current_schema, "partition-spec": spec["fields"]}

    def as_json(self) -> Object:
        """Returns the document as plain values."""
        return self._encoded_fields() | {name: list(items) for name, items in self._lists()}

    def with_referenced_snapshots(self) -> TableMetadata:
        """Returns a copy with only the snapshots that a branch or tag references, for clients that load history lazily
        (`snapshots=refs`)."""
        referenced = {reference["snapshot-id"] for reference in self.references.values()}
        snapshots = self.snapshots.filter(lambda snapshot: snapshot["snapshot-id"] in referenced)
        return TableMetadata(self.fields, snapshots, self.snapshot_log, self.metadata_log)


# --- reading ----------------------------------------------------------------------------------------------------------


def decode(data: bytes) -> TableMetadata:
    return load(values.decode(data, limits.CATALOG_DOCUMENT_BYTES_MAX))


def load(document: Object) -> TableMetadata:
    """Returns the metadata of a document. Raises InvalidInput if it is not valid in its own format version."""
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
    only_schema, spec_fields = fields.pop("schema", None), fields.pop("partition-spec", None)
    if fields.get("schemas") is None:
        schema = values.as_object(only_schema, "schema")
        fields["schemas"] = [schema | {"schema-id": schemas.schema_id(schema)}]
        fields["current-schema-id"] = schemas.schema_id(schema)
    if fields.get("partition-specs") is None:
        spec = partitioning.numbered({"spec-id": 0, "fields": spec_fields}, [], partitioning.FIRST_FIELD_ID - 1)
        fields["partition-specs"] = [spec]
        fields["default-spec-id"] = 0
    if fields.get("last-partition-id") is None:
        fields["last-partition-id"] = partitioning.last_field_id(fields["partition-specs"])
    if fields.get("sort-orders") is None:
        fields["sort-orders"] = [sorting.UNSORTED]
        fields["default-sort-order-id"] = 0


def _check_layouts(fields: Object) -> None:
    """Checks schemas, specs and sort orders, and that those in use exist. Older specs may name removed columns."""
    for schema in values.objects(fields, "schemas"):
        schemas.fields_of(schema)
    for spec in values.objects(fields, "partition-specs"):
        partitioning.fields_of(spec)
    for order in values.objects(fields, "sort-orders"):
        sorting.fields_of(order)
    values.integer(fields, "last-partition-id")
    for name, id_name, used_id_name in (
        ("schemas", "schema-id", "current-schema-id"),
        ("partition-specs", "spec-id", "default-spec-id"),
        ("sort-orders", "order-id", "default-sort-order-id"),
    ):
        if values.find(fields[name], id_name, values.integer(fields, used_id_name)) is None:
            raise errors.InvalidInput(f"Cannot find one of {name} with {used_id_name}={fields[used_id_name]}")


def _check_side_files(fields: Object) -> None:
    for name, check in (
        ("statistics", check_statistics),
        ("partition-statistics", check_partition_statistics),
        ("encryption-keys", check_encryption_key),
    ):
        for item in values.optional_objects(fields, name):
            check(item)


def check_statistics(statistics: Object) -> None:
    """Checks the entry of a Puffin file with statistics of one snapshot. Raises InvalidInput."""
    check_partition_statistics(statistics)
    values.long(statistics, "file-footer-size-in-bytes")
    for blob in values.objects(statistics, "blob-metadata"):
        values.text(blob, "type")
        values.long(blob, "snapshot-id")
        values.long(blob, "sequence-number")
        values.integers(blob, "fields")
        values.optional_text_map(blob, "properties")


def check_partition_statistics(statistics: Object) -> None:
    values.long(statistics, "snapshot-id")
    values.text(statistics, "statistics-path")
    values.long(statistics, "file-size-in-bytes")


def check_encryption_key(key: Object) -> None:
    values.text(key, "key-id")
    values.text(key, "encrypted-key-metadata")
    values.optional_text(key, "encrypted-by-id")
    values.optional_text_map(key, "properties")


def _with_snapshots(fields: Object, document: Object) -> TableMetadata:
    snapshots = values.optional_objects(document, "snapshots")
    snapshot_ids: set[int] = set()
    last_number = values.LONG_MAX if fields["format-version"] == 1 else fields["last-sequence-number"]
    for item in snapshots:
        snapshot.check_snapshot(item)
        if item["snapshot-id"] in snapshot_ids:
            raise errors.InvalidInput(f"Invalid table metadata: two snapshots with id {item['snapshot-id']}")
        if (number := snapshot.sequence_number(item)) > last_number:
            raise errors.InvalidInput(
                f"Invalid snapshot with sequence number {number} greater than last sequence number {last_number}"
            )
        snapshot_ids.add(item["snapshot-id"])
    _check_references(fields, snapshot_ids)
    snapshot_log = values.optional_objects(document, "snapshot-log")
    for entry in snapshot_log:
        values.long(entry, "timestamp-ms")
        values.long(entry, "snapshot-id")
    metadata_log = values.optional_objects(document, "metadata-log")
    for entry in metadata_log:
        values.long(entry, "timestamp-ms")
        values.text(entry, "metadata-file")
    return TableMetadata(
        fields, SharedList([*snapshots], "snapshot-id"), SharedList([*snapshot_log]), SharedList([*metadata_log])
    )


def _check_references(fields: Object, snapshot_ids: set[int]) -> None:
    """Checks branches and tags, and adds `main` if only the current snapshot is named, as old writers do."""
    current = values.optional_long(fields, "current-snapshot-id")
    current = None if current == snapshot.NO_SNAPSHOT else current
    if current is not None and current not in snapshot_ids:
        raise errors.InvalidInput("Invalid table metadata: Cannot find current version")
    fields["refs"] = values.as_object(fields.get("refs") or {}, "refs")
    if current is not None and snapshot.MAIN not in fields["refs"]:
        fields["refs"] = {snapshot.MAIN: {"snapshot-id": current, "type": "branch"}, **fields["refs"]}
    for name, reference in fields["refs"].items():
        snapshot.check_reference(name, values.as_object(reference, f"ref {name}"))
        if reference["snapshot-id"] not in snapshot_ids:
            raise errors.InvalidInput(f"Snapshot for reference {name} does not exist in the existing snapshots list")
    main = fields["refs"].get(snapshot.MAIN)
    if (main["snapshot-id"] if main else None) != current:
        raise errors.InvalidInput(f"Current snapshot ID does not match main branch ({current} != {main})")
