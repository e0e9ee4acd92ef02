"""The file clean-up as a job of the driver: a few files after each round, and whatever became due while idle."""

from __future__ import annotations

from typing import ClassVar, Literal

from icestream.model.backlog_messages import CLEAN_UP
from icestream.pipeline.driver.effects import Effect, Effects
from icestream.pipeline.driver.job import Job, Turn
from icestream.pipeline.driver.lease import DriverLease
from icestream.pipeline.file_cleanup.cleaner import NAME, FileCleaner
from icestream.pipeline.tables.topic_table import TopicTable


class FileCleanupJob(Job[Literal[True], None]):
    """Nothing depends on it: files that cannot be removed now are removed after another round."""

    name: ClassVar[str] = NAME

    def __init__(self, cleaner: FileCleaner, lease: DriverLease, effects: Effects, *, is_enabled: bool = True) -> None:
        """`is_enabled`: by the settings at the start; the broker may say otherwise while it runs."""
        self._is_enabled = is_enabled
        self._cleaner = cleaner
        self._lease = lease
        self._effects = effects

    def is_due(self, turn: Turn) -> bool:
        """After every round, under the lease that it holds anyway; of an idle pipeline only if files wait, because
        acquiring the lease for it is a write to the metadata store."""
        if not turn.backlog.changed_settings.get(CLEAN_UP, self._is_enabled):
            return False
        if turn.report.topics:
            return True
        return (not turn.backlog.topics or turn.is_ingest_paused) and self._cleaner.is_due

    async def plan(self, turn: Turn) -> Literal[True]:
        """Plans nothing itself: the cleaner keeps its own list of files, and takes as many as one step allows."""
        return True

    async def run(self, turn: Turn, plan: Literal[True]) -> None:
        with turn.timed("clean_up"), self._effects.happens(Effect.CLEAN_UP):
            await self._cleaner.work(self._lease.check)

    @property
    def wants_new_epoch(self) -> bool:
        return 0 < self._lease.epoch <= self._cleaner.ended_epoch

    def on_table_committed(self, table: TopicTable) -> None:
        self._cleaner.table_committed(table)

    def on_files_left_behind(self, table: TopicTable) -> None:
        self._cleaner.files_left_behind(table)
