"""`icestream pipeline`: the process that writes messages into the tables. Today: set up what it runs on."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from icestream.cli.command import Commands
from icestream.cli.options import ConfigFile, OutputChoice, Sets, load_settings
from icestream.cli.output import Output, OutputFormat, say_aside

app = Commands("What the pipeline into the tables runs on.")


@app.callback()
def pipeline() -> None:
    """What the pipeline into the tables runs on: Java, PySpark, Iceberg's jar."""


@app.command()
def setup(
    s3: Annotated[bool, typer.Option("--s3", help="Also the jar for tables in S3 (64 MB).")] = False,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Find Java, PySpark and Iceberg's jar; install Java and fetch the jar where they are missing.

    It may be called again at any time: what is there is checked and kept.

    Example: icestream pipeline setup
    Example: ICESTREAM_JARS=folder icestream pipeline setup --output json
    """
    from icestream.pipeline import pins
    from icestream.pipeline.engine import Machine, set_up

    machine = Machine.of(load_settings(config, sets).settings, os.environ)
    jars = (pins.ICEBERG_SPARK, pins.ICEBERG_AWS) if s3 else (pins.ICEBERG_SPARK,)
    engine = set_up(machine, *jars, say=say_aside)
    rows = [
        ("java", engine.java.version, str(engine.java_home)),
        ("pyspark", engine.pyspark, str(engine.spark_home)),
        *((jar.artifact, jar.version, str(path)) for jar, path in engine.jars.items()),
    ]
    Output(output).table(("part", "version", "path"), rows)
