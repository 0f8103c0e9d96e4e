"""Which objects of an object store this process has local copies of: for readers on other machines."""

from __future__ import annotations

copied_from: dict[str, str] = {}
"""Local directories, each with the address of the bucket whose objects are copied into it, under their keys."""


def note_copies(directory: str, bucket: str) -> None:
    copied_from[directory] = bucket


def original_of(path: str) -> str | None:
    """The address of the object that a file is a copy of; None if it is not a copy."""
    return next(
        (
            f"{bucket}/{path.removeprefix(f'{directory}/')}"
            for directory, bucket in copied_from.items()
            if path.startswith(f"{directory}/")
        ),
        None,
    )
