"""Which files of a table are read with the rights of this process, once security is on (hazard 109).

    in a place of the table                              read
    elsewhere inside of the warehouse and other roots    read, unless it lies in the place of another table or view
    outside of all roots                                 not read

A commit is judged by the same places (lake/location_rights.py). But what it names can be exchanged afterwards: a client
that may write files of its table can replace a manifest by one that names files of others. So paths are looked at again
whenever manifests are read: for consumers, for `verify` and for lists of files. While security is off nothing is
refused: tables of that time may have files anywhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from icestream import errors
from icestream.catalog.operations.table_places import TablePlaces, is_in_one_of, is_own, own_places
from icestream.iceberg.location import is_inside, normalize_or_none
from icestream.iceberg.table_metadata import TableMetadata

_HINT: Final = "roll the table back to a snapshot before it, or rewrite its files; lake.table_roots allows more places"
_PATH_CHARACTERS: Final = 1_000


class FileRule(NamedTuple):
    """The rule for one table, as of a moment."""

    own: Sequence[str]
    roots: Sequence[str]
    others: frozenset[str]  # the places of all other tables and views

    def refuses(self, path: str) -> bool:
        if is_own(path, self.own):
            return False
        location = normalize_or_none(path)
        return (
            location is None
            or not any(is_inside(location, root) for root in self.roots)
            or is_in_one_of(location, self.others)
        )


class FileRules:
    """The rules for all tables of a catalog."""

    def __init__(self, places: TablePlaces, is_secured: Callable[[], Awaitable[bool]]) -> None:
        self._places = places
        self._is_secured = is_secured

    async def rule(self, table: TableMetadata) -> FileRule | None:
        """Returns the rule for a table; None: nothing is refused."""
        if not await self._is_secured():
            return None
        others = await self._places.other_places(table.uuid or "")
        return FileRule(own_places(table.location, dict(table.properties)), self._places.roots, others)

    async def check(self, table: TableMetadata, paths: Sequence[str]) -> None:
        """Raises TableUnreadable for a path that is not read."""
        own = own_places(table.location, dict(table.properties))
        elsewhere = [path for path in paths if not is_own(path, own)]
        # Almost always there is none, and the places of other tables need not be read.
        rule = await self.rule(table) if elsewhere else None
        for path in elsewhere:
            if rule is not None and rule.refuses(path):
                raise refused_file(path)


def refused_file(path: str) -> errors.TableUnreadable:
    return errors.TableUnreadable(
        f"this table cannot be read: it names {path[:_PATH_CHARACTERS]!r}, which is not in a place of its own",
        hint=_HINT,
    )
