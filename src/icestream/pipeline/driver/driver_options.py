"""The options of a driver, from the settings at its start; the broker may override some of them while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from icestream import limits
from icestream.pipeline.round_plan import RoundBudget
from icestream.settings import Settings

_BUDGET_FIELDS: Final = {
    "writer_batch_size": "rows_due",
    "writer_max_memory_bytes": "bytes_due",
    "writer_flush_interval_ms": "age_due_ms",
}


@dataclass(frozen=True)
class DriverOptions:
    budget: RoundBudget = field(default_factory=RoundBudget)
    hold_ms: int = limits.PIPELINE_HOLD_MS
    wait_ms: int = limits.BACKLOG_WAIT_MS_MAX // 2
    storage: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings, tasks_max: int, storage: Mapping[str, Any] | None = None) -> DriverOptions:
        iceberg = settings.storage.iceberg_config
        budget = RoundBudget(
            rows_due=iceberg.writer_batch_size,
            bytes_due=iceberg.writer_max_memory_bytes,
            age_due_ms=iceberg.writer_flush_interval_ms,
            tasks_max=tasks_max,
        )
        return cls(budget, storage=storage or {})

    def current_budget(self, changed_settings: Mapping[str, int]) -> RoundBudget:
        """The budget with the settings that were changed while the broker runs. Unknown names, which a newer broker may
        send, are ignored."""
        changes = {_BUDGET_FIELDS[name]: value for name, value in changed_settings.items() if name in _BUDGET_FIELDS}
        return msgspec.structs.replace(self.budget, **changes)
