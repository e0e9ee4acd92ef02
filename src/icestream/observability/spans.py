"""Spans: which step took how long, for OpenTelemetry. Where it is not installed, or nobody set it up, nothing happens.

    round                                            a round of the pipeline, from its plan to its end
    round.tables, .write, .commit, .advance, .clean_up   its steps, as `icestream_pipeline_step_seconds_total` has them
    scan                                             a question of the broker to the lake process

`set_up_spans` sends them to where `OTEL_EXPORTER_OTLP_ENDPOINT` says, with the packages `opentelemetry-sdk` and
`opentelemetry-exporter-otlp-proto-http`; all other variables of OpenTelemetry count, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, Final

from icestream.observability.log import get_logger

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_NAME: Final = "icestream"


@contextmanager
def span(name: str, **attributes: str | int) -> Iterator[None]:
    """What happens inside is a part of it; an error is noted with it."""
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
    """Whether they are sent. `process`: which of a node's it is."""
    if ENDPOINT not in environ:
        return False
    try:
        trace, sdk = import_module("opentelemetry.trace"), import_module("opentelemetry.sdk.trace")
        exporting = import_module("opentelemetry.sdk.trace.export")
        exporter = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        resources = import_module("opentelemetry.sdk.resources")
    except ImportError as error:
        hint = "install opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http"
        get_logger("spans").warning(f"{ENDPOINT} is set, and spans cannot be sent", reason=str(error), hint=hint)
        return False
    provider = sdk.TracerProvider(resource=resources.Resource.create({"service.name": f"{_NAME}-{process}"}))
    provider.add_span_processor(exporting.BatchSpanProcessor(exporter.OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return True
