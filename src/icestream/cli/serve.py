"""`icestream serve`: the broker process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from icestream import errors, limits
from icestream.cli.options import ConfigFile, OutputChoice, Sets, load_settings
from icestream.cli.output import OutputFormat

if TYPE_CHECKING:
    from icestream.settings import Loaded, Settings


def serve(
    demo: Annotated[
        bool, typer.Option("--demo/--no-demo", help="On a first start, demonstrate how messages become rows.")
    ] = False,
    raft_port: Annotated[
        int | None,
        typer.Option("--raft-port", metavar="PORT", help="Which of several seed nodes on this machine to start."),
    ] = None,
    join: Annotated[
        str, typer.Option("--join", metavar="HOST:PORT", help="Raft address of a node of the cluster to join.")
    ] = "",
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Start a broker in the foreground; Ctrl-C or SIGTERM stops it cleanly, with exit code 0.

    With --output json it prints only one line of JSON with all addresses when it is ready.
    With --demo, which `make run` uses, a broker without topics publishes three messages to /default/demo and reports
    when they are committed and how to read them.

    Example: icestream serve
    Example: icestream serve --demo
    Example: icestream serve --config broker.yml
    Example: icestream serve --config cluster.yml --raft-port 7651
    Example: icestream serve --config shared.yml --join 10.0.0.1:7650 --set node.name=node-4 --set data_dir=node-4
    Example: icestream serve --set storage.iceberg_config.wal.sync_mode=periodic --set log.level=warning
    Example: icestream serve --set data_dir=elsewhere --set ports.native=6661 --set ports.broker_http=9050
    """
    from icestream.observability.log import set_up_logging
    from icestream.observability.spans import set_up_spans
    from icestream.processes.broker_process import run_broker
    from icestream.runtime.file_access import restrict_files
    from icestream.runtime.loop import loop_factory
    from icestream.runtime.open_files import raise_open_files
    from icestream.runtime.time_slice import raise_priority
    from icestream.settings.text import split_address

    loaded = load_settings(config, sets)
    settings = _node_settings(loaded, raft_port)
    if join and split_address(join) is None:
        raise errors.ConfigurationError(f"--join {join}: not HOST:PORT", hint="name the Raft address of a node")
    set_up_logging(settings.log.level, settings.log.format)
    set_up_spans("broker")
    restrict_files(settings.storage.iceberg_config.object_store.file_access)
    raise_priority()
    raise_open_files(limits.OPEN_FILES_WANTED)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        to_a_program = output is OutputFormat.JSON
        runner.run(
            run_broker(settings, typer.echo, loaded.origins, to_a_program=to_a_program, has_demo=demo, join=join)
        )


def _node_settings(loaded: Loaded, raft_port: int | None) -> Settings:
    """The settings of the seed node with this Raft port; without one, of the only seed node on this machine."""
    from icestream.settings.seed_place import check_alone_here, settings_of_seed

    if raft_port is None:
        check_alone_here(loaded.settings)
        return loaded.settings
    return settings_of_seed(loaded.settings, raft_port, loaded.origins)
