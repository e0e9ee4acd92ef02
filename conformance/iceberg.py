"""Iceberg's compatibility kit against a fresh broker with its lake process.

The kit names tables in `file:/tmp/…`, so the catalog of this run may use that folder too, and no other one. It refuses
to start where its namespaces exist already, hence the fresh directory. A failure is printed as the kit tells it.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from conformance.kit import class_path, java
from tests.support.lake_run import LakeRun

PACKAGE: Final = "org.apache.iceberg.rest"
# What must pass, and nothing may fail: as many as Iceberg's own server passes, and one that needs namespaces to exist.
WANTED: Final = {"RESTCompatibilityKitCatalogTests": 95, "RESTCompatibilityKitViewCatalogTests": 50}
SECONDS_MAX: Final = 900


def main() -> bool:
    """True if as many cases passed as are wanted, and none failed. Raises Missing."""
    with tempfile.TemporaryDirectory(prefix="icestream-conformance-") as folder:
        found = run(Path(folder))
    return judge(found)


def run(folder: Path) -> dict[str, Counter[str]]:
    options = ("--set", 'lake.table_roots=["file:/tmp"]')
    with LakeRun(folder / "data", *options) as broker:
        broker.until_api()
        command = [
            java(), "-Drck.local=false", f"-Duri=http://127.0.0.1:{broker.lake_port}",
            "-Drck.requires-namespace-create=true", "-cp", class_path(),
            "org.junit.platform.console.ConsoleLauncher", "execute", "--disable-banner", "--disable-ansi-colors",
            "--details=summary", f"--reports-dir={folder / 'reports'}",
            *(f"--select-class={PACKAGE}.{name}" for name in WANTED),
        ]  # fmt: skip
        print(f"conformance: running Iceberg's compatibility kit against port {broker.lake_port}", flush=True)
        done = subprocess.run(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS_MAX, check=False
        )
    if done.returncode != 0:
        print(done.stdout.decode("utf-8", "replace"))
    return counted(folder / "reports" / "TEST-junit-jupiter.xml")


def counted(report: Path) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {name: Counter() for name in WANTED}
    if report.is_file():
        for case in ElementTree.parse(report).iter("testcase"):
            bad = case.find("failure") is not None or case.find("error") is not None
            outcome = "failed" if bad else "skipped" if case.find("skipped") is not None else "passed"
            found[str(case.get("classname")).rsplit(".", 1)[-1]][outcome] += 1
    return found


def judge(found: dict[str, Counter[str]]) -> bool:
    is_good = True
    for name, wanted in WANTED.items():
        one = found[name]
        print(
            f"{name}: {one['passed']} passed, {one['failed']} failed, {one['skipped']} skipped (at least {wanted}, 0)"
        )
        is_good = is_good and one["passed"] >= wanted and not one["failed"]
    return is_good
