"""A configuration file: YAML with the line of every key, and a sentence for each mistake.

The reader refuses duplicate keys, and takes ``${NAME}`` from the environment. A complaint names line and key, says what
the value must be, and lists the choices.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from lakefeed.capture.registry import PLANNED
from lakefeed.errors import ConfigError

KeyPath = tuple[str | int, ...]
"""The keys that lead to a value: ``("source", "tables", 0)``."""

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NOT_YET: dict[KeyPath, tuple[str, ...]] = {("source", "kind"): PLANNED, ("source", "capture"): ("log", "trigger")}
"""Values that the documentation announces and that this version does not have everywhere."""


@dataclass(frozen=True, slots=True)
class Document:
    """``data`` as plain Python values; ``lines`` (from 1) and ``raw`` text by key path.

    ``raw`` is the text of the file, before variables are replaced: messages quote it, so they never contain a secret.
    """

    path: Path
    data: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)
    raw: dict[KeyPath, str] = field(default_factory=dict)

    def line(self, at: KeyPath) -> int:
        """The line of a value, or of the nearest section around it."""
        while at and at not in self.lines:
            at = at[:-1]
        return self.lines.get(at, 1)


def read_document(path: Path, environment: Mapping[str, str] | None = None) -> Document:
    """Read a file. ConfigError, with the line, if that is not possible."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"there is no file {path}", remedy=f"Name an existing file, or write one with `lakefeed init {path}`."
        ) from None
    except IsADirectoryError:
        raise ConfigError(
            f"{path} is a directory, not a configuration file", remedy=f"Name the file in it: {path}/….yaml"
        ) from None
    except UnicodeDecodeError as error:
        remedy = f"Name a YAML file; {path} is another kind of file, or has another encoding."
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start})", remedy=remedy) from error
    except OSError as error:
        raise ConfigError(f"Lakefeed cannot read {path}: {error.strerror}", remedy=f"chmod u+r {path}") from error
    document = Document(path, None)
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            reader = _Reader(document, loader, os.environ if environment is None else environment)
            data = None if node is None else reader.value(node, ())
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        wrong = "".join(text.splitlines()[line - 1 : line])  # it may be behind the last line
        if "\t" in wrong:
            raise ConfigError(
                f"{path}, line {line}: this line has a tab, and YAML allows spaces only",
                remedy="Replace the tab with spaces.",
            ) from error
        remedy = f"Correct line {line} of {path}" + ('; put ${…} in quotes: "${NAME}".' if "${" in wrong else ".")
        raise ConfigError(f"{path}, line {line}: this is not YAML: {error.problem}", remedy=remedy) from error
    except (
        yaml.YAMLError,
        ValueError,
        RecursionError,
    ) as error:  # a date that does not exist, or an anchor inside itself
        raise ConfigError(f"{path} is not YAML: {error}", remedy=f"Correct {path}.") from error
    if not isinstance(data, dict):
        shape = "empty" if data is None else f"a {'list' if isinstance(data, list) else 'single value'}"
        remedy = f"Replace it with a commented one: lakefeed init {path} --force"
        raise ConfigError(f"{path} must be a mapping of keys to values, but is {shape}", remedy=remedy)
    return Document(path, data, document.lines, document.raw)


class _Reader:
    """Turns YAML nodes into values, and records the line of each."""

    def __init__(self, document: Document, loader: yaml.SafeLoader, environment: Mapping[str, str]) -> None:
        self._document = document
        self._loader = loader
        self._environment = environment

    def value(self, node: yaml.Node, at: KeyPath) -> Any:
        document = self._document
        document.lines.setdefault(at, node.start_mark.line + 1)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*at, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            result: dict[str, Any] = {}
            for key_node, value_node in node.value:
                key, line = str(key_node.value), key_node.start_mark.line + 1
                inner = (*at, key)
                if key in result:
                    first = document.lines[inner]
                    raise ConfigError(f"{document.path}, line {line}: '{key}' is given twice, first in line {first}")
                document.lines[inner] = line
                result[key] = self.value(value_node, inner)
            return result
        document.raw[at] = node.value
        value = self._loader.construct_object(node)
        if not isinstance(value, str):
            return value
        for name in _VARIABLE.findall(value):
            if name not in self._environment:
                raise ConfigError(
                    f"{document.path}, line {document.lines[at]}: {_dotted(at)} needs the environment variable {name}, "
                    "which is not set",
                    remedy=f"Set it before the command: export {name}=…",
                )
        return _VARIABLE.sub(lambda match: self._environment[match[1]], value)


