"""/api/v1/namespaces: namespaces and their policies"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Response

from icestream.lake.broker_calls import PREFIX, BrokerDep, PageDep
from icestream.lake.models import Listing, Namespace, NewNamespace, TopicPolicies

router = APIRouter(prefix=f"{PREFIX}/namespaces", tags=["namespaces"])


@router.get("", response_model=Listing[Namespace], summary="List namespaces")
async def list_namespaces(broker: BrokerDep, page: PageDep) -> Any:
    return await broker("list_namespaces", **page)


@router.post("", response_model=Namespace, status_code=201, summary="Create a namespace")
async def create_namespace(broker: BrokerDep, new: NewNamespace, response: Response) -> Any:
    namespace = await broker("create_namespace", **new.model_dump())
    response.headers["Location"] = f"{PREFIX}/namespaces/{quote(new.namespace)}"
    return namespace


@router.get("/{namespace}", response_model=Namespace, summary="Show a namespace")
async def describe_namespace(broker: BrokerDep, namespace: str) -> Any:
    return await broker("describe_namespace", namespace=namespace)


@router.delete("/{namespace}", status_code=204, summary="Delete a namespace that has no topics")
async def delete_namespace(broker: BrokerDep, namespace: str) -> None:
    await broker("delete_namespace", namespace=namespace)


@router.put("/{namespace}/policies", response_model=Namespace, summary="Set the policies of all its topics")
async def set_namespace_policies(broker: BrokerDep, namespace: str, policies: TopicPolicies) -> Any:
    return await broker("set_namespace_policies", namespace=namespace, policies=policies.model_dump())
