"""A request of Iceberg's REST protocol: what its path, query, head and body name, read only when somebody asks.

Names in a path are encoded one by one, so a slash in a name is %2F; a plus is a space, as Java's clients write it. The
levels of a namespace are separated by 0x1F.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from urllib.parse import parse_qsl, unquote_to_bytes

from icestream import errors
from icestream.catalog.idempotency import IdempotentRequest
from icestream.iceberg import values
from icestream.iceberg.identifier import SEPARATOR, Identifier, Namespace, check_namespace, identifier
from icestream.iceberg.values import Object, short_repr
from icestream.lake.iceberg import body
from icestream.lake.iceberg.access import HEADER, NO_ACCESS, Access, TableAccess

FORCE: Final = "icestream-force"
_QUERY_FIELDS_MAX: Final = 32
_PAGE_DIGITS_MAX: Final = 9


class Asked:
    __slots__ = ("_headers", "_query", "_raw_query", "access", "method", "path", "raw", "segments")

    def __init__(
        self,
        method: str,
        path: bytes,
        query: bytes,
        headers: list[tuple[bytes, bytes]],
        raw: bytes = b"",
        access: Access = NO_ACCESS,
    ) -> None:
        self.access = access  # to the files: what this node tells
        self.method = method
        self.path = path  # as it came
        self.segments = path.split(b"/")[2:]  # behind /v1
        self.raw = raw  # the body
        self._headers = headers
        self._raw_query = query
        self._query: dict[str, str] | None = None

    # --- names ---

    @property
    def namespace(self) -> Namespace:
        return levels_of(decoded(self.segments[1]))

    @property
    def relation(self) -> Identifier:
        return _relation(self.segments[1], self.segments[3])

    def new_relation(self, document: Object) -> Identifier:
        """Named in the body."""
        return identifier(self.namespace, values.text(document, "name"))

    # --- query and head ---

    def parameter(self, name: str) -> str | None:
        if self._query is None:
            self._query = _query_of(self._raw_query)
        return self._query.get(name)

    def flag(self, name: str) -> bool:
        return (self.parameter(name) or "false").lower() == "true"

    def page(self) -> tuple[str | None, int | None]:
        """Token and size. A client that sends no token wants everything."""
        size = self.parameter("pageSize")
        if size is not None and not (size.isascii() and size.isdigit() and len(size) <= _PAGE_DIGITS_MAX):
            raise errors.InvalidInput(f"pageSize is a number, not {short_repr(size)}")
        return self.parameter("pageToken"), None if size is None else int(size)

    def header(self, name: bytes) -> str | None:
        for key, value in self._headers:
            if key == name:
                return value.decode("latin-1")
        return None

    @property
    def is_forced(self) -> bool:
        """Parting a topic from its table is meant (hazard 21): by a parameter, or by a header, as engines can send."""
        given = self.parameter(FORCE)
        if given is None:
            given = self.header(FORCE.encode())
        return given is not None and given.lower() != "false"

    @property
    def table_access(self) -> TableAccess:
        """What the answer about a table tells this client about its files."""
        return self.access.table(self.header(HEADER))

    @property
    def name(self) -> IdempotentRequest | None:
        """Its own, if it has one (Idempotency-Key)."""
        found = self.header(b"idempotency-key")
        if found is None:
            return None
        return IdempotentRequest(found, b"\n".join((self.method.encode(), self.path, self._raw_query, self.raw)))

    # --- the body ---

    def document(self) -> Object:
        return body.decode(self.raw)


@lru_cache(1024)
def _relation(namespace: bytes, name: bytes) -> Identifier:
    """Engines ask for the same few again and again."""
    return identifier(levels_of(decoded(namespace)), decoded(name))


def decoded(segment: bytes) -> str:
    return _text(unquote_to_bytes(segment.replace(b"+", b" ")))


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise errors.InvalidInput(f"not UTF-8: {short_repr(raw)}") from None


def levels_of(joined: str) -> Namespace:
    return check_namespace(joined.split(SEPARATOR))


def identifier_of(named: Object) -> Identifier:
    """`{"namespace": […], "name": …}` in a body."""
    return identifier(check_namespace(values.texts(named, "namespace")), values.text(named, "name"))


def _query_of(raw: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(raw.decode("ascii"), True, errors="strict", max_num_fields=_QUERY_FIELDS_MAX))
    except ValueError:
        raise errors.InvalidInput(f"not a query: {short_repr(raw)}") from None
