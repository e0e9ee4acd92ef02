"""The base of all sections of the settings tree: frozen, without unknown keys, checked by its own rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator

# Marks of a field, read by keys.py: it may take a new value without a restart; its default follows from other keys.
ONLINE: dict[str, Any] = {"online": True}


def derived(words: str) -> dict[str, Any]:
    """Marks a key whose default follows from other keys (derive.py); the reference shows the words."""
    return {"derived": words}


@dataclass(frozen=True)
class Broken:
    """A rule between keys that does not hold; the keys are relative to the section that owns the rule."""

    keys: tuple[str, ...]
    message: str
    hint: str


class BrokenRules(ValueError):
    """Carries all broken rules of one section through pydantic, which takes one exception per validator.

    Not a part of the tree in errors.py: load.py unpacks it, and no other module sees it.
    """

    def __init__(self, broken: tuple[Broken, ...]) -> None:
        super().__init__("; ".join(f"{rule.message} ({rule.hint})" for rule in broken))
        self.broken = broken


class Section(BaseModel):
    """Base of the tree. Inputs stay out of pydantic's own messages, because an input may be a secret."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=False)

    def broken_rules(self) -> Iterable[Broken]:
        """The broken rules between keys of this section; called when every single key is valid."""
        return ()

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        broken = tuple(self.broken_rules())
        if broken:
            raise BrokenRules(broken)
        return self
