"""What the API tells about the backups of a node's target. `processes/target_reports.py` reads them: the lake does not
import the package of backups."""

from __future__ import annotations

from typing import Protocol

from icestream.admin_api.admin_call import Listing, PageRequest
from icestream.admin_api.backup_api import ArchiveDetails, BackupCheck, BackupDetails, BackupSummary, DrillDetails


class BackupReports(Protocol):
    """Every method raises what the target raises; UnknownBackup for an id that it does not have."""

    async def page(self, request: PageRequest) -> Listing[BackupSummary]: ...

    async def backup(self, backup_id: str) -> BackupDetails: ...

    async def verify(self, backup_id: str) -> BackupCheck:
        """Checks that everything a backup names is there. Raises Refused for one with too many objects."""

    async def archives(self) -> list[ArchiveDetails]: ...

    async def page_drills(self, request: PageRequest) -> Listing[DrillDetails]: ...
