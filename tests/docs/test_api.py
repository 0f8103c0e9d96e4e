"""The page of public names, docs/api.md, is current, and every one of them is documented."""

from __future__ import annotations

from scripts.api import PAGE, page, undocumented


def test_the_page_of_public_names_is_current() -> None:
    assert PAGE.read_text() == page(), "run `make api`"


def test_every_public_name_has_a_docstring() -> None:
    assert undocumented() == []
