"""Where the history of a topic begins, in whatever tier, for a person who looks at it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from icestream import errors, limits
from icestream.broker.storage import ShardStream


async def history_starts(
    streams: Sequence[ShardStream], seconds: float = limits.HISTORY_START_SECONDS_MAX
) -> list[int | None]:
    """For each shard the oldest offset that can be read, from the log or the table.

    None where the table did not tell within `seconds`: a description of a topic must not wait for a table, nor fail
    with it. The shards are asked one after another, because a topic can have thousands of them.
    """
    starts: list[int | None] = [None] * len(streams)
    with contextlib.suppress(errors.IcestreamError, TimeoutError):
        async with asyncio.timeout(seconds):
            for number, stream in enumerate(streams):
                starts[number] = await stream.history_start()
    return starts
