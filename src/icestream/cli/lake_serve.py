"""`icestream lake serve`: the process beside the broker that serves API and catalog, loaded only when it runs."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from icestream import limits
from icestream.cli.broker import BrokerOption, Target
from icestream.cli.connection import local_socket_of
from icestream.cli.lake_app import app
from icestream.cli.options import ConfigFile, OutputChoice, Sets
from icestream.cli.output import Output, OutputFormat, say_aside

if TYPE_CHECKING:
    from icestream.settings import Settings


@app.command()
def serve(
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Serve the API in the foreground, for a broker with lake.managed=false; Ctrl-C stops it.

    Example: icestream lake serve --broker icestream-data --set ports.lake=8181
    """
    from icestream.lake.options import LakeOptions
    from icestream.lake.serving import serve as serve_lake
    from icestream.observability.log import set_up_logging
    from icestream.runtime.file_access import restrict_files
    from icestream.runtime.loop import loop_factory
    from icestream.runtime.time_slice import give_way

    target = Target(broker, config, sets)
    settings = target.settings()
    set_up_logging(settings.log.level, settings.log.format)
    restrict_files(settings.storage.iceberg_config.object_store.file_access)
    options = LakeOptions.of(settings, local_socket_of(target))
    give_way(limits.LAKE_NICENESS)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve_lake(options, lambda port: _greet(settings, port, Output(output))))


def _greet(settings: Settings, port: int, answer: Output) -> None:
    url = f"http://{settings.node.bind_host}:{port}/api/v1"
    if not answer.for_people:
        answer.record({"api": url})
        sys.stdout.flush()
        return
    say_aside(f"The API listens: {url}")
    say_aside("Stop with Ctrl-C.")
