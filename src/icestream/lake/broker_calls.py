"""The broker as the routes of the API see it: a method and its arguments, over the local socket."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Query, Request

from icestream import limits
from icestream.rpc.link_keeper import LinkKeeper

PREFIX = "/api/v1"  # of every route


class BrokerCalls:
    def __init__(self, keeper: LinkKeeper) -> None:
        self._keeper = keeper

    async def __call__(self, method: str, /, **arguments: Any) -> dict[str, Any]:
        """Raises the broker's error, or ConnectionLost while it is away."""
        return await self._keeper.call(method, arguments)

    @property
    def is_here(self) -> bool:
        return self._keeper.is_connected


def broker_of(request: Request) -> BrokerCalls:
    found: BrokerCalls = request.app.state.broker
    return found


def page_of(
    after: Annotated[str, Query(max_length=2 * limits.TOPIC_NAME_BYTES_MAX, description="From behind this one.")] = "",
    limit: Annotated[
        int, Query(ge=1, le=limits.API_PAGE_MAX, description="Items of the page.")
    ] = limits.API_PAGE_DEFAULT,
) -> dict[str, Any]:
    return {"after": after, "limit": limit}


Broker = Annotated[BrokerCalls, Depends(broker_of)]
Page = Annotated[dict[str, Any], Depends(page_of)]
