"""Which copy of a jar is used: the first with the right size and digest. Pure; jar_files.py finds and fetches them.

order   from                                        a wrong one is
1       ICESTREAM_JARS (`pipeline.jars`)            an error, because it was put there on purpose
2       the cache directory                         replaced by a new one
3       the folders of Ivy and Maven of this user   skipped; a right one is copied into the cache
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
    """A file that may be the jar. `sha256` is empty if the size is wrong already."""

    path: Path
    origin: JarOrigin
    bytes: int
    sha256: str


@dataclass(frozen=True)
class JarChoice:
    """The copy to use; why others were refused; `is_final`: no other may be tried."""

    copy: JarCopy | None
    refused: tuple[str, ...] = ()
    is_final: bool = False


def choose_copy(jar: PinnedJar, copies: Iterable[JarCopy]) -> JarChoice:
    """`copies`: in the order of the table above; consumed only as far as needed."""
    refused: list[str] = []
    for copy in copies:
        reason = fault(jar, copy)
        if not reason:
            return JarChoice(copy, tuple(refused))
        refused.append(reason)
        # Put there on purpose: using another copy silently would hide that it is the wrong file.
        if copy.origin is JarOrigin.SETTING:
            return JarChoice(None, tuple(refused), is_final=True)
    return JarChoice(None, tuple(refused))


def fault(jar: PinnedJar, copy: JarCopy) -> str:
    """Returns what is wrong with this file; empty if it is right."""
    location = f"{copy.path} ({copy.origin})"
    if copy.bytes != jar.bytes:
        return f"{location} has {copy.bytes} bytes, {jar.file_name} has {jar.bytes}"
    if copy.sha256 != jar.sha256:
        return (
            f"{location} is not {jar.file_name}: its SHA-256 is {copy.sha256}, that of the tested one is {jar.sha256}"
        )
    return ""


def jar_locations(
    jar: PinnedJar, setting: Iterable[Path], cache: Path, home: Path | None
) -> list[tuple[JarOrigin, Path]]:
    """Returns where a copy may be. `setting`: folders, or the file itself."""
    locations = [
        (JarOrigin.SETTING, path if path.suffix == ".jar" else path / jar.file_name)
        for path in setting
        if path.suffix != ".jar" or path.name == jar.file_name
    ]
    locations.append((JarOrigin.CACHE, cached(jar, cache)))
    if home is not None:
        for ivy in (".ivy2", ".ivy2.5.2"):  # Spark 4 uses a folder of its own
            locations.append((JarOrigin.IVY, home / ivy / "jars" / f"{jar.group}_{jar.file_name}"))
            locations.append((JarOrigin.IVY, home / ivy / "cache" / jar.group / jar.artifact / "jars" / jar.file_name))
        folder = Path(*jar.group.split("."), jar.artifact, jar.version)
        locations.append((JarOrigin.MAVEN, home / ".m2" / "repository" / folder / jar.file_name))
    return locations


def cached(jar: PinnedJar, cache: Path) -> Path:
    return cache / "jars" / jar.file_name
