"""The command line itself: help, versions, exit codes, and how what goes wrong is said. No Spark in here."""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.reading.journals import add_people, opened

from lakefeed.app import cli
from lakefeed.app.build import build_pipeline
from lakefeed.app.config import load_config
from lakefeed.app.output import LogLines, seconds_text, set_file, show_note, show_object, show_table
from lakefeed.errors import TableStoppedError
from lakefeed.flow.pipeline import Pipeline
from lakefeed.journal.journal import Journal
from lakefeed.lake.formats import FORMATS
from lakefeed.lake.spark.java import find_java

COMMANDS = (
    "init", "check", "plan", "sync", "run", "status", "journal", "verify", "rebuild", "diff", "maintain", "uninstall",
    "demo",
)  # fmt: skip
WITH_FILE = COMMANDS[1:-1]


def execute_printed(text: str) -> int:
    """Run the command that a remedy ends with, or has in backquotes."""
    (command,) = re.findall(r"`(lakefeed [^`]+)`|(lakefeed [^`]+)$", text)
    return cli.execute("".join(command).split()[1:])


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from lakefeed.app.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=60, check=False)


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {command} " in text for command in COMMANDS)
    assert "Exit codes: 0 done, 1 something found, 2 usage or" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_has_an_example_and_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"Example: lakefeed {command}" in text
    assert "--json" in text


def test_journal_beside_a_process_that_trims_lists_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "shop.yaml"
    config.write_text(f"pipeline: shop\nsource: {{kind: sqlite, path: {tmp_path}/s.db}}\nlake: {{path: {tmp_path}}}\n")
    with opened(tmp_path / "_lakefeed" / "shop", keep=1) as writer:
        add_people(writer, range(1, 9))
        read = Journal.read

        def read_and_trim(root: Path) -> Journal:
            journal = read(root)
            writer.trim(8)
            return journal

        monkeypatch.setattr(Journal, "read", read_and_trim)
        assert cli.execute(["journal", str(config), "--json"]) == 0
    assert [one["number"] for one in json.loads(capsys.readouterr().out)["change_sets"]] == [8]


class Exited(BaseException):
    """The process has ended."""


def test_run_does_not_wait_for_what_it_left_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An orderly exit of the interpreter would join the threads of a pool, and with them the job that hangs."""

    class Left(Pipeline):
        def run(self, for_seconds: float | None = None, *, standby: bool = False) -> None:
            self.hanging = ("lakefeed-lake",)

    def exited(code: int) -> None:
        raise Exited(code)

    config = tmp_path / "shop.yaml"
    (tmp_path / "s.db").touch()
    config.write_text(f"pipeline: shop\nsource: {{kind: sqlite, path: {tmp_path}/s.db}}\nlake: {{path: {tmp_path}}}\n")
    monkeypatch.setattr("lakefeed.flow.pipeline.Pipeline", Left)
    monkeypatch.setattr("os._exit", exited)
    with pytest.raises(Exited) as left:
        cli.execute(["run", str(config)])
    assert left.value.args == (0,)
    assert "Stopped without waiting for a merge; the next start does it again." in capsys.readouterr().err


def test_a_command_ends_without_a_question_that_nobody_answered() -> None:
    """The thread is inside a driver then: to take the interpreter apart under it can end in a crash."""
    program = (
        "import threading, time; from lakefeed.app import cli; from lakefeed.flow.report.answer import ASKING\n"
        "threading.Thread(target=time.sleep, args=(120,), name=ASKING).start()\n"
        "cli.execute = lambda _: print('told') or 1\n"
        "cli.main()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "told\n")


def test_no_command_shows_the_help_and_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute([]) == 2
    assert "Commands:" in capsys.readouterr().out


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    for option in ("--version", "-V"):
        assert cli.execute([option]) == 0
        assert capsys.readouterr().out == f"lakefeed {version('lakefeed')}\n"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration of a SQLite database with one table."""
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("s.db")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE items (id INTEGER PRIMARY KEY)")
    file = tmp_path / "shop.yaml"
    file.write_text("pipeline: shop\nsource: {kind: sqlite, path: s.db}\nlake: {path: ./lake}\n")
    return file


