"""Writes docs/api.md: every public name (``lakefeed.__all__``) with its signature and its docstring.

`make api` writes the page; a test fails if it is out of date or if a public name has nothing to say for itself.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lakefeed
from lakefeed.errors import LakefeedError, Retry

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"

_WIDE = 100
_LIST_ITEM = re.compile(r"\s*(\d+\.|-) ")
_HEAD = """# Public names

`from lakefeed import …` gives you these names. Everything else may change without notice. `make api` writes this page
from the docstrings; a test checks that it is current. How to use them: [tutorial](tutorial.md),
[embedding](runtime.md).

{names}

All errors are in [one table](#errors).
"""
_ERRORS = """## Errors

All of them have `message`, which says what is wrong, and `remedy`, which says what to do. *Retried* means that a
running pipeline waits and tries again by itself.

| class | is a | retried | exit code | usual remedy |
|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    names = sorted(name for name in lakefeed.__all__ if not name.startswith("__"))
    found = {name: getattr(lakefeed, name) for name in names}
    errors = {name: item for name, item in found.items() if _is_error(item)}
    links = " · ".join(f"[{name}](#{name.lower()})" for name in found if name not in errors)
    parts = [_HEAD.format(names=links), *(_section(name, item) for name, item in found.items() if name not in errors)]
    if errors:
        parts.append(_ERRORS + "".join(_error_row(item) for item in errors.values()))
    return "\n".join(part.rstrip() + "\n" for part in parts)


def undocumented() -> list[str]:
    """Public names without a docstring of their own. The table of errors describes those."""
    items = {name: getattr(lakefeed, name) for name in lakefeed.__all__ if not name.startswith("__")}
    return [name for name, item in items.items() if not _is_error(item) and not _doc(item)]


def _is_error(item: object) -> bool:
    return inspect.isclass(item) and issubclass(item, LakefeedError)


def _error_row(item: type[LakefeedError]) -> str:
    retried = "yes" if item.retry is Retry.BACKOFF else "no"
    base = item.__mro__[1].__name__
    return f"| `{item.__name__}` | `{base}` | {retried} | {item.exit_code} | {item.default_remedy} |\n"


def _section(name: str, item: Any) -> str:
    lines = [f"## {name}", ""]
    if inspect.isclass(item):
        lines += [*_code(f"class {name}{_class_signature(item)}"), "", _doc(item), ""]
        lines += _enum_members(item) if issubclass(item, enum.Enum) else _members(item)
    elif callable(item):
        lines += [*_code(f"def {name}{_signature(item)}"), "", _doc(item)]
    else:
        lines += [_doc(item) if inspect.ismodule(item) else f"`{name}` is `{item!r}`."]
    return "\n".join(lines)


def _code(text: str) -> list[str]:
    return ["```python", text, "```"]


def _class_signature(item: type) -> str:
    if issubclass(item, enum.Enum) or getattr(item, "_is_protocol", False) or inspect.isabstract(item):
        return ""
    return _signature(item).removesuffix(" -> None")


def _enum_members(item: type[enum.Enum]) -> list[str]:
    return [f"- `{member.name}` = `{member.value!r}`" for member in item]


def _members(item: type) -> list[str]:
    lines = []
    for name, member in _public(item):
        if isinstance(member, property):
            lines += [f"- **`{name}`** {_inline(_doc(member))}".rstrip()]
        elif isinstance(member, classmethod | staticmethod):
            lines += [f"- **`{name}{_signature(getattr(item, name))}`** {_inline(_doc(member))}".rstrip()]
        elif inspect.isfunction(member):
            lines += [f"- **`{name}{_signature(member, bound=True)}`** {_inline(_doc(member))}".rstrip()]
    return lines


def _public(item: type) -> Iterator[tuple[str, Any]]:
    """Own and inherited members from our own classes, in the order they were written."""
    fields = {field.name for field in dataclasses.fields(item)} if dataclasses.is_dataclass(item) else set()
    seen: set[str] = set()
    for owner in item.__mro__:
        if not owner.__module__.startswith("lakefeed"):
            continue
        for name, member in vars(owner).items():
            if not name.startswith("_") and name not in fields and name not in seen:
                seen.add(name)
                yield name, member


def _signature(item: Any, *, bound: bool = False) -> str:
    """As it was written: annotations are text already, since every module has ``from __future__``."""
    signature = inspect.signature(item)
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    words, starred = [], False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        words.append(_parameter(parameter))
    answer = signature.return_annotation
    returns = "" if answer in (signature.empty, None) else f" -> {_type(answer)}"
    text = f"({', '.join(words)}){returns}"
    if bound or len(text) <= _WIDE:
        return text
    return "(\n" + "".join(f"    {word},\n" for word in words) + f"){returns}"


def _parameter(parameter: inspect.Parameter) -> str:
    marks: dict[Any, str] = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    mark = marks.get(parameter.kind, "")
    text = f"{mark}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {_type(parameter.annotation)}"
    return text if parameter.default is parameter.empty else f"{text} = {_default(parameter.default)}"


def _default(value: Any) -> str:
    if inspect.isroutine(value):
        return f"{value.__module__}.{value.__name__}"
    text = repr(value)
    return "…" if text.startswith("<") else text  # another one for each object


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _doc(item: Any) -> str:
    text = inspect.cleandoc(item.__doc__ or "")
    if inspect.isclass(item) and (item.__doc__ or "").startswith(f"{item.__name__}("):
        return ""  # what a dataclass writes for itself
    text = re.sub(r"^``([^`]+)``(?:, ``([^`]+)``)?  +", _item, text, flags=re.MULTILINE)
    return _spaced(re.sub(r"``([^`]+)``", r"`\1`", text))


def _spaced(text: str) -> str:
    """Markdown wants an empty line around a list, and a continued item indented a little."""
    lines: list[str] = []
    inside = False
    for line in text.split("\n"):
        is_item = _LIST_ITEM.match(line) is not None
        continued = inside and line.startswith("  ")
        if lines and lines[-1] and line and not continued and is_item != inside:
            lines.append("")
        lines.append(re.sub(r"^ {5,}", "  ", line) if continued and not is_item else line)
        inside = is_item or continued
    return "\n".join(lines)


def _item(match: re.Match[str]) -> str:
    return "- " + ", ".join(f"`{name}`" for name in match.groups() if name) + ": "


def _inline(text: str) -> str:
    """Under a list item: paragraphs after the first are indented, so that they stay in it."""
    return text.replace("\n", "\n  ").replace("\n  \n", "\n\n")


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}: {len(lakefeed.__all__)} public names\n")
