"""What deploy/ starts is what the command line takes, and what the image has."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from lakefeed.app.cli import app
from lakefeed.app.config import Config
from lakefeed.app.dashboard import TOKEN_VARIABLE
from lakefeed.monitor import server

ROOT = Path(__file__).parents[2]


def require_taken(words: list[str]) -> None:
    """The command line understands these words; nothing is run."""
    command: Any = typer.main.get_command(app)
    name, context, rest = command.resolve_command(command.make_context("lakefeed", list(words)), words)
    context.make_context(name, rest).close()


def manifest() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "deploy/kubernetes.yaml").read_text())
    return found


def unit() -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd tells capitals apart
    parser.read(ROOT / "deploy/lakefeed@.service")
    return parser


def image() -> str:
    return (ROOT / "Dockerfile").read_text()


def test_a_word_that_the_command_line_does_not_know_is_found() -> None:
    with pytest.raises(typer.TyperException):
        require_taken(["run", "shop.yaml", "--stand-by"])


def test_the_unit_runs_a_standby_and_starts_it_again() -> None:
    service = unit()["Service"]
    program, *words = shlex.split(service["ExecStart"].replace("%i", "shop"))
    assert program == "/opt/lakefeed/bin/lakefeed"
    assert words[-1] == "--standby"
    require_taken(words)
    assert service["Restart"] == "always"
    assert int(service["TimeoutStopSec"]) > 10, "stop takes ten seconds at most"


def test_the_manifest_runs_the_image_as_its_user_and_asks_addresses_that_are_there() -> None:
    pod = manifest()["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert json.loads(re.findall(r"ENTRYPOINT (.*)", image())[0]) == ["lakefeed"]
    require_taken(container["args"])
    port = container["ports"][0]
    assert container["args"][-1] == f"0.0.0.0:{port['containerPort']}"
    for probe in ("livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in server._OPEN, "it has no token"
        assert asked["port"] == port["name"]
    assert TOKEN_VARIABLE in (ROOT / "deploy/kubernetes.yaml").read_text(), "another address than 127.0.0.1 needs one"
    assert f"--uid {pod['securityContext']['runAsUser']} " in image()
    assert pod["terminationGracePeriodSeconds"] > 10
    labels = manifest()["spec"]["template"]["metadata"]["labels"]
    assert manifest()["spec"]["selector"]["matchLabels"] == labels
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}


def test_keys_of_the_configuration_that_the_files_name_are_there() -> None:
    for file in ("deploy/kubernetes.yaml", "deploy/lakefeed@.service"):
        for section, key in re.findall(r"\b(journal|sync)\.([a-z_]+)\b", (ROOT / file).read_text()):
            assert key in (Config.model_fields[section].annotation or Config).model_fields
