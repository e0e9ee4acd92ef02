"""Locations of tables and of their files: one form for each, and only inside of what the catalog may touch.

A local path is written `file:/path` with one slash, because Hadoop rewrites longer forms and then no longer finds what
they name. `..` and empty segments are refused: a location is compared by its text.
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
_PLAIN: Final = re.compile(r"[A-Za-z0-9.-]")


def normalize(location: str) -> str:
    """The one form of a location. Raises InvalidInput for what is none."""
    scheme, rest = _split(location)
    if scheme == "file":
        prefix, path = "file:/", rest.lstrip("/")
        is_rooted = rest.startswith("/") and not (rest.startswith("//") and not rest.startswith("///"))
    else:
        host, _, path = rest.removeprefix("//").partition("/")
        prefix, is_rooted = f"{scheme}://{host}/", rest.startswith("//") and host not in ("", ".", "..")
    path = path.rstrip("/")
    segments = path.split("/") if path else []
    if "%" in path:  # some readers decode it
        segments += unquote(path).split("/")
    if not is_rooted or _CONTROL.search(location) or any(segment in ("", ".", "..") for segment in segments):
        raise errors.InvalidInput(
            f"Invalid location: {short_repr(location)}", hint="such as file:/data/t or s3://bucket/t"
        )
    if len(location.encode("utf-8", "replace")) > limits.CATALOG_LOCATION_BYTES_MAX:
        raise errors.InvalidInput(f"Invalid location: more than {limits.CATALOG_LOCATION_BYTES_MAX} bytes")
    return (prefix + path).rstrip("/") if path else prefix


def normalize_or_none(location: str) -> str | None:
    """None for what is no location: it is nobody's to remove."""
    try:
        return normalize(location)
    except errors.InvalidInput:
        return None


def _split(location: str) -> tuple[str, str]:
    found = _SCHEME.fullmatch(location)
    if found is None:
        return "file", location
    return found[1].lower(), found[2]


def is_inside(location: str, root: str) -> bool:
    """Both in their one form."""
    return location == root or location.startswith(root.rstrip("/") + "/")


def check_inside(location: str, roots: Sequence[str]) -> str:
    """The one form of a location, if it is inside one of the roots."""
    found = normalize(location)
    if not any(is_inside(found, root) for root in roots):
        raise errors.InvalidInput(
            f"Invalid location: {short_repr(location)} is outside of the warehouse",
            hint=f"the catalog keeps tables inside of {', '.join(roots)}",
        )
    return found


def namespace_location(warehouse: str, levels: Sequence[str]) -> str:
    """Where the tables of a namespace lie that has no `location` of its own."""
    return "/".join([warehouse.rstrip("/"), *map(_plain, levels)])


def new_location(base: str, name: str, token: str) -> str:
    """A place of its own for a new table or view in the location of its namespace: a table that is dropped and made
    again never meets its old files."""
    return f"{base.rstrip('/')}/{_plain(name)}-{token}"


def _plain(text: str) -> str:
    """Letters, digits, dots and dashes; everything else by its bytes. Names of files are short."""
    made = "".join(one if _PLAIN.fullmatch(one) else "".join(f"_{byte:02x}" for byte in one.encode()) for one in text)
    return made.lstrip(".")[: limits.CATALOG_PATH_PART_MAX] or "_"
