"""/api/v1/topics, /api/v1/namespaces/{namespace}/topics: topics and their producers"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Response

from icestream.lake.broker_calls import PREFIX, BrokerDep, PageDep
from icestream.lake.models import (
    DeletedTopic,
    GapRange,
    Listing,
    NewTopic,
    Producer,
    RestEnd,
    TableEnd,
    Topic,
    TopicPolicies,
    TopicSummary,
)

all_topics_router = APIRouter(prefix=PREFIX, tags=["topics"])
router = APIRouter(prefix=PREFIX + "/namespaces/{namespace}/topics", tags=["topics"])


@all_topics_router.get("/topics", response_model=Listing[TopicSummary], summary="List the topics of all namespaces")
async def list_all_topics(broker: BrokerDep, page: PageDep) -> Any:
    return await broker("page_topics", **page)


@router.get("", response_model=Listing[TopicSummary], summary="List the topics of a namespace")
async def list_topics(broker: BrokerDep, namespace: str, page: PageDep) -> Any:
    return await broker("page_topics", namespace=namespace, **page)


@router.post("", response_model=Topic, status_code=201, summary="Create a topic")
async def create_topic(broker: BrokerDep, namespace: str, new: NewTopic, response: Response) -> Any:
    topic = f"/{namespace}/{new.name}"
    fields = new.model_dump(exclude={"name"})
    await broker("create_topic", topic=topic, **fields)
    response.headers["Location"] = f"{PREFIX}/namespaces/{quote(namespace)}/topics/{quote(new.name)}"
    return await broker("inspect_topic", topic=topic)


@router.get("/{topic}", response_model=Topic, summary="Show a topic: policies, offsets, gaps, usage")
async def inspect_topic(broker: BrokerDep, namespace: str, topic: str) -> Any:
    return await broker("inspect_topic", topic=f"/{namespace}/{topic}")


@router.get("/{topic}/shards/{shard}/gaps", response_model=Listing[GapRange], summary="List all gaps of a shard")
async def list_gaps(broker: BrokerDep, namespace: str, topic: str, shard: int, page: PageDep) -> Any:
    return await broker("page_gaps", topic=f"/{namespace}/{topic}", shard=shard, **page)


@router.delete("/{topic}", response_model=DeletedTopic, summary="Delete a topic and its subscriptions")
async def delete_topic(
    broker: BrokerDep,
    namespace: str,
    topic: str,
    table: Annotated[
        TableEnd | None, Query(description="Whether to keep its table; default: as its policies say.")
    ] = None,
    rest: Annotated[
        RestEnd | None, Query(description="Whether to commit uncommitted messages; default: as its policies say.")
    ] = None,
) -> Any:
    name = f"/{namespace}/{topic}"
    return {"deleted": name, **await broker("delete_topic", topic=name, table=table, rest=rest)}


@router.put("/{topic}/policies", response_model=Topic, summary="Set the policies of a topic")
async def set_topic_policies(broker: BrokerDep, namespace: str, topic: str, policies: TopicPolicies) -> Any:
    return await broker("set_topic_policies", topic=f"/{namespace}/{topic}", policies=policies.model_dump())


@router.get("/{topic}/producers", response_model=Listing[Producer], summary="List the connected producers")
async def list_producers(broker: BrokerDep, namespace: str, topic: str, page: PageDep) -> Any:
    return await broker("page_producers", topic=f"/{namespace}/{topic}", **page)


@router.delete(
    "/{topic}/producers/{producer}", status_code=204, summary="Disconnect a producer, which has to reconnect"
)
async def disconnect_producer(broker: BrokerDep, namespace: str, topic: str, producer: str) -> None:
    await broker("disconnect_producer", topic=f"/{namespace}/{topic}", producer=producer)
