"""Runs a broker process until a signal or a failure ends it."""

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
    print_line: Callable[[str], None],
    origins: Mapping[str, Origin] | None = None,
    *,
    to_a_program: bool = False,
    has_demo: bool = False,
    join: str = "",
) -> None:
    """Runs until SIGTERM, SIGINT or SIGHUP (runtime/stop_signals.py), or until the log stops because of its disk.

    `print_line` gets the greeting; with `to_a_program` one line of JSON as soon as the broker is ready. `has_demo`: a
    broker without topics runs the demo (presentation/demo.py).
    """
    if settings.lake.managed:
        read_tokens(settings.lake.token_file)  # fail now; else the child would fail at each start, unseen
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()
    # Installed before the log is opened: a signal during a long recovery stops the process after it, not within it.
    with stopping_by_signal(lambda: _request_stop(stop)):
        try:
            node = await BrokerNode.start(settings, origins, join, stop)
        except errors.ShuttingDown:
            if stop.done():
                return  # a stop before the node was ready is not an error
            raise
        calm_collector()
        _log.info("broker ready", topics=len(node.broker.topics), native_port=node.native.port)
        for line in [json.dumps(announcement(node))] if to_a_program else greeting(node):
            print_line(line)
        runs_demo = has_demo and not to_a_program and demo.should_run_demo(node)
        async with _background(demo.run_demo(node, print_line) if runs_demo else None):
            await run(node, stop)
    if not to_a_program:
        print_line(
            "stopped cleanly: the next start needs no recovery" if settings.storage.type != "memory" else "stopped"
        )


@contextlib.asynccontextmanager
async def _background(work: Coroutine[Any, Any, None] | None) -> AsyncIterator[None]:
    """Runs the work beside the body; an IcestreamError in it is only logged."""
    if work is None:
        yield
        return
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(outcome, errors.IcestreamError):
            _log.warning("the demo failed", reason=str(outcome))
        elif isinstance(outcome, Exception):
            raise outcome


def _request_stop(stop: asyncio.Future[None]) -> None:
    if not stop.done():
        stop.set_result(None)


async def run(node: BrokerNode, stop: asyncio.Future[None]) -> None:
    """Runs until `stop`, then stops the node. Raises the error that made the node fail."""
    try:
        await asyncio.wait({stop, node.failed}, return_when=asyncio.FIRST_COMPLETED)
        if node.failed.done():
            node.failed.result()
    finally:
        await node.stop()