_KIND = re.compile(r"\w[\w-]*\[.*\]")
_EXPECTATIONS = {
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le:g}",
    "finite_number": "must be a number",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "string_type": "must be text; put it in quotes",
    "string_too_short": "must not be empty",
    "string_too_long": "must not be longer than {max_length} characters",
    "string_pattern_mismatch": "must begin with a letter a-z or digit, then letters a-z, digits, '_' and '-' only",
    "list_type": 'must be a list, such as ["*"]',
    "dict_type": "must be a section with keys of its own",
    "too_short": 'must name at least one, such as ["*"]',
    "model_type": "must be a section with keys of its own",
    "model_attributes_type": "must be a section with keys of its own",
}
"""The ends of sentences, by the type of pydantic's error; its context has the names in braces."""


def complaints(error: ValidationError, document: Document, model: type[BaseModel]) -> tuple[str, list[str]]:
    """One sentence for one problem, a list for several, in the order of the file; and the keys that are wrong."""
    found: set[tuple[int, str, str]] = set()
    sections = set[str]()
    for problem in error.errors(include_url=False, include_input=False, include_context=True):
        at, kind, context = tuple(problem["loc"]), problem["type"], dict(problem.get("ctx", {}))
        if kind in ("union_tag_invalid", "union_tag_not_found"):
            at = (*at, str(context["discriminator"]).strip("'"))
            kind = "literal_error" if kind == "union_tag_invalid" else "missing"
        elif len(at) > 1 and str(at[0]) in model.model_fields and _variants(model.model_fields[str(at[0])]):
            at = (at[0], *at[2:])  # pydantic adds the section's kind, which is no key of the file
        # If a value may have several types, pydantic names each: literal['stop', …], dict[…]. These are no keys either.
        at = tuple(part for part in at if not _KIND.fullmatch(str(part)))
        key, value = _dotted(at), f"'{document.raw[at]}'" if at in document.raw else "this"
        if kind == "extra_forbidden":
            text = _unknown_key(at, document, model)
        elif kind == "missing":
            text = f"{key} is missing{_missing_hint(at, document, model)}"
        elif kind == "literal_error":
            raw, available = document.raw.get(at, ""), tuple(re.findall("'([^']*)'", str(context.get("expected"))))
            if len(at) == 1 or _is_of_section(model, at[:-1], document):
                available = _choices(model, at, document)
            close = get_close_matches(raw, available, n=1)
            if raw in _NOT_YET.get(at, ()):
                text = f"{key}: this version does not have {value} yet; available: {', '.join(available)}"
            else:
                hint = f"; did you mean {close[0]}?" if close else ""
                text = f"{key}: {value} is not a choice; available: {', '.join(available)}{hint}"
        elif kind == "list_type" and at in document.raw:
            text = f'{key}: {value} must be a list: ["{document.raw[at]}"]'
        elif kind in _EXPECTATIONS:
            text = f"{key}: {value} {_EXPECTATIONS[kind].format(**context)}"
        else:
            text = f"{key}: {value} is not valid: {problem['msg']}"
        if kind == "literal_error" and at not in document.raw and len(at) > 1:
            sections.add(key)
        found.add((document.line(at), text, key))
    # If a section could also be a single value, report only the mistakes inside it.
    inner = {key for _, _, key in found}
    found = {one for one in found if one[2] not in sections or not any(key.startswith(f"{one[2]}.") for key in inner)}
    keys = list(dict.fromkeys(key for _, _, key in sorted(found)))
    if len(found) == 1:
        ((line, text, _),) = found
        return f"{document.path}, line {line}: {text}", keys
    rows = "".join(f"\n  line {line}: {text}" for line, text, _ in sorted(found))
    return f"{document.path} has {len(found)} mistakes:{rows}", keys


