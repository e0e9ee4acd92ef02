"""Names of tables on the command line: levels with dots between them, and a way to write a dot in a level."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.cli.table_name import format_levels, parse_levels, parse_table


@given(st.lists(st.text(st.sampled_from("a.\\/ä "), min_size=1), min_size=1, max_size=5))
def test_a_shown_name_parses_to_the_same_levels(levels: list[str]) -> None:
    assert parse_levels(format_levels(levels)) == tuple(levels)


def test_a_table_has_a_namespace() -> None:
    assert parse_table("a.b\\.c.t") == (("a", "b.c"), "t")
    with pytest.raises(errors.InvalidInput, match="lacks a namespace"):
        parse_table("orders")


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "a\\"])
def test_an_empty_level_is_invalid(text: str) -> None:
    with pytest.raises(errors.InvalidInput, match="not a valid table or namespace name"):
        parse_levels(text)
