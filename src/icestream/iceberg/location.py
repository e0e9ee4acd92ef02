"""Locations of tables and of their files: their canonical form, and which the catalog may touch. Pure.

A local path is written `file:/path` with one slash, because Hadoop rewrites longer forms and then no longer finds what
they name. `..` and empty segments are refused: locations are compared as text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

from icestream import errors, limits
from icestream.iceberg.values import short_repr

_SCHEME: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):(.*)", re.DOTALL)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f?#]")
_PLAIN_CHARACTER: Final = re.compile(r"[A-Za-z0-9.-]")
# One object under several names, as the connectors of engines write them.
_SCHEME_ALIASES: Final = {
    **dict.fromkeys(("s3a", "s3n"), "s3"),
    **dict.fromkeys(("abfss", "wasb", "wasbs"), "abfs"),
    "gcs": "gs",
}
_AZURE_HOST: Final = re.compile(r"(//[^/@]+@[^/.]+)\.[^/]*")  # container@account, and the service that is asked
_UNIQUE: Final = re.compile(r"[^/]+-(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32})")


def normalize(location: str) -> str:
    """Returns the canonical form of a location. Raises InvalidInput."""
    scheme, rest = _split(location)
    if scheme == "file":
        prefix, path = "file:/", rest.lstrip("/")
        is_rooted = rest.startswith("/") and not (rest.startswith("//") and not rest.startswith("///"))
    else:
        host, _, path = rest.removeprefix("//").partition("/")
        prefix, is_rooted = f"{scheme}://{host}/", rest.startswith("//") and host not in ("", ".", "..")
    path = path.rstrip("/")
    segments = path.split("/") if path else []
    if "%" in path:  # some readers decode it: `..` must not hide in an escape
        segments += unquote(path).split("/")
    if not is_rooted or _CONTROL.search(location) or any(segment in ("", ".", "..") for segment in segments):
        raise errors.InvalidInput(
            f"Invalid location: {short_repr(location)}", hint="such as file:/data/t or s3://bucket/t"
        )
    if len(location.encode("utf-8", "replace")) > limits.CATALOG_LOCATION_BYTES_MAX:
        raise errors.InvalidInput(f"Invalid location: more than {limits.CATALOG_LOCATION_BYTES_MAX} bytes")
    return (prefix + path).rstrip("/") if path else prefix


def normalize_or_none(location: str) -> str | None:
    """Returns None for an invalid location: no file to be removed can be meant by it."""
    try:
        return normalize(location)
    except errors.InvalidInput:
        return None


def object_identity(location: str) -> str:
    """Returns a text that is the same for all forms of a location which may mean the same file or object: aliases of a
    scheme, and percent escapes, which some engines decode. Raises InvalidInput.

    Two objects may share it, such as `a%20b` and `a b`: then neither is removed while one of them is in use.
    """
    scheme, rest = _split(normalize(location))
    scheme = _SCHEME_ALIASES.get(scheme, scheme)
    if scheme == "abfs":
        rest = _AZURE_HOST.sub(r"\1", rest, count=1)
    return f"{scheme}:{unquote(rest)}"


def _split(location: str) -> tuple[str, str]:
    match = _SCHEME.fullmatch(location)
    if match is None:
        return "file", location
    return match[1].lower(), match[2]


def is_inside(location: str, root: str) -> bool:
    """True if the location is the root or below it. Both in canonical form."""
    return location == root or location.startswith(root.rstrip("/") + "/")


def check_inside(location: str, roots: Sequence[str]) -> str:
    """Returns the canonical form of a location. Raises InvalidInput if it is outside of all roots."""
    canonical = normalize(location)
    if not any(is_inside(canonical, root) for root in roots):
        raise errors.InvalidInput(
            f"Invalid location: {short_repr(location)} is outside of the warehouse",
            hint=f"the catalog keeps tables inside of {', '.join(roots)}",
        )
    return canonical


def namespace_location(warehouse: str, levels: Sequence[str]) -> str:
    """Returns the default location of a namespace: for its tables if it has no `location` property."""
    return "/".join([warehouse.rstrip("/"), *map(_path_segment, levels)])


def new_location(base: str, name: str, token: str) -> str:
    """Returns a unique location for a new table or view below that of its namespace. The token makes it unique, so that
    a table that is dropped and created again never meets its old files."""
    return f"{base.rstrip('/')}/{location_name(name)}-{token}"


def location_name(name: str) -> str:
    """Returns the name of a table as it appears in its location."""
    return _path_segment(name)


def is_unique(location: str, base: str) -> bool:
    """True for a location directly in that of a namespace, with a UUID in its name, as `new_location` and Trino make
    them. Both in canonical form."""
    return is_inside(location, base) and _UNIQUE.fullmatch(location.removeprefix(base).lstrip("/")) is not None


def _path_segment(text: str) -> str:
    """Returns a safe path segment: letters, digits, dots and dashes; other characters by their bytes, truncated."""
    safe = "".join(
        character if _PLAIN_CHARACTER.fullmatch(character) else "".join(f"_{byte:02x}" for byte in character.encode())
        for character in text
    )
    return safe.lstrip(".")[: limits.CATALOG_PATH_PART_MAX] or "_"