def test_quiet_and_verbose_may_stand_anywhere_and_quiet_shows_no_progress(
    shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.execute(["sync", "shop.yaml", "-q"]) == 0
    output = capsys.readouterr()
    assert "main.items" in output.out
    assert output.err == ""
    before, levels = logging.getLogger().level, list[int]()
    monkeypatch.setattr(cli, "arm_from_environment", lambda: levels.append(logging.getLogger().level))
    shop.write_text(shop.read_text() + "sync: {warm_up: false}\n")  # a session of this process would be every test's
    assert cli.execute(["-v", "run", "shop.yaml", "--for", "0.1", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert cli.execute(["sync", "shop.yaml"]) == 0
    assert levels == [logging.INFO, logging.ERROR]
    assert logging.getLogger().level == before, "whoever calls it from Python keeps the level"


def test_a_log_line_takes_the_same_way_as_progress(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.Logger("lakefeed.test")
    logger.addHandler(LogLines())
    logger.warning("the slot is %s", "gone")
    assert capsys.readouterr().err == "the slot is gone\n"


def test_shells_can_complete_the_commands() -> None:
    given = {"_LAKEFEED_COMPLETE": "complete_bash", "COMP_WORDS": "lakefeed st", "COMP_CWORD": "1"}
    command = [sys.executable, "-c", "from lakefeed.app.cli import main; main()"]
    done = subprocess.run(command, env={**os.environ, **given}, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["status"]), done.stderr


def test_an_error_that_only_run_tries_again_names_the_command_to_type(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("plan", "sync"):
        shop.write_text("pipeline: shop\nsource: {kind: postgres, dsn: host=127.0.0.1 port=1}\nlake: {path: ./lake}\n")
        assert cli.execute([command, "shop.yaml"]) == 3
        said = capsys.readouterr().err
        assert "by itself" not in said
        assert said.endswith(f"Then run it again: lakefeed {command} shop.yaml\n")


def test_a_java_home_that_leads_nowhere_is_a_warning_or_the_reason(
    shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/no/such/java")
    assert cli.execute(["check", "shop.yaml", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert found["level"] == "warning"
    assert found["problem"].startswith("JAVA_HOME is /no/such/java, but no Java runs at")
    assert found["remedy"].startswith("export JAVA_HOME=")
    monkeypatch.setattr("lakefeed.lake.spark.java._candidates", list)
    assert cli.execute(["check", "shop.yaml", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert "no Java was found: JAVA_HOME is /no/such/java" in found["problem"]


def test_a_lake_path_that_is_a_file_or_read_only_is_a_sentence_for_every_command(
    shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lake").write_text("in the way")
    for path in ("./lake", "/proc/lake"):
        shop.write_text(f"pipeline: shop\nsource: {{kind: sqlite, path: s.db}}\nlake: {{path: {path}}}\n")
        for command, expected in (("check", 1), ("sync", 3), ("run", 3), ("status", 0), ("journal", 0)):
            assert cli.execute([command, "shop.yaml"]) == expected, command
            said = "".join(capsys.readouterr())
            assert "unexpected" not in said
            assert expected == 0 or "cannot be written" in said or "cannot write to" in said or "is a file" in said
            assert expected == 0 or "lake.path" in said


def test_check_finds_jars_that_are_not_here_and_cannot_be_had(
    shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find_java()  # before HOME changes: where the packaged one is kept goes by it
    monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))
    # A JVM goes by the password file, whatever HOME says.
    monkeypatch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_dir=str(tmp_path)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    nowhere = "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1"
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", f"-Duser.home={tmp_path} {nowhere}")
    assert cli.execute(["check", "shop.yaml", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert "are not on this machine, and " in found["problem"]
    assert "module not found" in found["problem"]
    jars = tmp_path / ".ivy2.5.2" / "jars"
    jars.mkdir(parents=True)
    group, artifact, version = FORMATS["delta"].coordinates.split(":")
    (jars / f"{group}_{artifact}-{version}.jar").touch()
    assert cli.execute(["check", "shop.yaml", "--json"]) == 0


def test_status_has_an_exit_code_for_monitoring_and_can_be_watched(
    shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.execute(["status", "shop.yaml", "--exit-code"]) == 1
    assert cli.execute(["status", "shop.yaml"]) == 0
    capsys.readouterr()
    waits: list[float] = []
    sleep = time.sleep

    def wait(seconds: float) -> None:
        if threading.current_thread() is not threading.main_thread():
            return sleep(seconds)  # of a library: the function is everybody's
        waits.append(seconds)
        if len(waits) % 3 == 0:
            raise KeyboardInterrupt
        return None

    monkeypatch.setattr("lakefeed.app.command.status.time.sleep", wait)
    assert cli.execute(["status", "shop.yaml", "--watch", "--json"]) == 0
    assert cli.execute(["status", "shop.yaml", "--watch", "--json", "--exit-code"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line).get("verdict") for line in lines[:3]] == ["stopped"] * 3
    with build_pipeline(load_config(shop)) as pipeline:
        pipeline.sync_once()
        assert cli.execute(["status", "shop.yaml", "--exit-code"]) == 0


def test_an_error_of_a_table_is_printed_once(
    shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise TableStoppedError("table main.items: this is wrong", remedy="Do that.")

    monkeypatch.setattr("lakefeed.lake.table.SparkTable.load", broken)
    assert cli.execute(["sync", "shop.yaml"]) == 3
    said = capsys.readouterr()
    assert said.err.count("Do that.") == 1, said.err
    assert said.err.endswith("1 table not up to date: main.items.\n")
    assert "Nothing applied" in said.out


@pytest.mark.parametrize(
    "arguments", [["snc"], ["sync"], ["run", "x", "--for", "soon"], ["journal", "x", "--last", "0"]]
)
def test_a_usage_error_is_a_sentence_with_a_remedy_and_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.execute(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("Error: ")
    assert "\nRemedy: See `lakefeed" in output.err
    assert cli.execute([*arguments, "--json"]) == 2
    output = capsys.readouterr()
    assert set(json.loads(output.out)) == {"error", "remedy"}
    assert output.err == ""


@pytest.mark.parametrize("command", WITH_FILE)
def test_a_missing_configuration_is_exit_code_2_for_every_command(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "gone.yaml"
    arguments = [command, str(missing), "main.orders"] if command == "rebuild" else [command, str(missing)]
    assert cli.execute(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines() == [
        f"Error: there is no file {missing}.",
        f"Remedy: Name an existing file, or write one with `lakefeed init {missing}`.",
    ]


def test_the_exit_code_is_the_processes(tmp_path: Path) -> None:
    result = run("status", "gone.yaml", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: there is no file gone.yaml.\nRemedy: ")


def test_a_wrong_configuration_as_json_is_one_object_on_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text("pipeline: shop\nsource: {kind: sqlite, path: a}\nlake: {path: l, mode: mirrored}\n")
    assert cli.execute(["status", str(file), "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert "lake.mode: 'mirrored' is not a choice; available: mirror" in answer["error"]
    assert answer["remedy"]


def test_init_writes_a_configuration_and_does_not_overwrite_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.execute(["init"]) == 0
    assert "lakefeed check lakefeed.yaml" in capsys.readouterr().out
    file = tmp_path / "lakefeed.yaml"
    assert "kind: sqlite" in file.read_text()
    file.write_text("mine")
    assert cli.execute(["init", "--json"]) == 2
    refused = json.loads(capsys.readouterr().out)
    assert "exists already" in refused["error"]
    assert file.read_text() == "mine"
    assert execute_printed(refused["remedy"]) == 0, "the remedy works as printed"
    assert "kind: sqlite" in file.read_text()
    assert cli.execute(["init", "no/such/place.yaml"]) == 2


def test_a_source_that_init_does_not_know_is_answered_with_a_command_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.execute(["init", "shop.yaml", "--source", "oracle", "--json"]) == 2
    refused = json.loads(capsys.readouterr().out)
    assert "available: sqlite, postgres" in refused["error"]
    assert execute_printed(refused["remedy"]) == 0


def test_a_missing_file_is_answered_with_a_command_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.execute(["sync", "shop.yaml", "--json"]) == 2
    assert execute_printed(json.loads(capsys.readouterr().out)["remedy"]) == 0
    assert (tmp_path / "shop.yaml").exists()


def test_an_unexpected_error_is_a_sentence_and_its_trace_is_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("lakefeed.app.config.load_config", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cli.execute(["status", "x.yaml"]) == 3
    text = capsys.readouterr().err
    assert text.startswith("Error: unexpected ZeroDivisionError: a bug.\nRemedy: Please report the details in ")
    assert "Traceback" not in text
    (log,) = tmp_path.glob("lakefeed-error-*.log")
    assert str(log) in text
    assert "Traceback" in log.read_text()
    assert cli.execute(["status", "x.yaml", "--debug"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupted_command_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lakefeed.app.config.load_config", interrupted)
    assert cli.execute(["status", "x.yaml"]) == 130
    assert capsys.readouterr().err == "Interrupted.\n"
    assert cli.execute(["sync", "x.yaml"]) == 130
    assert capsys.readouterr().err == "Interrupted; the same command continues where it stopped.\n"


def test_failpoints_are_armed_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAKEFEED_FAILPOINTS", "no.such.point=kill")
    assert cli.execute(["--version"]) == 2
    assert "there is no failpoint 'no.such.point'" in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["--help", "sync --help", "demo --help"])
def test_help_loads_nothing_heavy(argument: str) -> None:
    code = (
        "import sys; from lakefeed.app import cli; assert cli.execute(sys.argv[1].split()) == 0; "
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'deltalake', 'rich'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", code, argument], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_a_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(("table", "rows"), [("main.a", 1_234_567), ("main.long", None), ("b", 7)])
    assert capsys.readouterr().out.splitlines() == [
        "table           rows",
        "main.a     1,234,567",
        "main.long          -",
        "b                  7",
    ]


@pytest.mark.parametrize(
    ("seconds", "expected"), [(None, "unknown"), (0.25, "0.2 s"), (200, "3 min 20 s"), (7_260, "2 h 1 min")]
)
def test_durations_read_well(seconds: float | None, expected: str) -> None:
    assert seconds_text(seconds) == expected


def test_a_remedy_names_the_file_that_was_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The library writes FILE, or the bare command; what a command prints can be typed as it stands."""
    set_file(tmp_path / "my shop.yaml")
    name = f"'{tmp_path}/my shop.yaml'"
    try:
        show_note("lakefeed rebuild FILE main.t --from-source; run `lakefeed sync`, then lakefeed status.")
        show_object({"tables": {"t": {"remedy": "lakefeed uninstall FILE, then lakefeed sync FILE"}}, "rows": [1]})
        show_note(
            "Correct source.path in the configuration. lakefeed sync shop.yaml stays; so does lakefeed sync does it"
        )
    finally:
        set_file(None)
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        f"lakefeed rebuild {name} main.t --from-source; run `lakefeed sync {name}`, then lakefeed status {name}.",
        f"Correct source.path in {name}. lakefeed sync shop.yaml stays; so does lakefeed sync does it",
    ]
    found = json.loads(said.out)
    assert found["tables"]["t"]["remedy"] == f"lakefeed uninstall {name}, then lakefeed sync {name}"
    assert found["rows"] == [1]


MISTAKES = {
    "a directory": ("check .", None, 2, "Name the file in it"),
    "an empty file": ("check shop.yaml", "", 2, "lakefeed init shop.yaml --force"),
    "a variable without quotes": ("check shop.yaml", "source: {path: ${X}}\n", 2, 'put ${…} in quotes: "${NAME}"'),
    "a database that is not there": ("sync shop.yaml", "{path: nope.db}", 2, "Correct source.path in shop.yaml."),
    "a table that is not there": (
        "sync shop.yaml",
        "{path: s.db, tables: [nope]}",
        2,
        "Correct source.tables in shop.yaml",
    ),
    "a lake that is a file": ("sync shop.yaml", "{path: s.db}\nlake: {path: s.db}", 3, "Set lake.path to a directory."),
    "a lake below a file": (
        "sync shop.yaml",
        "{path: s.db}\nlake: {path: s.db/lake}",
        3,
        "Set lake.path to a directory.",
    ),
    "a lake table that is not there": ("sync shop.yaml --tables x", "{path: s.db}", 2, "The lake tables are main.t."),
    "a port that is none": (
        "check shop.yaml",
        "{kind: postgres, dsn: 'host=h port=x'}",
        2,
        "Correct the port in source.dsn",
    ),
    "a server that is down": (
        "check shop.yaml",
        "{kind: postgres, dsn: 'host=127.0.0.1 port=1'}",
        1,
        "Start the server",
    ),
    "a host that is not there": (
        "check shop.yaml",
        "{kind: postgres, dsn: 'host=no.invalid'}",
        1,
        "Correct host in source.dsn",
    ),
    "an option of the dsn that is none": (
        "check shop.yaml",
        "{kind: postgres, dsn: 'host=127.0.0.1 port=1 sslmode=always'}",
        2,
        "Correct source.dsn in shop.yaml",
    ),
    "a pattern that is no list": (
        "check shop.yaml",
        "{path: s.db, tables: 't*'}",
        2,
        "Correct source.tables in shop.yaml",
    ),
    "a word that is no command": ("snyc shop.yaml", None, 2, "See `lakefeed --help`."),
}


@pytest.mark.parametrize(("words", "text", "code", "remedy"), MISTAKES.values(), ids=list(MISTAKES))
def test_a_mistake_of_the_first_hour_is_told_with_what_to_correct(
    words: str, text: str | None, code: int, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("s.db")) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    if text is not None and text.startswith("{"):
        kind = "" if "kind" in text else "kind: sqlite, "
        lake = "" if "lake" in text else "\nlake: {path: ./lake}"
        text = f"pipeline: shop\nsource: {{{kind}{text[1:]}{lake}\n"
    if text is not None:
        (tmp_path / "shop.yaml").write_text(text)
    assert cli.execute(words.split()) == code
    shown = capsys.readouterr()
    said = shown.out if code == 1 else shown.err  # findings are the result of check
    assert remedy in said
    assert "unexpected" not in said
    assert "?." not in said
    assert cli.execute([*words.split(), "--json"]) == code
    answer = json.loads(capsys.readouterr().out)
    remedies = [one["remedy"] for one in answer["findings"]] if code == 1 else [answer["remedy"]]
    assert any(remedy.partition(" in shop.yaml")[0] in one for one in remedies)


def test_ctrl_c_while_run_starts_ends_it_as_cleanly_as_later(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lakefeed.app.build.build_pipeline", interrupted)
    assert cli.execute(["run", str(shop)]) == 0
    assert capsys.readouterr().out == "Stopped before it began.\n"
