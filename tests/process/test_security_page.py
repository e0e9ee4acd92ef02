"""docs/security.md word for word, at a real broker with TLS: its commands, a client with the token that they print, and
curl with a certificate at every HTTP port. What was secret in it is in no log message, metric, audit event or check."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import icestream
from icestream import errors
from tests.support.certificates import Certificates
from tests.support.command_line import CommandResult
from tests.support.command_line import icestream as command
from tests.support.curl import CurlAnswer, curl, ports_of
from tests.support.lake_run import until
from tests.support.secret_files import secret_file
from tests.support.serve_process import ServeProcess
from tests.tidy.tree import ROOT
from tests.unit.cli.test_commands import shown, words

PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
FIRST, *OTHERS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
FIVE = shown(f"```sh\n{FIRST}```")
LATER = [line for block in OTHERS for line in shown(f"```sh\n{block}```") if line.startswith("icestream security")]
PASSWORD = "correct horse battery staple"
CERTIFICATE = "certificate:lake:client.test"


def run(line: str, given: bytes = b"") -> CommandResult:
    ran = command(*words(line), given=given)
    assert ran.code == 0, (line, ran.err)
    return ran


class ApiAdministrator:
    """The administrator by HTTP alone, with a token of `POST /api/v1/security/login`."""

    def __init__(self, pem: Certificates, port: int) -> None:
        self._pem, self._port = pem, port
        self.token = ""
        self.log_in()

    def log_in(self) -> None:
        self.token = ""
        self.token = self.ask("POST", "login", {"name": "admin", "password": PASSWORD})["token"]

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        options = ["-X", method, "-H", "content-type: application/json"]
        options += ["-H", f"authorization: Bearer {self.token}"] if self.token else []
        options += ["--data", json.dumps(body)] if body is not None else []
        answer = curl(self._pem, self._port, f"/api/v1/security/{path}", *options)
        assert 200 <= answer.status < 300, (method, path, answer.text)
        return answer.document if answer.status != 204 else None


@pytest.mark.timeout(120)
def test_the_commands_of_the_page_and_its_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ICESTREAM_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    password = tmp_path / "admin.password"
    password.touch(0o600)
    password.write_text(f"{PASSWORD}\n")
    pem = Certificates(tmp_path / "pem")
    config = tmp_path / "broker.yml"
    config.write_text(f"tls: {json.dumps(pem.settings('optional'))}\n")
    with ServeProcess(tmp_path / "data", "--config", str(config), "--set", "lake.managed=true") as broker:
        greeting = "\n".join(broker.greeting())
        native = re.search(r"native (127\.0\.0\.1:\d+)", greeting)
        assert native is not None
        assert f"produce /default/hello --broker {tmp_path / 'data'}\n" in greeting, "not by address: it has TLS"
        http_port, lake = ports_of(pem, greeting)

        assert len(FIVE) == 5, "five commands to a secured broker"
        token = re.findall(r"^token +(\S+)$", [run(line).out for line in FIVE][-1], re.MULTILINE)[0]
        for line in ("icestream namespace create shop", "icestream topic create /shop/orders"):
            run(line)
        check_commands(native[1], pem, monkeypatch)
        with icestream.connect_sync(native[1], token=token, tls=pem.client_tls()) as client:
            with client.producer("/shop/orders") as producer:
                producer.send(b"secured")
            with pytest.raises(errors.PermissionDenied, match="may not consume"):
                client.subscribe("/shop/orders", "s")
        with (
            icestream.connect_sync(native[1], tls=pem.client_tls()) as stranger,
            pytest.raises(errors.Unauthenticated),
        ):
            stranger.producer("/shop/orders")

        run("icestream security users create alice --password-file admin.password")
        explained = [run(line).out for line in LATER if line not in FIVE]
        assert any(out.startswith("allowed: ") for out in explained)
        administrator = ApiAdministrator(pem, lake)
        check_certificates(pem, lake, http_port, administrator)
        check_routes(administrator)

        run("icestream security login admin --password-file admin.password")  # its token was of the former key
        secrets = (token, administrator.token, PASSWORD)
        outputs = {
            "audit": audited(native[1], administrator.token, pem),
            "doctor": command("doctor", "--output", "json", "--set", f"ports.broker_http={http_port}").out,
            "metrics": curl(pem, http_port, "/metrics", "-H", f"authorization: Bearer {administrator.token}").text,
            "settings": run("icestream config show").out,
        }
        assert " 200 OK" in outputs["metrics"]
        outputs["log messages"] = broker.stop(15)[1]
    for place, text in outputs.items():
        for secret in secrets:
            assert secret not in text, f"{place} shows a secret"


def check_commands(address: str, pem: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages by commands: beside the broker its certificate is known, elsewhere variables name the authority."""
    run("icestream produce /shop/orders", given=b"beside it\n")
    monkeypatch.setenv("ICESTREAM_TOKEN_FILE", "admin.token")
    ran = run("icestream security login admin --password-file admin.password --output json")
    secret_file(Path("admin.token"), Path(ran.document["file"]).read_bytes())
    there = f"--broker {address}"
    refused = command(*words(f"icestream produce /shop/orders {there}"), given=b"in plain text\n")
    assert "ICESTREAM_CA_FILE" in refused.err
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("ICESTREAM_CA_FILE", str(pem.client_ca))
        assert "certificate is not accepted" in command(*words(f"icestream consume /shop/orders {there}")).err
        elsewhere.setenv("ICESTREAM_CA_FILE", str(pem.ca))
        run(f"icestream produce /shop/orders {there}", given=b"from elsewhere\n")
        assert "from elsewhere" in run(f"icestream consume /shop/orders --count 2 {there}").out
    monkeypatch.delenv("ICESTREAM_TOKEN_FILE")
    assert "beside it" in run("icestream consume /shop/orders --count 2").out
    assert "https://127.0.0.1" in run("icestream context show").out


