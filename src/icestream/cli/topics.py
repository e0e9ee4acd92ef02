"""The topics of a broker, as far as it tells: everything over its local socket, names over an address."""

from __future__ import annotations

from icestream.cli.connection import BrokerCalls, Document


async def all_topics(broker: BrokerCalls, namespace: str | None = None) -> list[Document]:
    """Of one namespace, or of all. Over an address each has its name only."""
    if broker.is_local:
        return await broker.items("page_topics", namespace=namespace or "")
    names: list[str] = []
    page: Document = {"next": ""}
    while (after := page.get("next")) is not None:
        page = await broker.call("list_topics", after=after)
        names += page["topics"]
    return [{"topic": name} for name in names if not namespace or name.startswith(f"/{namespace}/")]
