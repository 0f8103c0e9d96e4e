"""Delta keeps the contract of mode temporal."""

from __future__ import annotations

import pytest
from tests.lake.on_delta import OnDelta

from lakefeed.testing.temporal_contract import TemporalContract

pytestmark = pytest.mark.spark


class TestDeltaTemporal(OnDelta, TemporalContract):
    """See ``TemporalContract``."""


@pytest.mark.slow  # the same rules by marks run always on Iceberg
class TestDeltaTemporalWithDeletionVectors(OnDelta, TemporalContract):
    """Versions that are closed are marked as deleted and written again; no files are exchanged."""

    deletion_vectors = True
