"""`icestream pipeline`: runs the process that commits messages to tables, shows its status, installs what it needs."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated, Any

import typer

from icestream import errors, limits
from icestream.cli.broker_connection import call_broker, require_local_socket
from icestream.cli.broker_location import BrokerOption, Target
from icestream.cli.commands import Commands
from icestream.cli.failed_jobs import print_failed_jobs
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch, load_settings
from icestream.cli.output import Output, OutputFormat, print_note
from icestream.observability.words import counted, were

app = Commands("Run the pipeline, show its status, install what it needs.")


@app.command()
def run(
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Run the pipeline in the foreground, for a broker with pipeline.managed=false; Ctrl-C stops it.

    It connects to the broker's local socket; beside accounts it needs a secret for that, which
    `icestream security process-secret pipeline` makes. With --output json it prints the address of its metrics as one
    line of JSON when it is ready.

    Example: icestream pipeline run --config broker.yml
    """
    from icestream.cli.operator_process import prepare_role
    from icestream.observability.log import set_up_logging
    from icestream.processes.pipeline_process import run_pipeline
    from icestream.runtime.file_access import restrict_files
    from icestream.runtime.loop import loop_factory
    from icestream.runtime.time_slice import lower_priority

    target = Target(broker, config, sets)
    if not target.location.is_from_settings:  # the pipeline reads files below the broker's data_dir
        target = Target(None, config, [f"data_dir={require_local_socket(target).parent}", *(sets or ())])
    settings = target.settings()
    set_up_logging(settings.log.level, settings.log.format)
    restrict_files(settings.storage.iceberg_config.object_store.file_access)
    role_secret = prepare_role(target, settings, "pipeline")
    lower_priority(limits.PIPELINE_NICENESS)
    answer = Output(output)
    host = settings.node.bind_host

    def greet(port: int) -> None:
        if answer.is_text:
            print_note(f"Pipeline running; metrics: http://{host}:{port}/metrics. Stop with Ctrl-C.")
        else:
            answer.record({"metrics": f"http://{host}:{port}/metrics"})
            sys.stdout.flush()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(run_pipeline(settings, greet, role_secret=role_secret))


@app.command()
def status(
    _watch: Watch = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show the state of the pipeline, its last round, and the topics that it does not commit.

    Example: icestream pipeline status
    Example: icestream pipeline status --output json
    """
    report = call_broker(Target(broker, config, sets), lambda broker: broker.call("pipeline_state"))
    state, answer = report.get("state"), Output(output)
    if state is None:
        raise errors.NotReady(
            "no pipeline has reported to this broker yet",
            hint="pipeline.managed starts one with the broker; otherwise run `icestream pipeline run`",
        )
    if not answer.is_text:
        answer.record({**state, "age_ms": report["age_ms"]})
        return
    last_round = state.get("last_round") or {}
    answer.record(
        {
            "phase": state["phase"] if state["ok"] else f"{state['phase']}: {state['reason']}",
            "reported": f"{report['age_ms'] / 1000:.0f} s ago",
            "spark": state["master"],
            "rounds": state["rounds"],
            "rows": state["rows"],
            "last round": _round_text(last_round) if last_round else "none yet",
        }
    )
    if missing := state.get("vanished_files"):
        print_note(
            f"{counted(missing, 'committed file')} {were(missing)} missing: "
            "the commit was reverted, and its messages were committed again"
        )
    for topic in state["stopped_topics"]:
        print_note(f"{topic['topic']} is not committed: {topic['reason']}; {topic['hint']}")
    print_failed_jobs(state.get("failed_jobs") or [])


def _round_text(last_round: dict[str, Any]) -> str:
    duration_ms = sum(last_round["ms"].values())
    rows, files = counted(last_round["rows"], "row"), counted(last_round["files"], "file")
    return f"{rows} of {counted(last_round['committed_topics'], 'topic')} in {files}, {duration_ms:.0f} ms"


@app.command()
def setup(
    s3: Annotated[bool, typer.Option("--s3", help="Also install the jar for tables in S3 (64 MB).")] = False,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Find Java, PySpark and Iceberg's jar; install Java and download the jar if missing; start Spark once as a test.

    It can be repeated at any time: existing parts are verified and kept.

    Example: icestream pipeline setup
    Example: ICESTREAM_JARS=folder icestream pipeline setup --output json
    """
    from icestream.pipeline.spark.writer import archive_classes
    from icestream.pipeline.spark_setup import pinned_versions
    from icestream.pipeline.spark_setup.spark_install import install_spark
    from icestream.processes.pipeline_options import setup_paths

    machine = setup_paths(load_settings(config, sets).settings, os.environ)
    jars = (pinned_versions.ICEBERG_SPARK, pinned_versions.ICEBERG_AWS) if s3 else (pinned_versions.ICEBERG_SPARK,)
    engine = install_spark(machine, *jars, say=print_note)
    archive_classes(engine, machine.cache, print_note)
    rows = [
        ("java", engine.java.version, str(engine.java_home)),
        ("pyspark", engine.pyspark, str(engine.spark_home)),
        *((jar.artifact, jar.version, str(path)) for jar, path in engine.jars.items()),
    ]
    Output(output).table(("part", "version", "path"), rows, keep=("version", "path"))
