"""`icestream serve`: what it prints, how it stops, and with which exit code, as a process of its own."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from icestream.runtime.files import LocalDirectory
from icestream.wal.format import RECORDS_START
from icestream.wal.inspect import LogView, view_log
from tests.support.sample_logs import picture
from tests.support.secret_files import secret_file
from tests.support.serve_process import ServeProcess


def view(path: Path) -> LogView:
    directory = LocalDirectory(path)
    try:
        return view_log(directory)
    finally:
        directory.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_serve_and_leaves_a_clean_log(tmp_path: Path, number: signal.Signals) -> None:
    data_dir = tmp_path / "data"
    picture("stopped then killed").write_to(data_dir / "wal")
    with ServeProcess(data_dir) as process:
        greeting = process.greeting()
        assert process.stop(number) == (0, "stopped cleanly: the next start needs no recovery\n")
    assert greeting[0] == f"Icestream: the broker is ready ({data_dir / 'wal'}), sync mode always"
    assert "  recovered: 4 records read, checkpoint at record 5, the log ends at record 7" in greeting
    assert "  log-0000000000000003.wal was not sealed: written anew and synced" in greeting
    seen = view(data_dir / "wal")
    assert (seen.clean, seen.last_lsn, seen.damage) == (True, 7, None)


def test_the_commands_of_the_greeting_work_verbatim(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "my data") as process:
        greeting = process.greeting()
        at = greeting.index("Try, in another terminal:") + 1
        ran = [
            subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
            for command in greeting[at:-1]
        ]
    assert [(command_run.returncode, command_run.stderr) for command_run in ran] == [
        (0, ""),
        (0, "1 message\n"),
        (0, ""),
    ]
    produced, consumed, described = (command_run.stdout for command_run in ran)
    assert (produced, consumed) == ("1 message stored at offset 0\n", "0:0\t\thello\n")
    assert "1 message, " in described


def test_a_damaged_log_stops_the_start_with_file_position_and_command(tmp_path: Path) -> None:
    drawn = picture("killed often")
    path = drawn.write_to(tmp_path / "data" / "wal")
    file = drawn.logs()[1]
    content = bytearray(drawn.files[file])
    content[RECORDS_START + 8] ^= 1
    (path / file).write_bytes(content)
    with ServeProcess(tmp_path / "data") as process:
        code, out, err = process.end()
    assert (code, out) == (9, "")
    assert err.splitlines() == [
        f"icestream: {path / file} is damaged at position {RECORDS_START}: "
        "record 4 cannot be read, and the file is sealed",
        f"hint: nothing was changed; `icestream wal inspect {path}` shows the log, `icestream wal repair {path}` lists "
        "what is lost",
    ]
    assert {file.name for file in path.iterdir()} == {*drawn.files, "LOCK"}
    assert (path / file).read_bytes() == content


def test_a_second_broker_on_the_same_data_is_refused_with_the_main_reason(tmp_path: Path) -> None:
    """The error is not that a port is in use: with another port it would still not start."""
    with ServeProcess(tmp_path / "data", "--output", "json") as first:
        port = first.announcement()["http"].rpartition(":")[2]
        with ServeProcess(tmp_path / "data", "--set", f"ports.broker_http={port}") as second:
            code, out, err = second.end()
        assert (code, out) == (8, "")
        assert err.splitlines()[0] == f"icestream: another broker runs on {tmp_path / 'data'}"
        with ServeProcess(tmp_path / "other", "--set", f"ports.broker_http={port}") as third:
            code, out, err = third.end()
        assert (code, out) == (3, "")
        assert err.splitlines()[0] == f"icestream: cannot listen on 127.0.0.1:{port}: another process listens there"
        assert "--set ports.broker_http=0" in err


def test_json_output_is_one_line(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data", "--output", "json") as process:
        announcement = process.announcement()
        assert process.stop(signal.SIGTERM) == (0, "")
    assert (announcement["ready"], announcement["pid"], announcement["sync_mode"], announcement["clean_start"]) == (
        True,
        process.pid,
        "always",
        True,
    )
    assert (announcement["data_dir"], announcement["socket"]) == (
        str(tmp_path / "data"),
        str(tmp_path / "data" / "broker.sock"),
    )
    assert announcement["address"].startswith("127.0.0.1:")
    assert announcement["http"].startswith("http://127.0.0.1:")
    assert (announcement["api"], announcement["catalog"], announcement["topics"], announcement["new_gaps"]) == (
        None,
        None,
        0,
        0,
    )


def test_a_second_one_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data") as first:
        first.greeting()
        with ServeProcess(tmp_path / "data") as second:
            code, out, err = second.end()
        assert (code, out) == (8, "")
        assert err.splitlines()[0] == f"icestream: another process has {tmp_path / 'data' / 'raft'} open"
        assert first.stop(signal.SIGTERM)[0] == 0


def test_an_invalid_setting_is_refused_before_anything_is_created(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data", "--set", "storage.type=local") as process:
        code, out, err = process.end()
    assert (code, out) == (3, "")
    assert "storage.type = 'local' (flag --set): must be iceberg" in err
    assert "Traceback" not in err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("content", "fault"), [(None, "cannot be read: No such file"), ("short\n", "shorter than 16")])
def test_an_unusable_token_file_is_refused_before_anything_is_created(
    tmp_path: Path, content: str | None, fault: str
) -> None:
    """The lake process alone would need it, and would end with it again and again."""
    path = tmp_path / "tokens"
    if content is not None:
        secret_file(path, content)
    with ServeProcess(tmp_path / "data", "--set", "lake.managed=true", "--set", f"lake.token_file={path}") as process:
        code, out, err = process.end()
    assert (code, out) == (3, "")
    assert f"lake.token_file {path}" in err
    assert fault in err
    assert "hint: write one token in each line, such as `openssl rand -hex 32` makes" in err
    assert not (tmp_path / "data").exists()


def test_memory_mode_serves_and_writes_nothing(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data", "--set", "storage.type=memory") as process:
        greeting = process.greeting()
        assert process.stop(signal.SIGINT) == (0, "stopped\n")
    assert greeting[0] == "Icestream: the broker is ready (in memory), sync mode always"
    assert not any(str(tmp_path) in line for line in greeting)  # there is no local socket
    assert not (tmp_path / "data").exists()
