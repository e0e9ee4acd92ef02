"""Problems of settings: which key, which value, what is allowed, and where the value came from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from icestream.errors import ConfigurationError
from icestream.settings.keys import SECRET_MASK, Key

# A value in a message is there to be recognised, not to be read in full.
_SHOWN_CHARACTERS_MAX: Final = 100
_CREDENTIALS = re.compile(r"//[^/@\s]*@")


@dataclass(frozen=True)
class Origin:
    """Where a value came from."""

    kind: Literal["default", "file", "env", "flag", "stored"]
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.detail}" if self.detail else self.kind


DEFAULT: Final = Origin("default")


@dataclass(frozen=True)
class SettingProblem:
    """One setting (or line) that cannot be used."""

    path: str
    message: str
    origin: Origin = DEFAULT
    value: str = ""
    hint: str = ""

    def __str__(self) -> str:
        if not self.path:
            return f"{self.origin.detail}: {self.message}"
        subject = f"{self.path} = {self.value}" if self.value else self.path
        where = f" ({self.origin})" if self.origin != DEFAULT else ""
        return f"{subject}{where}: {self.message}"


def shown(value: object, key: Key | None = None) -> str:
    """A value as a message may show it: short, on one line, without control characters and credentials."""
    if key is not None and key.secret:
        return SECRET_MASK
    # Cut before repr: nested YAML aliases could expand to gigabytes.
    text = ascii(value[:_SHOWN_CHARACTERS_MAX]) if isinstance(value, str) else repr(value)
    return _CREDENTIALS.sub(f"//{SECRET_MASK}@", text)[: _SHOWN_CHARACTERS_MAX + 2]


def refusal(problems: Sequence[SettingProblem]) -> ConfigurationError:
    """One error for all problems, so that an operator can fix them at once."""
    if len(problems) == 1:
        (problem,) = problems
        return ConfigurationError(str(problem), hint=problem.hint or "`icestream config reference` lists every key")
    lines = [f"  - {problem}" + (f" ({problem.hint})" if problem.hint else "") for problem in problems]
    return ConfigurationError(
        "\n".join([f"{len(problems)} settings cannot be used:", *lines]),
        hint="`icestream config reference` lists every key with its default",
    )
