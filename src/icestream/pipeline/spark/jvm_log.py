"""Forwards what Java and Spark's Python workers write to stderr to our log.

Lines that every start prints go to `log.level: debug`; every other line is a warning.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from icestream import limits
from icestream.observability.log import get_logger

_log = get_logger("spark")
# Spark loads this module of Java, which prints so each time.
_USUAL_LINES: Final = ("WARNING: Using incubator modules",)
LOG_OPTION: Final = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


@contextlib.contextmanager
def stderr_pipe() -> Iterator[int]:
    """A file descriptor to be the stderr of a process. A thread reads it until the last process has closed it."""
    reading, writing = os.pipe()
    threading.Thread(target=_forward, args=(reading,), name="spark-stderr", daemon=True).start()
    try:
        yield writing
    finally:
        os.close(writing)


def _forward(descriptor: int) -> None:
    with os.fdopen(descriptor, "rb") as stderr:
        while line := stderr.readline(limits.SPARK_LINE_BYTES_MAX):
            log_line(line.decode(errors="replace").rstrip())


def log_line(line: str) -> None:
    if not line:
        return
    if line.startswith(_USUAL_LINES):
        _log.debug("Spark stderr", line=line)
    else:
        _log.warning("Spark stderr", line=line)
