"""Pages of a listing: at most `limit` items after a name, and the name after which the next page begins."""

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
    """The arguments of a listing."""

    after: str = ""
    limit: int = limits.API_PAGE_DEFAULT

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= limits.API_PAGE_MAX:
            raise errors.InvalidInput(f"page limit is {self.limit}", hint=f"allowed: 1 to {limits.API_PAGE_MAX}")


def page_of(items: Iterable[tuple[str, Item]], request: PageRequest, describe: Callable[[Item], Document]) -> Document:
    """Returns a page of the items in name order; `next` is the `after` of the next page, nil on the last page."""
    remaining = ((name, item) for name, item in items if name > request.after)
    first = nsmallest(request.limit + 1, remaining, key=itemgetter(0))
    page = first[: request.limit]
    return {
        "items": [describe(item) for _, item in page],
        "next": page[-1][0] if len(first) > len(page) else None,
    }
