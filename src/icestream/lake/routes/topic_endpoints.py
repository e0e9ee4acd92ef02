"""/api/v1/topics, /api/v1/namespaces/{namespace}/topics: topics and their producers"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Response

from icestream.admin_api import topic_api as api
from icestream.admin_api.admin_call import Listing, NoArguments
from icestream.lake.broker_calls import PREFIX, BrokerDep, PageDep
from icestream.lake.http_models import body, extend, model_of
from icestream.model.topic_deletion_policy import DeletedRestPolicy, DeletedTablePolicy
from icestream.model.topic_policies import PolicyValues

all_topics_router = APIRouter(prefix=PREFIX, tags=["topics"])
router = APIRouter(prefix=PREFIX + "/namespaces/{namespace}/topics", tags=["topics"])
_TOPIC, _TOPICS = model_of(api.TopicDetails), model_of(Listing[api.TopicSummary])


@all_topics_router.get("/topics", response_model=_TOPICS, summary="List the topics of all namespaces")
async def list_all_topics(broker: BrokerDep, page: PageDep) -> Listing[api.TopicSummary]:
    return await broker(api.PAGE_TOPICS, extend(api.PageTopics, page))


@all_topics_router.get(
    "/deleted-topics", response_model=model_of(api.TombstoneList), summary="List the deleted topics that can come back"
)
async def list_deleted_topics(broker: BrokerDep) -> api.TombstoneList:
    return await broker(api.LIST_DELETED_TOPICS, NoArguments())


@router.post(
    "/{topic}/undelete",
    response_model=model_of(api.ReturnReport),
    summary="Bring a deleted topic back; then adopt its table",
)
async def undelete_topic(
    broker: BrokerDep,
    namespace: str,
    topic: str,
    id: Annotated[  # noqa: A002  # the name of the parameter
        int | None, Query(description="Which of several deleted topics of that name; default: the last one.")
    ] = None,
    bring_back_erased: Annotated[
        bool, Query(description="Also if messages of it were erased since from a topic that was restored from it.")
    ] = False,
) -> api.ReturnReport:
    return await broker(api.UNDELETE_TOPIC, api.UndeleteTopic(f"/{namespace}/{topic}", id, bring_back_erased))


@router.get("", response_model=_TOPICS, summary="List the topics of a namespace")
async def list_topics(broker: BrokerDep, namespace: str, page: PageDep) -> Listing[api.TopicSummary]:
    return await broker(api.PAGE_TOPICS, extend(api.PageTopics, page, namespace=namespace))


@router.post("", response_model=_TOPIC, status_code=201, summary="Create a topic")
async def create_topic(
    broker: BrokerDep, namespace: str, new: Annotated[api.NewTopic, body(api.NewTopic)], response: Response
) -> api.TopicDetails:
    topic = f"/{namespace}/{new.name}"
    request = api.CreateTopic(topic=topic, shards=new.shards, dispatch=new.dispatch, policies=new.policies)
    await broker(api.CREATE_TOPIC, request)
    response.headers["Location"] = f"{PREFIX}/namespaces/{quote(namespace)}/topics/{quote(new.name)}"
    return await broker(api.INSPECT_TOPIC, api.TopicOnly(topic))


@router.get("/{topic}", response_model=_TOPIC, summary="Show a topic: policies, offsets, gaps, usage")
async def inspect_topic(broker: BrokerDep, namespace: str, topic: str) -> api.TopicDetails:
    return await broker(api.INSPECT_TOPIC, api.TopicOnly(f"/{namespace}/{topic}"))


@router.get(
    "/{topic}/shards/{shard}/gaps", response_model=model_of(Listing[api.GapRange]), summary="List all gaps of a shard"
)
async def list_gaps(broker: BrokerDep, namespace: str, topic: str, shard: int, page: PageDep) -> Listing[api.GapRange]:
    return await broker(api.PAGE_GAPS, extend(api.PageOfShard, page, topic=f"/{namespace}/{topic}", shard=shard))


@router.delete("/{topic}", response_model=model_of(api.DeletedTopic), summary="Delete a topic and its subscriptions")
async def delete_topic(
    broker: BrokerDep,
    namespace: str,
    topic: str,
    table: Annotated[
        DeletedTablePolicy | None, Query(description="Whether to keep its table; default: as its policies say.")
    ] = None,
    rest: Annotated[
        DeletedRestPolicy | None,
        Query(description="Whether to commit uncommitted messages; default: as its policies say."),
    ] = None,
) -> api.DeletedTopic:
    name = f"/{namespace}/{topic}"
    deletion = await broker(api.DELETE_TOPIC, api.DeleteTopic(name, table, rest))
    return extend(api.DeletedTopic, deletion, deleted=name)


@router.put("/{topic}/policies", response_model=_TOPIC, summary="Set the policies of a topic")
async def set_topic_policies(
    broker: BrokerDep, namespace: str, topic: str, policies: Annotated[PolicyValues, body(PolicyValues)]
) -> api.TopicDetails:
    return await broker(api.SET_TOPIC_POLICIES, api.SetTopicPolicies(f"/{namespace}/{topic}", policies))


@router.get(
    "/{topic}/producers",
    response_model=model_of(Listing[api.ConnectedProducer]),
    summary="List the connected producers",
)
async def list_producers(
    broker: BrokerDep, namespace: str, topic: str, page: PageDep
) -> Listing[api.ConnectedProducer]:
    return await broker(api.PAGE_PRODUCERS, extend(api.PageOfTopic, page, topic=f"/{namespace}/{topic}"))


@router.delete(
    "/{topic}/producers/{producer}", status_code=204, summary="Disconnect a producer, which has to reconnect"
)
async def disconnect_producer(broker: BrokerDep, namespace: str, topic: str, producer: str) -> None:
    await broker(api.DISCONNECT_PRODUCER, api.ProducerOnly(f"/{namespace}/{topic}", producer))
