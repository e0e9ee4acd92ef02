"""A view: one version of its metadata document, format v1. It never changes; a commit makes the next one."""

from __future__ import annotations

from typing import Final

from icestream import errors, limits
from icestream.iceberg import schema as schemas
from icestream.iceberg import values, view_versions
from icestream.iceberg.values import Object

FORMAT_VERSION: Final = 1


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
        found = values.find(self.fields["versions"], "version-id", self.fields["current-version-id"])
        assert found is not None  # load and draft see to it
        return found

    def pieces(self) -> list[bytes]:
        """The document as a metadata file has it."""
        return [values.encode(self.fields)]

    def encode(self) -> bytes:
        return b"".join(self.pieces())

    @property
    def properties(self) -> dict[str, str]:
        found: dict[str, str] = self.fields["properties"]
        return found

    def as_json(self) -> Object:
        return self.fields


def decode(data: bytes) -> ViewMetadata:
    return load(values.decode(data, limits.CATALOG_DOCUMENT_BYTES_MAX))


def load(document: Object) -> ViewMetadata:
    """A view from its document. Raises InvalidInput for one that is not valid."""
    if values.integer(document, "format-version") != FORMAT_VERSION:
        raise errors.InvalidInput(f"Unsupported format version: {document['format-version']}")
    values.text(document, "view-uuid")
    values.text(document, "location")
    found = [values.integer(one, "schema-id") for one in values.objects(document, "schemas")]
    for one in document["schemas"]:
        schemas.fields_of(one)
    for one in values.objects(document, "versions"):
        view_versions.check_version(one)
        if one["schema-id"] not in found:
            raise errors.InvalidInput(f"Cannot find schema with id {one['schema-id']} of version {one['version-id']}")
    if values.find(document["versions"], "version-id", values.integer(document, "current-version-id")) is None:
        raise errors.InvalidInput(f"Cannot find current version {document['current-version-id']} in view versions")
    for entry in values.objects(document, "version-log"):
        values.integer(entry, "version-id")
        values.long(entry, "timestamp-ms")
    return ViewMetadata(document | {"properties": values.optional_text_map(document, "properties")})
