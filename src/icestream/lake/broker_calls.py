"""Calls from the routes of the API to the broker, over its local socket."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Depends, Query, Request

from icestream import limits
from icestream.admin_api.admin_call import AdminCall, NoArguments, PageRequest
from icestream.rpc.link_keeper import LinkKeeper

PREFIX = "/api/v1"  # of every route
RequestT = TypeVar("RequestT", bound=msgspec.Struct)
AnswerT = TypeVar("AnswerT")


class BrokerLink:
    """The connection to the broker as a function: `await broker(INSPECT_TOPIC, TopicOnly(…))`."""

    def __init__(self, keeper: LinkKeeper) -> None:
        self._keeper = keeper

    async def __call__(self, call: AdminCall[RequestT, AnswerT], request: RequestT | None = None) -> AnswerT:
        """The answer of a declared call; `request` is None for a call without arguments.

        Raises the broker's error, or ConnectionLost while the broker is not connected.
        """
        arguments: dict[str, Any] = msgspec.to_builtins(NoArguments() if request is None else request)
        return msgspec.convert(await self._keeper.call(call.name, arguments), call.answer)

    async def reopen_offsets(self, positions: list[list[int]]) -> dict[int, int]:
        """Lowers the floors of shards to these positions, as far as the log has the messages.

        `positions`: topic id, shard and offset. Returns the floors by shard.
        """
        reply = await self._keeper.call("pipeline_reopen", {"positions": positions})
        return {shard: floor for _, shard, floor in reply["floors"]}

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
) -> PageRequest:
    return PageRequest(after=after, limit=limit)


BrokerDep = Annotated[BrokerLink, Depends(get_broker)]
PageDep = Annotated[PageRequest, Depends(page_query)]
