"""The store options that tasks get with their plan (docs/adr/0091).

    store with a role for tables    keys of that role, narrowed to what the task reads and writes for one table; they
                                    end by themselves (catalogs/table_role.py)
    any other store                 the options of the settings

A plan reaches Spark's shuffle files, its event log and the memory of Python workers on other machines: with the keys of
the settings each of these opens every table (hazard 122).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from icestream import limits
from icestream.catalogs.aws_signature import AwsKeys
from icestream.catalogs.session_policy import s3_places, task_policy
from icestream.catalogs.store_options import StoreOptions
from icestream.observability.log import get_logger
from icestream.pipeline.round_plan import RoundPlan, TableTarget

_log = get_logger("pipeline")
# The name of the session, for the log of the store.
_PRINCIPAL: Final = "process:local:pipeline"


class TableKeyIssuer(Protocol):
    """Issues keys for single tables: the role of the settings (catalogs/table_role.py)."""

    @property
    def partition(self) -> str: ...

    async def assume(self, policy: str, principal: str) -> AwsKeys: ...


class TaskFiles(NamedTuple):
    """What a task does for one table: writes below the target's location, and reads these files."""

    target: TableTarget
    read: Sequence[str] = ()


class TaskKeys:
    """Exchanges the keys of the settings for those of a table, if the store has a role for tables."""

    def __init__(self, options: StoreOptions, role: TableKeyIssuer | None) -> None:
        self._options = options
        self._role = role
        self._is_reported = False

    async def narrow(self, files: TaskFiles) -> TableTarget:
        """Returns the target with the store options for its task. Raises AccessDenied, StorageUnavailable."""
        target = files.target
        if self._role is None or not target.storage:
            return target
        folders = {location.rpartition("/")[0] for location in files.read}
        others = sorted(folder for folder in folders if not f"{folder}/".startswith(f"{target.location}/"))
        written, read = s3_places([target.location]), s3_places(others)
        policy = None
        if written and len(read) == len(others):
            policy = task_policy(written[0], read, self._role.partition)
        if policy is None:
            self._report(target.location)
            return target
        keys = await self._role.assume(policy, _PRINCIPAL)
        options = StoreOptions(
            kind="s3",
            bucket=self._options.bucket,
            region=self._options.region,
            endpoint=self._options.endpoint,
            path_style=self._options.path_style,
            access_key_id=keys.access_key_id,
            secret_access_key=keys.secret_access_key,
            session_token=keys.session_token,
            request_seconds=self._options.request_seconds,
        )
        return msgspec.structs.replace(target, storage=dataclasses.asdict(options))

    async def narrow_all(self, files: Iterable[TaskFiles]) -> list[TableTarget]:
        """As `narrow`, for several tables, some at a time."""
        if self._role is None:
            return [entry.target for entry in files]
        gate = asyncio.Semaphore(limits.TASK_KEYS_AT_ONCE)

        async def narrow(entry: TaskFiles) -> TableTarget:
            async with gate:
                return await self.narrow(entry)

        return await asyncio.gather(*map(narrow, files))

    async def narrow_round(self, plan: RoundPlan) -> RoundPlan:
        """Returns the plan of a round as its tasks get it."""
        targets: Mapping[int, TableTarget] = plan.targets
        narrowed = await self.narrow_all(TaskFiles(target) for target in targets.values())
        return msgspec.structs.replace(plan, targets=dict(zip(targets, narrowed, strict=True)))

    def _report(self, location: str) -> None:
        """Once: it concerns every round, and usually every table of the warehouse."""
        if not self._is_reported:
            self._is_reported = True
            _log.warning(
                "tasks get the keys of the settings for a table, because no policy can name its location",
                location=location,
                hint="use letters, digits and ._=/- in the location of the warehouse",
            )


# Of tests, and of tables that are no store's.
NO_TASK_KEYS: Final = TaskKeys(StoreOptions(), None)


def settings_storage(options: StoreOptions) -> dict[str, Any]:
    """Returns the store options of the settings as a plan has them; none for a local warehouse, whose files need
    none."""
    return {} if options.kind == "local" else dataclasses.asdict(options)
