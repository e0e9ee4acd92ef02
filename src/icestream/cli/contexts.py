"""Contexts: named brokers, stored in `icestream/contexts.json` below XDG_CONFIG_HOME or ~/.config.

    {"current": "production", "contexts": {"production": {"broker": "10.0.0.1:6651", "token_file": null}}}

The file is replaced as a whole and readable by its owner only. A malformed file is an error that names its path, never
"no contexts": a command would otherwise silently talk to another broker than the one in use.
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
    """A named broker. `broker` is an address or an absolute path; `token_file` has the token of its API and catalog."""

    name: str
    broker: str
    token_file: str | None = None


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts by name, and the name of the one in use, if any."""

    entries: Mapping[str, Context] = field(default_factory=dict)
    current: str | None = None

    def get(self, name: str) -> Context:
        """The context of this name. Raises InvalidInput if there is none."""
        if name not in self.entries:
            names = ", ".join(sorted(self.entries)) or "none yet"
            raise errors.InvalidInput(
                f"unknown context {name!r}", hint=f"contexts: {names}; `icestream context add` adds one"
            )
        return self.entries[name]

    def with_entry(self, context: Context) -> Contexts:
        """A copy with this context added or replaced. Raises InvalidInput for an invalid name or too many contexts."""
        if not _NAME.fullmatch(context.name) or len(context.name) > limits.CONTEXT_NAME_CHARACTERS_MAX:
            raise errors.InvalidInput(
                f"invalid context name {context.name!r}",
                hint="use letters, digits, dots, dashes and underscores, such as production",
            )
        if context.name not in self.entries and len(self.entries) >= limits.CONTEXTS_MAX:
            raise errors.InvalidInput(
                f"too many contexts: the limit is {limits.CONTEXTS_MAX}",
                hint="`icestream context remove` removes one",
            )
        return replace(self, entries={**self.entries, context.name: context})

    def without(self, name: str) -> Contexts:
        """A copy without this context; if it was in use, none is. Raises InvalidInput for an unknown name."""
        self.get(name)
        entries = {key: entry for key, entry in self.entries.items() if key != name}
        return Contexts(entries, None if self.current == name else self.current)

    def using(self, name: str | None) -> Contexts:
        """A copy in which this context is in use; None: no context. Raises InvalidInput for an unknown name."""
        if name is not None:
            self.get(name)
        return replace(self, current=name)


def contexts_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "icestream" / "contexts.json"


def read_contexts(path: Path | None = None) -> Contexts:
    """The stored contexts; empty if there is no file. Raises ConfigurationError if it is unreadable or malformed."""
    path = path or contexts_file()
    try:
        with path.open("rb") as file:
            raw = file.read(limits.CONTEXTS_FILE_BYTES_MAX + 1)
        if len(raw) > limits.CONTEXTS_FILE_BYTES_MAX:
            raise ValueError(f"file is larger than {limits.CONTEXTS_FILE_BYTES_MAX} bytes")
        return _decoded(json.loads(raw))
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise errors.ConfigurationError(
            f"cannot read contexts from {path}: {error}",
            hint=f"correct or remove {path}; `icestream context add` writes a new one",
        ) from None


def write_contexts(contexts: Contexts, path: Path | None = None) -> Path:
    """Replaces the file and returns its path. Raises ConfigurationError."""
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
            f"cannot write contexts to {path}: {error.strerror or error}",
            hint="check the permissions of the directory, or set XDG_CONFIG_HOME to another one",
        ) from None
    return path


def _decoded(document: dict[str, object]) -> Contexts:
    """Raises ValueError, TypeError, KeyError or AttributeError for a document of another shape."""
    entries = {}
    contexts = document["contexts"]
    if not isinstance(contexts, dict):
        raise TypeError("`contexts` is not an object")
    for name, entry in contexts.items():
        broker, token_file = entry["broker"], entry.get("token_file")
        if not isinstance(broker, str) or not isinstance(token_file, str | None):
            raise TypeError(f"context {name!r} is malformed")
        entries[str(name)] = Context(str(name), broker, token_file)
    current = document.get("current")
    if current is not None and current not in entries:
        raise ValueError(f"current context {current!r} is not in the list")
    return Contexts(entries, None if current is None else str(current))
