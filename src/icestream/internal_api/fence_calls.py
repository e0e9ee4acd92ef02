"""What processes of this node ask and tell of the fence of a warehouse in an object store: methods of a CALL that only
the local socket offers (catalogs/warehouse_fence_record.py).

method          arguments                                  result
fence_terms                                                cluster, superseded: ids; an empty cluster: there is no fence
fence_report    cluster, replaced, successor, failure      nothing. The node stops when it is fenced off
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from icestream.catalogs.warehouse_fence_record import FenceReport, FenceTerms
from icestream.frontends.native.public_calls import Call, Document, arguments_of

if TYPE_CHECKING:
    from icestream.frontends.native.native_connection import NativeConnection

FENCE_METHODS: Final = ("fence_terms", "fence_report")


class FenceReports(Protocol):
    async def terms(self) -> FenceTerms: ...

    async def report(self, report: FenceReport) -> None: ...


class FenceCalls:
    """`desk` is None for a broker without a warehouse in an object store."""

    def __init__(self, desk: FenceReports | None) -> None:
        self._desk = desk

    def calls(self) -> dict[str, Call]:
        return {name: getattr(self, name) for name in FENCE_METHODS}

    async def fence_terms(self, connection: NativeConnection, _: Document) -> Document:
        terms = await self._desk.terms() if self._desk is not None else FenceTerms()
        document: Document = msgspec.to_builtins(terms)
        return document

    async def fence_report(self, connection: NativeConnection, arguments: Document) -> Document:
        if self._desk is not None:
            await self._desk.report(arguments_of(FenceReport, arguments))
        return {}
