"""Contexts: names for brokers, kept in `icestream/contexts.json` below XDG_CONFIG_HOME, or ~/.config.

    {"current": "production", "contexts": {"production": {"broker": "10.0.0.1:6651", "token_file": null}}}

The file is replaced as a whole, and readable by its account only. A file that is no such document is an error with its
path: it is never taken for "no contexts", because a command would then ask another broker than the one that is meant.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from icestream import errors, limits

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class Context:
    """`broker`: an address or an absolute path. `token_file`: holds the token of the broker's API and catalog."""

    name: str
    broker: str
    token_file: str | None = None


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts by name, and which one is in use (None: none)."""

    entries: Mapping[str, Context] = field(default_factory=dict)
    current: str | None = None

    def get(self, name: str) -> Context:
        """Raises InvalidInput for a name that is not there."""
        if name not in self.entries:
            names = ", ".join(sorted(self.entries)) or "none yet"
            raise errors.InvalidInput(
                f"there is no context {name!r}", hint=f"there are: {names}; `icestream context add` makes one"
            )
        return self.entries[name]

    def with_entry(self, context: Context) -> Contexts:
        """Raises InvalidInput for a name that is none, or for too many contexts."""
        if not _NAME.fullmatch(context.name) or len(context.name) > limits.CONTEXT_NAME_CHARACTERS_MAX:
            raise errors.InvalidInput(
                f"{context.name!r} cannot be the name of a context",
                hint="letters, digits, dots, dashes and underscores, such as production",
            )
        if context.name not in self.entries and len(self.entries) >= limits.CONTEXTS_MAX:
            raise errors.InvalidInput(
                f"there are {limits.CONTEXTS_MAX} contexts already", hint="`icestream context remove` makes room"
            )
        return replace(self, entries={**self.entries, context.name: context})

    def without(self, name: str) -> Contexts:
        self.get(name)
        left = {key: entry for key, entry in self.entries.items() if key != name}
        return Contexts(left, None if self.current == name else self.current)

    def using(self, name: str | None) -> Contexts:
        if name is not None:
            self.get(name)
        return replace(self, current=name)


def contexts_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "icestream" / "contexts.json"


def read_contexts(path: Path | None = None) -> Contexts:
    """Empty where there is no file. Raises ConfigurationError where it cannot be read or is no such document."""
    path = path or contexts_file()
    try:
        with path.open("rb") as file:
            raw = file.read(limits.CONTEXTS_FILE_BYTES_MAX + 1)
        if len(raw) > limits.CONTEXTS_FILE_BYTES_MAX:
            raise ValueError(f"it is larger than {limits.CONTEXTS_FILE_BYTES_MAX} bytes")
        return _decoded(json.loads(raw))
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise errors.ConfigurationError(
            f"the contexts in {path} cannot be read: {error}",
            hint=f"mend or remove {path}; `icestream context add` writes it anew",
        ) from None


def write_contexts(contexts: Contexts, path: Path | None = None) -> Path:
    """Replaces the file. Raises ConfigurationError."""
    path = path or contexts_file()
    entries = {
        name: {"broker": entry.broker, "token_file": entry.token_file}
        for name, entry in sorted(contexts.entries.items())
    }
    text = json.dumps({"current": contexts.current, "contexts": entries}, indent=2) + "\n"
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE), "w", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise errors.ConfigurationError(
            f"the contexts cannot be written to {path}: {error.strerror or error}",
            hint="is the directory yours? XDG_CONFIG_HOME names another one",
        ) from None
    return path


def _decoded(document: dict[str, object]) -> Contexts:
    """Raises ValueError and what a document of another shape gives."""
    entries = {}
    named = document["contexts"]
    if not isinstance(named, dict):
        raise TypeError("`contexts` is no object")
    for name, entry in named.items():
        broker, token_file = entry["broker"], entry.get("token_file")
        if not isinstance(broker, str) or not isinstance(token_file, str | None):
            raise TypeError(f"context {name!r} is not of the form that `icestream context add` writes")
        entries[str(name)] = Context(str(name), broker, token_file)
    current = document.get("current")
    if current is not None and current not in entries:
        raise ValueError(f"the context in use, {current!r}, is not in it")
    return Contexts(entries, None if current is None else str(current))
