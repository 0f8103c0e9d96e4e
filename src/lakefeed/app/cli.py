"""The ``lakefeed`` command: its commands, its exit codes, and how it reports errors.

Exit codes: 0 done, 1 a check or a verification found something, 2 usage or configuration, 3 failure, 130 interrupted.
A command imports its modules when it runs, so ``--help`` answers at once.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from lakefeed.app.command import demo, prepare, status, sync, table, verify
from lakefeed.app.output import LogLines, be_quiet, be_structured, set_file, show_error, show_note, show_text
from lakefeed.errors import ConfigError, LakefeedError, Retry
from lakefeed.failpoint import arm_from_environment
from lakefeed.flow.report.answer import ASKING

USAGE, FAILURE, INTERRUPTED = 2, 3, 130
"""130 is 128 plus the number of SIGINT, as in shells; Typer also returns it for a KeyboardInterrupt."""

_ANYWHERE = {
    "--debug": "debug", "--quiet": "quiet", "-q": "quiet", "--verbose": "verbose", "-v": "verbose",
}  # fmt: skip
"""Options of the whole program, allowed before and after the command."""

_CONTINUE = ("sync", "run", "diff", "maintain")
"""Commands that continue their work when they run again after an interruption."""

app = typer.Typer(
    name="lakefeed",
    help="Keep lakehouse tables equal to operational databases.",
    epilog="Try it: lakefeed demo. Exit codes: 0 done, 1 something found, 2 usage or configuration, 3 failure, "
    "130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
COMMANDS: dict[str, tuple[Callable[..., int], str, str]] = {
    "init": (prepare.init, "Write a commented configuration.", "lakefeed init shop.yaml"),
    "check": (prepare.check, "Find what is missing; change nothing.", "lakefeed check shop.yaml"),
    "plan": (prepare.plan, "Show what a start would do; change nothing.", "lakefeed plan shop.yaml"),
    "sync": (sync.sync, "Bring the lake up to date once.", "lakefeed sync shop.yaml --tables 'public.order*'"),
    "run": (sync.run, "Sync continuously until Ctrl-C.", "lakefeed run shop.yaml --for 3600"),
    "status": (status.status, "Show verdict, lag and tables.", "lakefeed status shop.yaml --watch"),
    "dashboard": (status.dashboard, "Serve the dashboard in a browser.", "lakefeed dashboard shop.yaml"),
    "journal": (status.journal, "List change sets.", "lakefeed journal shop.yaml --last 50"),
    "verify": (verify.verify, "Compare lake and source, row by row.", "lakefeed verify shop.yaml"),
    "repair": (verify.repair, "Read differing rows again.", "lakefeed repair shop.yaml main.orders"),
    "resnapshot": (verify.resnapshot, "Read a table again.", "lakefeed resnapshot shop.yaml main.orders"),
    "rebuild": (table.rebuild, "Rebuild one lake table.", "lakefeed rebuild shop.yaml main.orders"),
    "diff": (table.diff, "Find deleted rows of polled tables.", "lakefeed diff shop.yaml main.orders"),
    "maintain": (table.maintain, "Pack small files, remove old ones.", "lakefeed maintain shop.yaml"),
    "uninstall": (prepare.uninstall, "Remove Lakefeed from the source.", "lakefeed uninstall shop.yaml"),
    "demo": (demo.demo, "Replicate a live shop into Delta tables.", "lakefeed demo --source postgres"),
}


class _Command(TyperCommand):
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """``FILE``, where Typer would write ``{FILE}``."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


for _name, (_command, _short, _example) in COMMANDS.items():
    app.command(_name, cls=_Command, short_help=_short, epilog=f"Example: {_example}")(_command)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        show_text(f"lakefeed {version('lakefeed')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show no progress. Allowed anywhere on the line.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the log. Allowed anywhere on the line.")
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", help="Show the whole log, and the stack trace of an error. Allowed anywhere on the line."
        ),
    ] = False,
    log_format: Annotated[
        str,
        typer.Option(
            "--log-format", help="text, or json: one object per line on stderr. Allowed anywhere on the line."
        ),
    ] = "text",
) -> None:
    """The version's callback and ``execute`` read these options."""


