"""Which copy of a jar is used: the first with the right size and digest. Pure; jar_files.py looks around and fetches.

order   from                                        a wrong one is
1       ICESTREAM_JARS (`pipeline.jars`)            an error: somebody put it there
2       the cache directory                         replaced by a fresh one
3       the folders of Ivy and Maven of this user   passed over; a right one is copied into the cache
4       Maven Central, through Spark's own resolver an error
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from icestream.pipeline.spark_setup.pinned_versions import PinnedJar


class JarOrigin(StrEnum):
    SETTING = "ICESTREAM_JARS"
    CACHE = "the cache"
    IVY = "Ivy's folder"
    MAVEN = "Maven's folder"
    FETCHED = "Maven"


class JarCopy(NamedTuple):
    """A file that could be it. `sha256` is empty where the size is wrong already."""

    path: Path
    origin: JarOrigin
    bytes: int
    sha256: str


@dataclass(frozen=True)
class JarChoice:
    """The copy to use; `refused` says of others what is wrong with them, `is_final` that nothing else may be tried."""

    copy: JarCopy | None
    refused: tuple[str, ...] = ()
    is_final: bool = False


def choose_copy(jar: PinnedJar, found: Iterable[JarCopy]) -> JarChoice:
    """`found` in the order of the table above; it is asked for no more than is needed."""
    refused: list[str] = []
    for copy in found:
        reason = fault(jar, copy)
        if not reason:
            return JarChoice(copy, tuple(refused))
        refused.append(reason)
        if copy.origin is JarOrigin.SETTING:
            return JarChoice(None, tuple(refused), is_final=True)
    return JarChoice(None, tuple(refused))


def fault(jar: PinnedJar, copy: JarCopy) -> str:
    """What is wrong with this file; empty when nothing is."""
    where = f"{copy.path} ({copy.origin})"
    if copy.bytes != jar.bytes:
        return f"{where} has {copy.bytes} bytes, {jar.file_name} has {jar.bytes}"
    if copy.sha256 != jar.sha256:
        return f"{where} is not {jar.file_name}: its SHA-256 is {copy.sha256}, that of the tested one is {jar.sha256}"
    return ""


def jar_locations(
    jar: PinnedJar, given: Iterable[Path], cache: Path, home: Path | None
) -> list[tuple[JarOrigin, Path]]:
    """Where a copy may lie. What is given is a folder, or the file itself."""
    found = [
        (JarOrigin.SETTING, one if one.suffix == ".jar" else one / jar.file_name)
        for one in given
        if one.suffix != ".jar" or one.name == jar.file_name
    ]
    found.append((JarOrigin.CACHE, cached(jar, cache)))
    if home is not None:
        for ivy in (".ivy2", ".ivy2.5.2"):  # Spark 4 has a folder of its own
            found.append((JarOrigin.IVY, home / ivy / "jars" / f"{jar.group}_{jar.file_name}"))
            found.append((JarOrigin.IVY, home / ivy / "cache" / jar.group / jar.artifact / "jars" / jar.file_name))
        folder = Path(*jar.group.split("."), jar.artifact, jar.version)
        found.append((JarOrigin.MAVEN, home / ".m2" / "repository" / folder / jar.file_name))
    return found


def cached(jar: PinnedJar, cache: Path) -> Path:
    return cache / "jars" / jar.file_name
