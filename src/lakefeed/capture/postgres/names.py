"""The objects that one pipeline has in the source, and their names."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

_PREFIX = "lakefeed_"
_LONGEST = 63


def quoted(name: str) -> str:
    """An SQL identifier, safe for any name."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class Names:
    """Slot and publication have one name, in lower case with underscores, as slots must.

    A pipeline whose own name is not like that gets a digest behind it, so that no two pipelines can share a slot.
    """

    pipeline: str

    @property
    def slot(self) -> str:
        clean = "".join(
            letter if letter in "abcdefghijklmnopqrstuvwxyz0123456789_" else "_" for letter in self.pipeline
        )
        name = _PREFIX + clean
        if clean == self.pipeline and len(name) <= _LONGEST:
            return name
        digest = hashlib.sha256(self.pipeline.encode()).hexdigest()[:8]
        return f"{name[: _LONGEST - 9]}_{digest}"

    @property
    def publication(self) -> str:
        return self.slot

    @property
    def readers(self) -> str:
        """The application name of connections that read chunks."""
        return f"{self.slot[:57]}_copy"
