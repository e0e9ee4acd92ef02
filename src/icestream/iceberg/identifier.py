"""Identifiers of the catalog: namespaces of several levels, and the tables and views in them. Pure.

A level or name is any text except the empty one. It may contain dots and slashes, so the joined form is for display
only, never a key. The protocol separates levels by the unit separator.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from icestream import errors, limits
from icestream.iceberg.values import short_repr

Namespace = tuple[str, ...]

SEPARATOR: Final = "\x1f"


class Identifier(NamedTuple):
    namespace: Namespace
    name: str

    def __str__(self) -> str:
        return join_levels((*self.namespace, self.name))


def join_levels(levels: Namespace) -> str:
    return ".".join(levels)


def check_namespace(levels: list[str]) -> Namespace:
    """Returns the namespace. Raises InvalidInput for an invalid level or number of levels."""
    if not 0 < len(levels) <= limits.CATALOG_LEVELS_MAX:
        raise errors.InvalidInput(f"a namespace of {len(levels)} levels", hint=f"1 to {limits.CATALOG_LEVELS_MAX} fit")
    return tuple(_check_name(level) for level in levels)


def identifier(namespace: Namespace, name: str) -> Identifier:
    """The identifier of a table or view. Raises InvalidInput for an invalid name."""
    return Identifier(namespace, _check_name(name))


def _check_name(text: str) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = 0  # half of a surrogate pair: JSON can carry it, no key of the store can
    if not 0 < size <= limits.CATALOG_NAME_BYTES_MAX or SEPARATOR in text or "\x00" in text:
        raise errors.InvalidInput(
            f"{short_repr(text)} is not a name",
            hint=f"1 to {limits.CATALOG_NAME_BYTES_MAX} bytes of text, no 0x1F and no 0x00",
        )
    return text
