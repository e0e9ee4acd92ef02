"""/api/v1/wal, /api/v1/config, /api/v1/health: the node itself"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter

from icestream.admin_api import node_api as api
from icestream.admin_api.admin_call import Listing
from icestream.lake.broker_calls import PREFIX, BrokerDep, PageDep
from icestream.lake.http_models import body, extend, model_of

router = APIRouter(prefix=PREFIX, tags=["node"])
_SETTING = model_of(api.SettingDetails)


@router.get(
    "/wal", response_model=model_of(api.LogDetails), summary="Show the log: bytes, quota, records, checkpoints, gaps"
)
async def inspect_wal(broker: BrokerDep) -> api.LogDetails:
    return await broker(api.INSPECT_WAL)


@router.get(
    "/wal/files", response_model=model_of(Listing[api.LogFileDetails]), summary="List the sealed files of the log"
)
async def list_wal_files(broker: BrokerDep, page: PageDep) -> Listing[api.LogFileDetails]:
    return await broker(api.PAGE_WAL_FILES, page)


@router.get(
    "/config",
    response_model=model_of(Listing[api.SettingDetails]),
    summary="List every setting with its value and origin",
)
async def list_settings(broker: BrokerDep) -> Listing[api.SettingDetails]:
    return await broker(api.LIST_SETTINGS)


@router.get("/config/{key}", response_model=_SETTING, summary="Show a setting")
async def describe_setting(broker: BrokerDep, key: str) -> api.SettingDetails:
    return await broker(api.DESCRIBE_SETTING, api.SettingOnly(key))


@router.put("/config/{key}", response_model=_SETTING, summary="Change a setting that is marked online")
async def set_setting(
    broker: BrokerDep, key: str, new: Annotated[api.NewValue, body(api.NewValue)]
) -> api.SettingDetails:
    return await broker(api.SET_SETTING, extend(api.SetSetting, new, key=key))


@router.delete("/config/{key}", response_model=_SETTING, summary="Revert the change: file, environment and flags apply")
async def unset_setting(broker: BrokerDep, key: str) -> api.SettingDetails:
    return await broker(api.UNSET_SETTING, api.SettingOnly(key))


@router.get("/health", response_model=model_of(api.NodeHealth), summary="Show the readiness checks of the node")
async def health(broker: BrokerDep) -> api.NodeHealth:
    return await broker(api.HEALTH)
