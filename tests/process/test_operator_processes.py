"""Beside accounts: the lake process and the pipeline as an operator runs them, and security over the HTTP API of a real
lake process."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import CommandResult, icestream, icestream_process
from tests.support.lake_run import request, until
from tests.support.secret_files import secret_file
from tests.support.serve_process import ServeProcess

PASSWORD = b"correct horse battery staple\n"
FREE_PORTS = ("--set", "ports.lake=0", "--set", "ports.pipeline_metrics=0")


class AdministratorCommands:
    """`icestream …` at one broker, as its administrator."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def run(self, *arguments: str) -> CommandResult:
        return icestream(*arguments, "--broker", str(self.data_dir), "--output", "json", given=PASSWORD)

    def security(self, *arguments: str) -> Any:
        ran = self.run("security", *arguments)
        assert ran.code == 0, ran.err
        return ran.document


class SecurityApi:
    """/api/v1/security of a lake process, with a token."""

    def __init__(self, port: int, token: str = "") -> None:
        self.port = port
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        status, text = request(self.port, method, f"/api/v1/security/{path}", body, self._headers)
        return status, json.loads(text)

    def made(self, method: str, path: str, body: Any = None) -> Any:
        status, document = self(method, path, body)
        assert status in (200, 201), document
        return document


@pytest.fixture
def admin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AdministratorCommands:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return AdministratorCommands(tmp_path / "data")


def _port(process: subprocess.Popen[str]) -> int:
    """The port that a process reports when it is ready."""
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    return next(int(address[1]) for line in lines if (address := re.search(r"http://127\.0\.0\.1:(\d+)/", line)))


def test_hazard_108_processes_of_an_operator_work_beside_accounts(admin: AdministratorCommands) -> None:
    serve = ("lake", "serve", "--broker", str(admin.data_dir), *FREE_PORTS, "--output", "json")
    with ServeProcess(admin.data_dir) as broker:
        broker.greeting()
        admin.security("init", "root")
        admin.security("login", "root")
        for command in (serve, ("pipeline", "run", *serve[2:])):
            refused = icestream(*command)
            assert refused.code == 3, refused.err
            assert f"icestream security process-secret {command[0]}" in refused.err
        secret_file = Path(admin.security("process-secret", "lake")["file"])
        assert secret_file.stat().st_mode & 0o777 == 0o600
        token = admin.security("tokens", "create", "root", "--days", "1")["token"]

        with icestream_process(*serve) as process:
            api = SecurityApi(_port(process), token)
            until(lambda: api("GET", "whoami")[0] == 200)
            _administer_over_http(api)
            # A new secret ends the older one; the process reads it for its next connection.
            admin.security("login", "root")
            before = secret_file.read_text()
            admin.security("process-secret", "lake")
            assert secret_file.read_text() != before
            until(lambda: api("GET", "whoami")[0] == 200)
            # It survives a restart of the broker: the file is the secret, not a run.
            broker.stop(signal.SIGKILL)
            with ServeProcess(admin.data_dir) as again:
                again.greeting()
                until(lambda: api("GET", "whoami")[0] == 200)
                _run_pipeline(admin)
                admin.security("process-secret", "lake", "--delete")
                status, problem = until(lambda: answer if (answer := api("GET", "whoami"))[0] != 200 else None)
                assert status == 503, problem
                assert "has not proved its role" in until(
                    lambda: text if "role" in (text := api("GET", "whoami")[1]["detail"]) else ""
                )
                again.stopped_in_order()


def _run_pipeline(admin: AdministratorCommands) -> None:
    admin.security("process-secret", "pipeline")
    arguments = ("pipeline", "run", "--broker", str(admin.data_dir), *FREE_PORTS, "--output", "json")
    with icestream_process(*arguments) as process:
        _port(process)
        until(lambda: admin.run("pipeline", "status").code == 0)  # it has a lease and reports


def _administer_over_http(api: SecurityApi) -> None:
    anonymous = SecurityApi(api.port)
    assert api.made("GET", "whoami")["is_administrator"]
    assert anonymous.made("GET", "whoami")["principal"] == "anonymous"
    for method, path in (("GET", "accounts"), ("GET", "grants"), ("POST", "keys"), ("GET", "roles")):
        status, problem = anonymous(method, path)
        assert (status, "admin" in problem["detail"]) == (401, True), problem

    made = api.made("POST", "accounts", {"kind": "service", "name": "ingest"})
    principal = made["principal"]
    api.made("PUT", "roles/shop", {"rules": [{"actions": ["write"], "resource": "/shop/*"}]})
    grant = api.made("POST", "grants", {"principal": principal, "role": "shop"})
    issued = api.made("POST", "tokens", {"principal": principal, "ttl_seconds": 3600})
    ingest = SecurityApi(api.port, issued["token"])
    assert ingest.made("GET", "whoami")["grants"] == ["shop"]
    question = {"principal": principal, "action": "produce", "resource": "/shop/orders"}
    allowed = ingest.made("POST", "explain", question)
    assert (allowed["is_allowed"], "shop" in allowed["reason"]) == (True, True)
    denied = api.made("POST", "explain", {**question, "action": "consume"})
    assert not denied["is_allowed"]
    status, problem = ingest("POST", "grants", {"principal": principal, "role": "admin"})
    assert status == 403
    assert f"{principal} may not admin on cluster: no rule of" in problem["detail"]
    assert issued["token"] not in json.dumps(problem)
    api.made("DELETE", f"grants/{grant['grant_id']}")
    assert not ingest.made("POST", "explain", question)["is_allowed"]

    # Revoked: the next request is refused, also on the connection and session of before.
    api.made("DELETE", f"tokens/{issued['token_id']}")
    assert ingest("GET", "whoami")[0] == 401
    # A removed key ends what it signed, the login of the administrator included.
    second = api.made("POST", "tokens", {"principal": principal, "ttl_seconds": 3600})
    (old,) = api.made("GET", "keys")["keys"]
    rotated = api.made("POST", "keys")["key_ids"]
    assert rotated[1:] == [old["key_id"]]
    assert SecurityApi(api.port, second["token"])("GET", "whoami")[0] == 200
    newer = SecurityApi(api.port, api.made("POST", "tokens", {"principal": "root", "ttl_seconds": 3600})["token"])
    assert newer.made("DELETE", f"keys/{old['key_id']}")["key_ids"] == rotated[:1]
    assert SecurityApi(api.port, second["token"])("GET", "whoami")[0] == 401
    assert api("GET", "whoami")[0] == 401
    api._headers.update(newer._headers)


def test_hazard_112_tokens_of_the_settings_are_refused_beside_accounts_at_the_start(
    admin: AdministratorCommands,
) -> None:
    tokens = secret_file(admin.data_dir.parent / "tokens", "a-token-of-at-least-thirty-two-bytes\n")
    setting = ("--set", f"lake.token_file={tokens}")
    with ServeProcess(admin.data_dir, *setting) as broker:
        broker.greeting()
        refused = admin.run("security", "init", "root")
        assert "remove lake.token_file" in refused.err
        broker.stopped_in_order()
    with ServeProcess(admin.data_dir) as broker:
        broker.greeting()
        admin.security("init", "root")
        refused = icestream("lake", "serve", "--broker", str(admin.data_dir), *FREE_PORTS, *setting)
        assert "remove lake.token_file" in refused.err
        broker.stopped_in_order()
    with ServeProcess(admin.data_dir, *setting) as broker:
        code, _, err = broker.end()
        assert code == 3
        assert "lake.token_file is set, and this broker has accounts" in err
        assert "icestream security tokens create" in err
