"""Traces: what a pipeline does as OpenTelemetry spans. An extra: ``pip install 'lakefeed[otel]'``.

OpenTelemetry's own configuration decides where they go (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_SERVICE_NAME`` and so
on). A span is made after its work, with the times of the work, so that nothing waits for a tracer. Spans have names,
counts and positions, but never a row and never a connection string.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, LakefeedError
from lakefeed.flow.report.listener import Listener
from lakefeed.flow.result import CycleResult
from lakefeed.journal.commit import Commit
from lakefeed.lake.full_diff import FullDiffResult

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_FLUSH_MILLISECONDS = 2_000


class Traces(Listener):
    """One span for each copy, change set, cycle (with one for each of its tables), comparison and error."""

    def __init__(self, pipeline: str, provider: TracerProvider) -> None:
        self._pipeline = pipeline
        self._provider = provider
        self._tracer = provider.get_tracer("lakefeed")

    @classmethod
    def from_environment(cls, pipeline: str) -> Traces:
        """Send spans to where the OTEL_ variables say. ConfigError without the extra."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            problem = f"monitor.traces needs OpenTelemetry, which is not installed ({error})"
            raise ConfigError(problem, remedy="pip install 'lakefeed[otel]'") from error
        provider = TracerProvider(resource=Resource.create({"service.name": "lakefeed"}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(pipeline, provider)

    def close(self) -> None:
        """Send what is left, within two seconds at most."""
        self._provider.force_flush(_FLUSH_MILLISECONDS)
        self._provider.shutdown()

    def snapshot_done(self, table: TableId, rows: int, seconds: float) -> None:
        self._span("copy table", seconds, {"table": str(table), "rows": rows})

    def captured(self, commit: Commit) -> None:
        figures = {"change_set": commit.number, "rows": commit.counts.total, "bytes": commit.bytes}
        self._span("append change set", 0.0, {**figures, "position": commit.end.encode()})

    def applied(self, result: CycleResult) -> None:
        from opentelemetry import trace

        now = time.time_ns()
        began = now - int(result.seconds * 1e9)
        total = self._named({"rows": result.counts.total})
        cycle = self._tracer.start_span("apply", start_time=began, attributes=total)
        inside = trace.set_span_in_context(cycle)
        for table, one in result.tables.items():
            counts = one.counts
            attributes: dict[str, str | int | float] = {"table": str(table), "applied": one.applied}
            attributes |= {"inserted": counts.inserted, "updated": counts.updated, "deleted": counts.deleted}
            span = self._tracer.start_span(
                "apply table", context=inside, start_time=began, attributes=self._named(attributes)
            )
            if one.error is not None:
                span.set_status(trace.StatusCode.ERROR, one.error)
            span.end(now)
        cycle.end(now)

    def full_diff_done(self, table: TableId, result: FullDiffResult) -> None:
        self._span(
            "compare table",
            result.seconds,
            {"table": str(table), "deleted": result.deleted, "changed": result.changed},
        )

    def table_error(self, table: TableId, message: str, remedy: str) -> None:
        self._span("table error", 0.0, {"table": str(table), "remedy": remedy}, error=message)

    def retrying(self, error: Exception, seconds: float) -> None:
        text = error.message if isinstance(error, LakefeedError) else str(error)
        self._span("retry", 0.0, {"again_in_seconds": seconds}, error=text)

    def _span(
        self, name: str, seconds: float, attributes: dict[str, str | int | float], error: str | None = None
    ) -> None:
        from opentelemetry.trace import StatusCode

        now = time.time_ns()
        span = self._tracer.start_span(name, start_time=now - int(seconds * 1e9), attributes=self._named(attributes))
        if error is not None:
            span.set_status(StatusCode.ERROR, error)
        span.end(now)

    def _named(self, attributes: dict[str, str | int | float]) -> dict[str, str | int | float]:
        return {"lakefeed.pipeline": self._pipeline, **{f"lakefeed.{key}": one for key, one in attributes.items()}}
