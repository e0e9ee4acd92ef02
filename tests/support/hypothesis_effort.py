"""How hard a property test tries, as a share of the profile that was chosen (tests/conftest.py)."""

from __future__ import annotations

from hypothesis import settings

QUARTER = settings(max_examples=max(5, settings.default.max_examples // 4))
HALF = settings(max_examples=max(5, settings.default.max_examples // 2))
EIGHTH = settings(max_examples=max(5, settings.default.max_examples // 8))
