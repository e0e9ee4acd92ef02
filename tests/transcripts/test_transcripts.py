"""What dispatchers answer, as text (tests/support/transcript.py)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.transcript import replay

FILES = sorted(Path(__file__).parent.glob("*.txt"))
REWRITE = "REWRITE_TRANSCRIPTS"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_dispatcher_still_answers_like_this(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = replay(text)
    if os.environ.get(REWRITE):
        path.write_text(found, encoding="utf-8")
    else:
        assert found == text, (
            f"{path.name} tells another story; {REWRITE}=1 writes it anew, the diff shows what changed"
        )


def test_there_are_enough_transcripts() -> None:
    assert len(FILES) >= 12


def test_a_wrong_line_of_a_transcript_is_detected() -> None:
    text = "open exclusive\njoin a credit=2\npublish 3\n----\ndeliver a 0-1\n"
    assert replay(text) == text
    assert replay(text.replace("0-1", "0-2")) == text