def _unknown_key(at: KeyPath, document: Document, model: type[BaseModel]) -> str:
    *around, name = at
    section = _section(model, tuple(around), document)
    valid = list(section.model_fields)
    others = _variants(model.model_fields[str(around[0])]) if len(around) == 1 else {}
    owners = [kind for kind, variant in others.items() if str(name) in variant.model_fields]
    if owners:
        mine = next(kind for kind, variant in others.items() if variant is section)
        return f"{_dotted(at)} belongs to {', '.join(owners)}; valid keys of {mine} are {', '.join(valid)}"
    close = get_close_matches(str(name), valid, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    where = f"in {_dotted(tuple(around))}" if around else "at the top"
    return f"there is no key '{name}' {where}; valid keys are {', '.join(valid)}{hint}"


def _missing_hint(at: KeyPath, document: Document, model: type[BaseModel]) -> str:
    """What the user has to write for a missing key."""
    if len(at) == 1:
        field = model.model_fields[str(at[0])]
        if variants := _variants(field):
            return f"; it is a section whose {field.discriminator} is one of {', '.join(variants)}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            return f"; it is a section with the keys {', '.join(field.annotation.model_fields)}"
    choices = _choices(model, at, document)
    return f"; available: {', '.join(choices)}" if choices else ""


def _choices(model: type[BaseModel], at: KeyPath, document: Document) -> tuple[str, ...]:
    *around, name = at
    variants = _variants(model.model_fields[str(around[0])]) if len(around) == 1 else {}
    if variants and name == model.model_fields[str(around[0])].discriminator:
        return tuple(variants)
    field = _section(model, tuple(around), document).model_fields[str(name)]
    kinds = [field.annotation, *get_args(field.annotation)]  # a Literal, or one of the types of an optional value
    return tuple(str(value) for kind in kinds if get_origin(kind) is Literal for value in get_args(kind))


def _variants(field: FieldInfo) -> dict[str, type[BaseModel]]:
    """The kinds of a section that has several, by the value of its discriminator."""
    if field.discriminator is None:
        return {}
    kinds = get_args(field.annotation)
    return {get_args(kind.model_fields[str(field.discriminator)].annotation)[0]: kind for kind in kinds}


def _section(model: type[BaseModel], at: KeyPath, document: Document) -> type[BaseModel]:
    """The model of a section, or of an item of a list or mapping of sections."""
    data, is_item = document.data, False
    for part in at:
        data = _inside(data, part)
        if is_item:
            is_item = False  # the name of the list or mapping has selected the model
            continue
        field = model.model_fields[str(part)]
        if variants := _variants(field):
            model = variants.get(str(_inside(data, str(field.discriminator))), next(iter(variants.values())))
        else:
            is_item = get_origin(field.annotation) in (list, dict)
            # The one section in an annotation: itself, the items of a list or mapping, or an optional one.
            kinds = (field.annotation, *get_args(field.annotation))
            model = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return model


def _is_of_section(model: type[BaseModel], at: KeyPath, document: Document) -> bool:
    """Is there a section at ``at``, and not a mapping with the user's own names?"""
    try:
        _section(model, at, document)
    except (KeyError, StopIteration):
        return False
    return True


def _inside(data: Any, part: str | int) -> Any:
    if isinstance(data, dict):
        return data.get(part)
    return data[part] if isinstance(data, list) and isinstance(part, int) else None


def _dotted(at: KeyPath) -> str:
    return ".".join(str(part) for part in at)
