"""What is wrong in a configuration file, in sentences: line, key, what it must be, and what there is to choose from."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from lakefeed.app.document import Document, Place

PLANNED: dict[Place, tuple[str, ...]] = {
    ("source", "kind"): ("postgres", "mysql", "mariadb", "sqlserver"),
    ("source", "capture"): ("log", "poll"),
    ("lake", "format"): ("iceberg",),
    ("lake", "mode"): ("temporal", "append"),
}
"""Values that the documents announce and this version does not have: "not yet" is a better answer than "unknown"."""

PLANNED_KEYS: dict[Place, str] = {
    ("source", "dsn"): "source.dsn belongs to kinds that are not there yet; sqlite takes path",
}


def complaints(error: ValidationError, document: Document, model: type[BaseModel]) -> str:
    """One sentence for one problem, a list for several, in the order of the file."""
    found = sorted(set(_each(error, document, model)))
    if len(found) == 1:
        line, text = found[0]
        return f"{document.path}, line {line}: {text}"
    rows = "".join(f"\n  line {line}: {text}" for line, text in found)
    return f"{document.path} has {len(found)} mistakes:{rows}"


def _each(error: ValidationError, document: Document, model: type[BaseModel]) -> Iterator[tuple[int, str]]:
    problems = error.errors(include_url=False, include_input=False, include_context=True)
    places = {tuple(problem["loc"]) for problem in problems}
    # A kind that does not exist yet decides what else its section may hold: the rest would only confuse.
    other_kind = ("source", "kind") in places and document.raw.get(("source", "kind")) in PLANNED["source", "kind"]
    for problem in problems:
        place = tuple(problem["loc"])
        if other_kind and place[:1] == ("source",) and place != ("source", "kind"):
            continue
        yield document.line(place), _sentence(place, dict(problem), document, model)


def _sentence(place: Place, problem: dict[str, Any], document: Document, model: type[BaseModel]) -> str:
    key = ".".join(str(part) for part in place)
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "extra_forbidden":
        return PLANNED_KEYS.get(place) or _unknown_key(place, model)
    if kind == "missing":
        return f"{key} is missing{_choices(_field(model, place))}"
    value = f"'{document.raw[place]}'" if place in document.raw else "this"
    if kind == "literal_error":
        return _wrong_choice(place, value, document, model)
    if kind == "string_pattern_mismatch":
        return f"{key}: {value} must begin with a letter a-z or digit, then letters a-z, digits, '_' and '-' only"
    return f"{key}: {value} {_expectation(kind, context, problem['msg'])}"


def _expectation(kind: str, context: dict[str, Any], message: str) -> str:
    match kind:
        case "greater_than":
            return f"must be more than {context['gt']:g}"
        case "greater_than_equal":
            return f"must be at least {context['ge']}"
        case "less_than_equal":
            return f"must be at most {context['le']:g}"
        case "finite_number" | "float_type":
            return "must be a number"
        case "int_type":
            return "must be a whole number"
        case "string_type":
            return "must be text; put it in quotes"
        case "string_too_short":
            return "must not be empty"
        case "string_too_long":
            return f"must not be longer than {context['max_length']} characters"
        case "list_type":
            return 'must be a list, such as ["*"]'
        case "too_short":
            return 'must name at least one, such as ["*"]'
        case "model_type" | "model_attributes_type":
            return "must be a section with keys of its own"
    return f"is not valid: {message}"


def _unknown_key(place: Place, model: type[BaseModel]) -> str:
    *around, name = place
    section = _section(model, tuple(around))
    valid = list(section.model_fields)
    where = f"in {'.'.join(str(part) for part in around)}" if around else "at the top"
    close = get_close_matches(str(name), valid, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"there is no key '{name}' {where}; valid keys are {', '.join(valid)}{hint}"


def _wrong_choice(place: Place, value: str, document: Document, model: type[BaseModel]) -> str:
    key, raw = ".".join(str(part) for part in place), document.raw.get(place, "")
    available = _choices_of(_field(model, place))
    if raw in PLANNED.get(place, ()):
        return f"{key}: {value} is not there yet; available now: {', '.join(available)}"
    close = get_close_matches(raw, available, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{key}: {value} is not a choice; available: {', '.join(available)}{hint}"


def _section(model: type[BaseModel], place: Place) -> type[BaseModel]:
    for part in place:
        kind = model.model_fields[str(part)].annotation
        assert isinstance(kind, type)  # noqa: S101  sections are plain model classes
        model = kind
    return model


def _field(model: type[BaseModel], place: Place) -> FieldInfo:
    return _section(model, place[:-1]).model_fields[str(place[-1])]


def _choices_of(field: FieldInfo) -> tuple[str, ...]:
    return tuple(str(value) for value in get_args(field.annotation))


def _choices(field: FieldInfo) -> str:
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return f"; it is a section with the keys {', '.join(kind.model_fields)}"
    choices = _choices_of(field)
    return f"; available: {', '.join(choices)}" if choices else ""
