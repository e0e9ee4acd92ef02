"""Java programs that judge us, such as Iceberg's REST compatibility kit: fetched once by Maven, as a pom names them.

The files lie in .venv, under a digest of the pom, so that a changed pom is fetched anew and `make clean` removes them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from icestream.errors import MissingPart
from icestream.pipeline.spark_setup.spark_install import java_for_spark
from icestream.processes.pipeline_options import setup_paths
from icestream.settings import load

ROOT = Path(__file__).resolve().parents[1]
POM = ROOT / "conformance" / "pom.xml"


class Missing(Exception):
    """The kit cannot be had here; the message says why, and what to do."""


def java() -> str:
    """The Java to run it with: the one that Spark gets, found or installed as the set-up does it."""
    machine = setup_paths(load(None, os.environ, ()).settings, os.environ)
    try:
        return str(java_for_spark(machine, print) / "bin" / "java")
    except MissingPart as error:
        raise Missing(str(error)) from None


def class_path(pom: Path = POM, what: str = "Iceberg's compatibility kit (180 MB)") -> str:
    """All jars that a pom names. `what` they are, where they must be fetched first. Raises Missing."""
    return f"{jars(pom, what)}/*"


def jars(pom: Path = POM, what: str = "Iceberg's compatibility kit (180 MB)") -> Path:
    """The folder with all of them."""
    folder = ROOT / ".venv" / "kit" / hashlib.sha256(pom.read_bytes()).hexdigest()[:16]
    if not folder.is_dir():
        _fetch(pom, what, folder)
    return folder


def _fetch(pom: Path, what: str, folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Missing("there is no Maven, which fetches the kit: `apt install maven`")
    print(f"conformance: fetching {what}, once", flush=True)
    coming = folder.with_suffix(".coming")
    shutil.rmtree(coming, ignore_errors=True)
    command = [
        maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={coming}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Missing(f"Maven cannot fetch the kit:\n{(done.stdout + done.stderr)[-2000:]}")
    coming.rename(folder)
