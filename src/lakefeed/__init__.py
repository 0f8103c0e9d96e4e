"""Lakefeed keeps lakehouse tables equal to operational databases."""

from lakefeed.capture.trigger.source import Sqlite
from lakefeed.flow.listener import Listener
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.pipeline import Pipeline

__all__ = ["Listener", "Pipeline", "PipelineOptions", "Sqlite"]
