"""Lineage: which source table feeds which lake table, as OpenLineage events. An extra: ``lakefeed[openlineage]``.

OpenLineage's own configuration decides where they go (``OPENLINEAGE_URL``, ``OPENLINEAGE_CONFIG`` and so on). One run
of the pipeline is one run there: START, RUNNING for each copy and at most once a minute while changes arrive, COMPLETE
or FAIL. A thread of its own sends the events; one that cannot be sent is logged and has no other effect.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError
from lakefeed.flow.report.listener import Listener
from lakefeed.flow.result import CycleResult

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

log = logging.getLogger(__name__)

PRODUCER = "urn:lakefeed"
_EVERY_SECONDS, _CLOSE_SECONDS, _MOST_WAITING = 60.0, 3.0, 1_000


class Lineage(Listener):
    """``inputs`` returns the namespace and name of the source table of a lake table, ``outputs`` those of itself."""

    def __init__(
        self,
        pipeline: str,
        client: OpenLineageClient,
        inputs: Callable[[TableId], tuple[str, str]],
        outputs: Callable[[TableId], tuple[str, str]],
        *,
        every_seconds: float = _EVERY_SECONDS,
    ) -> None:
        self._pipeline = pipeline
        self._client = client
        self._inputs, self._outputs = inputs, outputs
        self._every_seconds = every_seconds
        self._run_id = str(uuid4())
        self._lock = threading.Lock()
        self._rows: dict[TableId, int] = {}
        self._sent_at = time.monotonic()
        self._events: queue.Queue[Any] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._send, name="lakefeed-lineage", daemon=True)
        self._thread.start()
        self._emit("START", {})

    @classmethod
    def from_environment(
        cls,
        pipeline: str,
        inputs: Callable[[TableId], tuple[str, str]],
        outputs: Callable[[TableId], tuple[str, str]],
    ) -> Lineage:
        """Send events to where the OPENLINEAGE_ variables say. ConfigError without the extra."""
        try:
            from openlineage.client import OpenLineageClient
        except ImportError as error:
            problem = f"monitor.lineage needs OpenLineage, which is not installed ({error})"
            raise ConfigError(problem, remedy="pip install 'lakefeed[openlineage]'") from error
        return cls(pipeline, OpenLineageClient(), inputs, outputs)

    def snapshot_done(self, table: TableId, rows: int, seconds: float) -> None:  # noqa: ARG002
        self._emit("RUNNING", {table: rows})

    def applied(self, result: CycleResult) -> None:
        with self._lock:
            for table, one in result.tables.items():
                self._rows[table] = self._rows.get(table, 0) + one.counts.total
            if time.monotonic() - self._sent_at < self._every_seconds:
                return
            rows, self._rows, self._sent_at = self._rows, {}, time.monotonic()
        self._emit("RUNNING", rows)

    def close(self, error: BaseException | None = None) -> None:
        """End the run, successfully or with ``error``. Waits at most three seconds for events that are not sent yet."""
        with self._lock:
            rows, self._rows = self._rows, {}
        self._emit("COMPLETE" if error is None else "FAIL", rows, error)
        with self._lock:
            self._put(None)
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            log.warning("OpenLineage events are dropped: they could not be sent within %.0f s", _CLOSE_SECONDS)

    def _emit(self, kind: str, rows: Mapping[TableId, int], error: BaseException | None = None) -> None:
        from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import error_message_run, output_statistics_output_dataset

        facets: dict[str, Any] = {}
        if error is not None:
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(str(error), "python", producer=PRODUCER)
        statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
        event = RunEvent(
            eventType=RunState[kind],
            eventTime=datetime.now(UTC).isoformat(),
            run=Run(runId=self._run_id, facets=facets),
            job=Job(namespace="lakefeed", name=self._pipeline),
            inputs=[InputDataset(*self._inputs(table)) for table in sorted(rows)],
            outputs=[
                OutputDataset(*self._outputs(table), {"outputStatistics": statistics(rowCount=rows[table])})
                for table in sorted(rows)
            ],
            producer=PRODUCER,
        )
        self._put(event)

    def _put(self, event: Any) -> None:
        try:
            self._events.put_nowait(event)
        except queue.Full:
            log.warning("an OpenLineage event is dropped: %d are already waiting", _MOST_WAITING)

    def _send(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._client.emit(event)
            except Exception as error:  # noqa: BLE001  # whatever a transport raises, lineage never stops a pipeline
                log.warning("an OpenLineage event could not be sent: %s", error)
