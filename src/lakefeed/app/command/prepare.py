"""Commands before and after a pipeline's life: init, check, plan, uninstall."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakefeed.app.command.argument import ConfigFile, JsonFlag
from lakefeed.app.output import show_object, show_table, show_text
from lakefeed.capture.registry import SOURCES, source_config
from lakefeed.errors import CommitFailedError, ConfigError, SourceError

if TYPE_CHECKING:
    from lakefeed.app.config import Config
    from lakefeed.capture.base import Finding

FOUND_SOMETHING = 1

TEMPLATE = """\
# A Lakefeed pipeline. Check it with `lakefeed check {name}`, run it with `lakefeed run {name}`.
# Paths are relative to this file. ${{NAME}} comes from the environment: use it for secrets.

pipeline: shop              # names the pipeline and its state: a-z, 0-9, '-' and '_'

{source}
lake:
  path: ./lake              # tables at <path>/<schema>/<table>
  format: delta             # or iceberg
  mode: mirror              # the current rows, exactly; or temporal (every version), or append (every change)

sync:
  interval_seconds: 1       # shortest time between two merges of `lakefeed run`

# journal:                  # the durable change sets between source and lake
#   keep_change_sets: 256           # how many stay after every table has them
#   keep_seconds: 120               # how long they stay at least, for readers
#   max_backlog_bytes: 17179869184  # capture waits while the lake lacks more than this
"""


def template(kind: str, name: Path | str) -> str:
    """A commented configuration for one kind of source."""
    return TEMPLATE.format(name=name, source=source_config(kind).template)


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("lakefeed.yaml"),
    source: Annotated[
        str, typer.Option("--source", metavar="KIND", help=f"The kind of database: {', '.join(SOURCES)}.")
    ] = next(iter(SOURCES)),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: JsonFlag = False,
) -> int:
    """Write a commented configuration to start from."""
    if source not in SOURCES:
        raise ConfigError(
            f"--source: '{source}' is not a choice; available: {', '.join(SOURCES)}",
            remedy=f"lakefeed init {file} --source {next(iter(SOURCES))}",
        )
    try:
        with file.open("w" if force else "x", encoding="utf-8") as opened:
            opened.write(template(source, file))
    except FileExistsError:
        raise ConfigError(
            f"{file} exists already",
            remedy=f"Choose another name, or overwrite it: lakefeed init {file} --force",
        ) from None
    except OSError as error:
        remedy = f"Choose a file in a directory that exists and that you may write to, not in {file.parent}."
        raise ConfigError(f"Lakefeed cannot write {file}: {error.strerror}", remedy=remedy) from error
    if as_json:
        show_object({"file": str(file)})
    else:
        first = f"source.{source_config(source).first_key}"
        show_text(f"Wrote {file}. Next: set {first} in it, then run lakefeed check {file}")
    return 0


def check(
    file: ConfigFile,
    as_sql: Annotated[
        bool, typer.Option("--sql", help="Print the statements as one script for a database administrator.")
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Find what would keep the pipeline from working, and print the remedy for each. Changes nothing."""
    from lakefeed.app.build import build_pipeline
    from lakefeed.app.config import load_config
    from lakefeed.app.preflight import machine_findings, secret_findings
    from lakefeed.capture.base import Finding, Level

    config = load_config(file)
    pipeline = build_pipeline(config)
    findings = [*secret_findings(file), *machine_findings(config)]
    try:
        findings += [*pipeline.check(), *config.source.findings()]
    except (SourceError, CommitFailedError) as error:  # a server, maybe Spark's, that is down would stop a sync as well
        findings.append(Finding(level=Level.ERROR, problem=error.message, remedy=error.remedy))
    ready = all(finding.level is not Level.ERROR for finding in findings)
    if as_json:
        objects = [
            {
                "level": finding.level.value,
                "table": str(finding.table) if finding.table else None,
                "problem": finding.problem,
                "remedy": finding.remedy,
            }
            for finding in findings
        ]
        show_object({"ready": ready, "findings": objects})
    elif as_sql:
        show_text(sql_script(config.pipeline, findings))
    else:
        for finding in findings:
            about = f"{finding.table}: " if finding.table and str(finding.table) not in finding.problem else ""
            show_text(f"{finding.level.value.capitalize()}: {about}{finding.problem}\nRemedy: {finding.remedy}\n")
        show_text(f"{config.pipeline} is ready." if ready else f"{config.pipeline} is not ready.")
    return 0 if ready else FOUND_SOMETHING


