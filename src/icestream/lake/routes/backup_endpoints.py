"""/api/v1/backups, /api/v1/archives, /api/v1/drills, /api/v1/restores: what there is in the target of this node.

They show and check. Making, restoring, trying and deleting a backup takes minutes to hours and is a command of an
operator (`icestream backup`), or comes in intervals.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from icestream import errors
from icestream.admin_api import backup_api as api
from icestream.admin_api.admin_call import Listing
from icestream.lake.backup_reports import BackupReports
from icestream.lake.broker_calls import PREFIX, BrokerDep, PageDep
from icestream.lake.http_models import model_of
from icestream.lake.routes.lake_endpoints import RightsDep
from icestream.security.action import Action

router = APIRouter(prefix=PREFIX, tags=["backup"])


async def get_reports(request: Request, rights: RightsDep) -> BackupReports:
    """The backups of the target, for a caller that may back the cluster up. Raises InvalidInput without a target."""
    await rights.require_cluster(Action.BACKUP)
    reports: BackupReports | None = request.app.state.backup_reports
    if reports is None:
        raise errors.InvalidInput("this node has no backup target", hint="set `backup.target`")
    return reports


ReportsDep = Annotated[BackupReports, Depends(get_reports)]


@router.get(
    "/backups",
    response_model=model_of(Listing[api.BackupSummary]),
    summary="List the backups of the target",
)
async def list_backups(reports: ReportsDep, page: PageDep) -> Listing[api.BackupSummary]:
    return await reports.page(page)


@router.get("/backups/{backup}", response_model=model_of(api.BackupDetails), summary="Show a backup; `latest`")
async def show_backup(reports: ReportsDep, backup: str) -> api.BackupDetails:
    return await reports.backup(backup)


@router.get(
    "/backups/{backup}/verify",
    response_model=model_of(api.BackupCheck),
    summary="Check that everything a backup names is there",
)
async def verify_backup(reports: ReportsDep, backup: str) -> api.BackupCheck:
    return await reports.verify(backup)


@router.get(
    "/archives",
    response_model=model_of(Listing[api.ArchiveDetails]),
    summary="Show how far each archive goes",
)
async def list_archives(reports: ReportsDep) -> Listing[api.ArchiveDetails]:
    return Listing(items=await reports.archives(), next=None)


@router.get(
    "/drills", response_model=model_of(Listing[api.DrillDetails]), summary="List the reports of drills by their time"
)
async def list_drills(reports: ReportsDep, page: PageDep) -> Listing[api.DrillDetails]:
    return await reports.page_drills(page)


@router.get(
    "/restores", response_model=model_of(Listing[api.RestoreDetails]), summary="List restores that are not completed"
)
async def list_restores(broker: BrokerDep, page: PageDep) -> Listing[api.RestoreDetails]:
    return await broker(api.PAGE_RESTORES, page)
