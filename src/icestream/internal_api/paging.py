"""Pages of a listing: at most `limit` items after a name, and the name after which the next page begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nsmallest
from operator import itemgetter
from typing import TypeVar

from icestream.admin_api.admin_call import Listing, PageRequest

Item = TypeVar("Item")
Entry = TypeVar("Entry")


def page_of(
    items: Iterable[tuple[str, Item]], request: PageRequest, describe: Callable[[Item], Entry]
) -> Listing[Entry]:
    """Returns a page of the items in name order; `next` is the `after` of the next page, None on the last page."""
    remaining = ((name, item) for name, item in items if name > request.after)
    first = nsmallest(request.limit + 1, remaining, key=itemgetter(0))
    page = first[: request.limit]
    return Listing(
        items=[describe(item) for _, item in page],
        next=page[-1][0] if len(first) > len(page) else None,
    )
