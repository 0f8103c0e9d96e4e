"""The page that maps requirement points to tests is complete and current."""

from __future__ import annotations

from scripts.points import PAGE, page


def test_every_point_has_a_test() -> None:
    assert "**no test**" not in page()


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run `make points`"
