"""The options of a driver, from the settings at its start; the broker may override some of them while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from icestream import limits
from icestream.pipeline.round_plan import RoundBudget
from icestream.pipeline.task_keys import NO_TASK_KEYS, TaskKeys

_BUDGET_FIELDS: Final = {
    "writer_batch_size": "rows_due",
    "writer_max_memory_bytes": "bytes_due",
    "writer_flush_interval_ms": "age_due_ms",
}


@dataclass(frozen=True)
class DriverOptions:
    """How much a round takes, how long it waits, and how tasks reach the storage."""

    budget: RoundBudget = field(default_factory=RoundBudget)
    hold_ms: int = limits.PIPELINE_HOLD_MS
    wait_ms: int = limits.BACKLOG_WAIT_MS_MAX // 2
    keys: TaskKeys = NO_TASK_KEYS

    def current_budget(self, changed_settings: Mapping[str, int]) -> RoundBudget:
        """Returns the budget with the settings that were changed while the broker runs. Unknown names, which a newer
        broker may send, are ignored."""
        changes = {_BUDGET_FIELDS[name]: value for name, value in changed_settings.items() if name in _BUDGET_FIELDS}
        return msgspec.structs.replace(self.budget, **changes)
