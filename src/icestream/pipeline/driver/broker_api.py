"""The calls of the driver to its broker, over the broker's local socket (model/backlog_messages.py).

While the broker is away the driver waits: nothing of a round is lost by that, and only the broker knows the backlog.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from icestream import errors, limits
from icestream.model.backlog_messages import Backlog, ConsumedOffsets, decode_backlog
from icestream.model.erasure_messages import ErasureProgress, ErasureRequest
from icestream.rpc import document
from icestream.rpc.link_keeper import LinkKeeper


class BrokerApi(Protocol):
    """What the driver asks of its broker."""

    async def backlog(self, wait_ms: int, passed_over: Collection[int] = ()) -> Backlog:
        """Returns what is in no table yet; waits up to `wait_ms` for something. `passed_over`: ids of halted topics, of
        which only sums are returned and for which the call does not wait."""

    async def hold(self, lease: str, epoch: int, files: Sequence[int], ttl_ms: int) -> str:
        """Keeps these log files for so long; again to renew it. No files: releases them. Returns the token by which
        tasks on other machines read them."""

    async def advance(self, positions: Iterable[tuple[int, int, int]], reopenings: int) -> None:
        """Everything below these positions (topic id, shard, offset) is in the table. `reopenings`: of the backlog
        from which they were derived."""

    async def reopen(self, positions: Iterable[tuple[int, int, int]]) -> None:
        """Everything from these positions on is in the table no longer."""

    async def consumed(self, topic_ids: Sequence[int]) -> dict[int, ConsumedOffsets]:
        """Returns what all consumers of these topics have acked, by topic id; without topics of which that is not
        known. At most RETAINED_TOPICS_MAX."""

    async def send_state(self, state: dict[str, Any]) -> None:
        """Reports the state of the driver, for `icestream pipeline status`."""


class BrokerClient:
    """The broker over its local socket."""

    def __init__(self, keeper: LinkKeeper) -> None:
        self._keeper = keeper

    async def backlog(self, wait_ms: int, passed_over: Collection[int] = ()) -> Backlog:
        await self._keeper.wait_connected()
        arguments = {"wait_ms": wait_ms, "passed_over": list(passed_over)}
        encoded = (await self._keeper.call("pipeline_backlog", arguments)).get("backlog")
        if not isinstance(encoded, bytes):
            raise errors.DecodeError("pipeline_backlog: the response of the broker has no field 'backlog'")
        return decode_backlog(encoded)

    async def hold(self, lease: str, epoch: int, files: Sequence[int], ttl_ms: int) -> str:
        arguments = {"lease": lease, "epoch": epoch, "files": list(files), "ttl_ms": ttl_ms}
        return document.text_of(await self._keeper.call("pipeline_lease", arguments), "token", limits.NAME_BYTES_MAX)

    async def advance(self, positions: Iterable[tuple[int, int, int]], reopenings: int) -> None:
        for batch in _batches(positions):
            await self._keeper.call("pipeline_committed", {"positions": batch, "reopenings": reopenings})

    async def reopen(self, positions: Iterable[tuple[int, int, int]]) -> None:
        for batch in _batches(positions):
            await self._keeper.call("pipeline_reopen", {"positions": batch})

    async def consumed(self, topic_ids: Sequence[int]) -> dict[int, ConsumedOffsets]:
        answer = await self._keeper.call("pipeline_consumed", {"topic_ids": list(topic_ids)})
        try:
            topics = msgspec.convert(answer.get("topics"), list[ConsumedOffsets], strict=False)
        except msgspec.ValidationError as error:
            raise errors.DecodeError(f"pipeline_consumed: {error}") from None
        return {consumed.topic_id: consumed for consumed in topics}

    async def next_erasure(self) -> ErasureRequest | None:
        data = (await self._keeper.call("pipeline_next_erasure", {})).get("request")
        if data is None:
            return None
        try:
            return msgspec.msgpack.decode(data, type=ErasureRequest)
        except (msgspec.MsgspecError, TypeError) as error:
            raise errors.DecodeError(f"pipeline_next_erasure: {error}") from None

    async def report_erasure(self, progress: ErasureProgress) -> bool:
        arguments = {"progress": msgspec.msgpack.encode(progress)}
        return bool((await self._keeper.call("pipeline_report_erasure", arguments)).get("is_known"))

    async def retire_log(self, topic_id: int, cut: Mapping[int, int], *, is_check: bool) -> list[str]:
        ends = {str(shard): end for shard, end in cut.items()}  # keys of documents are text
        arguments = {"topic_id": topic_id, "cut": ends, "is_check": is_check}
        answer = await self._keeper.call("pipeline_retire_log", arguments)
        try:
            return msgspec.convert(answer.get("left"), list[str])
        except msgspec.ValidationError as error:
            raise errors.DecodeError(f"pipeline_retire_log: {error}") from None

    async def retained_places(self, topic_id: int, after: tuple[int, int] | None) -> list[tuple[int, int]]:
        arguments = {"topic_id": topic_id, "after": None if after is None else [*after]}
        answer = await self._keeper.call("pipeline_retained_places", arguments)
        try:
            return msgspec.convert(answer.get("places"), list[tuple[int, int]])
        except msgspec.ValidationError as error:
            raise errors.DecodeError(f"pipeline_retained_places: {error}") from None

    async def forget_retained(self, topic_id: int, places: Sequence[tuple[int, int]]) -> None:
        arguments = {"topic_id": topic_id, "places": [[*place] for place in places]}
        await self._keeper.call("pipeline_forget_retained", arguments)

    async def lease_name(self) -> str:
        """Returns the name of the lease of this broker's driver: in a cluster the id of its node."""
        await self._keeper.wait_connected()
        return document.text_of(await self._keeper.call("pipeline_name", {}), "name", limits.NAME_BYTES_MAX)

    async def send_state(self, state: dict[str, Any]) -> None:
        await self._keeper.call("pipeline_state", {"state": state})


def _batches(positions: Iterable[tuple[int, int, int]]) -> Iterator[list[list[int]]]:
    entries, batch_max = [list(position) for position in positions], limits.PIPELINE_POSITIONS_MAX
    for begin in range(0, len(entries), batch_max):
        yield entries[begin : begin + batch_max]
