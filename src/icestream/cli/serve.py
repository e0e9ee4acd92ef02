"""`icestream serve`: the broker process."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from icestream.cli.options import ConfigFile, OutputChoice, Sets, load_settings
from icestream.cli.output import OutputFormat


def serve(
    demo: Annotated[
        bool, typer.Option("--demo/--no-demo", help="Show a first start how messages become rows.")
    ] = False,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Start a broker in the foreground; Ctrl-C or SIGTERM stops it in order, with exit code 0.

    With --output json it says where everything is in one line of JSON as soon as it is ready, and nothing else.
    With --demo, as `make run` has it, a broker that has no topic yet publishes three messages to /default/demo, and
    says when they are rows and what reads them.

    Example: icestream serve
    Example: icestream serve --demo
    Example: icestream serve --config broker.yml
    Example: icestream serve --set storage.iceberg_config.wal.sync_mode=periodic --set log.level=warning
    Example: icestream serve --set data_dir=elsewhere --set ports.native=0 --set ports.broker_http=0 --set ports.lake=0
    """
    from icestream import server
    from icestream.observability.log import set_up_logging
    from icestream.runtime.loop import loop_factory

    loaded = load_settings(config, sets)
    settings = loaded.settings
    set_up_logging(settings.log.level, settings.log.format)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        to_a_program = output is OutputFormat.JSON
        runner.run(server.serve(settings, typer.echo, loaded.origins, to_a_program=to_a_program, has_demo=demo))
