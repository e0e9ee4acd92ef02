"""Sizes, durations and counts: what is read, what is refused, and that shown values read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.settings import units

SIZE = units.size()
MILLISECONDS = units.duration("ms")
MICROSECONDS = units.duration("us")
NUMBERS = st.one_of(
    st.integers(0, units.NUMBER_MAX),
    st.builds(lambda n, unit: n * unit, st.integers(0, 4096), st.sampled_from(list(units.SIZE_UNITS.values()))),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("100", 100),
        ("100B", 100),
        ("64MiB", 64 * 1024**2),
        ("64MB", 64_000_000),
        ("64mb", 64_000_000),
        ("64mib", 64 * 1024**2),
        ("1GiB", 1024**3),
        ("1.5GiB", 1536 * 1024**2),
        ("0.5KB", 500),
        (" 64 MiB ", 64 * 1024**2),
        (67108864, 67108864),
    ],
)
def test_sizes_that_are_read(text: object, expected: int) -> None:
    assert SIZE.read(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("100ms", 100), ("5s", 5_000), ("2m", 120_000), ("1h", 3_600_000), ("1.5s", 1_500), ("2000us", 2), (250, 250)],
)
def test_durations_that_are_read_into_the_unit_of_the_key(text: object, expected: int) -> None:
    assert MILLISECONDS.read(text) == expected


@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            "MiB",
            "64M",
            "64Mi",
            "-1",
            "-1MiB",
            "1e6",
            "0x10",
            "1_000",
            "1,5GiB",
            "0.3B",
            "64MiBB",
            "64  MiB",
            "nan",
        ),
        *("9" * 5000, "1." + "0" * 5000, "64MiB\n64MiB", "\u0666\u0664MiB", "\uff16\uff14"),
        *(True, False, None, 1.0, 1.5, [64], {"MiB": 64}, -1, 2**63),
    ],
)
def test_sizes_that_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="must be a size of at least 0B"):
        SIZE.read(value)


@pytest.mark.parametrize("value", ["5S", "5M", "1500us", "0.5ms", "5 minutes", "64MiB", "1:30", "s"])
def test_durations_that_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match="must be a duration of at least 0ms"):
        MILLISECONDS.read(value)


def test_a_count_has_no_units() -> None:
    assert units.count(0, 16).read("2") == 2
    with pytest.raises(ValueError, match="'MB' is not a unit"):
        units.count(0, 16).read("2MB")


def test_bounds_are_inclusive_and_named_in_the_message() -> None:
    quantity = units.size(1024, 4096)
    assert [quantity.read("1KiB"), quantity.read("4KiB")] == [1024, 4096]
    for outside in (1023, "4097B", 0):
        with pytest.raises(ValueError, match="must be a size from 1KiB to 4KiB"):
            quantity.read(outside)


def test_an_unknown_unit_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'M' is not a unit of it; known units: B, KiB, MiB"):
        SIZE.read("64M")


def test_a_fraction_of_a_unit_is_refused_and_not_rounded() -> None:
    with pytest.raises(ValueError, match="'1500us' is not a whole number of ms"):
        MILLISECONDS.read("1500us")


@pytest.mark.parametrize(
    ("quantity", "number", "text"),
    [
        (SIZE, 67108864, "64MiB"),
        (SIZE, 4_000_000, "4MB"),
        (SIZE, 1024, "1KiB"),
        (SIZE, 1025, "1025B"),
        (SIZE, 0, "0B"),
        (MILLISECONDS, 1000, "1s"),
        (MILLISECONDS, 1500, "1500ms"),
        (MILLISECONDS, 0, "0ms"),
        (MICROSECONDS, 1000, "1ms"),
        (units.count(), 100_000, "100000"),
    ],
)
def test_numbers_are_shown_in_their_largest_whole_unit(quantity: units.Quantity, number: int, text: str) -> None:
    assert quantity.show(number) == text


@given(NUMBERS)
def test_a_shown_number_parses_back(number: int) -> None:
    for quantity in (SIZE, MILLISECONDS, MICROSECONDS, units.count()):
        assert quantity.read(quantity.show(min(number, units.NUMBER_MAX))) == min(number, units.NUMBER_MAX)


@given(st.one_of(st.text(), st.from_regex(r"[0-9]{0,30}\.?[0-9]{0,12} ?[A-Za-z]{0,4}", fullmatch=True)))
def test_any_text_is_a_number_within_bounds_or_a_value_error(text: str) -> None:
    quantity = units.size(10, 2**40)
    try:
        number = quantity.read(text)
    except ValueError as error:
        assert str(error).startswith("must be a size from 10B to 1TiB")  # noqa: PT017 both outcomes are right
    else:
        assert 10 <= number <= 2**40
