"""What is wrong in a configuration file, in sentences: line, key, what it must be, and what there is to choose from."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from lakefeed.app.document import Document, Place

PLANNED: dict[Place, tuple[str, ...]] = {
    ("source", "kind"): ("mysql", "mariadb", "sqlserver"),
    ("source", "capture"): ("log", "trigger"),
}
"""Values that the documents announce and this version does not have: "not yet" is a better answer than "unknown"."""


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
    for problem in problems:
        place, kind = _told_apart(tuple(problem["loc"]), dict(problem), model)
        yield document.line(place), _sentence(place, {**problem, "type": kind}, document, model)


def _told_apart(place: Place, problem: dict[str, Any], model: type[BaseModel]) -> tuple[Place, str]:
    """The place as it is in the file, and the kind of problem: sections of several kinds are told apart by a key."""
    kind = problem["type"]
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        place = (*place, str(problem["ctx"]["discriminator"]).strip("'"))
        return place, "literal_error" if kind == "union_tag_invalid" else "missing"
    if len(place) > 1 and str(place[0]) in model.model_fields and _variants(model.model_fields[str(place[0])]):
        return (place[0], *place[2:]), kind  # the second part is the section's kind
    return place, kind


def _sentence(place: Place, problem: dict[str, Any], document: Document, model: type[BaseModel]) -> str:
    key = ".".join(str(part) for part in place)
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(place, document, model)
    if kind == "missing":
        return f"{key} is missing{_choices(model, place, document)}"
    value = f"'{document.raw[place]}'" if place in document.raw else "this"
    if kind == "literal_error":
        return _wrong_choice(place, value, document, model)
    if kind == "string_pattern_mismatch":
        return f"{key}: {value} must begin with a letter a-z or digit, then letters a-z, digits, '_' and '-' only"
    return f"{key}: {value} {_expectation(kind, context, problem['msg'])}"


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
    "list_type": 'must be a list, such as ["*"]',
    "dict_type": "must be a section with keys of its own",
    "too_short": 'must name at least one, such as ["*"]',
    "model_type": "must be a section with keys of its own",
    "model_attributes_type": "must be a section with keys of its own",
}
"""By the kind of pydantic's error; the names in braces are in its context."""


def _expectation(kind: str, context: dict[str, Any], message: str) -> str:
    return _EXPECTATIONS[kind].format(**context) if kind in _EXPECTATIONS else f"is not valid: {message}"


def _unknown_key(place: Place, document: Document, model: type[BaseModel]) -> str:
    *around, name = place
    section = _section(model, tuple(around), document)
    valid = list(section.model_fields)
    where = f"in {'.'.join(str(part) for part in around)}" if around else "at the top"
    others = _variants(model.model_fields[str(around[0])]) if len(around) == 1 else {}
    owners = [kind for kind, variant in others.items() if str(name) in variant.model_fields]
    if owners:
        mine = next(kind for kind, variant in others.items() if variant is section)
        return (
            f"{'.'.join(map(str, place))} belongs to {', '.join(owners)}; valid keys of {mine} are {', '.join(valid)}"
        )
    close = get_close_matches(str(name), valid, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"there is no key '{name}' {where}; valid keys are {', '.join(valid)}{hint}"


def _wrong_choice(place: Place, value: str, document: Document, model: type[BaseModel]) -> str:
    key, raw = ".".join(str(part) for part in place), document.raw.get(place, "")
    available = _choices_of(model, place, document)
    if raw in PLANNED.get(place, ()):
        return f"{key}: {value} is not there yet; available now: {', '.join(available)}"
    close = get_close_matches(raw, available, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"{key}: {value} is not a choice; available: {', '.join(available)}{hint}"


def _variants(field: FieldInfo) -> dict[str, type[BaseModel]]:
    """The kinds of a section that has several, by the value that tells them apart."""
    if field.discriminator is None:
        return {}
    kinds = get_args(field.annotation)
    return {get_args(kind.model_fields[str(field.discriminator)].annotation)[0]: kind for kind in kinds}


def _section(model: type[BaseModel], place: Place, document: Document) -> type[BaseModel]:
    """The model of a section, or of an item of a list or mapping of sections."""
    data, item = document.data, False
    for part in place:
        data = _inside(data, part)
        if item:
            item = False  # the list's or mapping's own name has given the model
            continue
        field = model.model_fields[str(part)]
        if variants := _variants(field):
            model = variants.get(str(_inside(data, str(field.discriminator))), next(iter(variants.values())))
        else:
            item = get_origin(field.annotation) in (list, dict)
            model = _keys_of(field.annotation)
    return model


def _keys_of(annotation: Any) -> type[BaseModel]:
    """The one section in an annotation: itself, what a list or a mapping has, what may also be None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(kind for kind in get_args(annotation) if isinstance(kind, type) and issubclass(kind, BaseModel))


def _inside(data: Any, part: str | int) -> Any:
    if isinstance(data, dict):
        return data.get(part)
    return data[part] if isinstance(data, list) and isinstance(part, int) else None


def _choices_of(model: type[BaseModel], place: Place, document: Document) -> tuple[str, ...]:
    *around, name = place
    variants = _variants(model.model_fields[str(around[0])]) if len(around) == 1 else {}
    if variants and name == model.model_fields[str(around[0])].discriminator:
        return tuple(variants)
    field = _section(model, tuple(around), document).model_fields[str(name)]
    return tuple(str(value) for value in get_args(field.annotation) if not isinstance(value, type))


def _choices(model: type[BaseModel], place: Place, document: Document) -> str:
    if len(place) == 1:
        field = model.model_fields[str(place[0])]
        if variants := _variants(field):
            return f"; it is a section whose {field.discriminator} is one of {', '.join(variants)}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            return f"; it is a section with the keys {', '.join(field.annotation.model_fields)}"
    choices = _choices_of(model, place, document)
    return f"; available: {', '.join(choices)}" if choices else ""
