"""A request of Iceberg's REST protocol: path, query, headers and body, each decoded only when it is read.

Names in a path are encoded separately, so a slash in a name is %2F; a plus is a space, as Java's clients encode it. The
levels of a namespace are separated by 0x1F. A first segment that is no route is the prefix of a view (lake_views.py).
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

from icestream import errors
from icestream.catalog.idempotency import IdempotentRequest
from icestream.catalog.transactions import TransactionGuard
from icestream.iceberg import values
from icestream.iceberg.identifier import SEPARATOR, Identifier, Namespace, check_namespace, identifier
from icestream.iceberg.values import Object, short_repr
from icestream.lake.catalog_rights import CatalogRights
from icestream.lake.iceberg.access import HEADER, NO_ACCESS, Access

if TYPE_CHECKING:
    from icestream.lake.iceberg.delegated_access import SignableFile
    from icestream.lake.iceberg.lake_view import LakeView

FORCE: Final = "icestream-force"
_QUERY_FIELDS_MAX: Final = 32
_PAGE_DIGITS_MAX: Final = 9
# Of the routes without a prefix.
_FIRST_SEGMENTS: Final = frozenset((b"config", b"namespaces", b"tables", b"transactions", b"views", b"oauth"))
_KEY_END: Final = re.compile(rb'"[ \t\r\n]*:')


class IcebergRequest:
    """One request. `raw` is the body, `segments` the parts of the path after /v1, `access` what this node grants.

    `prefix`: the name of a view before them, encoded; None: the live tables. `view`: that view, for routes of views;
    for /v1/config the view that it is asked for.
    `rights`: those of the caller in the catalog; None while security is off. `guard`: what the transaction of the
    request must compare, because rights were decided by it. `signable`: the request to the object store that it wants
    to be signed, and may.
    """

    __slots__ = (
        "_headers",
        "_query",
        "_raw_query",
        "access",
        "guard",
        "method",
        "path",
        "prefix",
        "raw",
        "rights",
        "segments",
        "signable",
        "view",
    )

    def __init__(
        self,
        method: str,
        path: bytes,
        query: bytes,
        headers: list[tuple[bytes, bytes]],
        raw: bytes = b"",
        access: Access = NO_ACCESS,
    ) -> None:
        self.access = access
        self.method = method
        self.path = path  # encoded
        segments = path.split(b"/")[2:]
        is_prefixed = len(segments) > 1 and segments[0] not in _FIRST_SEGMENTS
        self.prefix = segments[0] if is_prefixed else None
        self.segments = segments[1:] if is_prefixed else segments
        self.raw = raw
        self._headers = headers
        self.rights: CatalogRights | None = None
        self.guard: TransactionGuard | None = None
        self.signable: SignableFile | None = None
        self.view: LakeView | None = None
        self._raw_query = query
        self._query: dict[str, str] | None = None

    # --- names ---

    @property
    def namespace(self) -> Namespace:
        return parse_namespace(decode_segment(self.segments[1]))

    @property
    def relation(self) -> Identifier:
        return _relation(self.segments[1], self.segments[3])

    def new_relation(self, document: Object) -> Identifier:
        """The identifier of a table or view to create, whose name is in the body."""
        return identifier(self.namespace, values.text(document, "name"))

    def renamed(self) -> tuple[Identifier, Identifier]:
        """The source and the destination of a rename."""
        document = self.document()
        source = parse_identifier(values.as_object(values.required(document, "source"), "source"))
        return source, parse_identifier(values.as_object(values.required(document, "destination"), "destination"))

    # --- query and head ---

    def parameter(self, name: str) -> str | None:
        if self._query is None:
            self._query = _parse_query(self._raw_query)
        return self._query.get(name)

    def flag(self, name: str) -> bool:
        return (self.parameter(name) or "false").lower() == "true"

    def page(self) -> tuple[str | None, int | None]:
        """Page token and size. Without a token a client expects the whole listing."""
        size = self.parameter("pageSize")
        if size is not None and not (size.isascii() and size.isdigit() and len(size) <= _PAGE_DIGITS_MAX):
            raise errors.InvalidInput(f"pageSize must be a number, got {short_repr(size)}")
        return self.parameter("pageToken"), None if size is None else int(size)

    def header(self, name: bytes) -> str | None:
        for key, value in self._headers:
            if key == name:
                return value.decode("latin-1")
        return None

    def headers(self, name: bytes) -> list[str]:
        """All headers of this name."""
        return [value.decode("latin-1") for key, value in self._headers if key == name]

    @property
    def is_forced(self) -> bool:
        """Whether the client confirms that a topic loses its table (hazard 21): by a query parameter, or by a header,
        which engines can set."""
        value = self.parameter(FORCE)
        if value is None:
            value = self.header(FORCE.encode())
        return value is not None and value.lower() != "false"

    @property
    def delegation(self) -> str | None:
        """Which access to the files of a table the client accepts (access.py)."""
        return self.header(HEADER)

    @property
    def name(self) -> IdempotentRequest | None:
        """The key and content of an idempotent request; None without an Idempotency-Key."""
        key = self.header(b"idempotency-key")
        if key is None:
            return None
        content = b"\n".join((self.method.encode(), self.path, self._raw_query, self.raw))
        return IdempotentRequest(key, content, "" if self.rights is None else str(self.rights.caller.principal))

    # --- the body ---

    def document(self) -> Object:
        return decode_body(self.raw)


@lru_cache(1024)
def _relation(namespace: bytes, name: bytes) -> Identifier:
    # Cached: engines request the same few tables over and over.
    return identifier(parse_namespace(decode_segment(namespace)), decode_segment(name))


def decode_segment(segment: bytes) -> str:
    return _text(unquote_to_bytes(segment.replace(b"+", b" ")))


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise errors.InvalidInput(f"name is not UTF-8: {short_repr(raw)}") from None


def parse_namespace(joined: str) -> Namespace:
    return check_namespace(joined.split(SEPARATOR))


def parse_identifier(document: Object) -> Identifier:
    """The identifier in a body: `{"namespace": […], "name": …}`."""
    return identifier(check_namespace(values.texts(document, "namespace")), values.text(document, "name"))


def _parse_query(raw: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(raw.decode("ascii"), True, errors="strict", max_num_fields=_QUERY_FIELDS_MAX))
    except ValueError:
        raise errors.InvalidInput(f"malformed query string: {short_repr(raw)}") from None


def decode_body(raw: bytes) -> Object:
    """The JSON object in a body. Raises InvalidInput, also for an object with the same key twice.

    Parsers differ in which of two equal keys they use, so a body could pass a check with one value and be applied with
    the other.
    """
    document = values.decode(raw)
    # The fast parser does not report duplicates. But every key in the text ends with a quote and a colon: if the text
    # has as many of these as the result has keys, there is no duplicate. Otherwise (rare: a string may contain the same
    # characters) a slower parser checks key by key.
    if _count_keys(document) != len(_KEY_END.findall(raw)):
        try:
            json.loads(raw, object_pairs_hook=_reject_duplicates)
        except (RecursionError, ValueError):
            raise errors.InvalidInput("Cannot parse JSON: nested too deeply, or a number is too long") from None
    return document


def _count_keys(document: Object) -> int:
    """The number of keys of all objects in the document. Iterative: a document may be nested deeply."""
    count = 0
    pending: list[Any] = [document]
    while pending:
        value = pending.pop()
        if type(value) is dict:
            count += len(value)
            pending += value.values()
        elif type(value) is list:
            pending += value
    return count


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> None:
    names = set[str]()
    for name, _ in pairs:
        if name in names:
            raise errors.InvalidInput(f"Cannot parse JSON: duplicate field {short_repr(name)} in an object")
        names.add(name)
