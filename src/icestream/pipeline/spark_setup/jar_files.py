"""Finds copies of a jar on this machine, and fetches one. jar_choice.py decides which is used.

Every fetch works in a temporary folder beside its target and ends with a rename, after the digest was checked and the
bytes were synced. So concurrent set-ups do not disturb each other, and an interrupted one leaves a folder that is never
read; it is removed after a day.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from icestream import limits
from icestream.errors import MissingPart
from icestream.pipeline.spark_setup.jar_choice import JarCopy, JarOrigin, cached, fault
from icestream.pipeline.spark_setup.pinned_versions import PinnedJar

_WORK: Final = "fetch-"
_LINES_SHOWN: Final = 5


def copies(jar: PinnedJar, places: Iterable[tuple[JarOrigin, Path]]) -> Iterator[JarCopy]:
    """Yields the copies that exist. The digest is computed only if the size is right."""
    for origin, path in places:
        try:
            yield read_copy(jar, path, origin)
        except OSError:
            continue


def read_copy(jar: PinnedJar, path: Path, origin: JarOrigin) -> JarCopy:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.file_digest(file, "sha256").hexdigest() if size == jar.bytes else ""
    return JarCopy(path, origin, size, digest)


def keep(jar: PinnedJar, source: Path, cache: Path) -> Path:
    """Copies a right file from another folder into the cache, because other programs may clean that folder."""
    with _temporary_folder(cache) as work:
        shutil.copyfile(source, work / jar.file_name)
        return _install(jar, work / jar.file_name, JarOrigin.CACHE, cache)


def fetch(jar: PinnedJar, cache: Path, spark_home: Path, environment: Mapping[str, str]) -> Path:
    """Fetches the jar with Spark's resolver, as `--packages` does; mirrors in Spark's configuration are honoured.
    Raises MissingPart."""
    with _temporary_folder(cache) as work:
        program = work / "nothing.py"
        program.write_text("", "utf-8")
        command = [
            str(spark_home / "bin" / "spark-submit"), "--master", "local[1]", "--packages", jar.coordinates,
            "--conf", f"spark.jars.ivy={work}", "--conf", "spark.ui.enabled=false", str(program),
        ]  # fmt: skip
        output = _run(command, {**environment, "SPARK_HOME": str(spark_home), "PYSPARK_PYTHON": sys.executable}, work)
        path = work / "jars" / f"{jar.group}_{jar.file_name}"
        if not path.is_file():
            raise MissingPart(f"{jar.coordinates} could not be fetched: {output}", hint=by_hand(jar))
        return _install(jar, path, JarOrigin.FETCHED, cache)


def by_hand(jar: PinnedJar) -> str:
    """Returns the hint for machines from which Maven cannot be reached."""
    return (
        f"without a way to Maven from here: bring {jar.file_name} (SHA-256 {jar.sha256[:12]}…) by other means "
        "and name its folder in ICESTREAM_JARS"
    )


def _run(command: list[str], environment: Mapping[str, str], work: Path) -> str:
    """Runs the command and returns the last lines of its output, for an error message."""
    try:
        process = subprocess.run(
            command,
            env=environment,
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=limits.FETCH_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it took longer than {limits.FETCH_SECONDS_MAX} s"
    except OSError as error:
        return str(error)
    lines = [line.strip() for line in process.stdout.splitlines() if line.strip() and not line.startswith("\tat ")]
    return " / ".join(lines[-_LINES_SHOWN:]) or f"spark-submit exited with code {process.returncode} and no output"


def _install(jar: PinnedJar, path: Path, origin: JarOrigin, cache: Path) -> Path:
    """Moves a jar into the cache. Raises MissingPart if it is not the tested file."""
    reason = fault(jar, read_copy(jar, path, origin))
    if reason:
        raise MissingPart(f"refused: {reason}", hint=f"the server is not Maven Central; {by_hand(jar)}")
    target = cached(jar, cache)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Synced before the rename: after a crash the cache has the whole file, or none.
    with path.open("rb") as file:
        os.fsync(file.fileno())
    path.replace(target)
    return target


@contextmanager
def _temporary_folder(cache: Path) -> Iterator[Path]:
    cache.mkdir(parents=True, exist_ok=True)
    remove_old(cache, f"{_WORK}*")
    work = Path(tempfile.mkdtemp(prefix=_WORK, dir=cache))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def remove_old(folder: Path, names: str) -> None:
    """Removes what interrupted processes left behind: no set-up takes a day."""
    limit = time.time() - limits.FETCH_FORGOTTEN_SECONDS
    for path in folder.glob(names):
        try:
            is_old = path.stat().st_mtime < limit
        except FileNotFoundError:
            continue
        if is_old and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif is_old:
            path.unlink(missing_ok=True)
