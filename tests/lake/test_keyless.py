"""Delta keeps the contract of mirrors of tables without a key."""

from __future__ import annotations

import pytest
from tests.lake.on_delta import OnDelta

from lakefeed.testing.mode_contract import KeylessContract

pytestmark = pytest.mark.spark


class TestDeltaKeyless(OnDelta, KeylessContract):
    """See ``KeylessContract``."""
