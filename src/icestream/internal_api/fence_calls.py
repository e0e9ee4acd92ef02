"""The warehouse fence of an object store (catalogs/warehouse_fence_record.py): calls of the local socket.

method          arguments                                  result
fence_terms                                                cluster, superseded: ids; an empty cluster means no fence
fence_report    cluster, replaced, successor, failure      nothing. A node that is fenced off stops
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from icestream.catalogs.warehouse_fence_record import FenceReport, FenceTerms
from icestream.frontends.native.public_calls import Call, Caller, Document, decode_arguments

FENCE_METHODS: Final = ("fence_terms", "fence_report")


class FenceReports(Protocol):
    async def terms(self) -> FenceTerms: ...

    async def report(self, report: FenceReport) -> None: ...


class FenceCalls:
    """`reports` is None for a broker without a warehouse in an object store."""

    def __init__(self, reports: FenceReports | None) -> None:
        self._reports = reports

    def calls(self) -> dict[str, Call]:
        return {name: getattr(self, name) for name in FENCE_METHODS}

    async def fence_terms(self, caller: Caller, _: Document) -> Document:
        terms = await self._reports.terms() if self._reports is not None else FenceTerms()
        document: Document = msgspec.to_builtins(terms)
        return document

    async def fence_report(self, caller: Caller, arguments: Document) -> Document:
        if self._reports is not None:
            await self._reports.report(decode_arguments(FenceReport, arguments))
        return {}
