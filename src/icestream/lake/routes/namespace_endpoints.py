"""/api/v1/namespaces: namespaces and their policies"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Response

from icestream.admin_api import namespace_api as api
from icestream.admin_api.admin_call import Listing
from icestream.lake.broker_calls import PREFIX, BrokerDep, PageDep
from icestream.lake.http_models import body, model_of
from icestream.model.topic_policies import PolicyValues

router = APIRouter(prefix=f"{PREFIX}/namespaces", tags=["namespaces"])
_NAMESPACE = model_of(api.NamespaceDetails)


@router.get("", response_model=model_of(Listing[api.NamespaceDetails]), summary="List namespaces")
async def list_namespaces(broker: BrokerDep, page: PageDep) -> Listing[api.NamespaceDetails]:
    return await broker(api.LIST_NAMESPACES, page)


@router.post("", response_model=_NAMESPACE, status_code=201, summary="Create a namespace")
async def create_namespace(
    broker: BrokerDep, new: Annotated[api.NewNamespace, body(api.NewNamespace)], response: Response
) -> api.NamespaceDetails:
    namespace = await broker(api.CREATE_NAMESPACE, new)
    response.headers["Location"] = f"{PREFIX}/namespaces/{quote(new.namespace)}"
    return namespace


@router.get("/{namespace}", response_model=_NAMESPACE, summary="Show a namespace")
async def describe_namespace(broker: BrokerDep, namespace: str) -> api.NamespaceDetails:
    return await broker(api.DESCRIBE_NAMESPACE, api.NamespaceOnly(namespace))


@router.delete("/{namespace}", status_code=204, summary="Delete a namespace that has no topics")
async def delete_namespace(broker: BrokerDep, namespace: str) -> None:
    await broker(api.DELETE_NAMESPACE, api.NamespaceOnly(namespace))


@router.put("/{namespace}/policies", response_model=_NAMESPACE, summary="Set the policies of all its topics")
async def set_namespace_policies(
    broker: BrokerDep, namespace: str, policies: Annotated[PolicyValues, body(PolicyValues)]
) -> api.NamespaceDetails:
    return await broker(api.SET_NAMESPACE_POLICIES, api.NewNamespace(namespace, policies))
