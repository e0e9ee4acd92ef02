"""Copies of a jar on this machine, and the one that is fetched. jar.py decides which is used.

Every fetch works in a folder of its own beside its goal and ends with a rename, after the digest was found right and
the bytes were synced. So set-ups at the same time do not disturb each other, and one that was interrupted leaves a
folder that nobody looks at; it is removed after a day.
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
    """Those that are there. A digest is computed only where the size is right."""
    for origin, path in places:
        try:
            yield read_copy(jar, path, origin)
        except OSError:
            continue


def read_copy(jar: PinnedJar, path: Path, origin: JarOrigin) -> JarCopy:
    with path.open("rb") as file:
        found = os.fstat(file.fileno()).st_size
        digest = hashlib.file_digest(file, "sha256").hexdigest() if found == jar.bytes else ""
    return JarCopy(path, origin, found, digest)


def keep(jar: PinnedJar, source: Path, cache: Path) -> Path:
    """A right copy from elsewhere, into the cache: what others clean away must not stop us."""
    with _workplace(cache) as work:
        shutil.copyfile(source, work / jar.file_name)
        return _settle(jar, work / jar.file_name, JarOrigin.CACHE, cache)


def fetch(jar: PinnedJar, cache: Path, spark_home: Path, environment: Mapping[str, str]) -> Path:
    """Has Spark's resolver bring the jar, as `--packages` does; mirrors that Spark was told of are honoured."""
    with _workplace(cache) as work:
        program = work / "nothing.py"
        program.write_text("", "utf-8")
        command = [
            str(spark_home / "bin" / "spark-submit"), "--master", "local[1]", "--packages", jar.coordinates,
            "--conf", f"spark.jars.ivy={work}", "--conf", "spark.ui.enabled=false", str(program),
        ]  # fmt: skip
        said = _run(command, {**environment, "SPARK_HOME": str(spark_home), "PYSPARK_PYTHON": sys.executable}, work)
        found = work / "jars" / f"{jar.group}_{jar.file_name}"
        if not found.is_file():
            raise MissingPart(f"{jar.coordinates} could not be fetched: {said}", hint=by_hand(jar))
        return _settle(jar, found, JarOrigin.FETCHED, cache)


def by_hand(jar: PinnedJar) -> str:
    """What to do where Maven cannot be reached."""
    return (
        f"without a way to Maven from here: bring {jar.file_name} (SHA-256 {jar.sha256[:12]}…) by other means "
        "and name its folder in ICESTREAM_JARS"
    )


def _run(command: list[str], environment: Mapping[str, str], work: Path) -> str:
    """The last words of it, for the case that it brought nothing."""
    try:
        done = subprocess.run(
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
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip() and not line.startswith("\tat ")]
    return " / ".join(lines[-_LINES_SHOWN:]) or f"spark-submit ended with {done.returncode} and said nothing"


def _settle(jar: PinnedJar, path: Path, origin: JarOrigin, cache: Path) -> Path:
    reason = fault(jar, read_copy(jar, path, origin))
    if reason:
        raise MissingPart(f"refused: {reason}", hint=f"what answers there is not Maven Central; {by_hand(jar)}")
    goal = cached(jar, cache)
    goal.parent.mkdir(parents=True, exist_ok=True)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    path.replace(goal)
    return goal


@contextmanager
def _workplace(cache: Path) -> Iterator[Path]:
    cache.mkdir(parents=True, exist_ok=True)
    forget_old(cache, f"{_WORK}*")
    work = Path(tempfile.mkdtemp(prefix=_WORK, dir=cache))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def forget_old(folder: Path, names: str) -> None:
    """What somebody who was interrupted left behind. Nobody works for a day, so nobody's work is disturbed."""
    old = time.time() - limits.FETCH_FORGOTTEN_SECONDS
    for one in folder.glob(names):
        try:
            is_old = one.stat().st_mtime < old
        except FileNotFoundError:
            continue
        if is_old and one.is_dir():
            shutil.rmtree(one, ignore_errors=True)
        elif is_old:
            one.unlink(missing_ok=True)
