"""`icestream backup …` on a target that has nothing to list: a sentence, no headings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import icestream


@pytest.mark.parametrize(
    ("command", "sentence"),
    [("status", "No archive. `backup.archive.enable` makes one."), ("verify", "0 errors, 0 gaps")],
)
def test_an_empty_archive_is_a_sentence(tmp_path: Path, command: str, sentence: str) -> None:
    arguments = ("backup", "archive", command, "--to", str(tmp_path))
    ran = icestream(*arguments)
    assert (ran.code, ran.out, ran.err.strip()) == (0, "", sentence)
    assert icestream(*arguments, "--output", "json").document == []