def plan(
    file: ConfigFile,
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--tables", metavar="GLOB", help="Only lake tables that match, schema.table or table; repeatable."
        ),
    ] = None,
    sql: Annotated[
        Path | None,
        typer.Option(
            "--sql",
            metavar="MIGRATION",
            exists=True,
            dir_okay=False,
            help="A migration of the source: try it on a scratch database and show what each lake table would do.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Show what a start would do: tables to copy, columns and their types, what a changed configuration would rebuild.

    Changes nothing, neither in the source nor in the lake. Rows and bytes are the source's own estimates. Exit code 1:
    the start would fail, or a table would stop.
    """
    from fnmatch import fnmatchcase

    from lakefeed.app.build import build_pipeline
    from lakefeed.app.config import load_config
    from lakefeed.flow.shape import UNUSED

    config = load_config(file)
    if sql is not None:
        return _plan_migration(config, sql, as_json=as_json)
    made = build_pipeline(config).plan()
    wanted = list(made.tables)
    if tables:
        by_glob = {
            glob: [one for one in wanted if fnmatchcase(str(one.table) if "." in glob else one.table.name, glob)]
            for glob in tables
        }
        for glob, matched in by_glob.items():
            if not matched:
                names = ", ".join(str(one.table) for one in wanted) or "none"
                raise ConfigError(f"no lake table matches '{glob}'", remedy=f"The lake tables are {names}.")
        wanted = [one for one in wanted if any(one in matched for matched in by_glob.values())]
    if as_json:
        show_object({"pipeline": config.pipeline, **made.to_dict(), "tables": [one.to_dict() for one in wanted]})
        return FOUND_SOMETHING if made.is_refused else 0
    show_text(f"What lakefeed sync {file} would do. Nothing was changed.\n")
    heads = ("lake table", "mode", "what", "rows", "bytes", "why")
    show_table(heads, [(one.table, one.mode, one.action, one.rows, one.bytes, one.reason) for one in wanted])
    for one in wanted:
        rules = f"; rules: {', '.join(one.rules)}" if one.rules else ""
        key = f"key ({', '.join(one.key)})" if one.key else "no key"
        show_text(f"\n{one.table}, of {one.source}: {key}{rules}")
        if one.made_by:
            show_text(f"Rows: {one.made_by}")
        if one.remedy:
            show_text(f"Remedy: {one.remedy}")
        lines = [(c.name, c.source_type or None, c.lake_name, c.lake_type, c.note) for c in one.columns]
        if lines:
            show_table(("column", "source type", "in the lake", "lake type", "note"), lines)
    for unused in made.unused_rules:
        show_text(f"\nError: {unused}.\nRemedy: {UNUSED}")
    return FOUND_SOMETHING if made.is_refused else 0


def _plan_migration(config: Config, script: Path, *, as_json: bool) -> int:
    """Uses a scratch lake, too: reads and writes nothing of the pipeline's own."""
    from tempfile import TemporaryDirectory

    from lakefeed.app.build import build_pipeline
    from lakefeed.flow.plan.migration import Outcome

    with TemporaryDirectory() as place, config.source.scratch(Path(place)) as (source, run):
        lake = config.lake.model_copy(update={"path": str(Path(place) / "lake")})
        journal = config.journal.model_copy(update={"path": None})
        scratch = config.model_copy(update={"source": source, "lake": lake, "journal": journal})

        def migrate() -> None:
            try:
                run(script.read_text(encoding="utf-8"))
            except Exception as error:  # a driver's own
                raise ConfigError(
                    f"{script} fails on a database with the tables of the source and no rows: {error}",
                    remedy="Correct the migration. It runs as a script, statement by statement.",
                ) from error

        found = build_pipeline(scratch).plan_migration(migrate)
    if as_json:
        show_object({"pipeline": config.pipeline, "tables": [one.to_dict() for one in found]})
    else:
        show_text(f"What {script} would mean for the lake. It ran on a scratch database; nothing was changed.\n")
        rows = [(one.table, one.outcome, "; ".join(one.changes) or None, one.reason or None) for one in found]
        show_table(("lake table", "what", "in the source", "why"), rows)
        for one in found:
            if one.remedy:
                show_text(f"\n{one.table}\nRemedy: {one.remedy}")
    return FOUND_SOMETHING if any(one.outcome is Outcome.STOP for one in found) else 0


def sql_script(pipeline: str, findings: Sequence[Finding]) -> str:
    """The statements of the findings as one script. Comments have remedies that are not SQL, and mere advice."""
    from lakefeed.capture.base import Level, Statement

    lines = [f"-- What the pipeline {pipeline} needs, for an administrator of the source database to run there."]
    said: set[str] = set()
    for finding in findings:
        is_error, is_sql = finding.level is Level.ERROR, isinstance(finding.remedy, Statement)
        lines += ["", *(f"-- {line}" for line in f"{finding.level.value.capitalize()}: {finding.problem}".splitlines())]
        if is_error and is_sql and finding.remedy not in said:
            lines.append(finding.remedy)
            said.add(finding.remedy)
        elif not (is_error and is_sql):
            about = "Advised" if is_sql else "Not in SQL"
            lines += [f"-- {about}: {line}" for line in finding.remedy.splitlines()]
    return "\n".join(lines if findings else [*lines, "-- Nothing is missing."])


def uninstall(file: ConfigFile, as_json: JsonFlag = False) -> int:
    """Remove everything that Lakefeed installed in the source. The lake tables stay."""
    from lakefeed.app.build import build_pipeline
    from lakefeed.app.config import load_config

    removed = build_pipeline(load_config(file)).uninstall()
    if as_json:
        show_object({"removed": list(removed)})
    elif removed:
        show_text("Removed from the source: " + ", ".join(removed) + ".")
    else:
        show_text("The source had nothing of Lakefeed.")
    return 0
