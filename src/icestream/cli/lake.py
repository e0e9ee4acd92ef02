"""`icestream lake`: the tables of topics, in any catalog, and the process that serves the embedded catalog."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from icestream import limits
from icestream.cli import lake_care, lake_erase, lake_lag, lake_operations, lake_tables
from icestream.cli.broker_connection import require_local_socket
from icestream.cli.broker_location import BrokerOption, Target
from icestream.cli.commands import Commands
from icestream.cli.options import ConfigFile, OutputChoice, Sets
from icestream.cli.output import Output, OutputFormat, print_note

if TYPE_CHECKING:
    from icestream.settings import Settings

app = Commands("Inspect tables; bind, detach, adopt, rewind and recreate them.")
# In the order of the help.
app.command("namespaces")(lake_tables.namespaces)
app.command("tables")(lake_tables.tables)
app.command("describe")(lake_tables.describe)
app.command("snapshots")(lake_tables.snapshots)
app.command("history")(lake_tables.history)
app.command("files")(lake_tables.files)
app.command("health")(lake_care.health)
app.command("maintain")(lake_care.maintain)
app.command("erase")(lake_erase.erase)
app.command("lag")(lake_lag.lag)
app.command("commit-now")(lake_lag.commit_now)
app.command("bind")(lake_operations.bind)
app.command("detach")(lake_operations.detach)
app.command("adopt")(lake_operations.adopt)
app.command("rewind")(lake_operations.rewind)
app.command("recreate")(lake_operations.recreate)
app.command("drop")(lake_operations.drop)


@app.command()
def serve(
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Run the lake process in the foreground, for a broker with lake.managed=false; Ctrl-C stops it.

    Beside accounts it needs a secret: `icestream security process-secret lake`.

    Example: icestream lake serve --broker icestream-data --set ports.lake=8181
    """
    from icestream.cli.operator_process import prepare_role
    from icestream.observability.log import set_up_logging
    from icestream.processes.lake_process import run_lake
    from icestream.runtime.file_access import restrict_files
    from icestream.runtime.loop import loop_factory
    from icestream.runtime.time_slice import lower_priority

    target = Target(broker, config, sets)
    settings = target.settings()
    set_up_logging(settings.log.level, settings.log.format)
    restrict_files(settings.storage.iceberg_config.object_store.file_access)
    socket = require_local_socket(target)
    role_secret = prepare_role(target, settings, "lake")
    lower_priority(limits.LAKE_NICENESS)

    def greet(port: int) -> None:
        _greet(settings, port, Output(output))

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(run_lake(settings, greet, socket=socket, role_secret=role_secret))


def _greet(settings: Settings, port: int, answer: Output) -> None:
    url = f"http://{settings.node.bind_host}:{port}/api/v1"
    if not answer.is_text:
        answer.record({"api": url})
        sys.stdout.flush()
        return
    print_note(f"HTTP API: {url}")
    print_note("Stop with Ctrl-C.")
