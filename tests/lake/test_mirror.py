"""Delta keeps the contract of the options of mode mirror."""

from __future__ import annotations

import pytest
from tests.lake.on_delta import OnDelta

from lakefeed.testing.mode_contract import MirrorContract, ModeContract

pytestmark = pytest.mark.spark


class TestDeltaMirror(OnDelta, MirrorContract):
    """See ``MirrorContract``."""


@pytest.mark.slow  # test_marks has every step of it
class TestDeltaMirrorByMarks(OnDelta, ModeContract):
    """Rows are marked as deleted; no files are exchanged. A whole history: its rules run below."""

    deletion_vectors = True
    KEPT = MirrorContract.KEPT
    test_history = MirrorContract.test_deleted_rows_stay_with_their_values_however_changes_are_grouped


@pytest.mark.slow  # the same rules by marks run always on Iceberg
class TestDeltaMirrorWithDeletionVectors(OnDelta, MirrorContract):
    """Rows are marked as deleted; no files are exchanged."""

    deletion_vectors = True
