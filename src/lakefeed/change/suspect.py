"""Suspects of a full comparison: the words that the lake, which writes them, and the capture, which reads them, use."""

from __future__ import annotations

FOUND = "_lakefeed_found"
"""The column that says what a key is suspected of."""

DELETED, CHANGED = "deleted", "changed"
