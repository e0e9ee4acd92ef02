"""Spans: which step took how long, for OpenTelemetry. Where it is not installed or not set up, nothing is recorded.

    publish       broker     a batch of a producer, from its arrival to its outcome
    append        broker     a tick of the log: all batches of it, until the last one is released
    deliver       broker     what is sent to a consumer at a time, with the read before it
    log.read      broker     a read of log files for a subscription; reads from memory are part of `deliver`
    table.read    broker     a read of the topic's table, with the wait for the lake process
    scan          lake       a request of the broker to the lake process
    round         pipeline   a round of the pipeline, from its plan to its end
    round.tables, .write, .commit, .advance, .clean_up
                  pipeline   its steps, as `icestream_pipeline_step_seconds_total` has them

The broker's own are recorded when they end, and only where `tracing.is_on`: without tracing its hot paths pay one test
for each batch, tick or send.

`set_up_spans` sends them to `OTEL_EXPORTER_OTLP_ENDPOINT`, with the packages `opentelemetry-sdk` and
`opentelemetry-exporter-otlp-proto-http`; all other variables of OpenTelemetry are honoured, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, Final

from icestream.observability.log import get_logger

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_NAME: Final = "icestream"


class Tracing:
    """Whether this process sends spans."""

    __slots__ = ("is_on",)

    def __init__(self) -> None:
        self.is_on = False


tracing: Final = Tracing()
now_ns: Final = time.time_ns  # OpenTelemetry compares spans of all processes by the wall clock


def record(name: str, start_ns: int, **attributes: str | int) -> None:
    """Records a span that began at `start_ns`, by `now_ns`, and ends now."""
    tracer = _tracer()
    if tracer is not None:
        tracer.start_span(name, attributes=attributes, start_time=start_ns).end()


@contextmanager
def span(name: str, **attributes: str | int) -> Iterator[None]:
    """A context whose duration is recorded as a span; an exception is recorded with it."""
    tracer = _tracer()
    if tracer is None:
        yield
        return
    with tracer.start_as_current_span(name, attributes=attributes):
        yield


@cache
def _tracer() -> Any:
    try:
        return import_module("opentelemetry.trace").get_tracer(_NAME)
    except ImportError:
        return None


def set_up_spans(process: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Sets up sending; returns whether spans are sent. `process`: the name of this process in the traces."""
    if ENDPOINT not in environ:
        return False
    try:
        trace, sdk = import_module("opentelemetry.trace"), import_module("opentelemetry.sdk.trace")
        exporting = import_module("opentelemetry.sdk.trace.export")
        exporter = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        resources = import_module("opentelemetry.sdk.resources")
    except ImportError as error:
        hint = "install opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http"
        get_logger("spans").warning(f"{ENDPOINT} is set, but spans cannot be sent", reason=str(error), hint=hint)
        return False
    provider = sdk.TracerProvider(resource=resources.Resource.create({"service.name": f"{_NAME}-{process}"}))
    provider.add_span_processor(exporting.BatchSpanProcessor(exporter.OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    tracing.is_on = True
    return True
