"""Brokers that tests start: forks find everything loaded, and none is silent for ever."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from tests.support.fork_server import ForkServer, fork_server
from tests.support.serve_process import READY, SMALL, WAIT_SECONDS, ServeProcess


def test_a_forked_broker_has_everything_loaded(tmp_path: Path) -> None:
    words = ("serve", "--set", f"data_dir={tmp_path / 'data'}", *SMALL)
    process = fork_server().start("tests.support.loaded_modules:call", words, tmp_path)
    assert any(line == f"{READY}\n" for line in process.stdout), process.stderr.read()
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(WAIT_SECONDS)
    assert json.loads(printed.splitlines()[-1]) == []


def test_a_process_that_has_ended_unheard_can_be_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server has seen its end already, so its pid is free; the message about the end is on the way."""
    process = fork_server().start("builtins:dict", [], tmp_path)
    process.wait()
    with monkeypatch.context() as patch:
        patch.setattr(process, "poll", lambda: None)
        process.kill_group()
    process.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_reused_process_id_has_not_ended(tmp_path: Path) -> None:
    """Threads take ids, too, so they come round within one run of all tests."""
    server = ForkServer(native=False)
    highest = int(Path("/proc/sys/kernel/pid_max").read_text())
    server._ended.update(dict.fromkeys(range(1, min(highest, 5_000_000)), 0))
    with contextlib.closing(server):
        process = server.start("builtins:input", [], tmp_path)
        assert process.poll() is None
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("is_fork", [True, False])
def test_a_broker_that_never_gets_ready_is_ended_with_the_reason(tmp_path: Path, *, is_fork: bool) -> None:
    """Its settings file is a pipe without a writer."""
    settings = tmp_path / "settings.yml"
    os.mkfifo(settings)
    with (
        ServeProcess(tmp_path / "data", "--config", str(settings), is_fork=is_fork) as process,
        settings.open("wb"),  # there when it reads
        pytest.raises(AssertionError, match=r"(?s)Fatal Python error: Aborted.*load_settings"),
    ):
        process.greeting(silent_seconds=0)
