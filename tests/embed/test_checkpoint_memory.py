"""The memory store keeps the contract of every store."""

from __future__ import annotations

from lakefeed.embed.checkpoint import CheckpointStore
from lakefeed.embed.store import MemoryCheckpointStore
from lakefeed.testing.checkpoint_contract import CheckpointStoreContract


class TestMemoryCheckpointStore(CheckpointStoreContract):
    def make_store(self) -> CheckpointStore:
        return MemoryCheckpointStore()
