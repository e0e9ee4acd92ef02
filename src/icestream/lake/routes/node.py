"""/api/v1/wal, /api/v1/config, /api/v1/health: the node itself"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from icestream.lake.broker_calls import PREFIX, BrokerDep, PageDep
from icestream.lake.models import Health, Listing, NewValue, Setting, Wal, WalFile

router = APIRouter(prefix=PREFIX, tags=["node"])


@router.get("/wal", response_model=Wal, summary="Show the log: bytes, quota, records, checkpoints, gaps")
async def inspect_wal(broker: BrokerDep) -> Any:
    return await broker("inspect_wal")


@router.get("/wal/files", response_model=Listing[WalFile], summary="List the sealed files of the log")
async def list_wal_files(broker: BrokerDep, page: PageDep) -> Any:
    return await broker("page_wal_files", **page)


@router.get("/config", response_model=Listing[Setting], summary="List every setting with its value and origin")
async def list_settings(broker: BrokerDep) -> Any:
    return await broker("list_settings")


@router.get("/config/{key}", response_model=Setting, summary="Show a setting")
async def describe_setting(broker: BrokerDep, key: str) -> Any:
    return await broker("describe_setting", key=key)


@router.put("/config/{key}", response_model=Setting, summary="Change a setting that is marked online")
async def set_setting(broker: BrokerDep, key: str, new: NewValue) -> Any:
    return await broker("set_setting", key=key, value=new.value)


@router.delete("/config/{key}", response_model=Setting, summary="Revert the change: file, environment and flags apply")
async def unset_setting(broker: BrokerDep, key: str) -> Any:
    return await broker("unset_setting", key=key)


@router.get("/health", response_model=Health, summary="Show the readiness checks of the node")
async def health(broker: BrokerDep) -> Any:
    return await broker("health")
