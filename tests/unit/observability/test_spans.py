"""Spans are recorded where OpenTelemetry is set up, and cost nothing elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from icestream import errors
from icestream.observability import spans
from tests.support.broker_machine import TOPIC, publish, quiet, subscribe
from tests.support.pipeline_harness import PipelineHarness
from tests.support.tiers import TieredMachine

MESSAGES = 30


class Tracer:
    """Remembers what began and ended, in order, and inside of what."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.ended: list[tuple[str, ...]] = []
        self.attributes: dict[str, Any] = {}

    @contextmanager
    def start_as_current_span(self, name: str, attributes: Any) -> Iterator[None]:
        self.open.append(name)
        self.attributes[name] = attributes
        try:
            yield
        finally:
            self.ended.append(tuple(self.open))
            self.open.pop()

    def start_span(self, name: str, attributes: Any, start_time: int) -> FinishedSpan:
        return FinishedSpan(self, name, attributes, start_time)


class FinishedSpan:
    def __init__(self, tracer: Tracer, name: str, attributes: Any, start_time: int) -> None:
        self._tracer, self._name, self._attributes, self._start_ns = tracer, name, attributes, start_time

    def end(self) -> None:
        assert 0 < self._start_ns <= time.time_ns()
        self._tracer.ended.append((self._name,))
        self._tracer.attributes[self._name] = self._attributes


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> Tracer:
    fake_tracer = Tracer()
    monkeypatch.setattr(spans, "_tracer", lambda: fake_tracer)
    return fake_tracer


@pytest.mark.asyncio
async def test_a_round_is_a_span_with_its_steps(tmp_path: Path, tracer: Tracer) -> None:
    pipeline = PipelineHarness(tmp_path / "w")
    pipeline.broker.publish(1, 5)
    await pipeline.round()
    await pipeline.close()
    steps = [("round", f"round.{step}") for step in ("write", "commit", "advance", "clean_up")]
    assert tracer.ended == [("round.tables",), *steps, ("round",)]
    assert tracer.attributes["round"] == {"topics": 1, "epoch": 1}


async def _publish_and_read_history(folder: Path) -> None:
    """A broker that stores messages, moves some of them to the table, and delivers all of them."""
    machine = TieredMachine(folder)
    broker = await machine.open_broker()
    await broker.create_topic(TOPIC)
    await machine.lake.bind()
    producer = await broker.open_producer(TOPIC, "p")
    for number in range(MESSAGES):
        if number == 20:
            await machine.commit()
        await publish(broker, producer, b"%d" % number + bytes(8_000))
    await machine.forget()
    reader = await subscribe(broker)
    for _ in range(100):
        await quiet()
    assert reader.sink.offsets == list(range(MESSAGES))
    with pytest.raises(errors.InvalidInput):
        broker.publish(producer, 0, b"no block")
    await broker.shutdown()


@pytest.mark.asyncio
async def test_publish_append_delivery_and_reads_are_spans(
    tmp_path: Path, tracer: Tracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans.tracing, "is_on", True)
    await _publish_and_read_history(tmp_path)
    counts = Counter(name for (name,) in tracer.ended)
    assert (counts["publish"], counts["append"]) == (MESSAGES + 1, MESSAGES)
    assert counts["deliver"] >= 2
    assert min(counts["log.read"], counts["table.read"]) >= 1
    assert tracer.attributes["publish"] == {
        "topic": str(TOPIC), "shard": 0, "bytes": 8, "outcome": errors.InvalidInput.code
    }  # fmt: skip
    assert tracer.attributes["append"]["batches"] == 1
    assert tracer.attributes["table.read"] == {"topic": str(TOPIC), "shard": 0, "offset": 0, "offsets": 20}
    assert tracer.attributes["deliver"]["consumer"] == "c"


@pytest.mark.asyncio
async def test_the_broker_records_no_spans_while_tracing_is_off(tmp_path: Path, tracer: Tracer) -> None:
    await _publish_and_read_history(tmp_path)
    assert tracer.ended == []


def test_an_error_ends_its_span_and_is_raised(tracer: Tracer) -> None:
    with pytest.raises(ZeroDivisionError), spans.span("outer"):
        raise ZeroDivisionError
    assert tracer.ended == [("outer",)]


def test_without_opentelemetry_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    spans._tracer.cache_clear()
    try:
        with spans.span("nothing", topic="/default/a"):
            assert spans._tracer() is None
    finally:
        spans._tracer.cache_clear()


def test_spans_are_sent_to_the_endpoint_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the SDK, which is not a part of ours."""
    exporters: dict[str, Any] = {}

    class Provider:
        def __init__(self, resource: object) -> None:
            exporters["resource"] = resource

        def add_span_processor(self, processor: object) -> None:
            exporters["processor"] = processor

    def module(name: str, **content: Any) -> None:
        fake_module = ModuleType(name)
        fake_module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, fake_module)

    module("opentelemetry.trace", set_tracer_provider=lambda provider: exporters.update(provider=provider))
    module("opentelemetry.sdk.trace", TracerProvider=Provider)
    module("opentelemetry.sdk.trace.export", BatchSpanProcessor=lambda exporter: ("batches", exporter))
    module("opentelemetry.exporter.otlp.proto.http.trace_exporter", OTLPSpanExporter=lambda: "otlp")
    module("opentelemetry.sdk.resources", Resource=type("Resource", (), {"create": staticmethod(dict)}))
    monkeypatch.setattr(spans.tracing, "is_on", False)
    assert not spans.set_up_spans("lake", {})
    assert exporters == {}
    assert not spans.tracing.is_on
    assert spans.set_up_spans("lake", {spans.ENDPOINT: "http://127.0.0.1:4318"})
    assert spans.tracing.is_on
    assert exporters["resource"] == {"service.name": "icestream-lake"}
    assert exporters["processor"] == ("batches", "otlp")
    assert isinstance(exporters["provider"], Provider)


def test_a_missing_exporter_is_reported_and_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert not spans.set_up_spans("pipeline", {spans.ENDPOINT: "http://127.0.0.1:4318"})
