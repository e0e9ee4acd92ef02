"""`icestream wal`: what is shown of a log in every state, and that only --accept-loss changes anything."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from icestream import limits
from icestream.cli import main as command_line
from icestream.wal.format import RECORDS_START
from tests.support.sample_logs import picture
from tests.support.serve_process import ServeProcess
from tests.support.small_log import LogImage


def hint(path: Path) -> str:
    return (
        f"hint: nothing was changed; `icestream wal inspect {path}` shows the log, `icestream wal repair {path}` lists "
        "what is lost\n"
    )


class InteractiveTerminal:
    """Runs commands as the console script does, in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def run(self, *arguments: object) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        self._monkeypatch.setattr(sys, "argv", ["icestream", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            command_line.main()
        printed = self._capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, printed.out, printed.err

    def document(self, *arguments: object) -> Any:
        """The one JSON document of a command that succeeds."""
        code, out, _ = self.run(*arguments, "--output", "json")
        assert code == 0
        return json.loads(out)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> InteractiveTerminal:
    return InteractiveTerminal(monkeypatch, capsys)


def flipped(drawn: LogImage, path: Path, file: str, byte: int) -> Path:
    drawn.write_to(path)
    content = bytearray(drawn.files[file])
    content[byte] ^= 1
    (path / file).write_bytes(content)
    return path


def damaged_log(path: Path) -> Path:
    """A bad section in a file that the start reads: of LSN 4, two sections, that of topic 2 is hit."""
    drawn = picture("killed often")
    place = next(place for place in drawn.places() if place.lsn == 4 and place.key.topic_id == 2)
    return flipped(drawn, path, place.file, place.body.start)


def everything(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != "LOCK"}


# --- inspect ----------------------------------------------------------------------------------------------------------


def test_inspect_shows_an_empty_log(terminal: InteractiveTerminal, tmp_path: Path) -> None:
    (tmp_path / "LOCK").touch()
    code, out, err = terminal.run("wal", "inspect", tmp_path)
    assert (code, err) == (0, "")
    assert "checkpoint 0, last record 0, 0 producer windows" in out
    assert terminal.document("wal", "inspect", tmp_path)["files"] == []


def test_inspect_shows_files_shards_and_health(terminal: InteractiveTerminal, tmp_path: Path) -> None:
    path = picture("stopped").write_to(tmp_path)
    code, out, err = terminal.run("wal", "inspect", path, "--set", "storage.iceberg_config.wal.quota=1GiB")
    assert (code, err) == (0, "")
    assert [" ".join(line.split()) for line in out.splitlines()] == [
        "file state first record last record size used shards",
        "log-0000000000000001.wal sealed 1 3 5.5 KiB 5.5 KiB 2",
        "",
        "topic shard floor end reserved epoch declared gaps",
        "/default/a 0 0 3 3 0",
        "/default/b 3 0 3 3 0",
        "",
        "checkpoint 3, last record 3, 0 producer windows",
        "1 spare file; closed cleanly",
        "5.5 KiB used of a quota of 1.0 GiB; a topic may use 512.0 MiB",
    ]


def test_inspect_as_json_is_complete(terminal: InteractiveTerminal, tmp_path: Path) -> None:
    drawn = picture("stopped then killed")
    sets = [f"--set=storage.iceberg_config.wal.{pair}" for pair in ("quota=1000000", "topic_quota=70000")]
    seen = terminal.document("wal", "inspect", drawn.write_to(tmp_path), *sets)
    assert [file["name"] for file in seen["files"]] == drawn.logs()
    assert seen["files"][1] == {
        "name": "log-0000000000000003.wal",
        "state": "active",
        "first_lsn": 4,
        "last_lsn": 7,
        "size_bytes": 65536,
        "used_bytes": max(place.record.stop for place in drawn.places() if place.lsn == 7),
        "shards": 0,
    }
    assert seen["shards"][1] == {
        "topic_id": 2, "topic": "/default/b", "shard": 3,
        "floor": 0, "end": 7, "reserved": 7, "epoch": 0, "gaps": [],
    }  # fmt: skip
    rest = {name: value for name, value in seen.items() if name not in ("files", "shards")}
    assert rest == {
        "spare_files": 0, "checkpoint_lsn": 5, "last_lsn": 7, "producer_windows": 0, "clean": False, "damage": None,
        "sync_failed": False, "quota_bytes": 1_000_000, "topic_quota_bytes": 70_000,
        "used_bytes": sum(file["used_bytes"] for file in seen["files"] if file["state"] != "prepared"),
    }  # fmt: skip


def test_inspect_without_a_quota_shows_the_default_one(terminal: InteractiveTerminal, tmp_path: Path) -> None:
    path = picture("stopped").write_to(tmp_path)
    before = os.statvfs(path)
    seen = terminal.document("wal", "inspect", path)
    expected = min((before.f_bavail * before.f_frsize + seen["used_bytes"]) // 2, limits.NODE_QUOTA_BYTES_MAX_DEFAULT)
    assert seen["quota_bytes"] == pytest.approx(expected, rel=0.2), "others use this disk too"
    assert seen["topic_quota_bytes"] == seen["quota_bytes"] // 2


def test_inspect_shows_a_failed_sync_until_the_next_start(terminal: InteractiveTerminal, tmp_path: Path) -> None:
    path = picture("stopped then killed").write_to(tmp_path)
    assert "a sync failed" not in terminal.run("wal", "inspect", path)[1]
    (path / "sync-failed").touch()
    code, out, _ = terminal.run("wal", "inspect", path)
    assert code == 0
    assert "a sync failed during the last run: check the disk" in out
    assert terminal.document("wal", "inspect", path)["sync_failed"] is True


def test_inspect_of_a_damaged_log_shows_it_and_exits_with_9(terminal: InteractiveTerminal, tmp_path: Path) -> None:
    path = damaged_log(tmp_path)
    before = everything(path)
    code, out, err = terminal.run("wal", "inspect", path)
    file = path / "log-0000000000000006.wal"
    says = f"{file} is damaged at position {RECORDS_START}: record 4 cannot be read, and the file is sealed"
    assert (code, err) == (9, f"icestream: {says}\n{hint(path)}")
    assert "log-0000000000000006.wal  sealed" in out
    code, out, err = terminal.run("wal", "inspect", path, "--output", "json")
    assert code == 9
    assert says in json.loads(out)["damage"]
    assert everything(path) == before


def test_inspect_lists_the_records_of_a_file(terminal: InteractiveTerminal, tmp_path: Path) -> None:
    path = damaged_log(tmp_path)
    code, out, _ = terminal.run("wal", "inspect", path, "--records", 6)
    assert code == 0
    head, *rows = (line.split() for line in out.splitlines())
    assert " ".join(head) == "lsn kind position bytes sections state synced through append time us"
    assert [(row[0], row[1], row[5]) for row in rows] == [
        ("4", "data", "damaged"),
        ("5", "data", "good"),
        ("6", "data", "good"),
    ]
    records = terminal.document("wal", "inspect", path, "--records", 6)
    assert records[0]["position"] == RECORDS_START


def test_inspect_of_a_missing_file_exits_with_4(terminal: InteractiveTerminal, tmp_path: Path) -> None:
    (tmp_path / "LOCK").touch()
    code, _, err = terminal.run("wal", "inspect", tmp_path, "--records", 77)
    assert code == 4
    assert "no log file log-0000000000000077.wal" in err


@pytest.mark.parametrize("verb", ["inspect", "repair"])
def test_a_missing_directory_exits_with_4_and_is_not_created(
    terminal: InteractiveTerminal, tmp_path: Path, verb: str
) -> None:
    code, _, err = terminal.run("wal", verb, tmp_path / "nowhere")
    assert code == 4
    assert f"no log in {tmp_path / 'nowhere'}" in err
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("verb", ["inspect", "repair"])
def test_a_directory_without_a_log_is_distinguished_from_an_empty_one(
    terminal: InteractiveTerminal, tmp_path: Path, verb: str
) -> None:
    (tmp_path / "notes.txt").touch()
    code, _, err = terminal.run("wal", verb, tmp_path)
    assert (code, "start `icestream serve` once" in err) == (4, True)
    (tmp_path / "wal").mkdir()
    code, _, err = terminal.run("wal", verb, tmp_path)
    assert (code, f"did you mean {tmp_path / 'wal'}?" in err) == (4, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "wal"]


def test_without_a_directory_the_configured_one_is_used(terminal: InteractiveTerminal, tmp_path: Path) -> None:
    picture("stopped").write_to(tmp_path / "data" / "wal")
    assert terminal.document("wal", "inspect", "--set", f"data_dir={tmp_path / 'data'}")["last_lsn"] == 3
    config = tmp_path / "broker.yml"
    config.write_text(f"data_dir: {tmp_path / 'data'}\n")
    assert terminal.document("wal", "inspect", "--config", config)["last_lsn"] == 3


def test_beside_a_running_broker_inspect_works_and_repair_is_refused(
    terminal: InteractiveTerminal, tmp_path: Path
) -> None:
    path = picture("stopped then killed").write_to(tmp_path / "data" / "wal")
    with ServeProcess(tmp_path / "data") as process:
        process.greeting()
        seen = terminal.document("wal", "inspect", path)
        assert (seen["last_lsn"], seen["damage"]) == (7, None)
        assert [file["state"] for file in seen["files"]] == ["sealed", "sealed", "prepared"]
        before = everything(path)
        code, out, err = terminal.run("wal", "repair", path, "--accept-loss")
        assert (code, out) == (8, "")
        assert err.splitlines()[0] == f"icestream: another process has {path} open"
        assert everything(path) == before
        assert process.stop(signal.SIGTERM)[0] == 0


# --- repair -----------------------------------------------------------------------------------------------------------


def test_repair_of_a_healthy_log_changes_nothing(terminal: InteractiveTerminal, tmp_path: Path) -> None:
    path = picture("stopped then killed").write_to(tmp_path)
    before = everything(path)
    for flags in ((), ("--accept-loss",)):
        code, _, err = terminal.run("wal", "repair", path, *flags)
        assert (code, err) == (0, "3 files read, no damage found.\n")
        assert terminal.document("wal", "repair", path, *flags) == []
        assert everything(path) == before


def test_repair_lists_the_loss_and_changes_nothing_without_consent(
    terminal: InteractiveTerminal, tmp_path: Path
) -> None:
    path = damaged_log(tmp_path)
    before = everything(path)
    code, out, err = terminal.run("wal", "repair", path)
    assert code == 0
    assert err.splitlines() == [
        "Nothing was changed. `icestream wal repair --accept-loss` discards the listed messages and repairs the log."
    ]
    head, row = out.splitlines()
    assert " ".join(head.split()) == "file position bytes records messages lost perhaps more"
    assert row.split()[0] == "log-0000000000000006.wal"
    assert "4..4     /default/b shard 3 3..3  no" in row
    assert everything(path) == before
    (loss,) = terminal.document("wal", "repair", path)
    assert loss["messages lost"] == [{"topic": "/default/b", "topic_id": 2, "shard": 3, "start": 3, "end": 4}]
    assert (loss["records"], loss["perhaps more"]) == ([4, 4], [])
    assert everything(path) == before


def test_repair_repairs_the_log_when_the_loss_is_accepted(terminal: InteractiveTerminal, tmp_path: Path) -> None:
    path = damaged_log(tmp_path)
    before = everything(path)
    code, out, err = terminal.run("wal", "repair", path, "--accept-loss", "--output", "json")
    assert (code, len(json.loads(out))) == (0, 1)
    assert err == "Repaired; originals kept as damaged-1-log-0000000000000006.wal.\n"
    after = everything(path)
    assert after["damaged-1-log-0000000000000006.wal"] == before["log-0000000000000006.wal"]
    assert {name for name in before if before[name] != after[name]} == {"log-0000000000000006.wal"}
    seen = terminal.document("wal", "inspect", path)
    assert seen["damage"] is None
    assert seen["shards"][1]["gaps"] == [{"start": 3, "end": 4, "reason": "lost to damage of the log", "state": "lost"}]
    code, out, _ = terminal.run("wal", "inspect", path)
    assert "3..3 lost to damage of the log (lost)" in out


def test_repair_reports_unknown_losses(terminal: InteractiveTerminal, tmp_path: Path) -> None:
    """The newest file is truncated: the number of messages behind the cut is unknown. And a topic name is lost."""
    drawn = picture("killed")
    path = drawn.write_to(tmp_path)
    content = bytearray(drawn.files["log-0000000000000001.wal"][: RECORDS_START + 1000])
    content[RECORDS_START + 64 + 8] ^= 1
    (path / "log-0000000000000001.wal").write_bytes(content)
    code, out, err = terminal.run("wal", "repair", path)
    assert code == 0
    assert "from 3 (resumes at" in out
    assert "The name of topic 1 is lost; the log uses /lost/topic-1 instead." in err
    code, _, err = terminal.run("wal", "repair", path, "--accept-loss")
    assert code == 0
    assert terminal.run("wal", "inspect", path)[0] == 0


def test_repair_of_a_log_without_its_newest_file_names_topics_it_cannot_list(
    terminal: InteractiveTerminal, tmp_path: Path
) -> None:
    """All topics were new in that file: the list of lost messages is empty, and yet everything is gone."""
    path = picture("killed").write_to(tmp_path)
    (path / "log-0000000000000001.wal").unlink()
    code, out, err = terminal.run("wal", "repair", path)
    assert (code, "log-0000000000000001.wal" in out) == (0, True)
    assert "Topics created in it are not listed" in err


def test_an_interrupted_repair_is_shown_and_finished_when_the_loss_is_accepted_again(
    terminal: InteractiveTerminal, tmp_path: Path
) -> None:
    path = damaged_log(tmp_path)
    mended = path / "log-0000000000000006.wal"
    damaged = mended.read_bytes()
    terminal.run("wal", "repair", path, "--accept-loss")
    whole = everything(path)
    mended.rename(path / f"mended-{mended.name}")
    (path / f"damaged-1-{mended.name}").rename(mended)
    (path / "repair-decided").touch()
    code, _, err = terminal.run("wal", "inspect", path)
    assert (code, f"a repair of {path} was interrupted" in err) == (9, True)
    for flags, says in (((), "--accept-loss` completes it"), (("--accept-loss",), "was completed")):
        assert mended.read_bytes() == damaged
        code, _, err = terminal.run("wal", "repair", path, *flags)
        assert (code, says in err) == (0, True)
    assert everything(path) == whole
    assert terminal.run("wal", "inspect", path)[0] == 0


def test_repair_without_a_file_to_rewrite_reports_it(terminal: InteractiveTerminal, tmp_path: Path) -> None:
    drawn = picture("stopped then killed")
    path = drawn.write_to(tmp_path)
    (path / drawn.logs()[0]).unlink()
    code, _, err = terminal.run("wal", "repair", path, "--accept-loss")
    assert (code, err) == (0, "Repaired; no file had to be rewritten.\n")
    assert terminal.run("wal", "inspect", path)[0] == 0


def test_a_header_without_records_is_listed_without_them(terminal: InteractiveTerminal, tmp_path: Path) -> None:
    drawn = picture("killed")
    path = flipped(drawn, tmp_path, drawn.logs()[1], 40)
    (loss,) = terminal.document("wal", "repair", path, "--accept-loss")
    assert (loss["position"], loss["bytes"], loss["records"], loss["messages lost"]) == (0, 512, None, [])
    assert terminal.run("wal", "inspect", path)[0] == 0
