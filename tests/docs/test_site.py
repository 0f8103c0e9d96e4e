"""``make docs``: every page is there, links lead somewhere, and search knows every section."""

from __future__ import annotations

import json
import re
from pathlib import Path

from scripts.site import DOCS, ROOT, build


def test_the_site_has_every_page_and_no_dead_link(tmp_path: Path) -> None:
    site = tmp_path / "site"
    pages = build(site)
    assert len(pages) == len(list(DOCS.rglob("*.md"))) + 1
    for page in pages:
        text = page.read_text()
        for target, anchor in re.findall(r'(?:href|src)="([^":#]*)(?:#([^"]*))?"', text):
            there = (page.parent / target).resolve() if target else page
            assert there.exists(), f"{page.name}: {target}"
            assert not anchor or f'id="{anchor}"' in there.read_text(), f"{page.name}: {target}#{anchor}"
        assert "search.js" in text


def test_search_knows_every_section(tmp_path: Path) -> None:
    build(tmp_path / "site")
    script = (tmp_path / "site" / "search.js").read_text()
    sections = json.loads(script.partition("const SECTIONS = ")[2].partition(";\n")[0])
    at = {section[0] for section in sections}
    assert {"index.html#lakefeed", "first-postgres.html#3-check-what-is-missing", "recipes.html#airflow"} <= at
    assert any("max_slot_wal_keep_size" in text for _, _, text in sections)
    assert (ROOT / "Makefile").read_text().count("\ndocs: ") == 1
