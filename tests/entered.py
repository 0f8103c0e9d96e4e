"""Which functions of Lakefeed some work passes through: how many hops a reader of the code has to follow."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import lakefeed

_ROOT = str(Path(lakefeed.__file__).parent) + "/"
_NO_FUNCTIONS = ("<module>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>")


def functions_entered(work: Callable[[], object]) -> list[str]:
    """``file:function`` of all that are entered while ``work`` runs, in any thread, in order of their first call.

    Classes, comprehensions and what is made by dataclasses do not count.
    """
    found: dict[str, None] = {}

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_ROOT) and code.co_name not in _NO_FUNCTIONS:
            first_line = f":{code.co_firstlineno}" if not hasattr(code, "co_qualname") else ""
            is_class_body = "__qualname__" in code.co_names
            if not is_class_body:
                name = getattr(code, "co_qualname", code.co_name)
                found.setdefault(f"{code.co_filename.removeprefix(_ROOT)}:{name}{first_line}", None)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(found)
