"""/api/v1/namespaces/{namespace}/topics/{topic}/subscriptions: subscriptions and their consumers"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Response

from icestream.admin_api import subscription_api as api
from icestream.admin_api.admin_call import Listing
from icestream.admin_api.topic_api import PageOfTopic
from icestream.lake.broker_calls import PREFIX, BrokerDep, PageDep
from icestream.lake.http_models import body, extend, model_of

router = APIRouter(prefix=PREFIX + "/namespaces/{namespace}/topics/{topic}/subscriptions", tags=["subscriptions"])
_SUBSCRIPTION = model_of(api.SubscriptionDetails)


@router.get(
    "",
    response_model=model_of(Listing[api.SubscriptionSummary]),
    summary="List the subscriptions of a topic, with their lag",
)
async def list_subscriptions(
    broker: BrokerDep, namespace: str, topic: str, page: PageDep
) -> Listing[api.SubscriptionSummary]:
    return await broker(api.PAGE_SUBSCRIPTIONS, extend(PageOfTopic, page, topic=f"/{namespace}/{topic}"))


@router.post("", response_model=_SUBSCRIPTION, status_code=201, summary="Create a subscription without a consumer")
async def create_subscription(
    broker: BrokerDep,
    namespace: str,
    topic: str,
    new: Annotated[api.NewSubscription, body(api.NewSubscription)],
    response: Response,
) -> api.SubscriptionDetails:
    request = extend(api.CreateSubscription, new, topic=f"/{namespace}/{topic}")
    subscription = await broker(api.CREATE_SUBSCRIPTION, request)
    path = "/".join(map(quote, ("namespaces", namespace, "topics", topic, "subscriptions", new.subscription)))
    response.headers["Location"] = f"{PREFIX}/{path}"
    return subscription


@router.get(
    "/{subscription}", response_model=_SUBSCRIPTION, summary="Show a subscription: positions, gaps in acks, pauses"
)
async def inspect_subscription(
    broker: BrokerDep, namespace: str, topic: str, subscription: str
) -> api.SubscriptionDetails:
    return await broker(api.INSPECT_SUBSCRIPTION, api.SubscriptionOnly(f"/{namespace}/{topic}", subscription))


@router.patch("/{subscription}", response_model=_SUBSCRIPTION, summary="Change failure policy or dispatch rate, live")
async def change_subscription(
    broker: BrokerDep,
    namespace: str,
    topic: str,
    subscription: str,
    change: Annotated[api.SubscriptionChange, body(api.SubscriptionChange)],
) -> api.SubscriptionDetails:
    request = extend(api.ChangeSubscription, change, topic=f"/{namespace}/{topic}", subscription=subscription)
    return await broker(api.CHANGE_SUBSCRIPTION, request)


@router.delete("/{subscription}", status_code=204, summary="Delete a subscription and its cursors")
async def delete_subscription(broker: BrokerDep, namespace: str, topic: str, subscription: str) -> None:
    await broker(api.DELETE_SUBSCRIPTION, api.SubscriptionOnly(f"/{namespace}/{topic}", subscription))


@router.post(
    "/{subscription}/seek",
    response_model=model_of(api.SeekResult),
    summary="Move a subscription, with or without consumers",
)
async def seek(
    broker: BrokerDep, namespace: str, topic: str, subscription: str, to: Annotated[api.Seek, body(api.Seek)]
) -> api.SeekResult:
    request = extend(api.SeekSubscription, to, topic=f"/{namespace}/{topic}", subscription=subscription)
    return await broker(api.SEEK, request)


@router.get(
    "/{subscription}/consumers",
    response_model=model_of(Listing[api.ConnectedConsumer]),
    summary="List the consumers, with credit",
)
async def list_consumers(
    broker: BrokerDep, namespace: str, topic: str, subscription: str, page: PageDep
) -> Listing[api.ConnectedConsumer]:
    request = extend(api.PageOfSubscription, page, topic=f"/{namespace}/{topic}", subscription=subscription)
    return await broker(api.PAGE_CONSUMERS, request)


@router.delete("/{subscription}/consumers/{consumer}", status_code=204, summary="Disconnect a consumer")
async def disconnect_consumer(broker: BrokerDep, namespace: str, topic: str, subscription: str, consumer: str) -> None:
    await broker(api.DISCONNECT_CONSUMER, api.ConsumerOnly(f"/{namespace}/{topic}", subscription, consumer))
