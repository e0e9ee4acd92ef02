"""Pages of a listing: from behind a name, at most so many, and where the next page begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nsmallest
from operator import itemgetter
from typing import Any, TypeVar

import msgspec

from icestream import errors, limits

Item = TypeVar("Item")
Document = dict[str, Any]


class PageRequest(msgspec.Struct):
    """What a listing may be asked for."""

    after: str = ""
    limit: int = limits.API_PAGE_DEFAULT

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= limits.API_PAGE_MAX:
            raise errors.InvalidInput(f"a page of {self.limit}", hint=f"1 to {limits.API_PAGE_MAX} are possible")


def page_of(items: Iterable[tuple[str, Item]], asked: PageRequest, describe: Callable[[Item], Document]) -> Document:
    """The items in order of their names; `next` is where to go on, nil at the end."""
    behind = ((name, item) for name, item in items if name > asked.after)
    found = nsmallest(asked.limit + 1, behind, key=itemgetter(0))
    page = found[: asked.limit]
    return {
        "items": [describe(item) for _, item in page],
        "next": page[-1][0] if len(found) > len(page) else None,
    }
