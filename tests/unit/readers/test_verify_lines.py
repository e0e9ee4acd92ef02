"""`verify` over HTTP: progress lines, every finding, and the error that ended it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import connect, errors, limits
from icestream.lake.api_app import build_app
from icestream.metadata.remote_store import RemoteStore
from icestream.model.shard import DeclaredGap, GapState, ShardKey
from icestream.model.topic_name import TopicName
from icestream.readers.verify.offset_ranges import Ranges, append_ranges, offsets_between, ranges_of
from icestream.readers.verify.report_stream import lines
from icestream.readers.verify.verify_report import Finding, ShardLogState, VerifyProgress, VerifyReport, Weight
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from tests.support.asgi import AsgiClient
from tests.support.topic_lake import TopicLake, rows
from tests.unit.lake.test_scan_worker import kept_link, running

TOPIC = "/default/orders"


class FakeVerifier:
    """A verifier that yields the given events."""

    def __init__(self, *events: Finding | VerifyProgress | Exception) -> None:
        self.planned_events = events
        self.events_sent = 0
        self.is_closed = False

    def events(self, deep: bool) -> Iterator[Finding | VerifyProgress]:
        try:
            for event in self.planned_events:
                if isinstance(event, Exception):
                    raise event
                self.events_sent += 1
                yield event
        finally:
            self.is_closed = True

    def report(self, deep: bool, findings: list[Finding]) -> VerifyReport:
        return VerifyReport(TOPIC, "default.orders", 7, deep, 3, findings)


async def documents(verifier: Any) -> list[Any]:
    data = b"".join([piece async for piece in lines(verifier, True)])
    return [json.loads(line) for line in data.splitlines()]


def finding(number: int, weight: Weight = Weight.KNOWN) -> Finding:
    return Finding("dense", weight, "gone", 0, number, number + 1)


@pytest.mark.asyncio
async def test_every_finding_is_sent_and_the_report_is_last() -> None:
    many = [finding(number) for number in range(5 * limits.VERIFY_LINES_MAX)]
    sent = await documents(FakeVerifier(VerifyProgress(0, 9), *many, VerifyProgress(9, 9)))
    assert [document["finding"]["start"] for document in sent if "finding" in document] == list(range(len(many)))
    assert sent[0] == {"progress": {"done": 0, "all": 9}}
    report = sent[-1]["report"]
    assert (report["is_good"], report["finding_count"], report["files"]) == (True, len(many), 3)
    assert "findings" not in report
    wrong = await documents(FakeVerifier(finding(1), finding(2, Weight.WRONG), finding(3)))
    assert (wrong[-1]["report"]["is_good"], wrong[-1]["report"]["finding_count"]) == (False, 3)


@pytest.mark.asyncio
async def test_an_error_is_sent_as_the_last_line() -> None:
    sent = await documents(FakeVerifier(finding(1), errors.StorageUnavailable("no answer", hint="wait")))
    assert sent[-1] == {"problem": {"code": "storage_unavailable", "detail": "no answer", "hint": "wait"}}
    assert len(sent) == 2
    mistaken = await documents(FakeVerifier(finding(1), ValueError("a mistake of ours")))
    assert "a mistake of ours" in mistaken[-1]["problem"]["detail"]


@pytest.mark.asyncio
async def test_a_disconnected_client_ends_verify() -> None:
    verifier = FakeVerifier(*(finding(number) for number in range(10_000)))
    coming = lines(verifier, True)  # type: ignore[arg-type]
    await anext(coming)
    await coming.aclose()  # type: ignore[attr-defined]
    assert verifier.is_closed
    assert verifier.events_sent == limits.VERIFY_LINES_MAX


@pytest.mark.asyncio
async def test_more_gaps_than_a_page_are_all_known(tmp_path: Path) -> None:
    """Every other offset is a declared gap: none of them may count as a row that is missing."""
    gaps = limits.API_PAGE_MAX + 5
    async with (
        running(tmp_path / "data") as node,
        kept_link(node.settings.local_socket) as keeper,
        connect(f"icestream://127.0.0.1:{node.native.port}") as client,
    ):
        async with client.producer(TOPIC, name="p") as producer:
            for _ in range(2 * gaps):
                await producer.send(b"")
        topic_id = node.broker.topics.get(TopicName.parse(TOPIC)).record.id
        key = ShardKey(topic_id, 0)
        assert node.log is not None
        declared = [
            DeclaredGap(key, 2 * at + 1, 2 * at + 2, 0, f"power loss {at}", GapState.LOST) for at in range(gaps)
        ]
        node.log.state.gaps[key] = declared
        store = RemoteStore(keeper, SystemClock(), SystemRandomness())
        lake = TopicLake(tmp_path / "warehouse", store, SystemClock(), topic=TOPIC, topic_id=topic_id)
        await lake.bind()
        entries = [await lake.write([row for row in rows(0, 2 * gaps) if row["offset"] % 2 == 0])]
        await lake.round((0, 0, 2 * gaps), entries=entries)
        ask = AsgiClient(build_app(keeper, "127.0.0.1", scans=lake.scans))
        answer = [
            json.loads(line)
            for line in (await ask("GET", f"/api/v1/lake/verify/lines?topic={TOPIC}&deep=true")).body.splitlines()
        ]
        findings = [document["finding"] for document in answer if "finding" in document]
        assert [(gap["start"], gap["weight"]) for gap in findings] == [(2 * at + 1, "known") for at in range(gaps)]
        assert (answer[-1]["report"]["is_good"], answer[-1]["report"]["finding_count"]) == (True, gaps)
        shown = (await ask("GET", f"/api/v1/lake/verify?topic={TOPIC}&deep=true")).json
        assert (shown["is_good"], shown["finding_count"]) == (True, gaps)
        listed = await ask("GET", "/api/v1/namespaces/default/topics/orders/shards/0/gaps?limit=500")
        assert [gap["start"] for gap in listed.json["items"]] == [2 * at + 1 for at in range(500)]
        assert listed.json["next"] is not None
        assert (await ask("GET", "/api/v1/namespaces/default/topics/orders/shards/7/gaps")).status == 400
        none = await ask("GET", "/api/v1/lake/verify/lines?topic=/default/other")
        assert (none.status, none.is_problem) == (404, True)
        await store.close()


# --- offsets ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 60), max_size=80), st.integers(0, 60), st.integers(0, 60))
def test_ranges_match_a_count(offsets: list[int], first: int, other: int) -> None:
    start, stop = sorted((first, other))
    array = pa.array(offsets, pa.int64())
    there, twice = ranges_of(array)
    assert _all(there) == sorted(set(offsets))
    assert _all(twice) == sorted({at for at in offsets if offsets.count(at) > 1})
    assert all(end < after for (_, end), (after, _) in pairwise(there)), "joined where they touch"
    assert offsets_between(array, start, stop).to_pylist() == [at for at in offsets if start <= at < stop]
    low, _ = ranges_of(offsets_between(array, 0, start))
    high, _ = ranges_of(offsets_between(array, start, 61))
    append_ranges(low, high)
    assert low == there, "window by window is the same"


def _all(ranges: Ranges) -> list[int]:
    return [at for start, end in ranges for at in range(start, end)]


@pytest.mark.asyncio
@pytest.mark.wrong_tables("doubled and lost rows")
async def test_overlapping_files_are_read_in_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine sorted the rows differently: each file spans all offsets, and a window holds a few rows of each."""
    monkeypatch.setattr(limits, "SCAN_WINDOW_BYTES", 500)
    lake = TopicLake(tmp_path)
    await lake.bind()
    present = [row for row in rows(0, 300) if row["offset"] not in (77, 78, 200)]
    parts = [present[at::3] for at in range(3)]
    parts[0].append(present[10])
    entries = [await lake.write(sorted(part, key=lambda row: row["offset"] % 7), groups=20) for part in parts]
    await lake.round((0, 0, 300), entries=entries)
    view = await lake.tables.fresh(lake.topic_id)
    assert view is not None
    events = list(lake.scans.verifier(view, {0: ShardLogState(0, 300)}).events(deep=True))
    findings = [(event.check, event.start, event.end) for event in events if isinstance(event, Finding)]
    assert sorted(findings) == [("dense", 77, 79), ("dense", 200, 201), ("unique", 10, 11)]
    steps = [event for event in events if isinstance(event, VerifyProgress)]
    assert len(steps) > 20
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert steps[-1].done == steps[-1].all == 3 + 2 * 298  # the files, then each row by its values and by its offset
