"""Numbers, durations and foreign texts as people read them."""

from __future__ import annotations

import pytest

from icestream.observability.words import duration_text, escaped


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0.0 s"),
        (400, "0.4 s"),
        (35_000, "35 s"),
        (119_000, "119 s"),
        (720_000, "12 min"),
        (12_600_000, "3.5 h"),
        (181_440_000, "2.1 d"),
    ],
)
def test_a_duration_has_the_unit_that_fits(milliseconds: int, text: str) -> None:
    assert duration_text(milliseconds) == text


def test_an_escaped_text_has_no_character_that_steers_a_terminal() -> None:
    assert escaped("plant/ä ☃") == "plant/ä ☃"
    assert escaped("a\x1b[2J\nb\u202ec\x00") == "a\\x1b[2J\\nb\\u202ec\\x00"
