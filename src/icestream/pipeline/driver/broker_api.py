"""The broker as the driver sees it: six calls over its local socket (model/backlog_messages.py).

A broker that is away is waited for: nothing of a round is lost by that, and nobody else can tell what is to be done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol

from icestream import errors, limits
from icestream.model.backlog_messages import Backlog, decode_backlog
from icestream.rpc import document
from icestream.rpc.link_keeper import LinkKeeper


class BrokerApi(Protocol):
    async def backlog(self, wait_ms: int, after_lsn: int, passed_over: Collection[int] = ()) -> Backlog:
        """`passed_over`: topics that stand still; nothing is told of them but sums, and nobody waits for them."""

    async def hold(self, lease: str, epoch: int, files: Sequence[int], ttl_ms: int) -> None: ...

    async def advance(self, positions: Iterable[tuple[int, int, int]], reopenings: int) -> None:
        """Topic, shard, offset: everything below is in the table. `reopenings`: of the backlog that it was known by."""

    async def reopen(self, positions: Iterable[tuple[int, int, int]]) -> None:
        """Everything from there on is in the table no longer."""

    async def tell(self, state: dict[str, Any]) -> None: ...


class BrokerLink:
    def __init__(self, keeper: LinkKeeper) -> None:
        self._keeper = keeper

    async def backlog(self, wait_ms: int, after_lsn: int, passed_over: Collection[int] = ()) -> Backlog:
        await self._keeper.wait_connected()
        asked = {"wait_ms": wait_ms, "after_lsn": after_lsn, "passed_over": list(passed_over)}
        found = (await self._keeper.call("pipeline_backlog", asked)).get("backlog")
        if not isinstance(found, bytes):
            raise errors.DecodeError("the broker's answer is no backlog")
        return decode_backlog(found)

    async def hold(self, lease: str, epoch: int, files: Sequence[int], ttl_ms: int) -> None:
        asked = {"lease": lease, "epoch": epoch, "files": list(files), "ttl_ms": ttl_ms}
        await self._keeper.call("pipeline_lease", asked)

    async def advance(self, positions: Iterable[tuple[int, int, int]], reopenings: int) -> None:
        for part in _parts(positions):
            await self._keeper.call("pipeline_committed", {"positions": part, "reopenings": reopenings})

    async def reopen(self, positions: Iterable[tuple[int, int, int]]) -> None:
        for part in _parts(positions):
            await self._keeper.call("pipeline_reopen", {"positions": part})

    async def name(self) -> str:
        """Of the lease of its driver: the id of a node of a cluster."""
        await self._keeper.wait_connected()
        return document.text_of(await self._keeper.call("pipeline_name", {}), "name", limits.NAME_BYTES_MAX)

    async def tell(self, state: dict[str, Any]) -> None:
        await self._keeper.call("pipeline_state", {"state": state})


def _parts(positions: Iterable[tuple[int, int, int]]) -> Iterator[list[list[int]]]:
    told, most = [list(one) for one in positions], limits.PIPELINE_POSITIONS_MAX
    for begin in range(0, len(told), most):
        yield told[begin : begin + most]
