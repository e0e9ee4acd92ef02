"""`verify` over HTTP: lines while it goes on, every finding, and what kept it from going on."""

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
from icestream.model.shard import Gap, GapState, ShardKey
from icestream.model.topic_name import TopicName
from icestream.readers.verify.offset_ranges import Ranges, append_ranges, ranges_of, within
from icestream.readers.verify.report_stream import lines
from icestream.readers.verify.verify_report import Finding, ShardLogState, VerifyProgress, VerifyReport, Weight
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from tests.support.asgi import Asker
from tests.support.topic_lake import TopicLake, rows
from tests.unit.lake.test_scan_worker import kept_link, running

TOPIC = "/default/orders"


class Said:
    """A verifier that says what it was given."""

    def __init__(self, *told: Finding | VerifyProgress | Exception) -> None:
        self.given = told
        self.said = 0
        self.is_closed = False

    def events(self, deep: bool) -> Iterator[Finding | VerifyProgress]:
        try:
            for one in self.given:
                if isinstance(one, Exception):
                    raise one
                self.said += 1
                yield one
        finally:
            self.is_closed = True

    def report(self, deep: bool, findings: list[Finding]) -> VerifyReport:
        return VerifyReport(TOPIC, "default.orders", 7, deep, 3, findings)


async def documents(verifier: Any) -> list[Any]:
    found = b"".join([piece async for piece in lines(verifier, True)])
    return [json.loads(line) for line in found.splitlines()]


def finding(number: int, weight: Weight = Weight.KNOWN) -> Finding:
    return Finding("dense", weight, "gone", 0, number, number + 1)


@pytest.mark.asyncio
async def test_every_finding_is_told_and_the_report_is_last() -> None:
    many = [finding(number) for number in range(5 * limits.VERIFY_LINES_MAX)]
    found = await documents(Said(VerifyProgress(0, 9), *many, VerifyProgress(9, 9)))
    assert [one["finding"]["start"] for one in found if "finding" in one] == list(range(len(many)))
    assert found[0] == {"progress": {"done": 0, "all": 9}}
    report = found[-1]["report"]
    assert (report["is_good"], report["finding_count"], report["files"]) == (True, len(many), 3)
    assert "findings" not in report
    wrong = await documents(Said(finding(1), finding(2, Weight.WRONG), finding(3)))
    assert (wrong[-1]["report"]["is_good"], wrong[-1]["report"]["finding_count"]) == (False, 3)


@pytest.mark.asyncio
async def test_what_ends_it_is_told() -> None:
    found = await documents(Said(finding(1), errors.StorageUnavailable("no answer", hint="wait")))
    assert found[-1] == {"problem": {"code": "storage_unavailable", "detail": "no answer", "hint": "wait"}}
    assert len(found) == 2
    mistaken = await documents(Said(finding(1), ValueError("a mistake of ours")))
    assert "a mistake of ours" in mistaken[-1]["problem"]["detail"]


@pytest.mark.asyncio
async def test_whoever_leaves_ends_it() -> None:
    verifier = Said(*(finding(number) for number in range(10_000)))
    coming = lines(verifier, True)  # type: ignore[arg-type]
    await anext(coming)
    await coming.aclose()  # type: ignore[attr-defined]
    assert verifier.is_closed
    assert verifier.said == limits.VERIFY_LINES_MAX


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
        declared = [Gap(key, 2 * at + 1, 2 * at + 2, 0, f"power loss {at}", GapState.LOST) for at in range(gaps)]
        node.log.state.gaps[key] = declared
        store = RemoteStore(keeper, SystemClock(), SystemRandomness())
        lake = TopicLake(tmp_path / "warehouse", store, SystemClock(), topic=TOPIC, topic_id=topic_id)
        await lake.bind()
        entries = [await lake.write([one for one in rows(0, 2 * gaps) if one["offset"] % 2 == 0])]
        await lake.round((0, 0, 2 * gaps), entries=entries)
        ask = Asker(build_app(keeper, "127.0.0.1", scans=lake.scans))
        told = [
            json.loads(line)
            for line in (await ask("GET", f"/api/v1/lake/verify/lines?topic={TOPIC}&deep=true")).body.splitlines()
        ]
        found = [one["finding"] for one in told if "finding" in one]
        assert [(one["start"], one["weight"]) for one in found] == [(2 * at + 1, "known") for at in range(gaps)]
        assert (told[-1]["report"]["is_good"], told[-1]["report"]["finding_count"]) == (True, gaps)
        shown = (await ask("GET", f"/api/v1/lake/verify?topic={TOPIC}&deep=true")).json
        assert (shown["is_good"], shown["finding_count"]) == (True, gaps)
        listed = await ask("GET", "/api/v1/namespaces/default/topics/orders/shards/0/gaps?limit=500")
        assert [one["start"] for one in listed.json["items"]] == [2 * at + 1 for at in range(500)]
        assert listed.json["next"] is not None
        assert (await ask("GET", "/api/v1/namespaces/default/topics/orders/shards/7/gaps")).status == 400
        none = await ask("GET", "/api/v1/lake/verify/lines?topic=/default/other")
        assert (none.status, none.is_problem) == (404, True)
        await store.close()


# --- offsets ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 60), max_size=80), st.integers(0, 60), st.integers(0, 60))
def test_ranges_are_what_a_count_finds(offsets: list[int], one: int, other: int) -> None:
    start, stop = sorted((one, other))
    array = pa.array(offsets, pa.int64())
    there, twice = ranges_of(array)
    assert _all(there) == sorted(set(offsets))
    assert _all(twice) == sorted({at for at in offsets if offsets.count(at) > 1})
    assert all(end < after for (_, end), (after, _) in pairwise(there)), "joined where they touch"
    assert within(array, start, stop).to_pylist() == [at for at in offsets if start <= at < stop]
    low, _ = ranges_of(within(array, 0, start))
    high, _ = ranges_of(within(array, start, 61))
    append_ranges(low, high)
    assert low == there, "window by window is the same"


def _all(ranges: Ranges) -> list[int]:
    return [at for start, end in ranges for at in range(start, end)]


@pytest.mark.asyncio
@pytest.mark.wrong_tables("doubled and lost rows")
async def test_overlapping_files_are_read_in_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorted by somebody by something else: each file spans all offsets, and a window holds a few rows of each."""
    monkeypatch.setattr(limits, "SCAN_WINDOW_BYTES", 500)
    lake = TopicLake(tmp_path)
    await lake.bind()
    made = [one for one in rows(0, 300) if one["offset"] not in (77, 78, 200)]
    parts = [made[at::3] for at in range(3)]
    parts[0].append(made[10])
    entries = [await lake.write(sorted(part, key=lambda one: one["offset"] % 7), groups=20) for part in parts]
    await lake.round((0, 0, 300), entries=entries)
    view = await lake.tables.fresh(lake.topic_id)
    assert view is not None
    told = list(lake.scans.verifier(view, {0: ShardLogState(0, 300)}).events(deep=True))
    findings = [(one.check, one.start, one.end) for one in told if isinstance(one, Finding)]
    assert sorted(findings) == [("dense", 77, 79), ("dense", 200, 201), ("unique", 10, 11)]
    steps = [one for one in told if isinstance(one, VerifyProgress)]
    assert len(steps) > 20
    assert [one.done for one in steps] == sorted(one.done for one in steps)
    assert steps[-1].done == steps[-1].all == 3 + 2 * 298  # the files, then each row by its values and by its offset
