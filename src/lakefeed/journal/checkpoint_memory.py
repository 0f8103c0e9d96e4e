"""A checkpoint store that forgets everything with the process: for tests, and for streams that always start anew."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from lakefeed.errors import StateError
from lakefeed.journal.checkpoint import Checkpoint
from lakefeed.journal.checkpoint_rule import refuse_rewind, validate_key


class MemoryCheckpointStore:
    """The rules of every CheckpointStore, nothing durable."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checkpoints: dict[str, Checkpoint] = {}
        self._closed = False

    def save(self, key: str, checkpoint: Checkpoint) -> None:
        validate_key(key)
        with self._lock:
            self._refuse_closed()
            refuse_rewind(key, self._checkpoints.get(key), checkpoint)
            self._checkpoints[key] = checkpoint

    def load(self, key: str) -> Checkpoint | None:
        validate_key(key)
        with self._lock:
            self._refuse_closed()
            return self._checkpoints.get(key)

    def delete(self, key: str) -> None:
        validate_key(key)
        with self._lock:
            self._refuse_closed()
            self._checkpoints.pop(key, None)

    def list(self) -> tuple[str, ...]:
        return tuple(self.all())

    def all(self) -> Mapping[str, Checkpoint]:
        with self._lock:
            self._refuse_closed()
            return dict(sorted(self._checkpoints.items()))

    def damaged(self) -> Mapping[str, str]:
        """Memory does not rot."""
        return {}

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StateError("the checkpoint store is closed", remedy="Open a new one.")
