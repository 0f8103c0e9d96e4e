"""A real browser, headless, for pages of this machine: what it shows, what its console says, and a picture."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_CONSOLE = re.compile(r"CONSOLE[:(].*", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Visit:
    """``dom`` is the page's markup after its scripts ran for a while; ``console`` what it logged or violated."""

    dom: str
    console: tuple[str, ...]


def visit(url: str, *, width: int = 1280, height: int = 1000, dark: bool = False, picture: Path | None = None) -> Visit:
    """Open a page in a browser of its own. Fails where there is no Chromium: nothing is skipped in silence."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.fail("there is no Chromium. Remedy: sudo apt-get install chromium, then make browser")
    with TemporaryDirectory(prefix="chromium-") as profile:
        options = [
            "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--hide-scrollbars", f"--user-data-dir={profile}",
            f"--window-size={width},{height}", f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--virtual-time-budget=6000", "--enable-logging=stderr", "--lang=en-GB",
        ]  # fmt: skip
        what = "--dump-dom" if picture is None else f"--screenshot={picture}"
        shown = subprocess.run([found, *options, what, url], capture_output=True, text=True, timeout=120, check=True)
    return Visit(shown.stdout, tuple(_CONSOLE.findall(shown.stderr)))
