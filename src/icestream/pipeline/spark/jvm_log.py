"""What Java and Spark's Python workers write on stderr, as messages of our log.

A start says lines that mean nothing to anybody: they are for `log.level: debug`. Whatever else comes is a warning.
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
# Spark loads this module of Java, which says so each time.
_EMPTY_WORDS: Final = ("WARNING: Using incubator modules",)
LOG_OPTION: Final = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


@contextlib.contextmanager
def heard() -> Iterator[int]:
    """The end of a pipe, to be the stderr of a process. Listened to until the last who has it is gone."""
    reading, writing = os.pipe()
    threading.Thread(target=_listen, args=(reading,), name="spark-words", daemon=True).start()
    try:
        yield writing
    finally:
        os.close(writing)


def _listen(reading: int) -> None:
    with os.fdopen(reading, "rb") as words:
        while line := words.readline(limits.SPARK_LINE_BYTES_MAX):
            say(line.decode(errors="replace").rstrip())


def say(line: str) -> None:
    if not line:
        return
    if line.startswith(_EMPTY_WORDS):
        _log.debug("Spark says", line=line)
    else:
        _log.warning("Spark says", line=line)
