"""Delta keeps the contract of mode temporal."""

from __future__ import annotations

import pytest
from tests.lake.on_delta import OnDelta

from lakefeed.testing.temporal_contract import TemporalContract

pytestmark = pytest.mark.spark


class TestDeltaTemporal(OnDelta, TemporalContract):
    """See ``TemporalContract``."""


@pytest.mark.slow  # a MERGE each; that of the mirror runs always
class TestDeltaTemporalWithDeletionVectors(OnDelta, TemporalContract):
    """Versions are closed by MERGE, which masks rows; no files are exchanged."""

    deletion_vectors = True
