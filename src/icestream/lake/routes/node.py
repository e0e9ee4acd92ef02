"""/api/v1/wal, /api/v1/config, /api/v1/health: the node itself"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from icestream.lake.broker_calls import PREFIX, Broker, Page
from icestream.lake.models import Health, Listing, NewValue, Setting, Wal, WalFile

router = APIRouter(prefix=PREFIX, tags=["node"])


@router.get("/wal", response_model=Wal, summary="Show the log: bytes, quota, records, checkpoints, gaps")
async def inspect_wal(broker: Broker) -> Any:
    return await broker("inspect_wal")


@router.get("/wal/files", response_model=Listing[WalFile], summary="List the sealed files of the log")
async def list_wal_files(broker: Broker, page: Page) -> Any:
    return await broker("page_wal_files", **page)


@router.get("/config", response_model=Listing[Setting], summary="List every setting, its value and where it came from")
async def list_settings(broker: Broker) -> Any:
    return await broker("list_settings")


@router.get("/config/{key}", response_model=Setting, summary="Show a setting")
async def describe_setting(broker: Broker, key: str) -> Any:
    return await broker("describe_setting", key=key)


@router.put("/config/{key}", response_model=Setting, summary="Change a setting that is marked online")
async def set_setting(broker: Broker, key: str, new: NewValue) -> Any:
    return await broker("set_setting", key=key, value=new.value)


@router.delete("/config/{key}", response_model=Setting, summary="Forget the change: file, environment and flags count")
async def unset_setting(broker: Broker, key: str) -> Any:
    return await broker("unset_setting", key=key)


@router.get("/health", response_model=Health, summary="Show how each part of the node is doing")
async def health(broker: Broker) -> Any:
    return await broker("health")
