"""`icestream serve`: the broker process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import typer

from icestream.cli.options import ConfigFile, Sets, load_settings


def serve(config: ConfigFile = None, sets: Sets = None) -> None:
    """Start the broker in the foreground; Ctrl-C stops it in order.

    Example: icestream serve --set storage.iceberg_config.wal.sync_mode=periodic
    """
    from icestream import server
    from icestream.observability.log import set_up_logging

    loaded = load_settings(config, sets)
    settings = loaded.settings
    set_up_logging(settings.log.level, settings.log.format)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(server.serve(settings, typer.echo, loaded.origins))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed: less CPU for single messages, nothing else changes."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
