"""The nursery: what it is for, which nobody would notice to be gone but by the time that tests of kills take."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.support.nursery import nursery
from tests.support.serve_process import READY, SMALL, WAIT_SECONDS


def test_a_broker_that_is_forked_finds_everything_loaded(tmp_path: Path) -> None:
    words = ("serve", "--set", f"data_dir={tmp_path / 'data'}", *SMALL)
    process = nursery().start("tests.support.loaded_modules:call", words, tmp_path)
    assert any(line == f"{READY}\n" for line in process.stdout), process.stderr.read()
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(WAIT_SECONDS)
    assert json.loads(said.splitlines()[-1]) == []
