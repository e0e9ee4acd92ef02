"""Spans: made where somebody set OpenTelemetry up, and nothing anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from icestream.observability import spans
from tests.support.paper_pipeline import PaperPipeline


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


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> Tracer:
    found = Tracer()
    monkeypatch.setattr(spans, "_tracer", lambda: found)
    return found


@pytest.mark.asyncio
async def test_a_round_is_a_span_with_its_steps(tmp_path: Path, tracer: Tracer) -> None:
    pipeline = PaperPipeline(tmp_path / "w")
    pipeline.broker.publish(1, 5)
    await pipeline.round()
    await pipeline.close()
    steps = [("round", f"round.{step}") for step in ("write", "commit", "advance", "clean_up")]
    assert tracer.ended == [("round.tables",), *steps, ("round",)]
    assert tracer.attributes["round"] == {"topics": 1, "epoch": 1}


def test_an_error_ends_its_span_and_goes_on(tracer: Tracer) -> None:
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


def test_they_are_sent_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the SDK, which is not a part of ours."""
    made: dict[str, Any] = {}

    class Provider:
        def __init__(self, resource: object) -> None:
            made["resource"] = resource

        def add_span_processor(self, processor: object) -> None:
            made["processor"] = processor

    def module(name: str, **content: Any) -> None:
        found = ModuleType(name)
        found.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, found)

    module("opentelemetry.trace", set_tracer_provider=lambda provider: made.update(provider=provider))
    module("opentelemetry.sdk.trace", TracerProvider=Provider)
    module("opentelemetry.sdk.trace.export", BatchSpanProcessor=lambda exporter: ("batches", exporter))
    module("opentelemetry.exporter.otlp.proto.http.trace_exporter", OTLPSpanExporter=lambda: "otlp")
    module("opentelemetry.sdk.resources", Resource=type("Resource", (), {"create": staticmethod(dict)}))
    assert not spans.set_up_spans("lake", {})
    assert made == {}
    assert spans.set_up_spans("lake", {spans.ENDPOINT: "http://127.0.0.1:4318"})
    assert made["resource"] == {"service.name": "icestream-lake"}
    assert made["processor"] == ("batches", "otlp")
    assert isinstance(made["provider"], Provider)


def test_a_missing_part_is_said_and_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert not spans.set_up_spans("pipeline", {spans.ENDPOINT: "http://127.0.0.1:4318"})
