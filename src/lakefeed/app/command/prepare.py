"""Commands before and after a pipeline's life: init, check, uninstall."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakefeed.app.command.argument import ConfigFile, JsonFlag
from lakefeed.app.output import show_object, show_text
from lakefeed.errors import ConfigError

if TYPE_CHECKING:
    from lakefeed.capture.base import Finding

FOUND_SOMETHING = 1

TEMPLATE = """\
# A Lakefeed pipeline. Check it with `lakefeed check {name}`, run it with `lakefeed run {name}`.
# Relative paths are relative to this file. ${{NAME}} is taken from the environment: use it for secrets.

pipeline: shop              # names the pipeline and its state: a-z, 0-9, '-' and '_'

{source}
lake:
  path: ./lake              # tables at <path>/<schema>/<table>
  format: delta             # or iceberg
  mode: mirror              # the current rows, exactly; mirror, temporal or append: docs/modes.md

sync:
  interval_seconds: 1       # pause between two cycles of `lakefeed run`

# journal:                  # the durable change sets between source and lake
#   keep_change_sets: 256           # how many stay after every table has them
#   max_backlog_bytes: 17179869184  # capture waits while more than this is not yet in the lake
"""

SOURCES = {
    "sqlite": """\
source:
  kind: sqlite              # or postgres: lakefeed init --source postgres; later: mysql, mariadb, sqlserver
  path: shop.db             # the database file
  capture: trigger          # or poll: nothing is created in the database; later: log
  tables: ["*"]             # glob patterns: "*", "order*", "main.customers"
""",
    "postgres": """\
source:
  kind: postgres            # 15 or newer, with wal_level = logical
  dsn: host=localhost dbname=shop user=lakefeed    # the password comes from PGPASSWORD, or password=${VARIABLE}
  capture: log              # logical decoding; a publication and a replication slot, both lakefeed_<pipeline>
                            # or poll, which needs SELECT alone
  tables: ["public.*"]      # glob patterns: "public.*", "sales.order*", "customers"
  # text_columns: []        # "public.bookings.until": columns that are kept as PostgreSQL prints them
  # provision: true         # false: lakefeed check says the statements for publication and slot, somebody runs them
""",
}


def template(source: str, name: Path | str) -> str:
    """A commented configuration for one kind of source."""
    return TEMPLATE.format(name=name, source=SOURCES[source])


def init(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="Where to write it.")] = Path("lakefeed.yaml"),
    source: Annotated[
        str, typer.Option("--source", metavar="KIND", help=f"The kind of database: {', '.join(SOURCES)}.")
    ] = "sqlite",
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
    as_json: JsonFlag = False,
) -> int:
    """Write a commented configuration to start from."""
    if source not in SOURCES:
        raise ConfigError(f"--source: '{source}' is not a choice; available: {', '.join(SOURCES)}")
    try:
        with file.open("w" if force else "x", encoding="utf-8") as opened:
            opened.write(template(source, file))
    except FileExistsError:
        raise ConfigError(
            f"{file} is already there and is not overwritten", remedy=f"lakefeed init {file} --force, or another name."
        ) from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}", remedy="Choose another place.") from error
    if as_json:
        show_object({"file": str(file)})
    else:
        first = "source.path" if source == "sqlite" else "source.dsn"
        show_text(f"Wrote {file}. Next: set {first} in it, then run lakefeed check {file}")
    return 0


def check(file: ConfigFile, as_json: JsonFlag = False) -> int:
    """Preflight: is everything there that the pipeline needs? Changes nothing."""
    from lakefeed.app.build import build_pipeline
    from lakefeed.app.config import load_config
    from lakefeed.app.preflight import machine_findings
    from lakefeed.capture.base import Level

    config = load_config(file)
    findings = (*machine_findings(config), *build_pipeline(config).check())
    ready = all(finding.level is not Level.ERROR for finding in findings)
    if as_json:
        show_object({"ready": ready, "findings": [_finding_object(finding) for finding in findings]})
    else:
        for finding in findings:
            place = f"{finding.table}: " if finding.table and str(finding.table) not in finding.problem else ""
            show_text(f"{finding.level.value.capitalize()}: {place}{finding.problem}\nRemedy: {finding.remedy}\n")
        show_text(f"{config.pipeline} is ready." if ready else f"{config.pipeline} is not ready.")
    return 0 if ready else FOUND_SOMETHING


def _finding_object(finding: Finding) -> dict[str, Any]:
    return {
        "level": finding.level.value,
        "table": str(finding.table) if finding.table else None,
        "problem": finding.problem,
        "remedy": finding.remedy,
    }


def uninstall(file: ConfigFile, as_json: JsonFlag = False) -> int:
    """Remove everything that Lakefeed installed in the source. The lake tables stay."""
    from lakefeed.app.build import build_pipeline
    from lakefeed.app.config import load_config

    config = load_config(file)
    removed = build_pipeline(config).uninstall()
    if as_json:
        show_object({"removed": list(removed)})
    elif removed:
        show_text("Removed from the source: " + ", ".join(removed) + ".")
    else:
        show_text("There was nothing of Lakefeed in the source.")
    return 0
