"""Commits in Iceberg's REST protocol: to one table, and to several tables in a transaction."""

from __future__ import annotations

from icestream import errors
from icestream.catalog.catalog import Catalog
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.iceberg import values
from icestream.iceberg.identifier import Identifier
from icestream.iceberg.values import Object
from icestream.lake.iceberg import responses
from icestream.lake.iceberg.request import IcebergRequest, parse_identifier
from icestream.lake.iceberg.responses import IcebergResponse


async def commit_table(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    commit = _commit_request(request.document(), request.is_forced)
    return responses.table_response(await catalog.commits.commit(request.relation, commit, request.name))


async def commit_transaction(catalog: Catalog, request: IcebergRequest) -> IcebergResponse:
    is_forced = request.is_forced
    changes: dict[Identifier, CommitRequest] = {}
    for change in values.objects(request.document(), "table-changes"):
        identifier = parse_identifier(values.as_object(values.required(change, "identifier"), "identifier"))
        if identifier in changes:
            raise errors.InvalidInput(
                f"transaction contains two changes of {identifier}", hint="combine them into one change"
            )
        changes[identifier] = _commit_request(change, is_forced)
    return responses.transaction_response(await catalog.commits.commit_all(changes, request.name))


def _commit_request(document: Object, is_forced: bool) -> CommitRequest:
    return CommitRequest(values.objects(document, "requirements"), values.objects(document, "updates"), is_forced)
