"""`icestream lake serve`: runs the lake process, which serves the HTTP API and the embedded catalog."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from icestream import limits
from icestream.cli.broker import BrokerOption, Target
from icestream.cli.connection import require_local_socket
from icestream.cli.options import ConfigFile, OutputChoice, Sets
from icestream.cli.output import Output, OutputFormat, print_note

if TYPE_CHECKING:
    from icestream.settings import Settings


def serve(
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Run the lake process in the foreground, for a broker with lake.managed=false; Ctrl-C stops it.

    Example: icestream lake serve --broker icestream-data --set ports.lake=8181
    """
    from icestream.lake.lake_options import LakeOptions
    from icestream.lake.serving import serve as serve_lake
    from icestream.observability.log import set_up_logging
    from icestream.runtime.file_access import restrict_files
    from icestream.runtime.loop import loop_factory
    from icestream.runtime.time_slice import give_way

    target = Target(broker, config, sets)
    settings = target.settings()
    set_up_logging(settings.log.level, settings.log.format)
    restrict_files(settings.storage.iceberg_config.object_store.file_access)
    options = LakeOptions.of(settings, require_local_socket(target))
    give_way(limits.LAKE_NICENESS)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve_lake(options, lambda port: _greet(settings, port, Output(output))))


def _greet(settings: Settings, port: int, answer: Output) -> None:
    url = f"http://{settings.node.bind_host}:{port}/api/v1"
    if not answer.is_text:
        answer.record({"api": url})
        sys.stdout.flush()
        return
    print_note(f"HTTP API: {url}")
    print_note("Stop with Ctrl-C.")
