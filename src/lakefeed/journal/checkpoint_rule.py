"""The rules every checkpoint store keeps: which keys there may be, and that no save moves a stream back."""

from __future__ import annotations

from lakefeed.errors import CheckpointRewindError, ConfigError
from lakefeed.journal.checkpoint import SNAPSHOT_SUFFIX, Checkpoint, PositionType

# A key becomes part of a file name (255 bytes on every common file system), the temporary form of which adds 51.
MAX_KEY_BYTES = 200


def validate_key(key: str) -> None:
    """Raise ConfigError unless ``key`` can safely be part of a file name, in every backend alike."""
    problem = _problem(key)
    if problem is not None:
        raise ConfigError(
            f"Invalid checkpoint key {key[:80]!r}: it {problem}",
            remedy="Use a name like mydb.public.users.",
        )


def refuse_rewind(key: str, stored: Checkpoint | None, new: Checkpoint) -> None:
    """Raise CheckpointRewindError if ``new`` must not take the place of ``stored``. The rules, in this order:

    1. The position of ``new`` must be readable (CheckpointError): what cannot be read now cannot be resumed from.
    2. The identity stays. It may be learned, not changed or forgotten.
    3. The source type stays, but for the step from ``x_snapshot`` to ``x`` when a snapshot is done.
    4. The number of committed events does not fall.
    5. The position stays or grows. Positions that are not ordered are refused like older ones. Only of Custom
       positions, which have no order at all, and in the step of rule 3, is the count of rule 4 the whole test.
    """
    new_position = new.decoded
    if stored is None:
        return
    if stored.identity is not None and new.identity != stored.identity:
        raise _refusal(key, stored, new, f"it belongs to the database {stored.identity}, not {new.identity}")
    snapshot_done = stored.source_type == new.source_type + SNAPSHOT_SUFFIX
    if new.source_type != stored.source_type and not snapshot_done:
        raise _refusal(key, stored, new, f"it belongs to the source {stored.source_type}, not {new.source_type}")
    if new.committed < stored.committed:
        raise _refusal(key, stored, new, f"{stored.committed} events are committed, not {new.committed}")
    if snapshot_done or new.position_type is stored.position_type is PositionType.CUSTOM:
        return
    if new.position_type is not stored.position_type:
        raise _refusal(key, stored, new, "the two are not of one kind")
    order = new_position.compare(stored.decoded)
    if order is None:
        raise _refusal(key, stored, new, "the two are not ordered: each has something that the other lacks")
    if order < 0:
        raise _refusal(key, stored, new, "that would move it back")


def _problem(key: str) -> str | None:
    if not key:
        return "is empty"
    if "/" in key or "\\" in key:
        return "contains a slash"
    if ".." in key:
        return "contains two dots in a row"
    if key.startswith("."):
        return "starts with a dot"
    if not key.isprintable():
        return "contains a character that cannot be printed"
    if len(key.encode()) > MAX_KEY_BYTES:
        return f"is longer than {MAX_KEY_BYTES} bytes"
    return None


def _refusal(key: str, stored: Checkpoint, new: Checkpoint, reason: str) -> CheckpointRewindError:
    return CheckpointRewindError(
        f"checkpoint '{key}' stays at {_name(stored)} and does not go to {_name(new)}: {reason}"
    )


def _name(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.position_type.value} {checkpoint.position}"
