"""Commits in Iceberg's REST protocol: to one table, and to several at once."""

from __future__ import annotations

from icestream import errors
from icestream.catalog.catalog import Catalog
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.iceberg import values
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.values import Object
from icestream.lake.iceberg import responses
from icestream.lake.iceberg.request import Asked, identifier_of
from icestream.lake.iceberg.responses import Answer


async def commit_table(catalog: Catalog, asked: Asked) -> Answer:
    request = _request(asked.document(), asked.is_forced)
    return responses.table(await catalog.commits.commit(asked.relation, request, asked.name))


async def commit_transaction(catalog: Catalog, asked: Asked) -> Answer:
    is_forced = asked.is_forced
    changes: dict[Identifier, CommitRequest] = {}
    for change in values.objects(asked.document(), "table-changes"):
        identifier = identifier_of(values.as_object(values.required(change, "identifier"), "identifier"))
        if identifier in changes:
            raise errors.InvalidInput(f"a transaction with two changes of {identifier}", hint="make them one")
        changes[identifier] = _request(change, is_forced)
    return responses.repeats(await catalog.commits.commit_all(changes, asked.name))


def _request(document: Object, is_forced: bool) -> CommitRequest:
    return CommitRequest(values.objects(document, "requirements"), values.objects(document, "updates"), is_forced)
