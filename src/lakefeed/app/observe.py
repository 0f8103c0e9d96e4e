"""Adds OpenTelemetry and OpenLineage to a pipeline's listener, if the configuration asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lakefeed.change.table import TableId
from lakefeed.flow.report.listener import Listener, Listeners
from lakefeed.flow.table_state import TableStates

if TYPE_CHECKING:
    from lakefeed.app.config import Config


@contextmanager
def observed(config: Config, listener: Listener) -> Iterator[Listener]:
    """``listener``, together with those for traces and lineage. At the end they send what is left, for a few seconds at
    most.

    ConfigError for an extra that is not installed.
    """
    if not (config.monitor.traces or config.monitor.lineage):
        yield listener
        return
    from lakefeed.monitor.lineage import Lineage
    from lakefeed.monitor.trace import Traces

    traces = Traces.from_environment(config.pipeline) if config.monitor.traces else None
    lineage, failed = None, None
    if config.monitor.lineage:
        lake = Path(config.lake.path)
        lineage = Lineage.from_environment(
            config.pipeline, _inputs(config), lambda table: ("file", str(lake / table.schema / table.name))
        )
    try:
        yield Listeners([one for one in (listener, traces, lineage) if one is not None])
    except BaseException as error:
        failed = error
        raise
    finally:
        if lineage is not None:
            lineage.close(failed)
        if traces is not None:
            traces.close()


def _inputs(config: Config) -> Callable[[TableId], tuple[str, str]]:
    """Namespace and name of the source table of a lake table, by OpenLineage's rules for databases and files."""
    kind, place = config.source.kind, config.source.place()
    server, _, database = (place, "", "") if place.startswith("/") else place.partition("/")  # a socket is a path

    def dataset(table: TableId) -> tuple[str, str]:
        state = TableStates(config.state()).get(table)
        source = str(state.source if state is not None else table)
        if kind == "sqlite":
            return "file", f"{place}/{source}"
        return f"{kind}://{server}", f"{database}.{source}" if database else source

    return dataset
