"""The runtime's contract, over both checkpoint stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakefeed.capture.base import ChangeCapture
from lakefeed.embed.options import RuntimeOptions
from lakefeed.embed.runtime import Runtime
from lakefeed.embed.store import FileCheckpointStore, MemoryCheckpointStore
from lakefeed.errors import LeaseError
from lakefeed.testing.runtime_contract import RuntimeContract


class TestRuntimeOnMemory(RuntimeContract):
    @pytest.fixture(autouse=True)
    def _store(self) -> None:
        self.store = MemoryCheckpointStore()

    def make_runtime(self, capture: ChangeCapture, options: RuntimeOptions) -> Runtime:
        return Runtime(capture, self.store, key="shop", options=options)


class TestRuntimeOnFiles(RuntimeContract):
    @pytest.fixture(autouse=True)
    def _store(self, tmp_path: Path) -> Iterator[None]:
        self.place = tmp_path / "checkpoints"
        self.store = FileCheckpointStore(self.place, fsync=False)
        yield
        self.store.close()

    def make_runtime(self, capture: ChangeCapture, options: RuntimeOptions) -> Runtime:
        self.store.close()
        self.store = FileCheckpointStore(self.place, fsync=False)
        return Runtime(capture, self.store, key="shop", options=options)

    def test_t31_a_second_writer_in_the_same_process_is_refused(self) -> None:
        with pytest.raises(LeaseError):
            FileCheckpointStore(self.place)