def audited(address: str, token: str, pem: Certificates) -> str:
    """The first events of the audit, which the commands above have made."""
    events = []
    with (
        icestream.connect_sync(address, token=token, tls=pem.client_tls()) as client,
        client.subscribe("/system/audit", "page", start="earliest") as messages,
    ):
        for message in messages:
            events.append(bytes(message.payload).decode())
            if len(events) == 20:
                return "\n".join(events)
    raise AssertionError("the audit ended")


def check_certificates(pem: Certificates, lake: int, http_port: int, administrator: ApiAdministrator) -> None:
    """A certificate is a principal at API, catalog, health and metrics; its right ends with its grant."""
    shown = ("--cert", str(pem.client), "--key", str(pem.client.with_suffix(".key")))

    def get(path: str, *options: str, port: int = lake) -> CurlAnswer:
        return curl(pem, port, path, *shown, *options)

    bearer = ("-H", f"authorization: Bearer {administrator.token}")
    raw = ("-H", "content-type: application/json", "--data", '{"namespace": ["raw"], "properties": {}}')
    assert curl(pem, lake, "/v1/namespaces", *bearer, *raw).status == 200
    assert get("/api/v1/security/whoami").document["principal"] == CERTIFICATE
    assert get("/api/v1/topics").document["items"] == []
    assert get("/v1/namespaces").document["namespaces"] == []
    grant = administrator.ask("POST", "grants", {"principal": CERTIFICATE, "actions": ["read"], "resource": "/shop/*"})
    assert [topic["topic"] for topic in get("/api/v1/topics").document["items"]] == ["/shop/orders"]
    administrator.ask(
        "POST", "grants", {"principal": CERTIFICATE, "actions": ["describe"], "resource": "namespace:/raw"}
    )
    assert get("/v1/namespaces").document["namespaces"] == [["raw"]]
    # Hazard 123: a browser shows its certificate also for a page of somebody else.
    forged = get("/api/v1/security/whoami", "-H", "origin: https://evil.example")
    assert forged.document["principal"] == "anonymous"
    # A token comes first, and an invalid one is no reason to look further.
    assert get("/api/v1/security/whoami", *bearer).document["principal"] == "user:local:admin"
    assert get("/api/v1/topics", "-H", "authorization: Bearer wrong").status == 401
    administrator.ask("DELETE", f"grants/{grant['grant_id']}")
    until(lambda: get("/api/v1/topics").document["items"] == [], seconds=5)

    assert get("/metrics", port=http_port).status == 403
    administrator.ask("POST", "grants", {"principal": "certificate:http:client.test", "role": "monitor"})
    until(lambda: get("/metrics", port=http_port).status == 200, seconds=5)
    assert get("/metrics").status == 403, "at the lake process it is another principal"


def check_routes(administrator: ApiAdministrator) -> None:
    """Every route of accounts, tokens, keys, roles, grants and decisions, by way of the lake process."""
    ask = administrator.ask
    bob = "service:local:bob"
    ask("POST", "accounts", {"kind": "service", "name": "bob"})
    assert bob in [account["principal"] for account in ask("GET", "accounts")["items"]]
    ask("PATCH", f"accounts/{bob}", {"is_disabled": True})
    ask("PATCH", f"accounts/{bob}", {"is_disabled": False})
    issued = ask("POST", "tokens", {"principal": bob, "ttl_seconds": 600, "note": "nightly"})
    assert issued["token_id"] in [each["token_id"] for each in ask("GET", f"tokens?principal={bob}")["items"]]
    ask("DELETE", f"tokens/{issued['token_id']}")
    ask("DELETE", f"accounts/{bob}/tokens")
    ask("PUT", "roles/team", {"rules": [{"actions": ["read"], "resource": "/team/*"}]})
    assert "team" in [role["role"] for role in ask("GET", "roles")["items"]]
    grant = ask("POST", "grants", {"principal": bob, "role": "team"})
    asked = {"principal": bob, "action": "consume", "resource": "/team/orders"}
    assert ask("POST", "explain", asked)["is_allowed"]
    assert [each["grant_id"] for each in ask("GET", f"grants?principal={bob}")["items"]] == [grant["grant_id"]]
    ask("DELETE", f"grants/{grant['grant_id']}")
    assert not ask("POST", "explain", asked)["is_allowed"]
    ask("DELETE", "roles/team")
    ask("DELETE", f"accounts/{bob}")
    (former,) = ask("GET", "keys")["keys"]
    ask("POST", "keys")
    signing, verifying = ask("GET", "keys")["keys"]
    assert (signing["is_signing"], verifying) == (True, {**former, "is_signing": False})
    # As the page says about a leaked key: its tokens end with it, the administrator's too.
    administrator.log_in()
    ask("DELETE", f"keys/{former['key_id']}")
    assert [each["key_id"] for each in ask("GET", "keys")["keys"]] == [signing["key_id"]]
    assert ask("GET", "whoami")["is_administrator"]
