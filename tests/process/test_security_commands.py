"""Security on a real broker process: two inits at once, kill -9, restart; accounts, grants and sessions survive."""

from __future__ import annotations

import contextlib
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import icestream, icestream_process
from tests.support.lake_run import until
from tests.support.serve_process import ServeProcess

NOT_READY, ACCESS_DENIED, UNAUTHENTICATED = 5, 13, 15  # exit codes; not ready while the lake process starts
PASSWORD = b"correct horse battery staple\n"


def ask(data_dir: Path, *arguments: str) -> Any:
    ran = icestream("security", *arguments, "--broker", str(data_dir), "--output", "json", given=PASSWORD)
    assert ran.code == 0, ran.err
    return ran.document


def test_hazard_112_security_survives_two_inits_at_once_and_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    data_dir = tmp_path / "data"
    names = ("anna", "bert")
    with ServeProcess(data_dir) as broker:
        broker.greeting()
        with contextlib.ExitStack() as stack:
            inits = [
                stack.enter_context(icestream_process("security", "init", name, "--broker", str(data_dir)))
                for name in names
            ]
            outcomes = [process.communicate(PASSWORD.decode(), timeout=60) for process in inits]
        codes = [process.returncode for process in inits]
        assert sorted(codes) == [0, 4], outcomes
        winner = names[codes.index(0)]
        assert "already on" in outcomes[codes.index(4)][1]
        broker.stop(signal.SIGKILL)
    with ServeProcess(data_dir) as broker:
        broker.greeting()
        assert ask(data_dir, "whoami")["is_enabled"]
        assert icestream("security", "users", "list", "--broker", str(data_dir)).code != 0
        ask(data_dir, "login", winner)
        assert [user["principal"] for user in ask(data_dir, "users", "list")] == [f"user:local:{winner}"]
        ask(data_dir, "users", "create", "alice")
        ask(data_dir, "grants", "add", "alice", "read", "/default/orders")
        broker.stop(signal.SIGKILL)
    with ServeProcess(data_dir, "--set", "lake.managed=true") as broker:
        address = re.search(r"native (\S+:\d+)", "\n".join(broker.greeting()))
        assert address is not None
        check_lake_commands(data_dir, address[1], monkeypatch)
        # The login is still valid: its key is in the store, its wrapping key in the data directory.
        explained = ask(data_dir, "explain", "alice", "table-read", "/default/orders")
        assert explained["is_allowed"]
        assert "table-read" in explained["reason"]
        assert not ask(data_dir, "explain", "alice", "produce", "/default/orders")["is_allowed"]
        broker.stopped_in_order()


def check_lake_commands(data_dir: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of tables act as the login at this broker; without one they are refused, and none reports success."""
    until(lambda: icestream("verify", "--broker", str(data_dir)).code != NOT_READY)
    commands = (("lake", "namespaces"), ("lake", "tables"), ("lake", "health"), ("verify",), ("verify", "--deep"))
    for command in commands:
        ran = icestream(*command, "--broker", str(data_dir))
        assert ran.code == 0, (command, ran.err)
    absent = icestream("lake", "describe", "/default/absent", "--broker", str(data_dir))
    assert "there is no topic /default/absent" in absent.err
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("XDG_CONFIG_HOME", str(data_dir / "no-login"))
        for command in commands:
            # The broker itself refuses to tell its settings; at an address its lake process refuses.
            for where, code in ((str(data_dir), UNAUTHENTICATED), (address, ACCESS_DENIED)):
                ran = icestream(*command, "--broker", where)
                assert (ran.code, ran.out) == (code, ""), (command, where, ran.err)
                assert "needs a credential" in ran.err
