"""A private PostgreSQL on loopback, where one is installed: its own directory, port and user, gone at the end.

PostgreSQL refuses to run as root, so there it runs as another account of the machine.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.free_ports import free_ports

USER, PASSWORD, DATABASE = "icestream", "hunter2-of-the-test", "catalog"
WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class Postgres:
    port: int

    @property
    def uri(self) -> str:
        return f"postgresql://127.0.0.1:{self.port}/{DATABASE}"


def binaries() -> Path | None:
    """The directory with `initdb` and `postgres`: the newest that is installed."""
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name, reverse=True):
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path and shutil.which("postgres") else None


def missing() -> str:
    """Why there is none; empty when there is one."""
    if binaries() is None:
        return "PostgreSQL is not installed: apt install postgresql"
    if os.geteuid() == 0 and _account() is None:
        return "PostgreSQL does not run as root, and there is no account `postgres` or `nobody`"
    return ""


def _account() -> pwd.struct_passwd | None:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


@contextmanager
def postgres(folder: Path) -> Iterator[Postgres]:
    bin_folder = binaries()
    assert bin_folder is not None
    as_user: dict[str, int] = {}
    if os.geteuid() == 0:
        account = _account()
        assert account is not None
        as_user = {"user": account.pw_uid, "group": account.pw_gid}
        os.chown(folder, account.pw_uid, account.pw_gid)
    data, password = folder / "data", folder / "password"
    password.write_text(PASSWORD)
    password.chmod(0o644)
    where = {"LC_ALL": "C", "PATH": os.defpath, "HOME": str(folder), "TZ": "UTC"}
    subprocess.run(
        [bin_folder / "initdb", "-D", data, "-U", USER, f"--pwfile={password}", "-A", "scram-sha-256", "-N",
         "--no-instructions", "-E", "UTF8"],
        check=True, capture_output=True, env=where, cwd=folder, **as_user,
    )  # fmt: skip
    (port,) = free_ports(1)
    with (folder / "postgres.log").open("wb") as log:
        process = subprocess.Popen(
            [bin_folder / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", "", "-F",
             "-c", "shared_buffers=16MB", "-c", "max_connections=64"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=where, cwd=folder, **as_user,
        )  # fmt: skip
    try:
        _create_database(process, port, folder / "postgres.log")
        yield Postgres(port)
    finally:
        process.send_signal(signal.SIGINT)  # at once, also with open connections
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _create_database(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    import psycopg

    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        assert process.poll() is None, log.read_text(errors="replace")
        try:
            with psycopg.connect(
                host="127.0.0.1", port=port, user=USER, password=PASSWORD, dbname="postgres", autocommit=True
            ) as connection:
                connection.execute(f"CREATE DATABASE {DATABASE}")
                return
        except psycopg.OperationalError:
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(0.05)
