"""Mirror, Temporal and Append: see ``base`` for what a mode is."""

from lakefeed.lake.mode.append import Append
from lakefeed.lake.mode.base import CurrentRows, Interval, Mode
from lakefeed.lake.mode.mirror import Mirror
from lakefeed.lake.mode.registry import MODES, checked_mode, mode_from_json, mode_named
from lakefeed.lake.mode.temporal import Temporal

__all__ = [
    "MODES",
    "Append",
    "CurrentRows",
    "Interval",
    "Mirror",
    "Mode",
    "Temporal",
    "checked_mode",
    "mode_from_json",
    "mode_named",
]
