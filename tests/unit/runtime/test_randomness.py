"""Randomness: system tokens never repeat, seeded tokens repeat with their seed."""

from __future__ import annotations

from icestream.runtime.randomness import SeededRandomness, SystemRandomness


def test_system_tokens_are_never_the_same() -> None:
    tokens = {SystemRandomness().token(16) for _ in range(100)}
    assert len(tokens) == 100
    assert {len(token) for token in tokens} == {16}


def test_the_same_seed_gives_the_same_tokens() -> None:
    same, two, other = SeededRandomness(1), SeededRandomness(1), SeededRandomness(2)
    first = [same.token(size) for size in (16, 8, 0, 5)]
    assert first == [two.token(size) for size in (16, 8, 0, 5)]
    assert [len(token) for token in first] == [16, 8, 0, 5]
    assert other.token(16) != first[0]
