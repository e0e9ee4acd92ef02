"""`ViewMetadata`: one immutable version of a view's metadata document, format v1, and its view versions. Pure.

A view version:

    {"version-id", "timestamp-ms", "schema-id", "summary", "representations": [{"type": "sql", "sql", "dialect"}, …],
     "default-namespace": […], "default-catalog"}
"""

from __future__ import annotations

from typing import Final

from icestream import errors, limits
from icestream.iceberg import schema as schemas
from icestream.iceberg import values
from icestream.iceberg.values import Object

FORMAT_VERSION: Final = 1
# The fields that decide how a version behaves; its number and its time do not.
_BEHAVIOUR_FIELDS: Final = ("summary", "representations", "default-catalog", "default-namespace", "schema-id")


class ViewMetadata:
    __slots__ = ("fields",)

    def __init__(self, fields: Object) -> None:
        self.fields = fields  # the document as JSON has it, unknown fields included

    @property
    def uuid(self) -> str:
        return str(self.fields["view-uuid"])

    @property
    def location(self) -> str:
        return str(self.fields["location"])

    @property
    def current_version(self) -> Object:
        version = values.find(self.fields["versions"], "version-id", self.fields["current-version-id"])
        assert version is not None  # checked by load and by the builder
        return version

    @property
    def properties(self) -> dict[str, str]:
        properties: dict[str, str] = self.fields["properties"]
        return properties

    def pieces(self) -> list[bytes]:
        """Returns the encoded document, in the form that TableMetadata has it."""
        return [values.encode(self.fields)]

    def encode(self) -> bytes:
        return b"".join(self.pieces())

    def as_json(self) -> Object:
        return self.fields


def decode(data: bytes) -> ViewMetadata:
    return load(values.decode(data, limits.CATALOG_DOCUMENT_BYTES_MAX))


def load(document: Object) -> ViewMetadata:
    """Returns the metadata of a document. Raises InvalidInput if it is not valid."""
    if values.integer(document, "format-version") != FORMAT_VERSION:
        raise errors.InvalidInput(f"Unsupported format version: {document['format-version']}")
    values.text(document, "view-uuid")
    values.text(document, "location")
    schema_ids = [values.integer(schema, "schema-id") for schema in values.objects(document, "schemas")]
    for schema in document["schemas"]:
        schemas.fields_of(schema)
    for version in values.objects(document, "versions"):
        check_version(version)
        if version["schema-id"] not in schema_ids:
            raise errors.InvalidInput(
                f"Cannot find schema with id {version['schema-id']} of version {version['version-id']}"
            )
    if values.find(document["versions"], "version-id", values.integer(document, "current-version-id")) is None:
        raise errors.InvalidInput(f"Cannot find current version {document['current-version-id']} in view versions")
    for entry in values.objects(document, "version-log"):
        values.integer(entry, "version-id")
        values.long(entry, "timestamp-ms")
    return ViewMetadata(document | {"properties": values.optional_text_map(document, "properties")})


# --- view versions ----------------------------------------------------------------------------------------------------


def check_version(version: Object) -> None:
    """Raises InvalidInput for an object that is not a view version, or that has two queries in one dialect."""
    values.integer(version, "version-id")
    values.long(version, "timestamp-ms")
    values.integer(version, "schema-id")
    values.text_map(version, "summary")
    values.texts(version, "default-namespace")
    values.optional_text(version, "default-catalog")
    for representation in values.objects(version, "representations"):
        if values.text(representation, "type").lower() == "sql":
            values.text(representation, "sql")
            values.text(representation, "dialect")
    version_dialects = dialects(version)
    for dialect in version_dialects:
        if version_dialects.count(dialect) > 1:
            raise errors.InvalidInput(f"Invalid view version: Cannot add multiple queries for dialect {dialect[:80]}")


def dialects(version: Object) -> list[str]:
    """Returns the SQL dialects of a version, in lower case."""
    return [
        representation["dialect"].lower()
        for representation in version["representations"]
        if representation["type"].lower() == "sql"
    ]


def has_same_behaviour(version: Object, other: Object) -> bool:
    return all(version.get(name) == other.get(name) for name in _BEHAVIOUR_FIELDS)
