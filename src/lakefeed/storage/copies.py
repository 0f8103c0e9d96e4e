"""Which objects the files are copies of that this process keeps of an object store: for readers on other machines."""

from __future__ import annotations

copied_from: dict[str, str] = {}
"""Directories of this process, each with the address of the bucket whose objects lie in it, under their keys."""


def note_copies(directory: str, bucket: str) -> None:
    copied_from[directory] = bucket


def original_of(path: str) -> str | None:
    """The address of the object that a file is a copy of; None for a file that is none."""
    return next(
        (
            f"{bucket}/{path.removeprefix(f'{place}/')}"
            for place, bucket in copied_from.items()
            if path.startswith(f"{place}/")
        ),
        None,
    )
