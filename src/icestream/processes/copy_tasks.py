"""Tasks of Spark that copy the files of large backups (ADR 117): in the session of the pipeline or of a command."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from icestream.backup.backup_run import BulkCopy
from icestream.backup.file_copy import RunTasks, SparkFileCopy
from icestream.backup.object_upload import ObjectUpload
from icestream.processes.component_options import store_options, table_roots
from icestream.processes.pipeline_options import setup_paths, spark_options
from icestream.runtime.tasks import Offload, ThreadOffload
from icestream.settings import Settings


class CopyTasks(NamedTuple):
    """Runs the tasks of a large backup (ADR 117)."""

    run: RunTasks
    offload: Offload  # a thread that waits for a job
    tasks_max: int

    def bulk_copy(
        self, settings: Settings, target: str, upload: ObjectUpload, rate_bytes: float | None = None
    ) -> BulkCopy | None:
        """What copies a large backup; None if the settings, the key or the store leave it to threads."""
        options, store = settings.backup, store_options(settings)
        if not options.spark_files or upload.key is not None or store.table_role_arn is not None:
            return None
        rate = options.rate_bytes if rate_bytes is None else rate_bytes
        copier = SparkFileCopy(
            self.run, upload, self.offload, target, dataclasses.asdict(store), self.tasks_max, rate,
            table_roots(settings),
        )  # fmt: skip
        return BulkCopy(copier, options.spark_files)


@contextlib.contextmanager
def command_tasks(settings: Settings) -> Iterator[CopyTasks]:
    """Tasks in a session of this process, which starts with the first job: most backups need none. The job raises
    MissingPart if Spark cannot run here."""
    options = spark_options(settings)
    with contextlib.ExitStack() as closing:
        offload = ThreadOffload("backup jobs")
        closing.callback(offload.close)
        run_tasks: RunTasks | None = None

        def run(function: Callable[[Iterable[bytes]], Iterator[bytes]], jobs: Sequence[bytes]) -> list[bytes]:
            nonlocal run_tasks
            if run_tasks is None:
                from icestream.pipeline.spark.writer import open_writer

                run_tasks = closing.enter_context(open_writer(options, setup_paths(settings, os.environ))).run_tasks
            return run_tasks(function, jobs)

        yield CopyTasks(run, offload, options.tasks_max)
