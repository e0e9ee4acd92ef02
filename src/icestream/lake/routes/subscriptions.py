"""/api/v1/namespaces/{namespace}/topics/{topic}/subscriptions, and who consumes from one"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Response

from icestream.lake.broker_calls import PREFIX, Broker, Page
from icestream.lake.models import (
    Consumer,
    Listing,
    NewSubscription,
    Seek,
    Sought,
    Subscription,
    SubscriptionChange,
    SubscriptionLine,
)

router = APIRouter(prefix=PREFIX + "/namespaces/{namespace}/topics/{topic}/subscriptions", tags=["subscriptions"])


@router.get("", response_model=Listing[SubscriptionLine], summary="List the subscriptions of a topic, with their lag")
async def list_subscriptions(broker: Broker, namespace: str, topic: str, page: Page) -> Any:
    return await broker("page_subscriptions", topic=f"/{namespace}/{topic}", **page)


@router.post("", response_model=Subscription, status_code=201, summary="Create a subscription that nobody consumes yet")
async def create_subscription(
    broker: Broker, namespace: str, topic: str, new: NewSubscription, response: Response
) -> Any:
    found = await broker("create_subscription", topic=f"/{namespace}/{topic}", **new.model_dump())
    place = "/".join(map(quote, ("namespaces", namespace, "topics", topic, "subscriptions", new.subscription)))
    response.headers["Location"] = f"{PREFIX}/{place}"
    return found


@router.get("/{subscription}", response_model=Subscription, summary="Show a subscription: positions, holes, pauses")
async def inspect_subscription(broker: Broker, namespace: str, topic: str, subscription: str) -> Any:
    return await broker("inspect_subscription", topic=f"/{namespace}/{topic}", subscription=subscription)


@router.patch("/{subscription}", response_model=Subscription, summary="Change failure policy or dispatch rate, live")
async def change_subscription(
    broker: Broker, namespace: str, topic: str, subscription: str, change: SubscriptionChange
) -> Any:
    named = change.model_dump(include=change.model_fields_set)
    if named.get("failure", ...) is None:
        del named["failure"]  # null: as it was
    return await broker("change_subscription", topic=f"/{namespace}/{topic}", subscription=subscription, **named)


@router.delete("/{subscription}", status_code=204, summary="Delete a subscription and its cursors")
async def delete_subscription(broker: Broker, namespace: str, topic: str, subscription: str) -> None:
    await broker("delete_subscription", topic=f"/{namespace}/{topic}", subscription=subscription)


@router.post("/{subscription}/seek", response_model=Sought, summary="Move a subscription, live or not")
async def seek(broker: Broker, namespace: str, topic: str, subscription: str, to: Seek) -> Any:
    return await broker("seek", topic=f"/{namespace}/{topic}", subscription=subscription, **to.model_dump())


@router.get("/{subscription}/consumers", response_model=Listing[Consumer], summary="List the consumers, with credit")
async def list_consumers(broker: Broker, namespace: str, topic: str, subscription: str, page: Page) -> Any:
    return await broker("page_consumers", topic=f"/{namespace}/{topic}", subscription=subscription, **page)


@router.delete("/{subscription}/consumers/{consumer}", status_code=204, summary="Disconnect a consumer")
async def disconnect_consumer(broker: Broker, namespace: str, topic: str, subscription: str, consumer: str) -> None:
    name = f"/{namespace}/{topic}"
    await broker("disconnect_consumer", topic=name, subscription=subscription, consumer=consumer)
