"""The start of a topic's history in any tier, for descriptions of the topic."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from icestream import errors, limits
from icestream.broker.storage import ShardStream


async def history_starts(
    streams: Sequence[ShardStream], seconds: float = limits.HISTORY_START_SECONDS_MAX
) -> list[int | None]:
    """The oldest readable offset of each shard, from the log or the table; None if the table did not reply in time.

    A description of a topic must neither wait longer than `seconds` for a table nor fail with it. The shards are asked
    one after another, because a topic can have thousands of them.
    """
    starts: list[int | None] = [None] * len(streams)
    with contextlib.suppress(errors.IcestreamError, TimeoutError):
        async with asyncio.timeout(seconds):
            for number, stream in enumerate(streams):
                starts[number] = await stream.history_start()
    return starts
