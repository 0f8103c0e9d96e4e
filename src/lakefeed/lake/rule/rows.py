"""RowRule: how the rows of a source table become the rows of one lake table. A value, without evaluation.

Expressions and the condition are Spark SQL over the source's columns: under the source's names, with the journal's
values. A column gets a mask, an expression, or its own value; then it gets its name. ``lake.rule.resolve`` turns a rule
and a schema into columns, ``lake.rule.changes`` applies it to a window.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lakefeed.change.mask import KEYED, MASKS
from lakefeed.errors import ConfigError

NAMINGS = ("as_is", "lower", "snake_case")
_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NO_WORD = re.compile(r"[^0-9A-Za-z\u0080-\U0010ffff]+")

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRule:
    """``transform``: expressions by column; a name that the source does not have is a new column. ``mask``: kinds of
    ``change.mask`` by column. ``rename``: the lake's names by the source's. ``naming`` names all other columns.

    ``early`` are masks that capture applies before the journal: this rule does not apply them, but they are part of its
    fingerprint. ``parts`` are partitions by a function (``lake.layout``), in a format where each is a column.
    ``origin`` is a column with one value in all rows, and part of the key: the rows are one source table's part of a
    union. ``optional`` are columns that rules name for many tables, so this table need not have them. ``has_secrets``:
    an expression contains a value of the environment, so nobody writes the rule down.
    """

    where: str | None = None
    transform: Pairs = ()
    mask: Pairs = ()
    rename: Pairs = ()
    naming: str = "as_is"
    optional: frozenset[str] = frozenset()
    early: Pairs = ()
    parts: tuple[str, ...] = ()
    origin: tuple[str, str] | None = None
    salt: str = field(default="", repr=False)
    has_secrets: bool = False

    def __post_init__(self) -> None:
        if self.naming not in NAMINGS:
            raise ConfigError(f"'{self.naming}' is not a naming", remedy=f"Choose one of: {', '.join(NAMINGS)}.")
        for column, kind in self.mask:
            if kind not in MASKS:
                raise ConfigError(
                    f"this version has no mask '{kind}', which {column} is to get",
                    remedy=f"Choose one of: {', '.join(MASKS)}.",
                )
            if kind in KEYED and not self.salt:
                raise ConfigError(
                    f"the mask {kind} of column {column} needs a salt: without one, anybody can hash likely values and "
                    "compare",
                    remedy='Write lake.salt: "${LAKEFEED_SALT}" and set that variable to a long secret text.',
                )
            if column in dict(self.transform):
                raise ConfigError(
                    f"column {column} has a mask and an expression", remedy="Remove one of them from the rule."
                )

    @property
    def is_plain(self) -> bool:
        """Are rows as in the source, under the same names?"""
        return not self.has_values and not self.rename and self.naming == "as_is"

    @property
    def is_empty(self) -> bool:
        """Does the rule do nothing, so that there is nothing to record?"""
        return self.is_plain and not self.early

    @property
    def has_values(self) -> bool:
        """Does the rule leave rows out or change values, so that Spark evaluates it?"""
        return bool(self.where or self.transform or self.mask or self.parts or self.origin)

    def name(self, column: str) -> str:
        """The lake's name of a source column."""
        renamed = dict(self.rename).get(column)
        return renamed if renamed is not None else lake_name(column, self.naming)

    def describe(self) -> str:
        """What the rule does, for people and without secrets."""
        parts = (
            [f"where {self.where}"] if self.where and not self.has_secrets else ["a condition"] if self.where else []
        )
        parts += [f"{column} by expression" for column, _ in self.transform]
        parts += [f"{column} masked ({kind})" for column, kind in self.mask]
        parts += [f"{column} masked before the journal ({kind})" for column, kind in self.early]
        parts += [f"{old} called {new}" for old, new in self.rename]
        parts += [f"partitioned by {part}" for part in self.parts]
        parts += [f"{self.origin[0]} is '{self.origin[1]}'"] if self.origin is not None else []
        parts += [f"names {self.naming}"] if self.naming != "as_is" else []
        return ", ".join(parts) or "the source's rows"

    @property
    def fingerprint(self) -> str:
        """Equal rules have equal fingerprints. The salt goes in, and nobody can read it from there."""
        is_salted = any(kind in KEYED for _, kind in (*self.mask, *self.early))
        body = {**self.to_json(), "salt": self.salt if is_salted else ""}
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The rule without the salt, and without ``optional``, which depends on the rules for other tables."""
        return {
            "where": self.where,
            "transform": list(map(list, self.transform)),
            "mask": list(map(list, self.mask)),
            "early": list(map(list, self.early)),
            "rename": list(map(list, self.rename)),
            "naming": self.naming,
            "parts": list(self.parts),
            **({"origin": list(self.origin)} if self.origin is not None else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], salt: str = "") -> RowRule:
        """The rule that ``to_json`` wrote. The table need not have the columns that it names: they are ``optional``."""
        pairs: dict[str, Any] = {
            name: tuple((one, other) for one, other in data[name]) for name in ("transform", "mask", "rename")
        }
        named_columns = frozenset(one for name in ("mask", "rename") for one, _ in pairs[name])
        origin = data.get("origin")
        return cls(
            where=data["where"],
            naming=data["naming"],
            parts=tuple(data["parts"]),
            origin=(origin[0], origin[1]) if origin is not None else None,
            salt=salt,
            optional=named_columns,
            **pairs,
        )


def lake_name(column: str, naming: str) -> str:
    """A column's name under a naming: ``Order ID`` is ``order_id`` in snake case."""
    if naming == "snake_case":
        words = _NO_WORD.sub("_", _WORD_ENDS.sub("_", column)).strip("_").lower()
        return words or "_"
    return column.lower() if naming == "lower" else column


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOptions:
    """What one rule of the configuration chooses for rows; None is no choice. See ``RowRule``."""

    where: str | None = None
    transform: Mapping[str, str] | None = None
    mask: Mapping[str, str] | None = None
    rename: Mapping[str, str] | None = None
    naming: str | None = None
    sensitive: bool = False
    has_secrets: bool = False

    def onto(self, rule: RowRule, *, is_literal: bool) -> RowRule:
        """``rule`` with the choices of these options: they replace the condition as a whole, the rest by column."""
        given = {name: dict(getattr(self, name) or {}) for name in ("transform", "mask", "rename")}
        merged = {name: {**dict(getattr(rule, name)), **one} for name, one in given.items()}
        # A more specific rule for a column replaces a more general one.
        merged["mask"] = {name: kind for name, kind in merged["mask"].items() if name not in given["transform"]}
        merged["transform"] = {name: sql for name, sql in merged["transform"].items() if name not in given["mask"]}
        stated = {*given["mask"], *given["rename"]}
        return replace(
            rule,
            where=rule.where if self.where is None else self.where or None,
            naming=self.naming or rule.naming,
            optional=rule.optional - stated if is_literal else rule.optional | stated,
            has_secrets=rule.has_secrets or self.has_secrets,
            transform=tuple(merged["transform"].items()),
            mask=tuple(merged["mask"].items()),
            rename=tuple(merged["rename"].items()),
        )
