"""The ``lakefeed`` command: what it is made of, its exit codes, and how anything that goes wrong is said.

Exit codes: 0 done, 1 a check or a verification found something, 2 usage or configuration, 3 failure.
Modules behind the commands are imported when a command runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from lakefeed.app.command import demo, full_diff, look, maintain, prepare, rebuild, sync, verify
from lakefeed.app.output import show_error, show_text
from lakefeed.errors import ConfigError, LakefeedError
from lakefeed.failpoint import arm_from_environment

FAILURE = 3
USAGE = 2
_TYPER_INTERRUPTED = 130
"""What Typer turns a KeyboardInterrupt inside a command into."""

app = typer.Typer(
    name="lakefeed",
    help="Keep lakehouse tables equal to operational databases.",
    epilog="Try it: lakefeed demo. Exit codes: 0 done, 1 something found, 2 usage or configuration, 3 failure.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
_COMMANDS: dict[str, tuple[Callable[..., int], str, str]] = {
    "init": (prepare.init, "Write a commented configuration.", "lakefeed init shop.yaml"),
    "check": (prepare.check, "Preflight; changes nothing.", "lakefeed check shop.yaml"),
    "sync": (sync.sync, "One cycle, then exit.", "lakefeed sync shop.yaml --json"),
    "run": (sync.run, "Sync until told to stop.", "lakefeed run shop.yaml --for 3600"),
    "status": (look.status, "Verdict, lag and tables.", "lakefeed status shop.yaml --json"),
    "journal": (look.journal, "List change sets.", "lakefeed journal shop.yaml --last 50"),
    "verify": (verify.verify, "Compare lake and source.", "lakefeed verify shop.yaml"),
    "rebuild": (rebuild.rebuild, "Make a lake table anew.", "lakefeed rebuild shop.yaml main.orders"),
    "diff": (full_diff.diff, "Find deleted rows of polled tables.", "lakefeed diff shop.yaml main.orders"),
    "maintain": (maintain.maintain, "Pack small files, remove old ones.", "lakefeed maintain shop.yaml"),
    "uninstall": (prepare.uninstall, "Remove what is in the source.", "lakefeed uninstall shop.yaml"),
    "demo": (demo.demo, "A live shop, from SQLite to Delta.", "lakefeed demo --seconds 30"),
}
for _name, (_command, _short, _example) in _COMMANDS.items():
    app.command(_name, short_help=_short, epilog=f"Example: {_example}")(_command)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        show_text(f"lakefeed {version('lakefeed')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the log, and the stack trace of an error. May stand anywhere.")
    ] = False,
) -> None:
    """Both are read elsewhere: the version by its callback, debug by ``execute``."""


def main() -> None:
    """Entry point of the ``lakefeed`` command."""
    sys.exit(execute(sys.argv[1:]))


def execute(arguments: list[str]) -> int:
    """Run one command line and return its exit code. Nothing gets out of here as a stack trace."""
    debug, as_json = "--debug" in arguments, "--json" in arguments
    logging.basicConfig(level=logging.DEBUG if debug else logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # a JVM that is told to go logs the lost connection
    try:
        arm_from_environment()
        code = app(args=[word for word in arguments if word != "--debug"], prog_name="lakefeed", standalone_mode=False)
        if code == _TYPER_INTERRUPTED:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except typer.TyperException as error:
        return _usage(error, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        show_error(_interrupted(), as_json=as_json)
        return FAILURE
    except LakefeedError as error:
        if debug:
            traceback.print_exc()
        show_error(error, as_json=as_json)
        return error.exit_code
    except Exception as error:  # noqa: BLE001  # the outermost line of the program: a person reads what it says
        if debug:
            traceback.print_exc()
        show_error(_unexpected(error), as_json=as_json)
        return FAILURE


def _usage(error: typer.TyperException, *, as_json: bool) -> int:
    text = error.format_message()
    if "Usage:" in text:  # no command at all: the help is the answer
        show_text(text)
        return USAGE
    command = getattr(getattr(error, "ctx", None), "command_path", "lakefeed")
    show_error(ConfigError(text, remedy=f"See `{command} --help`."), as_json=as_json)
    return USAGE


def _interrupted() -> LakefeedError:
    return LakefeedError("interrupted", remedy="Run the command again; it goes on where it stopped.")


def _unexpected(error: Exception) -> LakefeedError:
    with tempfile.NamedTemporaryFile(
        "w", prefix="lakefeed-error-", suffix=".log", delete=False, encoding="utf-8"
    ) as log:
        traceback.print_exception(error, file=log)
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return LakefeedError(
        f"unexpected {type(error).__name__}: {first}",
        remedy=f"The details are in {Path(log.name)}; please report them. With --debug they are shown here.",
    )
