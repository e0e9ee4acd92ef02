"""Runs a node until somebody or something ends it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

from icestream import errors
from icestream.catalog.tokens import read_tokens
from icestream.observability.log import get_logger
from icestream.runtime.garbage import calm_collector
from icestream.runtime.stop_signals import stopping_by_signal
from icestream.server.broker_node import BrokerNode
from icestream.server.presentation import demo
from icestream.server.presentation.greeting import announcement, greeting
from icestream.settings import Origin, Settings

_log = get_logger("server")


async def serve(
    settings: Settings,
    say: Callable[[str], None],
    origins: Mapping[str, Origin] | None = None,
    *,
    to_a_program: bool = False,
    has_demo: bool = False,
    join: str = "",
) -> None:
    """Runs until SIGTERM, SIGINT or SIGHUP (runtime/stop_signals.py), or until the log stops because its disk cannot be
    trusted any more.

    `say` gets sentences; or, when a program listens, one line of JSON as soon as the broker is ready. `has_demo`: a
    broker without topics shows what it does (demo.py).
    """
    if settings.lake.managed:
        read_tokens(settings.lake.token_file)  # else the child would end with it again and again, and nobody would see
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()
    # before the log is opened: a signal during a long recovery stops the process behind it, not in the middle of it
    with stopping_by_signal(lambda: _ask_to_stop(stop)):
        try:
            node = await BrokerNode.start(settings, origins, join, stop)
        except errors.ShuttingDown:
            if stop.done():
                return  # it was of no use to anybody yet
            raise
        calm_collector()
        _log.info("broker ready", topics=len(node.broker.topics), native_port=node.native.port)
        for line in [json.dumps(announcement(node))] if to_a_program else greeting(node):
            say(line)
        is_shown = has_demo and not to_a_program and demo.should_run_demo(node)
        async with _beside(demo.run_demo(node, say) if is_shown else None):
            await run(node, stop)
    if not to_a_program:
        say("stopped in order: the next start needs no recovery" if settings.storage.type != "memory" else "stopped")


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None] | None) -> AsyncIterator[None]:
    """What does not matter enough to stop anything by its failure."""
    if work is None:
        yield
        return
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(ended, errors.IcestreamError):
            _log.warning("the demo failed", reason=str(ended))
        elif isinstance(ended, Exception):
            raise ended


def _ask_to_stop(stop: asyncio.Future[None]) -> None:
    if not stop.done():
        stop.set_result(None)


async def run(node: BrokerNode, stop: asyncio.Future[None]) -> None:
    """Until `stop`, then stops the node. Raises what made the node fail by itself."""
    try:
        await asyncio.wait({stop, node.failed}, return_when=asyncio.FIRST_COMPLETED)
        if node.failed.done():
            node.failed.result()
    finally:
        await node.stop()
