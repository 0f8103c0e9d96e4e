"""The dashboard of a configured pipeline: its address, its token, and its text about source and lake."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lakefeed.app.build import build_source
from lakefeed.errors import ConfigError
from lakefeed.monitor.server import DashboardServer
from lakefeed.monitor.watch import Watch

if TYPE_CHECKING:
    from lakefeed.app.config import Config, MonitorConfig
    from lakefeed.flow.pipeline import Pipeline

DEFAULT_ADDRESS = "127.0.0.1:8765"
TOKEN_VARIABLE = "LAKEFEED_HTTP_TOKEN"  # noqa: S105  # its name, not its value


@contextmanager
def served(
    config: Config, pipeline: Pipeline, address: str | None, *, or_free_port: bool = False
) -> Iterator[str | None]:
    """Serve the dashboard while the block lasts. Gives its URL; None without an address, and then serves nothing.

    ``or_free_port``: take another port if this one is in use.
    """
    if address is None:
        yield None
        return
    capture = build_source(config).bind(config.pipeline)  # one of its own: a check opens its own connection
    about = {
        "source": f"{config.source.kind} {config.source.place()}".strip(),
        "lake": f"{config.lake.format} {config.lake.path}",
    }
    watch = Watch(config.pipeline, config.state(), pipeline.status, about=about, findings=capture.check)
    token = read_token(config.monitor)
    try:
        server = DashboardServer(watch, address, token=token)
    except ConfigError:
        if not or_free_port:
            raise
        server = DashboardServer(watch, "127.0.0.1:0", token=token)
    with server:
        yield server.url


def read_token(config: MonitorConfig) -> str | None:
    """The token from the environment, or from the file that the configuration names; never from the configuration."""
    if token := os.environ.get(TOKEN_VARIABLE):
        return token
    if config.token_file is None:
        return None
    try:
        token = Path(config.token_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"Lakefeed cannot read monitor.token_file {config.token_file}"
        raise ConfigError(problem, remedy="Write a token into it: openssl rand -hex 32") from error
    if not token:
        problem = f"monitor.token_file {config.token_file} is empty"
        raise ConfigError(problem, remedy="Write a token into it: openssl rand -hex 32")
    return token
