"""Danube's own suites against a fresh broker, unchanged: `python -m conformance.danube FOLDER …`, each a checkout.

    danube-go      go test                      Go
    danube-java    mvn verify                   Maven, a JDK of 21 or later
    danube-py      pytest                       the danube-client of .venv
    danube         cargo test -p danube-broker  Rust, protoc; the tests of its broker, by its client and admin tool

Of the last, what needs its cluster or its security is left out. Each suite gets a broker of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from conformance.kit import Missing
from tests.support.free_ports import free_ports
from tests.support.serve_process import ServeProcess

SECONDS_MAX: Final = 3600
NOT_HERE: Final = {"security_e2e", "reliable_topic_move_shared_fs", "test_utils"}


class Suite(NamedTuple):
    """`mark`: the file by which a checkout is known."""

    name: str
    mark: str
    command: Callable[[Path], list[str]]


def _cargo(folder: Path) -> list[str]:
    names = sorted({path.stem for path in (folder / "danube-broker" / "tests").glob("*.rs")} - NOT_HERE)
    tests = [word for name in names for word in ("--test", name)]
    return ["cargo", "test", "--no-fail-fast", "-p", "danube-broker", *tests, "--", "--test-threads=2"]


SUITES: Final = (
    Suite("danube-go", "go.mod", lambda _: ["go", "test", "./integration_tests/", "-v", "-count=1"]),
    Suite(
        "danube-java",
        "danube-client-proto/pom.xml",
        lambda _: ["mvn", "-B", "-pl", "danube-client", "-am", "verify", "-P", "integration-tests"],
    ),
    Suite("danube", "danube-broker/Cargo.toml", _cargo),
    Suite(
        "danube-py",
        "integration_tests/conftest.py",
        lambda _: [sys.executable, "-m", "pytest", "-p", "no:randomly", "-q", "integration_tests"],
    ),
)


def suite_of(folder: Path) -> Suite:
    found = next((one for one in SUITES if (folder / one.mark).is_file()), None)
    if found is None:
        raise Missing(f"{folder} is no checkout of {', '.join(one.name for one in SUITES)}")
    return found


def main(words: list[str]) -> int:
    if not words:
        sys.exit(__doc__)
    try:
        chosen = [(Path(word).resolve(), suite_of(Path(word))) for word in words]
        failed = [suite.name for folder, suite in chosen if run(folder, suite)]
    except Missing as missing:
        sys.exit(f"conformance: {missing}")
    print(f"conformance: {', '.join(failed)} failed" if failed else "conformance: all passed")
    return bool(failed)


def run(folder: Path, suite: Suite) -> int:
    """Its exit code."""
    port, admin = free_ports(2)
    options = {
        "danube.enable": "true", "ports.danube": port, "ports.danube_admin": admin,
        "storage.iceberg_config.wal.max_file_size": "64MiB", "storage.iceberg_config.wal.max_message_bytes": "4MiB",
    }  # fmt: skip
    given = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]
    with (
        tempfile.TemporaryDirectory(prefix="icestream-conformance-") as place,
        ServeProcess(Path(place) / "data", *given, "--output", "json") as broker,
    ):
        broker.announcement()
        print(f"conformance: {suite.name} against port {port}", flush=True)
        try:
            done: Any = subprocess.run(
                suite.command(folder), cwd=folder, env=_environment(port, admin), timeout=SECONDS_MAX, check=False
            )
        except FileNotFoundError as error:
            raise Missing(f"{error.filename} is not installed") from None
    return int(done.returncode)


def _environment(port: int, admin: int) -> dict[str, str]:
    url = f"http://127.0.0.1:{port}"
    return {
        **os.environ,
        "DANUBE_BROKER_URL": url,
        "DANUBE_BROKER_ENDPOINT": url,
        "DANUBE_ADMIN_ENDPOINT": f"http://127.0.0.1:{admin}",
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
