"""`icestream pipeline`: the process that writes messages into the tables, and what it runs on."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated, Any

import typer

from icestream import errors, limits
from icestream.cli.broker import BrokerOption, Target
from icestream.cli.command import Commands
from icestream.cli.connection import ask, local_socket_of
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch, load_settings
from icestream.cli.output import Output, OutputFormat, say_aside
from icestream.observability.words import counted, were

app = Commands("The pipeline into the tables: run it, see how it is doing, set up what it runs on.")


@app.callback()
def pipeline() -> None:
    """The pipeline into the tables: run it, see how it is doing, set up what it runs on."""


@app.command()
def run(
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Run the pipeline in the foreground, for a broker with pipeline.managed=false; Ctrl-C stops it.

    It reaches its broker over its local socket. With --output json it says where its metrics are in one
    line of JSON as soon as it is ready.

    Example: icestream pipeline run --config broker.yml
    """
    from icestream.observability.log import set_up_logging
    from icestream.pipeline.driver.serving import serve
    from icestream.runtime.file_access import restrict_files
    from icestream.runtime.loop import loop_factory
    from icestream.runtime.time_slice import give_way

    target = Target(broker, config, sets)
    if not target.place.is_of_settings:  # what is read there stands below the broker's data_dir
        target = Target(None, config, [f"data_dir={local_socket_of(target).parent}", *(sets or ())])
    settings = target.settings()
    set_up_logging(settings.log.level, settings.log.format)
    restrict_files(settings.storage.iceberg_config.object_store.file_access)
    give_way(limits.PIPELINE_NICENESS)
    answer = Output(output)
    host = settings.node.bind_host

    def greet(port: int) -> None:
        if answer.for_people:
            say_aside(f"The pipeline runs; its metrics: http://{host}:{port}/metrics. Stop with Ctrl-C.")
        else:
            answer.record({"metrics": f"http://{host}:{port}/metrics"})
            sys.stdout.flush()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(settings, greet))


@app.command()
def status(
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show what the pipeline does, its last round, and the topics that it does not write.

    Example: icestream pipeline status
    Example: icestream pipeline status --output json
    """
    found = ask(Target(broker, config, sets), lambda broker: broker.call("pipeline_state"))
    state, answer = found.get("state"), Output(output)
    if state is None:
        raise errors.NotReady(
            "no pipeline has said anything to this broker yet",
            hint="pipeline.managed starts one with the broker; without it, `icestream pipeline run`",
        )
    if not answer.for_people:
        answer.record({**state, "age_ms": found["age_ms"]})
        return
    last = state.get("last_round") or {}
    answer.record(
        {
            "doing": state["phase"] if state["ok"] else f"{state['phase']}: {state['reason']}",
            "said": f"{found['age_ms'] / 1000:.0f} s ago",
            "spark": state["master"],
            "rounds": state["rounds"],
            "rows": state["rows"],
            "last round": _round_words(last) if last else "none yet",
        }
    )
    if gone := state.get("vanished_files"):
        say_aside(
            f"{counted(gone, 'file')} {were(gone)} gone behind a commit: "
            "it was taken back, and its messages were written again"
        )
    for one in state["stopped_topics"]:
        say_aside(f"{one['topic']} is not written: {one['reason']}; {one['hint']}")


def _round_words(last: dict[str, Any]) -> str:
    took = sum(last["ms"].values())
    counts = (counted(last["rows"], "row"), counted(last["committed_topics"], "topic"), counted(last["files"], "file"))
    return f"{counts[0]} of {counts[1]} in {counts[2]}, {took:.0f} ms"


@app.command()
def setup(
    s3: Annotated[bool, typer.Option("--s3", help="Also the jar for tables in S3 (64 MB).")] = False,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Find Java, PySpark and Iceberg's jar; install Java and fetch the jar where they are missing; try Spark once.

    It may be called again at any time: what is there is checked and kept.

    Example: icestream pipeline setup
    Example: ICESTREAM_JARS=folder icestream pipeline setup --output json
    """
    from icestream.pipeline.spark.first_session import archive_classes
    from icestream.pipeline.spark_setup import pinned_versions
    from icestream.pipeline.spark_setup.spark_install import SetupPaths, install_spark

    machine = SetupPaths.of(load_settings(config, sets).settings, os.environ)
    jars = (pinned_versions.ICEBERG_SPARK, pinned_versions.ICEBERG_AWS) if s3 else (pinned_versions.ICEBERG_SPARK,)
    engine = install_spark(machine, *jars, say=say_aside)
    archive_classes(engine, machine.cache, say_aside)
    rows = [
        ("java", engine.java.version, str(engine.java_home)),
        ("pyspark", engine.pyspark, str(engine.spark_home)),
        *((jar.artifact, jar.version, str(path)) for jar, path in engine.jars.items()),
    ]
    Output(output).table(("part", "version", "path"), rows, keep=("version", "path"))
