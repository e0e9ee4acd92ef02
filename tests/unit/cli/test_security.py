"""`icestream security` against a broker: from `init` to users, grants, tokens and explanations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from icestream import errors, testing
from icestream.security import security_records as records
from icestream.security.resource import CLUSTER
from tests.support.command_line import CommandResult, icestream
from tests.support.secret_files import secret_file
from tests.unit.cli.test_commands import SHOWN, words

PASSWORD = b"correct horse battery staple\n"


class AdministeredBroker:
    """A broker with security on, and commands of its administrator."""

    def __init__(self, test_broker: testing.TestBroker) -> None:
        self.node = test_broker.node
        self.local = ("--broker", str(test_broker.node.settings.local_socket))

    def run(self, *arguments: str, given: bytes = PASSWORD) -> CommandResult:
        return icestream("security", *arguments, *self.local, given=given)

    def ask(self, *arguments: str, given: bytes = PASSWORD) -> Any:
        """The JSON document of a command that must succeed."""
        ran = self.run(*arguments, "--output", "json", given=given)
        assert ran.code == 0, ran.err
        return ran.document


@pytest.fixture
def open_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AdministeredBroker]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ICESTREAM_TOKEN_FILE", raising=False)
    with testing.broker(storage="disk") as test_broker:
        yield AdministeredBroker(test_broker)


@pytest.fixture
def broker(open_broker: AdministeredBroker) -> AdministeredBroker:
    open_broker.ask("init", "admin")
    open_broker.ask("login", "admin")
    return open_broker


def test_init_prints_what_to_do_next_and_works_once(open_broker: AdministeredBroker) -> None:
    assert open_broker.ask("whoami")["is_enabled"] is False
    assert open_broker.run("users", "list").code == 4
    ran = open_broker.run("init", "admin")
    assert ran.code == 0, ran.err
    assert "security login admin" in ran.out
    assert "already on" in open_broker.run("init", "eve").err
    assert open_broker.ask("whoami") | {"grants": []} == {
        "is_enabled": True,
        "principal": "anonymous",
        "roles": [],
        "grants": [],
        "is_administrator": False,
        "token_id": "",
        "expires_ms": None,
    }
    wrapping_key = open_broker.node.settings.data_dir / "security" / "wrapping.key"
    assert wrapping_key.stat().st_mode & 0o777 == 0o600


def test_without_a_login_nothing_is_shown_or_changed(open_broker: AdministeredBroker) -> None:
    open_broker.ask("init", "admin")
    for arguments in (
        ("users", "list"), ("tokens", "list"), ("roles", "list"), ("grants", "list"),
        ("users", "create", "eve"), ("users", "delete", "admin", "--yes"), ("tokens", "create", "admin"),
        ("grants", "add", "anonymous", "read", "/a/b"), ("roles", "set", "x", "--rule", "read /a/b"),
        ("tokens", "rotate-keys"), ("explain", "admin", "consume", "/a/b"), ("tokens", "revoke", "x"),
    ):  # fmt: skip
        ran = open_broker.run(*arguments, "--output", "json")
        assert json.loads(ran.err.splitlines()[-1])["error"] == errors.Unauthenticated.code, arguments
    assert "credential is not valid" in open_broker.run("login", "admin", given=b"wrong password\n").err


def test_users_grants_and_explanations(broker: AdministeredBroker) -> None:
    assert broker.ask("whoami")["principal"] == "user:local:admin"
    assert broker.ask("users", "create", "alice")["principal"] == "user:local:alice"
    denied = broker.ask("explain", "alice", "consume", "/default/orders")
    assert not denied["is_allowed"]
    assert denied["reason"] == "no rule of user:local:alice allows consume on topic:/default/orders"
    grant = broker.ask("grants", "add", "alice", "read", "/default/orders")
    allowed = broker.run("explain", "alice", "consume", "/default/orders")
    assert allowed.out.startswith(f"allowed: grant {grant['grant_id']} of user:local:alice: ")
    assert "topic:/default/orders" in allowed.out
    assert broker.ask("grants", "list", "--principal", "alice")[0]["actions"] == ["read"]
    broker.ask("roles", "set", "team", "--rule", "read,write /{claims.team}/*")
    explained = broker.ask("explain", "oidc:corp:bob", "produce", "/shop/x", "--role", "team", "--claim", "team=shop")
    assert explained["is_allowed"]
    assert "role team" in explained["reason"]
    broker.ask("grants", "add", "alice", "write", "mqtt:sensors/{claims.client_id}/#")
    of_device = ("explain", "alice", "produce", "mqtt:sensors/1/t")
    assert "would allow it too" in broker.ask(*of_device)["reason"]
    assert broker.ask(*of_device, "--claim", "client_id=1")["is_allowed"]
    broker.ask("users", "disable", "alice")
    assert "is disabled" in broker.ask("explain", "alice", "consume", "/default/orders")["reason"]
    broker.ask("users", "delete", "alice", "--yes")
    assert [user["principal"] for user in broker.ask("users", "list")] == ["user:local:admin"]
    assert broker.ask("grants", "list") == [
        entry for entry in broker.ask("grants", "list") if entry["principal"] == "user:local:admin"
    ]


def test_a_token_is_printed_once_used_listed_and_revoked(
    broker: AdministeredBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.ask("users", "create", "ingest", "--service")
    issued = broker.ask("tokens", "create", "service:local:ingest", "--days", "1", "--note", "nightly")
    token = issued["token"]
    listed = broker.run("tokens", "list", "--principal", "service:local:ingest")
    assert issued["token_id"] in listed.out
    assert "nightly" in listed.out
    assert token not in listed.out
    token_file = secret_file(tmp_path / "token", f"{token}\n")
    with monkeypatch.context() as as_ingest:
        as_ingest.setenv("ICESTREAM_TOKEN_FILE", str(token_file))
        assert broker.ask("whoami")["principal"] == "service:local:ingest"
        assert broker.run("users", "list").code != 0
        own = broker.ask("tokens", "list", "--principal", "service:local:ingest")
        assert [entry["token_id"] for entry in own] == [issued["token_id"]]
        assert not broker.ask("explain", "service:local:ingest", "produce", "/a/b")["is_allowed"]
    keys = broker.ask("tokens", "rotate-keys")["key_ids"]
    assert len(keys) == 2
    ran = broker.run("tokens", "revoke", token)
    assert token[:50] not in ran.err + ran.out, "who mistakes the token for its id does not publish it"
    broker.ask("tokens", "revoke", issued["token_id"])
    with monkeypatch.context() as as_ingest:
        as_ingest.setenv("ICESTREAM_TOKEN_FILE", str(token_file))
        ran = broker.run("whoami")
        assert "not valid" in ran.err
        assert "security login" in ran.err
        assert token not in ran.err


def test_a_new_password_ends_the_login(broker: AdministeredBroker) -> None:
    broker.ask("users", "password", "admin", given=b"another long password\n")
    assert "not valid" in broker.run("users", "list").err
    assert broker.run("login", "admin").code != 0
    broker.ask("login", "admin", given=b"another long password\n")
    assert broker.ask("whoami")["is_administrator"]


def test_recovery_by_the_owner_of_the_data_directory(broker: AdministeredBroker) -> None:
    wrapping_key = broker.node.settings.data_dir / "security" / "wrapping.key"
    wrapping_key.unlink()
    assert broker.run("recover", "carol").code == 4, "a script must pass --yes"
    broker.ask("recover", "carol", "--yes")
    broker.ask("login", "carol")
    assert broker.ask("whoami")["is_administrator"]
    assert wrapping_key.exists(), "the lost wrapping key is replaced, with new signing keys"


def test_the_commands_of_the_page_work(
    broker: AdministeredBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("admin", "alice"):
        secret_file(tmp_path / f"{name}.password", PASSWORD)
    lines = [words(line) for line in SHOWN if words(line)[0] == "security" and words(line)[1] != "init"]
    first = [line for line in lines if "create" in line or "set" in line]
    last = [line for line in lines if "delete" in line]
    order = [*first, *(line for line in lines if line not in first + last), *reversed(last)]
    for line in order:
        ran = icestream(*line, *broker.local)
        if "1f2e3d4c5b6a" in line:
            assert "there is no grant" in ran.err
        elif "remove-key" in line:
            assert "there is no signing key" in ran.err
        else:
            assert ran.code == 0, (line, ran.err)
        if line[1] == "recover":
            assert icestream("security", "login", "admin", *broker.local, given=PASSWORD).code == 0
        if line[1:3] == ["users", "enable"]:
            assert broker.ask("users", "list")


def test_a_password_on_two_lines_or_none_is_refused(open_broker: AdministeredBroker, tmp_path: Path) -> None:
    secret_file(tmp_path / "two", "one\ntwo\n")
    assert "more than one line" in open_broker.run("init", "--password-file", str(tmp_path / "two")).err
    assert "no password" in open_broker.run("init", given=b"").err
    assert "cannot read" in open_broker.run("init", "--password-file", str(tmp_path / "none")).err
    readable = secret_file(tmp_path / "readable", PASSWORD)
    readable.chmod(0o640)
    ran = open_broker.run("init", "--password-file", str(readable))
    assert "can be read by other accounts (mode 0640)" in ran.err
    assert f"hint: chmod 600 {readable}" in ran.err
    assert open_broker.ask("whoami")["is_enabled"] is False


def test_the_records_hold_no_password_and_no_key_in_clear(broker: AdministeredBroker) -> None:
    snapshot = broker.node.store.node.machine  # type: ignore[attr-defined]  # of a broker on disk
    values = b"".join(entry.value for _, entry in snapshot.page(records.SECURITY, "", 1_000))
    assert PASSWORD.strip() not in values
    assert b"seed" not in values
    assert CLUSTER.segments == ()


def test_doctor_shows_the_checks_of_a_broker_with_accounts_after_a_login(open_broker: AdministeredBroker) -> None:
    open_broker.ask("init", "admin")
    command = ("doctor", *open_broker.local, "--set", f"ports.broker_http={open_broker.node.services.http.port}")
    before = {row["check"]: row["finding"] for row in icestream(*command, "--output", "json").document}
    assert before["broker"] == "ready; its checks are shown after `icestream security login`"
    open_broker.ask("login", "admin")
    after = {row["check"]: row["finding"] for row in icestream(*command, "--output", "json").document}
    assert after["broker"].startswith("ready, ")
