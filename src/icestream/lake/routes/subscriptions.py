"""/api/v1/namespaces/{namespace}/topics/{topic}/subscriptions: subscriptions and their consumers"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Response

from icestream.lake.broker_calls import PREFIX, BrokerDep, PageDep
from icestream.lake.models import (
    Consumer,
    Listing,
    NewSubscription,
    Seek,
    SeekResult,
    Subscription,
    SubscriptionChange,
    SubscriptionSummary,
)

router = APIRouter(prefix=PREFIX + "/namespaces/{namespace}/topics/{topic}/subscriptions", tags=["subscriptions"])


@router.get(
    "", response_model=Listing[SubscriptionSummary], summary="List the subscriptions of a topic, with their lag"
)
async def list_subscriptions(broker: BrokerDep, namespace: str, topic: str, page: PageDep) -> Any:
    return await broker("page_subscriptions", topic=f"/{namespace}/{topic}", **page)


@router.post("", response_model=Subscription, status_code=201, summary="Create a subscription without a consumer")
async def create_subscription(
    broker: BrokerDep, namespace: str, topic: str, new: NewSubscription, response: Response
) -> Any:
    subscription = await broker("create_subscription", topic=f"/{namespace}/{topic}", **new.model_dump())
    path = "/".join(map(quote, ("namespaces", namespace, "topics", topic, "subscriptions", new.subscription)))
    response.headers["Location"] = f"{PREFIX}/{path}"
    return subscription


@router.get(
    "/{subscription}", response_model=Subscription, summary="Show a subscription: positions, gaps in acks, pauses"
)
async def inspect_subscription(broker: BrokerDep, namespace: str, topic: str, subscription: str) -> Any:
    return await broker("inspect_subscription", topic=f"/{namespace}/{topic}", subscription=subscription)


@router.patch("/{subscription}", response_model=Subscription, summary="Change failure policy or dispatch rate, live")
async def change_subscription(
    broker: BrokerDep, namespace: str, topic: str, subscription: str, change: SubscriptionChange
) -> Any:
    fields = change.model_dump(include=change.model_fields_set)
    if fields.get("failure", ...) is None:
        del fields["failure"]  # null: unchanged
    return await broker("change_subscription", topic=f"/{namespace}/{topic}", subscription=subscription, **fields)


@router.delete("/{subscription}", status_code=204, summary="Delete a subscription and its cursors")
async def delete_subscription(broker: BrokerDep, namespace: str, topic: str, subscription: str) -> None:
    await broker("delete_subscription", topic=f"/{namespace}/{topic}", subscription=subscription)


@router.post(
    "/{subscription}/seek", response_model=SeekResult, summary="Move a subscription, with or without consumers"
)
async def seek(broker: BrokerDep, namespace: str, topic: str, subscription: str, to: Seek) -> Any:
    return await broker("seek", topic=f"/{namespace}/{topic}", subscription=subscription, **to.model_dump())


@router.get("/{subscription}/consumers", response_model=Listing[Consumer], summary="List the consumers, with credit")
async def list_consumers(broker: BrokerDep, namespace: str, topic: str, subscription: str, page: PageDep) -> Any:
    return await broker("page_consumers", topic=f"/{namespace}/{topic}", subscription=subscription, **page)


@router.delete("/{subscription}/consumers/{consumer}", status_code=204, summary="Disconnect a consumer")
async def disconnect_consumer(broker: BrokerDep, namespace: str, topic: str, subscription: str, consumer: str) -> None:
    name = f"/{namespace}/{topic}"
    await broker("disconnect_consumer", topic=name, subscription=subscription, consumer=consumer)
