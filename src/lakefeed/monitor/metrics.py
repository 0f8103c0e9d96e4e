"""Metrics: the document of a Watch as Prometheus text. docs/observability.md lists them, with what to do about each.

Every metric is a gauge or a counter with the labels in its line; ``pipeline`` is on all of them. An unknown value has
no sample, rather than a 0 that looks healthy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Document = Mapping[str, Any]
Samples = Iterable[tuple[Mapping[str, str], float | int | None]]

VERDICTS = ("healthy", "idle", "stalled", "stopped")
STATES = ("staged", "copying", "catching up", "live", "blocked", "dropped")
_OPERATIONS = ("inserted", "updated", "deleted", "truncated", "copied")


@dataclass(frozen=True, slots=True)
class Metric:
    """``samples`` returns labels and values; a value of None leaves the sample out."""

    name: str
    kind: str
    help: str
    samples: Callable[[Document], Samples]


def _one(*path: str) -> Callable[[Document], Samples]:
    """The value at a path in the document."""

    def samples(document: Document) -> Samples:
        value: Any = document
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        return [({}, value)]

    return samples


def _tables(value: Callable[[Mapping[str, Any]], float | int | None]) -> Callable[[Document], Samples]:
    """A value for each table that is not dropped."""

    def samples(document: Document) -> Samples:
        for name, table in document["tables"].items():
            if table["state"] != "dropped":
                yield {"table": name}, value(table)

    return samples


def _of(name: str, part: str) -> Callable[[Mapping[str, Any]], float | int | None]:
    return lambda table: (table[name] or {}).get(part)


def _states(document: Document) -> Samples:
    for name, table in document["tables"].items():
        for state in STATES:
            yield {"table": name, "state": state}, int(table["state"] == state)


def _applied(document: Document) -> Samples:
    for name, counts in document["applied"].items():
        for operation in _OPERATIONS:
            yield {"table": name, "operation": operation}, counts[operation]


_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
METRICS = (
    Metric("lakefeed_info", "gauge", "Always 1; the label says which version answers.",
           lambda document: [({"version": document["version"]}, 1)]),
    Metric("lakefeed_verdict", "gauge", "1 for the verdict of `lakefeed status`, 0 for the others.",
           lambda document: [({"verdict": one}, int(document["verdict"] == one)) for one in VERDICTS]),
    Metric("lakefeed_status_timestamp_seconds", "gauge", "When these figures were read.", _one("at")),
    Metric("lakefeed_reported_timestamp_seconds", "gauge", "When the running process last reported.",
           _one("reported_at")),
    Metric("lakefeed_unanswered", "gauge", "How many of source and lake tables did not answer in time.",
           lambda document: [({}, len(document["unanswered"]))]),
    Metric("lakefeed_findings", "gauge", "Findings of the source's preflight, by level.",
           lambda document: [({"level": level}, sum(one["level"] == level for one in document["findings"]))
                             for level in ("error", "warning")]),
    Metric("lakefeed_source_lag_rows", "gauge", "Changes that wait in the source.", _one("lag", "rows")),
    Metric("lakefeed_source_lag_bytes", "gauge", "Bytes of the source's log that are not confirmed.",
           _one("lag", "bytes")),
    Metric("lakefeed_source_lag_seconds", "gauge", "Age of the oldest change that is not confirmed.",
           _one("lag", "seconds")),
    Metric("lakefeed_source_retained_bytes", "gauge", "What of its log the source has from the confirmed position on.",
           _one("source", "retained_bytes")),
    Metric("lakefeed_source_left_bytes", "gauge", "How much more log may be written before the position is lost.",
           _one("source", "left_bytes")),
    Metric("lakefeed_source_left_seconds", "gauge", "How long it takes at least until the position is lost.",
           _one("source", "left_seconds")),
    Metric("lakefeed_captured_change_sets_total", "counter", "Change sets written to the journal.",
           _one("totals", "captured", "change_sets")),
    Metric("lakefeed_captured_rows_total", "counter", "Changes written to the journal.",
           _one("totals", "captured", "rows")),
    Metric("lakefeed_captured_bytes_total", "counter", "Bytes of segments written to the journal.",
           _one("totals", "captured", "bytes")),
    Metric("lakefeed_journal_head", "gauge", "Number of the newest change set.", _one("journal_head")),
    Metric("lakefeed_journal_bytes", "gauge", "What the retained change sets take on disk.", _one("journal", "bytes")),
    Metric("lakefeed_journal_backlog_bytes", "gauge", "What waits in the journal for live tables, lately.",
           lambda document: [({}, (document["history"]["backlog_bytes"] or [0])[-1])]),
    Metric("lakefeed_cycles_total", "counter", "Cycles that brought something into the lake.",
           _one("totals", "cycles")),
    Metric("lakefeed_cycle_seconds_total", "counter", "How long those cycles took together.",
           _one("totals", "cycle_seconds")),
    Metric("lakefeed_retries_total", "counter", "Errors of the whole pipeline that were tried again.",
           _one("totals", "retries")),
    Metric("lakefeed_applied_rows_total", "counter", "Rows brought into each lake table, by operation.", _applied),
    Metric("lakefeed_table_state", "gauge", "1 for the state that a table is in, 0 for the others.", _states),
    Metric("lakefeed_table_error", "gauge", "1 while a table cannot go on.",
           _tables(lambda table: int(table["error"] is not None))),
    Metric("lakefeed_table_rows", "gauge", "Rows of the lake table, by its own statistics.",
           _tables(lambda table: table["rows"])),
    Metric("lakefeed_table_lag_rows", "gauge", "Changes that the journal has and the lake table has not.",
           _tables(lambda table: table["lag_rows"])),
    Metric("lakefeed_table_lag_bytes", "gauge", "The same in bytes of segments.",
           _tables(lambda table: table["lag_bytes"])),
    Metric("lakefeed_table_lag_seconds", "gauge", "How long ago the oldest of them was committed in the source.",
           _tables(lambda table: table["lag_seconds"])),
    Metric("lakefeed_table_age_seconds", "gauge", "How long ago the table's newest change was committed in the source.",
           _tables(lambda table: table["age_seconds"])),
    Metric("lakefeed_table_copy_rows", "gauge", "Rows that the copy under way has brought.",
           _tables(_of("copy", "rows"))),
    Metric("lakefeed_table_copy_ratio", "gauge", "How far the copy is, 0 to 1, by an estimate.",
           _tables(_of("copy", "share"))),
    Metric("lakefeed_table_copy_seconds_left", "gauge", "How long the copy takes from now on, by an estimate.",
           _tables(_of("copy", "seconds_left"))),
    Metric("lakefeed_table_verified_timestamp_seconds", "gauge", "When `lakefeed verify` last compared the table.",
           _tables(_of("verified", "at"))),
    Metric("lakefeed_table_verified_equal", "gauge", "1 if the table was equal to the source then, 0 if not.",
           _tables(_of("verified", "equal"))),
)  # fmt: skip


def prometheus_text(document: Document) -> str:
    """The document in the text format, version 0.0.4. A metric without samples still has its two comment lines."""
    return "".join(f"{line}\n" for line in _lines(document))


def _lines(document: Document) -> Iterator[str]:
    for metric in METRICS:
        yield f"# HELP {metric.name} {metric.help}"
        yield f"# TYPE {metric.name} {metric.kind}"
        for labels, value in metric.samples(document):
            if value is None:
                continue
            every = {"pipeline": document["pipeline"], **labels}
            shown = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in every.items())
            yield (
                f"{metric.name}{{{shown}}} {float(value):.10g}"
                if isinstance(value, float)
                else (f"{metric.name}{{{shown}}} {int(value)}")
            )
