"""Delta keeps the contract of the options of mode mirror."""

from __future__ import annotations

import pytest
from tests.lake.on_delta import OnDelta

from lakefeed.testing.mode_contract import MirrorContract

pytestmark = pytest.mark.spark


class TestDeltaMirror(OnDelta, MirrorContract):
    """See ``MirrorContract``."""


class TestDeltaMirrorWithDeletionVectors(OnDelta, MirrorContract):
    """Changes come by MERGE, which masks rows; no files are exchanged."""

    deletion_vectors = True
