"""The command line itself: help, versions, exit codes, and how what goes wrong is said. No Spark in here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.reading.journals import add_people, opened

from lakefeed.app import cli
from lakefeed.app.output import seconds_text, show_table
from lakefeed.flow.pipeline import Pipeline
from lakefeed.journal.journal import Journal

COMMANDS = (
    "init", "check", "sync", "run", "status", "journal", "verify", "rebuild", "diff", "maintain", "uninstall", "demo",
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
        def run(self, for_seconds: float | None = None) -> None:
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
    assert "Stopped. These did not end in time and were left: lakefeed-lake." in capsys.readouterr().err


def test_no_command_shows_the_help_and_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute([]) == 2
    assert "Commands:" in capsys.readouterr().out


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert cli.execute(["--version"]) == 0
    assert capsys.readouterr().out == f"lakefeed {version('lakefeed')}\n"


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
    assert "already there" in refused["error"]
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
    assert text.startswith("Error: unexpected ZeroDivisionError: a bug.\nRemedy: The details are in ")
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
    assert capsys.readouterr().err == (
        "Error: interrupted.\nRemedy: Run the command again; it continues where it stopped.\n"
    )


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
        "table      rows",
        "main.a     1,234,567",
        "main.long  -",
        "b                  7",
    ]


@pytest.mark.parametrize(
    ("seconds", "expected"), [(None, "unknown"), (0.25, "0.2 s"), (200, "3 min 20 s"), (7_260, "2 h 1 min")]
)
def test_durations_read_well(seconds: float | None, expected: str) -> None:
    assert seconds_text(seconds) == expected
