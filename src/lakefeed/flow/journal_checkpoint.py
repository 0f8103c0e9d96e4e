"""The journal seen as a checkpoint store: a pipeline's checkpoint is its journal's head and nothing else."""

from __future__ import annotations

from lakefeed.change.change_set import ChangeSet
from lakefeed.embed.checkpoint import Checkpoint
from lakefeed.errors import CheckpointRewindError
from lakefeed.journal.journal import Journal


class JournalCheckpoint:
    """A CheckpointStore whose ``save`` finds the work already done: the append was the save.

    The one exception is a heartbeat, which moves the position without a change: it becomes an empty commit, so that
    an idle source can still be told to release its log.
    """

    def __init__(self, journal: Journal, kind: str) -> None:
        self._journal = journal
        self._kind = kind

    def load(self, key: str) -> Checkpoint | None:  # noqa: ARG002  # there is one
        end = self._journal.end
        if end is None:
            return None
        identity, committed = self._journal.identity, self._journal.committed_rows
        return Checkpoint.from_position(end, source_type=self._kind, identity=identity, committed=committed)

    def save(self, key: str, checkpoint: Checkpoint) -> None:  # noqa: ARG002  # there is one
        position, end = checkpoint.decoded, self._journal.end
        if position == end:
            return
        if end is not None and not position > end:
            raise CheckpointRewindError(f"the journal is at {end}; it does not go to {position}")
        self._journal.append(ChangeSet(end, position))
