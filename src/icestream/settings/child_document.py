"""Settings as a plain document, secrets included: for the environment of a child process, never for display."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from icestream.settings.keys import KEYS, value_at
from icestream.settings.tree import Settings

_CATALOG_WAREHOUSE: Final = "storage.iceberg_config.catalog.warehouse"  # would be derived again if it were left out


def as_document(settings: Settings) -> dict[str, Any]:
    """The settings as nested maps; `Settings.model_validate` turns them back into the same settings."""
    document: dict[str, Any] = {}
    for path in KEYS:
        value = _plain(value_at(settings, path))
        if value is None and path != _CATALOG_WAREHOUSE:
            continue
        *sections, name = path.split(".")
        place = document
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return document


def _plain(value: object) -> Any:
    match value:
        case SecretStr():
            return value.get_secret_value()
        case Path():
            return str(value)
        case tuple() | list():
            return [_plain(item) for item in value]
        case _:
            return value
