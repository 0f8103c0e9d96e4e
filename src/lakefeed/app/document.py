"""A YAML file with the line of every key, duplicate keys refused, and ``${NAME}`` taken from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lakefeed.errors import ConfigError

Place = tuple[str | int, ...]
"""The way to a value: ``("source", "tables", 0)``."""

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class Document:
    """``data`` as plain Python values; ``lines`` (from 1) and ``raw`` text by place.

    ``raw`` is what stands in the file, before variables were replaced: messages quote it, so that a secret never
    gets into one.
    """

    path: Path
    data: Any
    lines: dict[Place, int] = field(default_factory=dict)
    raw: dict[Place, str] = field(default_factory=dict)

    def line(self, place: Place) -> int:
        """The line of the place, or of the nearest thing around it."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)


def read_document(path: Path, environment: Mapping[str, str] | None = None) -> Document:
    """Read a file. Raises ConfigError, with the line, for everything that keeps it from being read."""
    text = _read_text(path)
    document = Document(path, None)
    environment = os.environ if environment is None else environment
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            reader = _Reader(document, loader, environment)
            data = None if node is None else reader.value(node, ())
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}, line {line}: this is not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must be a mapping of keys to values, and is {_shape(data)}")
    return Document(path, data, document.lines, document.raw)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"there is no file {path}", remedy=f"Name an existing file, or write one with `lakefeed init {path}`."
        ) from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a directory, not a configuration file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _shape(data: Any) -> str:
    return "empty" if data is None else f"a {'list' if isinstance(data, list) else 'single value'}"


class _Reader:
    """Turns YAML nodes into values, noting where each one stands."""

    def __init__(self, document: Document, loader: yaml.SafeLoader, environment: Mapping[str, str]) -> None:
        self._document = document
        self._loader = loader
        self._environment = environment

    def value(self, node: yaml.Node, place: Place) -> Any:
        self._document.lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*place, index)) for index, item in enumerate(node.value)]
        self._document.raw[place] = node.value
        value = self._loader.construct_object(node)
        return self._replace(value, place) if isinstance(value, str) else value

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            inner = (*place, key)
            if key in result:
                first = self._document.lines[inner]
                raise ConfigError(f"{self._document.path}, line {line}: '{key}' is given twice, first in line {first}")
            self._document.lines[inner] = line
            result[key] = self.value(value_node, inner)
        return result

    def _replace(self, text: str, place: Place) -> str:
        def variable(match: re.Match[str]) -> str:
            name = match[1]
            if name not in self._environment:
                where = ".".join(str(part) for part in place)
                line = self._document.lines[place]
                raise ConfigError(
                    f"{self._document.path}, line {line}: {where} needs the environment variable {name}, "
                    "which is not set",
                    remedy=f"Set it before the command: export {name}=…",
                )
            return self._environment[name]

        return _VARIABLE.sub(variable, text)
