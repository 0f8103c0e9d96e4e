"""A new kind of source is one line of the registry: init, check, files and the JSON schema know it from there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.app.toy_source import ToyCapture, ToyConfig

from lakefeed.app import cli
from lakefeed.app.build import build_source
from lakefeed.app.config import load_config, schema_text
from lakefeed.capture.registry import SOURCES
from lakefeed.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(SOURCES, "toy", ("tests.app.toy_source", "ToyConfig"))
    return tmp_path / "shop.yaml"


def test_init_writes_its_template_and_the_file_is_loaded_built_and_checked(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.execute(["init", str(file), "--source", "toy"]) == 0
    assert f"set source.file in it, then run lakefeed check {file}" in capsys.readouterr().out
    assert ToyConfig.template in file.read_text()
    config = load_config(file)
    log = file.with_name("toy.log")
    assert isinstance(config.source, ToyConfig)
    assert (config.source.file, config.source.speed) == (str(log), 3)
    capture = build_source(config).bind(config.pipeline)
    assert isinstance(capture, ToyCapture)
    assert (capture.path, capture.pipeline) == (str(log), "shop")
    assert cli.execute(["check", str(file)]) == 1
    said = capsys.readouterr().out
    assert f"Error: there is no {log}\nRemedy: touch {log}\n" in said
    subprocess.run(f"touch {log}", shell=True, check=True)  # the remedy, as printed
    assert cli.execute(["check", str(file)]) == 0


def test_its_own_checks_come_with_those_of_the_capture(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.with_name("toy.log").touch()
    file.write_text("pipeline: shop\nsource: {kind: toy, file: toy.log, speed: 9}\nlake: {path: lake}\n")
    assert cli.execute(["check", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["level"], one["remedy"]) for one in found["findings"]] == [("warning", "Set source.speed: 8.")]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "{kind: toi, file: x}",
            "'toi' is not a choice; available: sqlite, postgres, mysql, mariadb, toy; did you mean toy?",
        ),
        ("{kind: toy}", "source.file is missing"),
        ("{kind: toy, file: x, sped: 1}", "there is no key 'sped' in source; valid keys are kind, capture, tables"),
        ("{kind: toy, file: x, speed: 0}", "source.speed: '0' must be at least 1"),
        ("{kind: sqlite, path: x, speed: 2}", "source.speed belongs to toy; valid keys of sqlite are"),
        ("{kind: toy, file: x, rules: {t: {key: id}}}", "source.rules.t.key: 'id' must be a list"),
    ],
)
def test_a_mistake_in_its_section_is_answered_with_its_own_keys(file: Path, source: str, expected: str) -> None:
    file.write_text(f"pipeline: shop\nsource: {source}\nlake: {{path: lake}}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert expected in caught.value.message


def test_a_key_of_polling_is_refused_for_its_log(file: Path) -> None:
    file.write_text("pipeline: shop\nsource: {kind: toy, file: x, poll_seconds: 2}\nlake: {path: lake}\n")
    with pytest.raises(ConfigError, match=r"source\.poll_seconds is for capture: poll, but capture is log"):
        build_source(load_config(file))


def test_the_json_schema_has_it(file: Path) -> None:
    schema = json.loads(schema_text())
    assert schema["properties"]["source"]["discriminator"]["mapping"]["toy"] == "#/$defs/ToyConfig"
    assert schema["$defs"]["ToyConfig"]["properties"]["speed"]["minimum"] == 1


def test_sections_and_templates_need_no_driver_and_no_arrow() -> None:
    code = (
        "import sys; from lakefeed.capture.registry import SOURCES, source_config\n"
        "for kind in SOURCES: assert source_config(kind).template.startswith('source:')\n"
        "heavy = {'psycopg', 'sqlite3', 'pyarrow', 'numpy'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
