"""Merges the layers (file < environment < flags), validates them, and reports the problems of all of them at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from icestream.settings import layers
from icestream.settings.keys import KEYS, SECRET_MASK, Kind, value_at
from icestream.settings.layers import LayerEntry
from icestream.settings.secret_source import is_reference, resolve
from icestream.settings.section import Broken, BrokenRules
from icestream.settings.setting_problems import DEFAULT, Origin, SettingProblem, refusal, shown
from icestream.settings.tree import Settings


@dataclass(frozen=True)
class Loaded:
    """Settings that can be used, and where the value of each key came from."""

    settings: Settings
    origins: Mapping[str, Origin]


def load(file: Path | None = None, env: Mapping[str, str] | None = None, flags: Iterable[str] = ()) -> Loaded:
    """The settings from a file, an environment and `key.path=value` flags, the later winning.

    The environment is an argument, so that only the command line decides whether there is one. Raises one
    ConfigurationError that names every problem.
    """
    loaded, problems = examine(file, env, flags)
    if loaded is None:
        raise refusal(problems)
    return loaded


def examine(
    file: Path | None = None, env: Mapping[str, str] | None = None, flags: Iterable[str] = ()
) -> tuple[Loaded | None, Sequence[SettingProblem]]:
    """Like `load`, but hands the problems back: either there are settings, or there are problems."""
    read = [layers.from_env(env or {}, KEYS), layers.from_flags(flags, KEYS)]
    if file is not None:
        read.insert(0, layers.from_file(file, KEYS))
    entries: dict[str, LayerEntry] = {}
    for layer in read:
        entries |= layer.entries
    faults = _resolve_secrets(entries)
    settings, problems_found = _validate(entries)
    problems = [problem for layer in read for problem in layer.problems] + faults + problems_found
    if settings is None or problems:
        return None, problems
    origins = {path: entries[path].origin if path in entries else DEFAULT for path in KEYS}
    return Loaded(settings, origins), ()


def change(settings: Settings, changes: Mapping[str, object]) -> tuple[Settings | None, Sequence[SettingProblem]]:
    """The settings with other values for some keys, checked by the same rules as at a start; or the problems.

    Values that were derived at the start stay: components have used them.
    """
    stored = Origin("stored")
    unfit = [
        SettingProblem(path, f"must be {KEYS[path].allowed}", stored)
        for path, value in changes.items()
        if not (_is_texts(value) if KEYS[path].kind is Kind.LIST else isinstance(value, str | int | None))
    ]
    if unfit:
        return None, unfit
    entries = {path: LayerEntry(key, value_at(settings, path), DEFAULT) for path, key in KEYS.items()}
    entries |= {path: LayerEntry(KEYS[path], value, stored) for path, value in changes.items()}
    return _validate(entries)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _validate(entries: Mapping[str, LayerEntry]) -> tuple[Settings | None, list[SettingProblem]]:
    """Validates until no new problem appears: a rule between keys is checked only when each of its keys is valid.

    Invalid keys are left out of the next pass and replaced by their defaults; problems of that pass that concern them
    are ignored.
    """
    problems: list[SettingProblem] = []
    suspects: set[str] = set()
    settings: Settings | None = None
    while settings is None:
        try:
            settings = Settings.model_validate(_nest({path: e for path, e in entries.items() if path not in suspects}))
        except ValidationError as error:
            findings = [finding for details in error.errors() for finding in _findings(details, entries)]
            news = [finding for finding in findings if not finding.keys & suspects]
            blamed = [finding for finding in news if finding.keys & entries.keys()]
            if not blamed:
                # No key that was set is the cause: a default that follows from other keys is invalid here.
                return None, problems or [finding.problem for finding in news]
            problems += [finding.problem for finding in blamed]
            suspects |= {key for finding in blamed for key in finding.keys}
    return (None if problems else settings), problems


def _resolve_secrets(entries: dict[str, LayerEntry]) -> list[SettingProblem]:
    """Replaces references to secrets (secret_source.py) by the secrets; returns those that cannot be used."""
    problems = []
    for path, entry in list(entries.items()):
        if not entry.key.secret or not is_reference(entry.value):
            continue
        try:
            entries[path] = dataclasses.replace(entry, value=resolve(str(entry.value)))
        except ValueError as error:
            del entries[path]
            problems.append(SettingProblem(path, str(error), entry.origin, SECRET_MASK))
    return problems


@dataclass(frozen=True)
class _Finding:
    """What pydantic found, with the keys that have a part in it."""

    keys: frozenset[str]
    problem: SettingProblem


def _findings(details: ErrorDetails, entries: Mapping[str, LayerEntry]) -> Iterator[_Finding]:
    path = ".".join(map(str, details["loc"]))
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, BrokenRules):
        for rule in cause.broken:
            yield _rule_finding(path, rule, entries)
    else:
        # A list has its items below it; the key is what we know.
        key = path if path in KEYS else path.rpartition(".")[0]
        which = f"item {int(path.rpartition('.')[2]) + 1} " if key != path else ""
        message = str(cause) if isinstance(cause, ValueError) else f"must be {KEYS[key].allowed}"
        yield _Finding(frozenset([key]), _problem(key, which + message, entries))


def _rule_finding(section: str, rule: Broken, entries: Mapping[str, LayerEntry]) -> _Finding:
    keys = [f"{section}.{key}" if section else key for key in rule.keys]
    subject = next((key for key in keys if key in entries), keys[0])
    return _Finding(frozenset(keys), _problem(subject, rule.message, entries, rule.hint))


def _problem(key: str, message: str, entries: Mapping[str, LayerEntry], hint: str = "") -> SettingProblem:
    entry = entries.get(key)
    if entry is None:
        return SettingProblem(key, message, hint=hint)
    return SettingProblem(key, message, entry.origin, shown(entry.value, entry.key), hint)


def _nest(entries: Mapping[str, LayerEntry]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, entry in entries.items():
        *sections, name = path.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = entry.value
    return tree
