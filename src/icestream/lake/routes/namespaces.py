"""/api/v1/namespaces"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Response

from icestream.lake.broker_calls import PREFIX, Broker, Page
from icestream.lake.models import Listing, Namespace, NewNamespace, Policies

router = APIRouter(prefix=f"{PREFIX}/namespaces", tags=["namespaces"])


@router.get("", response_model=Listing[Namespace], summary="List namespaces")
async def list_namespaces(broker: Broker, page: Page) -> Any:
    return await broker("list_namespaces", **page)


@router.post("", response_model=Namespace, status_code=201, summary="Create a namespace")
async def create_namespace(broker: Broker, new: NewNamespace, response: Response) -> Any:
    found = await broker("create_namespace", **new.model_dump())
    response.headers["Location"] = f"{PREFIX}/namespaces/{quote(new.namespace)}"
    return found


@router.get("/{namespace}", response_model=Namespace, summary="Show a namespace")
async def describe_namespace(broker: Broker, namespace: str) -> Any:
    return await broker("describe_namespace", namespace=namespace)


@router.delete("/{namespace}", status_code=204, summary="Delete a namespace that has no topics")
async def delete_namespace(broker: Broker, namespace: str) -> None:
    await broker("delete_namespace", namespace=namespace)


@router.put("/{namespace}/policies", response_model=Namespace, summary="Set the policies of all its topics")
async def set_namespace_policies(broker: Broker, namespace: str, policies: Policies) -> Any:
    return await broker("set_namespace_policies", namespace=namespace, policies=policies.model_dump())