def _without_log_format(words: list[str]) -> tuple[list[str], str]:
    """The words without ``--log-format FORMAT``, which is allowed anywhere, and the format."""
    left, given = list[str](), "text"
    rest = iter(words)
    for word in rest:
        if word == "--log-format":
            given = next(rest, "")
        elif word.startswith("--log-format="):
            given = word.partition("=")[2]
        else:
            left.append(word)
    return left, given


def main() -> None:
    """Entry point of the ``lakefeed`` command."""
    code = execute(sys.argv[1:])
    if code == INTERRUPTED or any(thread.name in (ASKING, *sync.WORK) for thread in threading.enumerate()):
        # A thread still runs: an interrupted or hanging step, or a request without an answer, inside a driver or a JVM.
        # An orderly exit would take the interpreter apart under it, and could crash.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def execute(arguments: list[str]) -> int:
    """Run one command line and return its exit code. No error leaves it as a stack trace."""
    given = {_ANYWHERE[word] for word in arguments if word in _ANYWHERE}
    words, log_format = _without_log_format([word for word in arguments if word not in _ANYWHERE])
    debug, as_json, level = "debug" in given, "--json" in arguments, logging.ERROR
    if given & {"debug", "verbose"} or log_format == "json":
        level = logging.DEBUG if debug else logging.INFO
    be_quiet("quiet" in given)
    set_file(None)  # until a command has read its arguments
    be_structured(log_format == "json")
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", handlers=[LogLines()])
    root, before = logging.getLogger(), logging.getLogger().level
    root.setLevel(level)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # when the JVM stops, py4j logs the lost connection
    try:
        if log_format not in ("text", "json"):
            raise ConfigError(f"--log-format: '{log_format}' is not a choice", remedy="Choose text or json.")
        arm_from_environment()
        code = app(args=words, prog_name="lakefeed", standalone_mode=False)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except typer.TyperException as error:
        text = error.format_message()
        if not words:  # no command at all: the help is the answer
            show_text(text)
            return USAGE
        command = getattr(getattr(error, "ctx", None), "command_path", "lakefeed")
        show_error(ConfigError(text, remedy=f"See `{command} --help`."), as_json=as_json)
        return USAGE
    except (KeyboardInterrupt, typer.Abort):
        continues = bool(words) and words[0] in _CONTINUE
        if as_json:
            remedy = "Run the command again" + ("; it continues where it stopped." if continues else ".")
            show_error(LakefeedError("interrupted", remedy=remedy), as_json=True)
        else:
            show_note("Interrupted; the same command continues where it stopped." if continues else "Interrupted.")
        return INTERRUPTED
    except LakefeedError as error:
        if debug:
            traceback.print_exc()
        # Only ``run`` retries, and then the error does not get here.
        again = f" Then run it again: lakefeed {shlex.join(arguments)}" if error.retry is Retry.BACKOFF else ""
        show_error(error, as_json=as_json, then=again)
        return error.exit_code
    except Exception as error:  # noqa: BLE001  # the outermost frame: print a sentence, not a stack trace
        if debug:
            traceback.print_exc()
        with tempfile.NamedTemporaryFile(
            "w", prefix="lakefeed-error-", suffix=".log", delete=False, encoding="utf-8"
        ) as log:
            traceback.print_exception(error, file=log)
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        unexpected = LakefeedError(
            f"unexpected {type(error).__name__}: {first}",
            remedy=f"Please report the details in {Path(log.name)}. To see them here, add --debug.",
        )
        show_error(unexpected, as_json=as_json)
        return FAILURE
    finally:
        root.setLevel(before)  # a caller from Python keeps its own level and output
        be_structured(False)
        be_quiet(False)
