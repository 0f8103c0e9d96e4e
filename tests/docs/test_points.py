"""The page that maps requirement points to tests is complete and current."""

from __future__ import annotations

from scripts.points import PAGE, page


def test_every_point_has_a_test_and_the_page_is_current() -> None:
    found = page()
    assert "**no test**" not in found
    assert PAGE.read_text() == found, "run `make points`"
