"""Calls from the routes of the API to the broker, over its local socket."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Query, Request

from icestream import limits
from icestream.rpc.link_keeper import LinkKeeper

PREFIX = "/api/v1"  # of every route


class BrokerLink:
    """The connection to the broker as a function: `await broker("describe_topic", topic=…)`."""

    def __init__(self, keeper: LinkKeeper) -> None:
        self._keeper = keeper

    async def __call__(self, method: str, /, **arguments: Any) -> dict[str, Any]:
        """The result of a call. Raises the broker's error, or ConnectionLost while the broker is not connected."""
        return await self._keeper.call(method, arguments)

    @property
    def is_here(self) -> bool:
        return self._keeper.is_connected


def get_broker(request: Request) -> BrokerLink:
    broker: BrokerLink = request.app.state.broker
    return broker


def page_query(
    after: Annotated[str, Query(max_length=2 * limits.TOPIC_NAME_BYTES_MAX, description="Start after this item.")] = "",
    limit: Annotated[
        int, Query(ge=1, le=limits.API_PAGE_MAX, description="Maximum number of items on the page.")
    ] = limits.API_PAGE_DEFAULT,
) -> dict[str, Any]:
    return {"after": after, "limit": limit}


BrokerDep = Annotated[BrokerLink, Depends(get_broker)]
PageDep = Annotated[dict[str, Any], Depends(page_query)]
