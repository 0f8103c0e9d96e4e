"""Builds the documentation as a site with search: ``python -m scripts.site DIRECTORY``, or ``make docs``.

Plain files, no server and no package beyond those that are installed anyway: Markdown comes through markdown-it, which
rich brings. The order of the pages is the one of docs/README.md. Search is a list of sections and a few lines of
JavaScript, so it works from disk, too.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import sys
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
_LINK = re.compile(r"^(\w.*?)(?:,.*)?:$|\[([^\]]+)\]\(([\w./-]+\.md)\)", re.MULTILINE)
"""In docs/README.md: a line that announces a group of pages, or a page."""
_HEADING = re.compile(r"<h([1-6])>(.*?)</h\1>", re.DOTALL)
_HREF = re.compile(r'(href|src)="([^":#]*)(#[^"]*)?"')
_TAG = re.compile(r"<[^>]+>")

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · Lakefeed</title><link rel="stylesheet" href="{up}site.css"></head>
<body data-up="{up}"><nav><a class="name" href="{up}index.html">Lakefeed</a>
<input id="search" type="search" placeholder="Search" aria-label="Search"><ul id="found"></ul>{menu}</nav>
<main>{body}</main><script src="{up}search.js"></script></body></html>
"""
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --link: #0969da }
@media (prefers-color-scheme: dark) { :root { --link: #58a6ff } }
body { display: flex; margin: 0; font: 16px/1.55 system-ui, sans-serif }
nav { flex: 0 0 15rem; padding: 1.5rem; border-right: 1px solid var(--line); min-height: 100vh; box-sizing: border-box }
nav a { display: block; padding: .15rem 0; text-decoration: none; color: inherit }
nav a.name { font-weight: 700; font-size: 1.2rem } nav a.here { font-weight: 600; color: var(--link) }
nav input { width: 100%; box-sizing: border-box; margin: .8rem 0; padding: .4rem }
nav ul { padding: 0; list-style: none }
nav b { display: block; margin: 1rem 0 .2rem; font-size: .75rem; text-transform: uppercase; opacity: .65 }
@media (min-width: 50rem) { nav { position: sticky; top: 0; height: 100vh; overflow-y: auto } }
#found a { border-left: 3px solid var(--link); padding-left: .5rem; margin: .3rem 0; font-size: .9rem }
main { max-width: 66rem; padding: 1.5rem 2.5rem; min-width: 0 } main p, main li { max-width: 50rem }
main a { color: var(--link) } img { max-width: 100% }
pre { background: var(--soft); padding: .8rem; overflow-x: auto; border-radius: 6px } code { font-size: .9em }
table { border-collapse: collapse; display: block; overflow-x: auto }
th, td { border: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top }
@media (max-width: 50rem) { body { display: block } nav { border: 0; min-height: 0 } main { padding: 1rem } }
"""
_SEARCH = """
const box = document.getElementById('search'), list = document.getElementById('found'), up = document.body.dataset.up;
box.addEventListener('input', () => {
  const words = box.value.toLowerCase().split(/\\s+/).filter(word => word.length > 1);
  const hits = !words.length ? [] : SECTIONS.map(([at, title, text]) => {
    const head = title.toLowerCase(), all = head + ' ' + text;
    const score = words.every(word => all.includes(word)) ? 1 + words.filter(word => head.includes(word)).length : 0;
    return [score, at, title];
  }).filter(hit => hit[0]).sort((one, other) => other[0] - one[0]).slice(0, 12);
  list.replaceChildren(...hits.map(([, at, title]) => {
    const item = document.createElement('li'), link = document.createElement('a');
    link.href = up + at; link.textContent = title; item.append(link); return item;
  }));
});
"""


def build(site: Path) -> list[Path]:
    """Write all pages to ``site``, which is emptied first. Returns them."""
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(DOCS / "img", site / "img")
    shutil.copy(DOCS / "lakefeed.schema.json", site)
    (site / "files").mkdir()  # what pages link to and is no page
    order = [("", "Overview", "index.html")]
    for group, title, target in dict.fromkeys(_LINK.findall((DOCS / "README.md").read_text())):
        if group or all(target.replace(".md", ".html") != page for _, _, page in order):
            order.append((group, title, target.replace(".md", ".html")))
    pages = {site / "index.html": ROOT / "README.md"}
    pages |= {site / page.relative_to(DOCS).with_suffix(".html"): page for page in sorted(DOCS.rglob("*.md"))}
    markdown = MarkdownIt("commonmark").enable("table")
    sections: list[tuple[str, str, str]] = []
    for target, source in pages.items():
        up = "../" * (len(target.relative_to(site).parts) - 1)
        name = target.relative_to(site).as_posix()
        body = _HEADING.sub(_anchored, markdown.render(source.read_text()))
        body = _HREF.sub(lambda match, page=source: _linked(match, page, site), body)  # type: ignore[misc]  # bound now
        found = _HEADING_WITH_ID.split(body)
        title = _text(found[2]) if len(found) > 2 else name
        for anchor, heading, text in zip(found[1::3], found[2::3], found[3::3], strict=True):
            where = _text(heading) if _text(heading) == title else f"{title}: {_text(heading)}"
            sections.append((f"{name}#{anchor}", where, " ".join(_text(text).lower().split())[:2000]))
        menu = "".join(
            f"<b>{html.escape(group)}</b>"
            if group
            else f'<a href="{up}{page}"{" class=here" if page == name else ""}>{html.escape(shown)}</a>'
            for group, shown, page in order
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_PAGE.format(title=html.escape(title), up=up, menu=menu, body=body))
    (site / "site.css").write_text(_STYLE)
    (site / "search.js").write_text(f"const SECTIONS = {json.dumps(sections, ensure_ascii=False)};\n{_SEARCH}")
    return list(pages)


_HEADING_WITH_ID = re.compile(r'<h[1-6] id="([^"]*)">(.*?)</h[1-6]>', re.DOTALL)


def _anchored(match: re.Match[str]) -> str:
    """A heading with the id that links to it use, as GitHub makes them."""
    anchor = re.sub(r"[^\w\- ]", "", _text(match[2])).strip().lower().replace(" ", "-")
    return f'<h{match[1]} id="{anchor}">{match[2]}</h{match[1]}>'


def _linked(match: re.Match[str], page: Path, site: Path) -> str:
    """A link between Markdown files as one between pages; what is outside of docs/ is copied to files/."""
    kind, target, anchor = match[1], match[2], match[3] or ""
    if target:
        there = (page.parent / target).resolve()
        if there == ROOT / "README.md":
            target = os.path.relpath(DOCS / "index.html", page.parent)
        else:
            here = DOCS if page == ROOT / "README.md" else page.parent
            is_page = there.is_relative_to(DOCS)
            if not is_page:
                shutil.copy(there, site / "files")
            target = os.path.relpath(there if is_page else DOCS / "files" / there.name, here)
            target = target.removesuffix(".md") + ".html" if is_page and target.endswith(".md") else target
    return f'{kind}="{target}{anchor}"'


def _text(markup: str) -> str:
    return html.unescape(_TAG.sub("", markup))


if __name__ == "__main__":
    _site = Path(sys.argv[1])
    sys.stdout.write(f"{len(build(_site))} pages; open {_site / 'index.html'}\n")
